"""A signing key with its certificate, and a module to sign."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from nodeside.system.process import run
from tests import CORPUS

SPECIMEN = CORPUS / "modules" / "specimen.ko"


@dataclass(frozen=True)
class Pair:
    """A key and its certificate, as `openssl req -x509` makes them."""

    key: Path
    certificate: Path


def make_pair(directory: Path, name: str, *more: str) -> Pair:
    """The same pair for the same words: to find the primes of a key takes half a second."""
    pair = Pair(directory / f"{name}.key", directory / f"{name}.pem")
    key, certificate = _made_once(name, more)
    pair.key.write_bytes(key)
    pair.key.chmod(0o600)
    pair.certificate.write_bytes(certificate)
    return pair


@cache
def _made_once(name: str, more: tuple[str, ...]) -> tuple[bytes, bytes]:
    with TemporaryDirectory() as directory:
        key, certificate = Path(directory, "key"), Path(directory, "pem")
        run(
            ["openssl", "req", "-x509", "-nodes", "-batch", "-newkey", "rsa:2048", "-days", "9",
             "-subj", f"/O=Acme/CN={name}", "-keyout", key, "-out", certificate, *more],
            timeout=60,
        )  # fmt: skip
        return key.read_bytes(), certificate.read_bytes()
