"""The node's first disk: a tiny host with both root file systems on it.

    /bin, /sbin             busybox
    /driver, /toolkit       the two root file systems, lower layers of the containers
    /var/lib/nodeside       the node's state that persists over reboots
    /var/lib/pod/shared     the directory that the pod's containers share
    /kernel, /payload       mount points of the other two disks

The base image is cached. A trial writes to an overlay of its own, which lives as long as the trial
and keeps its content over the machine's reboots.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from nodeside.system import process
from nodeside.trial.cache import TrialCache
from nodeside.trial.machine import disks
from nodeside.trial.machine.initramfs import BUSYBOX
from nodeside.trial.progress import Progress

RECIPE = 1
FREE_MIB = 6144  # for builds and the node's cache; sparse

_DIRECTORIES = (
    "bin", "dev", "etc", "kernel", "payload", "proc", "root", "run", "sys", "tmp", "lib",
    "var/lib/nodeside", "var/lib/pod/shared",
)  # fmt: skip


def make_node_disk(
    driver: Path,
    toolkit: Path,
    cache: TrialCache,
    progress: Progress,
    *,
    busybox: Path = BUSYBOX,
) -> Path:
    """Return the base image for these root file systems. `busybox` is a static one for them."""
    name = f"{driver.parent.name}-{toolkit.parent.name}-{RECIPE}"

    def fill(directory: Path) -> None:
        progress.print_step("making the node disk")
        tree = directory / "tree"
        _lay_out(tree, busybox)
        _link_tree(driver, tree / "driver")
        _link_tree(toolkit, tree / "toolkit")
        disks.make_ext4(tree, directory / "node.ext4", label="node", free_mib=FREE_MIB)
        shutil.rmtree(tree)

    return cache.make("nodes", name, fill, needs_mib=2048) / "node.ext4"


def _lay_out(tree: Path, busybox: Path) -> None:
    for name in _DIRECTORIES:
        (tree / name).mkdir(parents=True)
    (tree / "sbin").symlink_to("bin")
    (tree / "lib" / "modules").symlink_to("../kernel/usr/lib/modules")
    shutil.copyfile(busybox, tree / "bin" / "busybox")
    (tree / "bin" / "busybox").chmod(0o755)
    for applet in process.run([busybox, "--list"], timeout=10).output.split():
        if applet != "busybox":
            (tree / "bin" / applet).symlink_to("busybox")
    (tree / "etc" / "os-release").write_text('ID=nodeside-trial\nNAME="nodeside trial node"\n')
    (tree / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (tree / "etc" / "hostname").write_text("trial\n")


def _link_tree(source: Path, target: Path) -> None:
    """Copy by hard links, which costs no space and keeps owners and modes."""
    process.run(["cp", "-al", source, target], timeout=300)
    for name in ("dev", "proc", "sys"):
        shutil.rmtree(target / name, ignore_errors=True)
        (target / name).mkdir()
