"""The sha256 of a file on disk, read in pieces.

Stdlib only: the toolkit sidecar may use this module too. What is hashed while it is copied or
downloaded is hashed there.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from nodeside.errors import SystemRefused


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hex. Raises SystemRefused if it cannot be read."""
    return sha256_and_size(path)[0]


def sha256_and_size(path: Path) -> tuple[str, int]:
    """The sha256 of a file, in hex, and how many bytes that were. Raises SystemRefused."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size
    except OSError as exc:
        raise SystemRefused(f"cannot read {path}: {exc.strerror}") from exc
