"""The sha256 of a file on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeside.errors import SystemRefused
from nodeside.system.digests import sha256_and_size, sha256_of

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, B.1


def test_the_digest_and_the_size_are_those_of_the_content(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"abc")
    assert sha256_and_size(file) == (ABC, 3)
    assert sha256_of(file) == ABC


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemRefused, match=r"cannot read .*/nowhere: No such file or directory"):
        sha256_of(tmp_path / "nowhere")
    with pytest.raises(SystemRefused, match="Is a directory"):
        sha256_of(tmp_path)
