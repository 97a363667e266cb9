"""Disk images, made without mounting and read back without mounting."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeside.system import process
from nodeside.trial.cache import MIB
from nodeside.trial.machine import disks
from tests.trial.machine.images import debugfs


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "etc").mkdir(parents=True)
    (tree / "etc" / "name").write_text("trial\n")
    (tree / "tool").write_text("#!/bin/sh\n")
    (tree / "tool").chmod(0o755)
    (tree / "link").symlink_to("etc/name")
    return tree


def test_an_image_has_the_content_and_modes_of_the_tree(tree: Path, tmp_path: Path) -> None:
    image = tmp_path / "disk.ext4"

    disks.make_ext4(tree, image, label="node")

    assert debugfs(image, "cat /etc/name") == "trial\n"
    assert "Mode:  0755" in debugfs(image, "stat /tool")
    assert 'Fast link dest: "etc/name"' in debugfs(image, "stat /link")
    assert process.run(["fsck.ext4", "-fn", image], timeout=60).exit_code == 0


def test_free_space_costs_nothing(tree: Path, tmp_path: Path) -> None:
    image = tmp_path / "disk.ext4"

    disks.make_ext4(tree, image, label="node", free_mib=2048)

    status = image.stat()
    assert status.st_size > 2048 * MIB
    assert status.st_blocks * 512 < 200 * MIB


@pytest.mark.slow
def test_many_small_files_fit(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for number in range(3000):
        path = tree / f"{number % 50}" / f"{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")

    disks.make_ext4(tree, tmp_path / "disk.ext4", label="kernel")

    assert debugfs(tmp_path / "disk.ext4", "cat /49/2999") == "x"


def test_an_overlay_reads_from_its_base(tree: Path, tmp_path: Path) -> None:
    disks.make_ext4(tree, tmp_path / "base.ext4", label="node")

    disks.make_overlay(tmp_path / "base.ext4", tmp_path / "node.qcow2")

    info = process.run(["qemu-img", "info", tmp_path / "node.qcow2"], timeout=20).output
    assert f"backing file: {tmp_path}/base.ext4" in info
    assert (tmp_path / "node.qcow2").stat().st_size < MIB
