"""Where the kernel's symbol list comes from; the sidecar's may be forged by a build."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest

from nodeside.driver.module.symvers import symbols_of
from nodeside.host import Host
from nodeside.shared import SharedDir
from tests.driver.fakes.kernel import write_bytes

RELEASE = "6.1.0-test"
LINE = "0x12345678\tprintk\tvmlinux\tEXPORT_SYMBOL\t\n"


def shared_with(directory: Path, text: str) -> SharedDir:
    shared = SharedDir(directory / "shared")
    shared.create()
    shared.symvers(RELEASE).write_text(text)
    return shared


def test_the_sidecars_list_serves_where_the_node_has_none(tmp_path: Path) -> None:
    found = symbols_of(Host(tmp_path), RELEASE, shared_with(tmp_path, LINE))
    assert found is not None
    assert found["printk"].crc == 0x12345678


def test_a_list_larger_than_any_kernels_is_not_read(tmp_path: Path) -> None:
    """Each byte of it takes several in memory."""
    shared = shared_with(tmp_path, LINE * ((8 << 20) // len(LINE) + 1))
    assert symbols_of(Host(tmp_path), RELEASE, shared) is None


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_a_damaged_list_is_passed_over(tmp_path: Path, suffix: str) -> None:
    pack = gzip.compress if suffix == ".gz" else lzma.compress
    data = bytearray(pack(LINE.encode() * 1000))
    data[20:40] = b"\xff" * 20
    host = Host(tmp_path)
    write_bytes(host.lib_modules(RELEASE) / f"symvers{suffix}", bytes(data))

    found = symbols_of(host, RELEASE, shared_with(tmp_path, LINE))

    assert found is not None
    assert len(found) == 1
