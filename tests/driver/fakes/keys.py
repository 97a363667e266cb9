"""A signing key with its certificate, and a module to sign."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nodeside.system.process import run
from tests import CORPUS

SPECIMEN = CORPUS / "modules" / "specimen.ko"


@dataclass(frozen=True)
class Pair:
    """A key and its certificate, as `openssl req -x509` makes them."""

    key: Path
    certificate: Path


def make_pair(directory: Path, name: str, *more: str) -> Pair:
    pair = Pair(directory / f"{name}.key", directory / f"{name}.pem")
    run(
        ["openssl", "req", "-x509", "-nodes", "-batch", "-newkey", "rsa:2048", "-days", "9",
         "-subj", f"/O=Acme/CN={name}", "-keyout", pair.key, "-out", pair.certificate, *more],
        timeout=60,
    )  # fmt: skip
    pair.key.chmod(0o600)
    return pair
