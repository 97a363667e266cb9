"""A kernel's disk, made of packages as Debian cuts them. tests/vm boots real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeside.trial.debian.kernels import available_kernels
from nodeside.trial.errors import TrialError
from nodeside.trial.machine import kernel_disk
from nodeside.trial.machine.kernel_disk import KernelDisk
from tests.trial.debian.local_archive import BOOKWORM, SID, Files, LocalArchive
from tests.trial.machine.images import debugfs

pytestmark = pytest.mark.slow

OLD, NEW = "6.1.0-47-cloud-amd64", "7.2.13+deb14-cloud-amd64"
BUILT_IN = "kernel/lib/crc16.ko\n"

FILES_OF_BOOKWORM: dict[str, Files] = {
    f"linux-image-{OLD}": {
        f"boot/vmlinuz-{OLD}": "the kernel",
        f"boot/System.map-{OLD}": "",
        f"lib/modules/{OLD}/kernel/fs/README": "modules",
        f"lib/modules/{OLD}/modules.builtin": BUILT_IN,
        f"lib/modules/{OLD}/modules.order": "",
    },
    f"linux-headers-{OLD}": {f"usr/src/linux-headers-{OLD}/Module.symvers": "symbols"},
}
FILES_OF_SID: dict[str, Files] = {
    f"linux-binary-{NEW}": {f"usr/lib/modules/{NEW}/vmlinuz": "the kernel"},
    f"linux-binary-unsigned-{NEW}": {f"usr/lib/modules/{NEW}/vmlinuz": "not this one"},
    f"linux-modules-{NEW}": {f"usr/lib/modules/{NEW}/kernel/fs/README": "modules"},
    f"linux-base-{NEW}": {
        f"usr/lib/modules/{NEW}/System.map": "",
        f"usr/lib/modules/{NEW}/config": "",
        f"usr/lib/modules/{NEW}/modules.builtin": BUILT_IN,
        f"usr/lib/modules/{NEW}/modules.order": "",
    },
    f"linux-headers-{NEW}": {f"usr/src/linux-headers-{NEW}/Module.symvers": "symbols"},
    "linux-base": {"usr/bin/linux-version": "a tool of the host"},
}


@pytest.fixture
def archive(tmp_path: Path) -> LocalArchive:
    return LocalArchive(tmp_path)


def make(archive: LocalArchive) -> KernelDisk:
    with archive.cache:
        (kernel,) = available_kernels(archive)
        return kernel_disk.make_kernel_disk(kernel, archive, archive.cache, archive.progress)


@pytest.mark.parametrize(
    ("index", "files", "release", "compiler"),
    [(BOOKWORM, FILES_OF_BOOKWORM, OLD, "gcc-12"), (SID, FILES_OF_SID, NEW, "gcc-16")],
    ids=["bookworm", "sid"],
)
def test_the_kernel_its_modules_and_its_headers_come_from_the_packages(
    archive: LocalArchive, index: str, files: dict[str, Files], release: str, compiler: str
) -> None:
    archive.publish(index, files)

    disk = make(archive)

    assert (disk.release, disk.compiler) == (release, compiler)
    assert disk.vmlinuz.read_text() == "the kernel"
    modules = f"usr/lib/modules/{release}"
    assert debugfs(disk.image, f"cat /{modules}/kernel/fs/README") == "modules"
    assert debugfs(disk.image, f"cat /{modules}/modules.builtin") == BUILT_IN
    assert debugfs(disk.image, f"ls /{modules}/modules.dep") != ""
    assert (disk.tree / f"usr/src/linux-headers-{release}/Module.symvers").exists()
    assert not list(disk.tree.rglob("vmlinuz*")), "a build does not need it"


@pytest.mark.parametrize("missing", ["binary", "modules"])
def test_packages_that_are_cut_in_another_way_are_said(archive: LocalArchive, missing: str) -> None:
    rest = {name: files for name, files in FILES_OF_SID.items() if f"-{missing}-" not in name}
    archive.publish(SID, rest)

    what = {"binary": "kernel", "modules": "modules"}[missing]
    with pytest.raises(TrialError, match=rf"the packages of 7\.2\.13\S+ have no {what} in them"):
        make(archive)
