"""Where the kernel's symbol list comes from; the sidecar's may be forged by a build."""

from __future__ import annotations

import gzip
import lzma
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeside.driver.module.symvers import read_kernel_symbols
from nodeside.protocol.shared_directory import SharedDir
from nodeside.system.host import Host
from tests.tries import is_tried

RELEASE = "6.1.0-test"
LINE = "0x12345678\tprintk\tvmlinux\tEXPORT_SYMBOL\t\n"


def shared_with(directory: Path, text: str) -> SharedDir:
    shared = SharedDir(directory / "shared")
    shared.create()
    shared.symvers_path(RELEASE).write_text(text)
    return shared


def test_the_sidecars_list_serves_where_the_node_has_none(tmp_path: Path) -> None:
    found = read_kernel_symbols(Host(tmp_path), RELEASE, shared_with(tmp_path, LINE))
    assert found is not None
    assert found["printk"].crc == 0x12345678


def test_a_list_larger_than_any_kernels_is_not_read(tmp_path: Path) -> None:
    """Each byte of it takes several in memory."""
    shared = shared_with(tmp_path, LINE * ((8 << 20) // len(LINE) + 1))
    assert read_kernel_symbols(Host(tmp_path), RELEASE, shared) is None


COMPRESSORS: list[tuple[str, Callable[[bytes], bytes]]] = [
    (".gz", gzip.compress),
    (".xz", lzma.compress),
]


def node_with(directory: Path, suffix: str, data: bytes) -> Host:
    """A node whose kernel has a compressed list beside it."""
    host = Host(directory / "node")
    place = host.lib_modules(RELEASE)
    place.mkdir(parents=True)
    (place / f"symvers{suffix}").write_bytes(data)
    return host


@pytest.mark.parametrize(("suffix", "compress"), COMPRESSORS)
def test_a_compressed_list_is_read(
    suffix: str, compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    found = read_kernel_symbols(node_with(tmp_path, suffix, compress(LINE.encode())), RELEASE, None)
    assert found is not None
    assert found["printk"].crc == 0x12345678


@pytest.mark.parametrize(("suffix", "compress"), COMPRESSORS)
def test_a_damaged_list_of_the_node_is_warned_about_and_blocks_nothing(
    suffix: str,
    compress: Callable[[bytes], bytes],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    good = compress(LINE.encode() * 1000)
    shared = shared_with(tmp_path, LINE)
    host = node_with(tmp_path, suffix, good)
    path = host.lib_modules(RELEASE) / f"symvers{suffix}"
    for damaged in (
        *(
            good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :]
            for at in range(len(good))
            if is_tried(at)
        ),
        *(good[:length] for length in range(len(good)) if is_tried(length)),
    ):
        path.write_bytes(damaged)
        found = read_kernel_symbols(host, RELEASE, shared)
        assert found is not None
        assert "printk" in found

    assert "a symbol list cannot be used" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "compress"), COMPRESSORS)
def test_a_compressed_list_does_not_expand_without_limit(
    suffix: str,
    compress: Callable[[bytes], bytes],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = node_with(tmp_path, suffix, compress(bytes(128 << 20)))
    tracemalloc.start()
    try:
        assert read_kernel_symbols(host, RELEASE, None) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 64 << 20
    assert "a symbol list cannot be used" in caplog.text
