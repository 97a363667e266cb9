"""A machine that is booted once in a session, saved, and resumed for each file of tests.

A boot, the imports of the driver's Python and what the init container copies cost twenty seconds of
a processor in an emulated machine, and are the same for every file. So they are paid for once: the
machine is stopped, and QEMU writes its memory and the state of its devices to a file. Each resume
reads that file, on an overlay of its own over the disk as it was then: the kernel's memory and the
disk must agree.

What a machine cannot have before it is saved is done at the resume, by a process that waits for it
in the machine (`_CARETAKER`): the driver image is filled in, the clock set, and the random numbers
made others than those of the last resume. Devices and the network card are plugged in.

Where KVM works, a boot is cheap: then nothing is saved, and all of this is only tested.
"""

from __future__ import annotations

import json
import os
import shlex
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from nodeside.system.scratch import scratch_directory
from nodeside.trial import vendor_tree
from nodeside.trial.errors import MachineLost
from nodeside.trial.machine import disks
from nodeside.trial.machine.containers import IMAGE_ON_NODE, PRIVILEGED_DRIVER, with_image
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.machine.machine import GuestProcess, Machine
from nodeside.trial.machine.qemu import MachineFiles, MachineSettings
from nodeside.trial.workshop import Workshop, new_console_path
from tests.console import until
from tests.node import qmp
from tests.patience import patience
from tests.vm.variants import DriverImage
from tests.vm.warm import WarmDriver

_SECONDS = patience(600.0)  # for what takes a few: only what hangs takes longer
_BYTES_PER_SECOND = 1 << 40  # QEMU writes no faster than a network unless told
_IMAGE = "/var/lib/driver-image"  # on the node; what the payload has at its place is never seen
_PIECE = 1 << 16

_CARETAKER = """
import fcntl, io, json, os, sys, tarfile, time
devices = "/sys/bus/pci/devices"
before = len(os.listdir(devices))
print("waiting", flush=True)

wanted = json.loads(sys.stdin.buffer.readline())
time.clock_settime(time.CLOCK_REALTIME, wanted["time"])
with open("/dev/urandom", "wb") as random:
    random.write(bytes.fromhex(wanted["seed"]))
    random.flush()
    fcntl.ioctl(random, 0x5207)  # RNDRESEEDCRNG
print(os.urandom(16).hex(), flush=True)
image = io.BytesIO(sys.stdin.buffer.read(wanted["size"]))
with tarfile.open(fileobj=image) as archive:
    archive.extractall("/driver-image")
while len(os.listdir(devices)) < before + wanted["devices"]:
    time.sleep(0.02)
"""
_NETWORK = """
modprobe virtio_net
ip address add 10.0.2.15/24 dev eth0
ip link set eth0 up
ip route add default via 10.0.2.2
"""


@dataclass(frozen=True)
class _Standing:
    """The processes that run in the saved machine."""

    caretaker: GuestProcess
    driver: GuestProcess


class SavedMachine:
    """A node with one CPU and without devices, saved by the first resume. A context manager.

    `append` are words of its kernel's command line.
    """

    def __init__(self, workshop: Workshop, kernel: KernelDisk, append: Sequence[str] = ()) -> None:
        self.workshop = workshop
        self.kernel = kernel
        self.append = tuple(append)
        self._resumes = 0
        self._saved: tuple[MachineFiles, _Standing] | None = None
        self._stack = ExitStack()

    def __enter__(self) -> SavedMachine:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @contextmanager
    def resumed(
        self,
        image: DriverImage,
        *,
        devices: Sequence[str] = ("edu",),
        network: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> Iterator[Resumed]:
        """A node with these drivers and devices, as if it had been booted with them."""
        if self._saved is None:
            self._saved = self._save()
        files, standing = self._saved
        self._resumes += 1
        with scratch_directory("resumed") as directory:
            disks.make_overlay(files.node, directory / "node.qcow2", kind="qcow2")
            name = f"{files.node.parent.name}-{self._resumes}"
            own = replace(
                files,
                node=directory / "node.qcow2",
                serial=new_console_path(self.workshop.cache, name),
            )
            with Resumed(own, _state(files), standing) as machine:
                machine.take(image, devices, network=network, clock=clock)
                yield machine

    def _save(self) -> tuple[MachineFiles, _Standing]:
        node = self._stack.enter_context(self.workshop.node(self.kernel))
        files = MachineFiles(
            kernel=self.kernel,
            node=node.directory / "node.qcow2",
            payload=node.directory / "payload.ext4",
            serial=node.directory / "console.log",
        )
        with Machine(replace(_settings(files), append=self.append), files) as machine:
            machine.run(["mkdir", _IMAGE], "node", timeout=_SECONDS)
            _mount_image(machine)
            standing = _stand_by(machine)
            machine.run(["sync"], "node", timeout=_SECONDS)
            monitor = _monitor(files)
            qmp.ask(monitor, "stop")
            qmp.ask(monitor, "migrate-set-parameters", **{"max-bandwidth": _BYTES_PER_SECOND})
            qmp.ask(monitor, "migrate", uri=f"exec:cat > {shlex.quote(str(_state(files)))}")
            until(lambda: _has_saved(monitor), "the state to be saved", timeout=_SECONDS)
        return files, standing


class Resumed(Machine):
    """A machine that goes on where it was saved."""

    first_random: str  # hex: what the kernel drew first after `take` had given it a new seed

    def __init__(self, files: MachineFiles, state: Path, standing: _Standing) -> None:
        incoming = f"exec:cat {shlex.quote(str(state))}"
        super().__init__(_settings(files, "-incoming", incoming), files)
        self._standing = standing
        self._monitor = _monitor(files)
        self.warm = WarmDriver(self)

    def await_agent(self) -> str:
        until(self._has_loaded, "the saved state to be read", timeout=_SECONDS)
        self._caretaker = self.adopt(self._standing.caretaker)
        self.warm.adopt(self._standing.driver)
        qmp.ask(self._monitor, "cont")
        return self.read_file("/proc/sys/kernel/random/boot_id").decode().strip()

    def take(
        self,
        image: DriverImage,
        devices: Sequence[str],
        *,
        network: bool,
        clock: Callable[[], float],
    ) -> None:
        """Fill the driver image, plug in the devices, and set what must not be as it was saved."""
        cards = ["virtio-net-pci,netdev=net,romfile="] if network else []
        if network:
            qmp.ask(self._monitor, "netdev_add", type="user", id="net")
        for device in (*devices, *cards):
            qmp.plug_in(self._monitor, device)
        archive = _packed(image.directory, self.files.node.parent)
        wanted = {
            "time": clock(),
            "seed": os.urandom(32).hex(),
            "size": len(archive),
            "devices": len(devices) + len(cards),
        }
        self._caretaker.write(json.dumps(wanted).encode() + b"\n")
        for start in range(0, len(archive), _PIECE):
            self._caretaker.write(archive[start : start + _PIECE])
        done = self._caretaker.wait(_SECONDS)
        assert done.exit_code == 0, done.errors
        self.first_random = done.output.strip()
        if network:
            self.run(["sh", "-ec", _NETWORK], "node", timeout=_SECONDS)

    def _has_loaded(self) -> bool:
        if self._qemu.poll() is not None:
            raise MachineLost("QEMU did not take the saved state")
        try:
            return bool(qmp.ask(self._monitor, "query-status")["status"] != "inmigrate")
        except (OSError, ValueError):  # it does not listen yet, or not any more
            return False


@contextmanager
def booted_again(machine: Machine, devices: Sequence[str] = ()) -> Iterator[Machine]:
    """Boot a node again that was switched off, resumed or not, on the same disk."""
    serial = machine.files.serial.with_suffix(".again.log")
    settings = MachineSettings(machine.settings.accelerator, cpus=1, devices=tuple(devices))
    with Machine(settings, replace(machine.files, serial=serial)) as again:
        if isinstance(machine, Resumed):
            _mount_image(again)
        yield again


def _mount_image(machine: Machine) -> None:
    machine.run(["mount", "-o", "bind", _IMAGE, IMAGE_ON_NODE], "node", timeout=_SECONDS)


def _settings(files: MachineFiles, *words: str) -> MachineSettings:
    monitor = f"unix:{_monitor(files)},server=on,wait=off"
    return MachineSettings("tcg", cpus=1, more=("-qmp", monitor, *words))


def _monitor(files: MachineFiles) -> Path:
    return files.node.with_name("qmp")


def _state(files: MachineFiles) -> Path:
    return files.node.with_name("state")


def _stand_by(machine: Machine) -> _Standing:
    """Start what waits in the saved machine, and wait until it waits."""
    spec = with_image(PRIVILEGED_DRIVER, _IMAGE, writable=True)
    caretaker = machine.start(["python3", "-c", _CARETAKER], spec)
    warm = WarmDriver(machine)
    provided = warm.run(["driver", "provide"], {}, _SECONDS)  # `Pod.reset` leaves it there
    assert provided.exit_code == 0, provided.errors
    until(lambda: bool(caretaker.output), "the caretaker", timeout=_SECONDS)
    assert warm.server is not None
    return _Standing(caretaker, warm.server)


def _has_saved(monitor: Path) -> bool:
    status = qmp.ask(monitor, "query-migrate")
    assert status["status"] != "failed", status
    return bool(status["status"] == "completed")


def _packed(image: Path, scratch: Path) -> bytes:
    """The driver image as the payload would have it: files of root's, and what we would copy."""
    tree, archive = scratch / "driver-image", scratch / "driver-image.tar.gz"
    vendor_tree.copy_tree(image, tree, leave_out=(".git",))
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(tree, ".", filter=_of_root)
    return archive.read_bytes()


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
