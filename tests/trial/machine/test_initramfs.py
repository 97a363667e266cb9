"""The initramfs: which modules, in which order, in an archive that cpio itself can read."""

from __future__ import annotations

import lzma
import shutil
from pathlib import Path

import pytest

from nodeside.driver.node.intree import read_tree
from nodeside.system import process
from nodeside.trial.errors import TrialError
from nodeside.trial.machine import initramfs
from nodeside.trial.machine.cpio import CpioArchive

MODULES_DEP = """\
kernel/virtio/virtio_ring.ko:
kernel/virtio/virtio.ko: kernel/virtio/virtio_ring.ko
kernel/virtio/virtio_pci.ko: kernel/virtio/virtio.ko kernel/virtio/virtio_ring.ko
kernel/fs/mbcache.ko.xz:
kernel/fs/ext4/ext4.ko.xz: kernel/fs/mbcache.ko.xz
"""


def test_modules_come_after_what_they_need(tmp_path: Path) -> None:
    _lay_out_modules(tmp_path)

    order = initramfs.load_order(("virtio_pci", "ext4"), read_tree(tmp_path))

    assert order == ["virtio_ring", "virtio", "virtio_pci", "mbcache", "ext4"]


def test_built_in_and_unknown_modules_are_left_out(tmp_path: Path) -> None:
    _lay_out_modules(tmp_path)
    (tmp_path / "modules.builtin").write_text("kernel/virtio/virtio_pci.ko\n")

    assert initramfs.load_order(("virtio_pci", "nosuch"), read_tree(tmp_path)) == []


def test_compressed_modules_are_stored_as_the_kernel_loads_them(tmp_path: Path) -> None:
    _lay_out_modules(tmp_path)

    data = initramfs.build_initramfs(tmp_path)

    assert b"plain ext4" in data
    assert b"modules/ext4.ko\0" in data
    assert b"mbcache.ko\next4.ko\n" in data


def test_cpio_reads_the_archive(tmp_path: Path) -> None:
    if shutil.which("cpio") is None:
        pytest.fail("cpio is not installed: apt-get install cpio", pytrace=False)
    archive = CpioArchive()
    archive.add_file("bin/tool", b"#!/bin/sh\n", 0o755)
    archive.add_link("bin/other", "tool")
    archive.add_directory("proc")

    done = process.run(["cpio", "-itv"], input=archive.to_bytes(), timeout=10)

    rows = [line.split() for line in done.output.splitlines()]
    assert [(row[0], row[8]) for row in rows] == [
        ("drwxr-xr-x", "bin"),
        ("-rwxr-xr-x", "bin/tool"),
        ("lrwxrwxrwx", "bin/other"),
        ("drwxr-xr-x", "proc"),
    ]


def test_missing_busybox_is_said_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(initramfs, "BUSYBOX", tmp_path / "busybox")

    with pytest.raises(TrialError, match="busybox is missing") as caught:
        initramfs.build_initramfs(tmp_path)

    assert caught.value.hint == "apt-get install busybox-static"


def _lay_out_modules(root: Path) -> None:
    (root / "modules.dep").write_text(MODULES_DEP)
    (root / "modules.builtin").write_text("kernel/lib/crc16.ko\n")
    for name in ("virtio_ring", "virtio", "virtio_pci"):
        path = root / "kernel/virtio" / f"{name}.ko"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"plain {name}".encode())
    for relative in ("fs/mbcache", "fs/ext4/ext4"):
        path = root / "kernel" / f"{relative}.ko.xz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lzma.compress(f"plain {path.name.split('.')[0]}".encode()))
