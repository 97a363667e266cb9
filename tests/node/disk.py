"""The node's disk: Debian with systemd, containerd, runc, CNI plugins and a kubelet; made once.

    /usr/local/bin        kubelet, containerd, its shim, ctr
    /usr/lib/cni          Debian's plugins
    /usr/lib/modules      where the kernel's disk is seen, as on any node
    /etc                  the units and settings of configuration.py that are the same in each boot

The base image is in the trial's cache; a machine writes to an overlay of its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from nodeside.system import process
from nodeside.trial.cache import digest_of
from nodeside.trial.machine import disks
from nodeside.trial.workshop import Workshop
from tests.node import configuration

# apparmor: what a node of Debian or Ubuntu has, so that the pod's profile means something.
# podman: for work by hand where no kubelet runs.
PACKAGES = (
    "systemd", "systemd-sysv", "udev", "dbus", "kmod", "iproute2", "iptables", "procps",
    "apparmor", "runc", "containernetworking-plugins", "podman", "python3",
)  # fmt: skip
_FREE_MIB = 8192  # for images and builds; sparse
_LINKED = ("dev", "proc", "sys", "run", "tmp")  # filled by the kernel or systemd


def make_disk(workshop: Workshop, programs: Mapping[str, Path]) -> Path:
    """The base image."""
    root = workshop.roots.make("node", PACKAGES)
    sizes = "".join(f"{name} {path}\n" for name, path in sorted(programs.items()))
    name = f"{root.parent.name}-{digest_of(sizes + repr(configuration.FILES))}"

    def fill(directory: Path) -> None:
        workshop.progress.print_step("making the disk of a node with a kubelet")
        tree = directory / "tree"
        process.run(["cp", "-al", root, tree], timeout=300)
        _settle(tree, programs)
        disks.make_ext4(tree, directory / "node.ext4", label="node", free_mib=_FREE_MIB)
        shutil.rmtree(tree)

    return workshop.cache.make("kubelets", name, fill, needs_mib=2048) / "node.ext4"


def _settle(tree: Path, programs: Mapping[str, Path]) -> None:
    for name in _LINKED:
        shutil.rmtree(tree / name, ignore_errors=True)
        (tree / name).mkdir()
    for name in ("kernel", "payload", "usr/lib/modules", "usr/local/bin", "var/lib/containerd"):
        (tree / name).mkdir(parents=True, exist_ok=True)
    for name, program in programs.items():
        shutil.copy(program, tree / "usr" / "local" / "bin" / name)
    for name, text in configuration.FILES.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # a hard link to the root file system in the cache
        path.write_text(text)
    for unit in configuration.ENABLED:
        _link(tree / "etc/systemd/system/multi-user.target.wants" / unit, f"../{unit}")
    for unit in configuration.MASKED:
        _link(tree / "etc/systemd/system" / unit, "/dev/null")


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)
