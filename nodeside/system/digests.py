"""The sha256 of a file on disk, computed in chunks.

Stdlib only: the toolkit sidecar may use this module too. Code that copies or downloads a file
hashes it on the way and does not use this module.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from nodeside.errors import SystemRefused


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file, in hex. Raises SystemRefused if it cannot be read."""
    return sha256_and_size(path)[0]


def sha256_and_size(path: Path) -> tuple[str, int]:
    """Return the sha256 of a file, in hex, and its size in bytes. Raises SystemRefused."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size
    except OSError as exc:
        raise SystemRefused(f"cannot read {path}: {exc.strerror}") from exc
