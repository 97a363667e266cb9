"""The machine of a node: boots its disk with systemd as PID 1, and is a hand in it.

The proving ground's machine is taken as it is: its QEMU, its kernel disk, its agent. Only what the
initramfs ends as is another: systemd, which starts the agent as one of its services.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, replace
from pathlib import Path

import nodeside
from nodeside.system.process import Completed
from nodeside.trial.errors import MachineLost
from nodeside.trial.machine import disks, qemu
from nodeside.trial.machine.cpio import CpioArchive
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.machine.machine import Machine
from nodeside.trial.machine.payload import compile_to_bytecode
from nodeside.trial.machine.qemu import MachineFiles, MachineSettings
from nodeside.trial.workshop import Workshop
from tests.node import qmp
from tests.patience import patience

_COMMAND = patience(600.0)  # seconds
_SHUT_DOWN = patience(300.0)  # seconds; systemd gives each service 90
_MEMORY_MIB = 2048
# Emulated processors wait for each other, and idle ones cost: a second one makes nothing faster.
_CPUS, _EMULATED_CPUS = 2, 1
# AppArmor is switched on, as on any Debian: a pod's profile is real then.
_APPEND = (
    "lsm=lockdown,capability,apparmor", "systemd.show_status=0",
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
cp -R /node/payload/settings/. /node/
for directory in proc sys dev; do mount -o move /$directory /node/$directory; done
exec switch_root /node /usr/lib/systemd/systemd
"""

_AGENT = """\
from nodeside.trial.machine.guest.agent import GuestAgent, open_port
GuestAgent(open_port()).serve()
"""


@dataclass(frozen=True)
class Cable:
    """A network card of the machine: the descriptor of a tap, and the card's address."""

    descriptor: int
    mac: str

    @property
    def words(self) -> tuple[str, ...]:
        """For QEMU."""
        card = f"virtio-net-pci,netdev=net,mac={self.mac},romfile="
        return "-netdev", f"tap,id=net,fd={self.descriptor}", "-device", card


@dataclass
class Computer:
    """The disks of a node over several boots, and the machine that runs on them.

    `disk` is the base of its root file system, `images` that of containerd's data.
    """

    workshop: Workshop
    directory: Path
    devices: Sequence[str]
    cable: Cable
    disk: InitVar[Path]
    images: InitVar[Path]
    boots: int = 0
    _machine: Machine | None = None

    def __post_init__(self, disk: Path, images: Path) -> None:
        disks.make_overlay(disk, self.directory / "node.qcow2")
        disks.make_overlay(images, self.directory / "images.qcow2")

    @property
    def machine(self) -> Machine:
        """The one that runs or boots. Raises MachineLost if it is switched off."""
        if self._machine is None:
            raise MachineLost(f"{self.directory.name} is switched off")
        return self._machine

    @property
    def is_on(self) -> bool:
        return self._machine is not None

    def switch_on(self, kernel: KernelDisk, settings: Mapping[str, str]) -> None:
        """Boot, with these files over those of its disk; returns as soon as it can be talked to."""
        self.boots += 1
        directory = self.directory / f"boot-{self.boots}"
        directory.mkdir()
        files = MachineFiles(
            kernel=_with_init(kernel, directory / "kernel"),
            node=self.directory / "node.qcow2",
            payload=_payload(directory, settings, self.workshop),
            serial=directory / "console.log",
        )
        accelerator = self.workshop.accelerator_for(kernel)
        hardware = MachineSettings(
            accelerator,
            _MEMORY_MIB,
            _EMULATED_CPUS if accelerator == "tcg" else _CPUS,
            tuple(f"{device},id={_slot(number)}" for number, device in enumerate(self.devices)),
            _APPEND,
            more=(
                *self.cable.words,
                *qemu.drive_arguments(self.directory / "images.qcow2", "images"),
                *("-qmp", f"unix:{self._qmp},server=on,wait=off"),
            ),
            descriptors=(self.cable.descriptor,),
        )
        machine = self._machine = Machine(hardware, files, allow_splats=True)
        try:
            machine.__enter__()
        except BaseException:
            self.cut_power()
            raise

    def shut_down(self) -> None:
        """As an administrator does it: services end, disks are written."""
        self.run("systemctl", "poweroff", "--no-block")
        self.machine.await_off(_SHUT_DOWN)
        self._machine = None

    def cut_power(self) -> None:
        """What was not written is lost. Harmless if it is off; another thread may be booting it."""
        machine, self._machine = self._machine, None
        if machine is not None:
            machine.power_off(hard=True)

    def run(self, *argv: str, check: bool = True, timeout: float = _COMMAND) -> Completed:
        """A command of the node's own, outside every container."""
        return self.machine.run(argv, "node", timeout=timeout, check=check)

    @property
    def _qmp(self) -> Path:
        return self.directory / "qmp"

    def unplug(self, number: int) -> None:
        """Ask the machine to let one of its devices go; the kernel does it when it likes."""
        qmp.ask(self._qmp, "device_del", id=_slot(number))

    def plug_in(self, number: int) -> None:
        """Put one of its devices, which has gone, into the machine again."""
        qmp.plug_in(self._qmp, self.devices[number], id=_slot(number))

    def last_words(self) -> str:
        """What its journal, its kernel and its containers said."""
        if not self.is_on:
            return f"{self.directory.name} is switched off"
        asked = ("journalctl", "--no-pager", "--output=short-monotonic", "--lines=400")
        shown = 'for log in /var/log/pods/*/*/*.log; do echo "--- $log"; tail -n 60 $log; done'
        journal = self.run(*asked, check=False).output
        pods = self.run("sh", "-c", shown, check=False).output
        return f"{self.machine.serial_log()[-4000:]}\n{journal}\n{pods}"


def _slot(number: int) -> str:
    """What QEMU calls one of the devices."""
    return f"device{number}"


def _with_init(kernel: KernelDisk, directory: Path) -> KernelDisk:
    """The same kernel with an initramfs that ends as systemd."""
    directory.mkdir()
    for path in (kernel.vmlinuz, kernel.image):
        (directory / path.name).symlink_to(path)
    archive = CpioArchive()
    archive.add_file("init", _INIT.encode(), 0o755)
    archive.add_link("bin/cp", "busybox")
    (directory / kernel.initramfs.name).write_bytes(
        kernel.initramfs.read_bytes() + archive.to_bytes()
    )
    return replace(kernel, directory=directory)


def _payload(directory: Path, settings: Mapping[str, str], workshop: Workshop) -> Path:
    """A disk with the agent and with what this boot is told."""
    tree, image = directory / "payload", directory / "payload.ext4"
    package = tree / "python" / "nodeside"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(nodeside.__file__).parent, package, ignore=ignored)
    compile_to_bytecode(package, workshop.roots.driver(), workshop.architecture)
    (tree / "agent.py").write_text(_AGENT)
    for name, text in settings.items():
        path = tree / "settings" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    disks.make_ext4(tree, image, label="payload")
    shutil.rmtree(tree)
    return image
