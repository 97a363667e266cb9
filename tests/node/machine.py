"""The machine: boots the node's disk with systemd as PID 1, and is a hand in it.

The proving ground's machine is taken as it is: its QEMU, its kernel disk, its agent. Only what the
initramfs ends as is another: systemd, which starts the agent as one of its services.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import nodeside
from nodeside.process import Completed
from nodeside.scratch import scratch_directory
from nodeside.trial.machine import disks
from nodeside.trial.machine.cpio import CpioArchive
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.machine.machine import Machine
from nodeside.trial.machine.payload import compile_package
from nodeside.trial.machine.qemu import MachineFiles, MachineSettings
from nodeside.trial.workshop import Workshop

_COMMAND = 600.0  # seconds
_MEMORY_MIB = 3584  # images lie in it: an emulated disk is slow with small files
# AppArmor is switched on, as on any Debian: a pod's profile is real then.
_APPEND = (
    "nodeside.network=1", "lsm=lockdown,capability,apparmor", "systemd.show_status=0",
    "systemd.unified_cgroup_hierarchy=1",
)  # fmt: skip

# The second archive of the initramfs: its /init takes the place of the first one's.
_INIT = """\
#!/bin/sh
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for list in order network; do
  for module in $(cat /modules/$list); do insmod /modules/$module; done
done
mount -t ext4 -o rw,noatime /dev/vda /node || exit 1
mount -t ext4 -o ro /dev/vdb /node/kernel || exit 1
mount -t ext4 -o ro /dev/vdc /node/payload || exit 1
mount -o bind /node/kernel/usr/lib/modules /node/usr/lib/modules || exit 1
mount -t tmpfs -o mode=0711,size=75% images /node/var/lib/containerd
cp -R /node/payload/settings/. /node/
for directory in proc sys dev; do mount -o move /$directory /node/$directory; done
exec switch_root /node /usr/lib/systemd/systemd
"""

_AGENT = """\
from nodeside.trial.machine.guest.agent import Agent, open_port
Agent(open_port()).serve()
"""


@dataclass(frozen=True)
class NodeMachine:
    """A running node. Nothing of the API server's reaches its kubelet, so we look in ourselves."""

    machine: Machine

    def run(self, *argv: str, check: bool = True, timeout: float = _COMMAND) -> Completed:
        """A command of the node's own, outside every container."""
        return self.machine.run(argv, "node", timeout=timeout, check=check)

    def last_words(self) -> str:
        """What its journal, its kernel and its containers said."""
        asked = ("journalctl", "--no-pager", "--output=short-monotonic", "--lines=400")
        shown = 'for log in /var/log/pods/*/*/*.log; do echo "--- $log"; tail -n 60 $log; done'
        journal = self.run(*asked, check=False).output
        pods = self.run("sh", "-c", shown, check=False).output
        return f"{self.machine.serial_log()[-4000:]}\n{journal}\n{pods}"


@contextmanager
def switched_on(
    workshop: Workshop,
    kernel: KernelDisk,
    disk: Path,
    settings: Mapping[str, str],
    devices: Sequence[str],
) -> Iterator[NodeMachine]:
    """A node that has these files over those of its disk; gone at the end of the block."""
    with scratch_directory("kubelet") as directory:
        disks.overlay(disk, directory / "node.qcow2")
        files = MachineFiles(
            kernel=_with_init(kernel, directory / "kernel"),
            node=directory / "node.qcow2",
            payload=_payload(directory, settings, workshop.roots.driver()),
            serial=directory / "console.log",
        )
        accelerator = workshop.accelerator_for(kernel)
        hardware = MachineSettings(accelerator, _MEMORY_MIB, 2, tuple(devices), _APPEND, True)
        with Machine(hardware, files) as machine:
            yield NodeMachine(machine)


def _with_init(kernel: KernelDisk, directory: Path) -> KernelDisk:
    """The same kernel with an initramfs that ends as systemd."""
    directory.mkdir()
    for path in (kernel.vmlinuz, kernel.image):
        (directory / path.name).symlink_to(path)
    archive = CpioArchive()
    archive.file("init", _INIT.encode(), 0o755)
    archive.link("bin/cp", "busybox")
    (directory / kernel.initramfs.name).write_bytes(kernel.initramfs.read_bytes() + archive.data())
    return replace(kernel, directory=directory)


def _payload(directory: Path, settings: Mapping[str, str], root: Path) -> Path:
    """A disk with the agent and with what this boot is told."""
    tree, image = directory / "payload", directory / "payload.ext4"
    package = tree / "python" / "nodeside"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(nodeside.__file__).parent, package, ignore=ignored)
    compile_package(package, root)
    (tree / "agent.py").write_text(_AGENT)
    for name, text in settings.items():
        path = tree / "settings" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    disks.ext4(tree, image, label="payload")
    shutil.rmtree(tree)
    return image
