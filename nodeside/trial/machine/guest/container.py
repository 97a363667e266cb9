"""A container on the node: namespaces, a layered root file system, mounts, few privileges.

The host decides what a container gets (`machine/containers.py`). This module applies it in the
child between fork and exec. The container's file system is an overlay whose upper layer is
in memory and ends with the container, as in a pod.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nodeside.trial.machine.guest import syscalls as sc

_RUN = Path("/run/containers")
_CGROUPS = Path("/sys/fs/cgroup")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


class GuestContainer:
    """One container. `spec` is `ContainerSpec` as a JSON object.

    `directory` has its upper layer and its root. If `cgroup` is None, it stays in the caller's
    cgroup.
    """

    def __init__(self, spec: Mapping[str, Any], directory: Path, cgroup: Path | None) -> None:
        self.spec = spec
        self.directory = directory
        self.cgroup = cgroup

    @classmethod
    def on_node(cls, id: int, spec: Mapping[str, Any]) -> GuestContainer:
        return cls(spec, _RUN / str(id), _CGROUPS / f"container-{id}")

    @property
    def namespaces(self) -> int:
        """Return the flags of its namespaces, except the PID namespace, which needs a fork."""
        flags = sc.CLONE_NEWNS | sc.CLONE_NEWCGROUP | sc.CLONE_NEWUTS | sc.CLONE_NEWIPC
        return flags if self.spec["network"] else flags | sc.CLONE_NEWNET

    def prepare(self) -> None:
        """Create what outlives the child: directories and the cgroup. Runs in the agent."""
        for name in ("upper", "work", "root"):
            (self.directory / name).mkdir(parents=True)
        if self.cgroup is not None:
            self.cgroup.mkdir()
            for name, value in self.spec["limits"].items():
                (self.cgroup / name).write_text(value)
        for source, _, _ in self.spec["binds"]:
            if not Path(source).exists():
                Path(source).mkdir(parents=True)

    def remove(self) -> None:
        """Remove the upper layer and the cgroup, when nothing runs in them any more."""
        shutil.rmtree(self.directory, ignore_errors=True)
        with suppress(OSError):  # a joined process still runs; the cgroup ends with the machine
            if self.cgroup is not None:
                self.cgroup.rmdir()

    def enter_new(self) -> None:
        """Become the first process of the container. Runs in the child."""
        if self.cgroup is not None:
            (self.cgroup / "cgroup.procs").write_text("0")
        sc.unshare(self.namespaces)
        sc.mount("none", "/", flags=sc.MS_REC | sc.MS_PRIVATE)
        root = self._mount_root()
        self._mount_system(root)
        for source, target, options in self.spec["binds"]:
            bind_mount(source, f"{root}{target}", options)
        sc.pivot_root(str(root))

    def enter_existing(self, pidfd: int) -> None:
        """Become another process of the container, as `kubectl exec` does. Runs in the child."""
        sc.setns(pidfd, self.namespaces)
        os.chdir("/")

    def wrap_command(self, argv: Sequence[str]) -> list[str]:
        """Return the command that drops privileges in the container and then runs `argv`."""
        words = ["setpriv"]
        if (capabilities := self.spec["capabilities"]) is not None:
            bounding = ",".join(["-all", *(f"+{name}" for name in capabilities)])
            words += [f"--bounding-set={bounding}", "--inh-caps=-all"]
        if uid := self.spec["uid"]:
            words += [f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        if self.spec["no_new_privileges"]:
            words.append("--no-new-privs")
        return [*words, "--", *argv] if len(words) > 1 else list(argv)

    def _mount_root(self) -> Path:
        root = self.directory / "root"
        layers = ":".join(self.spec["layers"])
        upper = f"upperdir={self.directory}/upper,workdir={self.directory}/work"
        sc.mount("overlay", str(root), "overlay", options=f"lowerdir={layers},{upper}")
        return root

    def _mount_system(self, root: Path) -> None:
        """Mount /proc, /sys and /dev as a container runtime does."""
        sc.mount("proc", f"{root}/proc", "proc", sc.MS_NOSUID | sc.MS_NODEV | sc.MS_NOEXEC)
        if self.spec["privileged"]:
            bind_mount("/sys", f"{root}/sys", "")
            bind_mount("/dev", f"{root}/dev", "")
        else:
            sc.mount("/sys", f"{root}/sys", flags=sc.MS_BIND)  # without the mounts below it
            sc.mount("none", f"{root}/sys", flags=sc.MS_REMOUNT | sc.MS_BIND | sc.MS_RDONLY)
            if self.cgroup is not None:
                sc.mount("cgroup2", f"{root}/sys/fs/cgroup", "cgroup2", sc.MS_RDONLY)
            mount_devices(root)


def bind_mount(source: str, target: str, options: str) -> None:
    """Bind-mount `source` at `target`. `options` are `ro` and `nodev`, joined by a comma."""
    Path(target).mkdir(parents=True, exist_ok=True)
    sc.mount(source, target, flags=sc.MS_BIND | sc.MS_REC)
    flags = sum(
        {"ro": sc.MS_RDONLY, "nodev": sc.MS_NODEV}[word] for word in options.split(",") if word
    )
    if flags:
        sc.mount("none", target, flags=sc.MS_REMOUNT | sc.MS_BIND | flags)


def mount_devices(root: Path) -> None:
    dev = f"{root}/dev"
    sc.mount("tmpfs", dev, "tmpfs", sc.MS_NOSUID, "mode=755,size=64k")
    for name in _DEVICES:
        Path(dev, name).touch()
        sc.mount(f"/dev/{name}", f"{dev}/{name}", flags=sc.MS_BIND)
    for name in ("pts", "shm"):
        Path(dev, name).mkdir()
    sc.mount("devpts", f"{dev}/pts", "devpts", options="newinstance,ptmxmode=0666,mode=0620")
    sc.mount("tmpfs", f"{dev}/shm", "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "mode=1777,size=64m")
    Path(dev, "ptmx").symlink_to("pts/ptmx")
    Path(dev, "fd").symlink_to("/proc/self/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        Path(dev, name).symlink_to(f"/proc/self/fd/{number}")
