"""QEMU's command line, and the choice of an accelerator that works on this host.

A /dev/kvm that opens is no proof that KVM works: nested KVM has been seen to hang after the BIOS,
or to end on an assertion. So KVM is tried once with a real kernel, and the result is cached for
this boot of the host and this version of QEMU.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from nodeside.errors import UsageError
from nodeside.protocol.records import publish, read_untrusted
from nodeside.system import process
from nodeside.system.host import Host
from nodeside.system.scratch import scratch_directory
from nodeside.trial.architecture import AMD64, Architecture
from nodeside.trial.cache import TrialCache
from nodeside.trial.errors import TrialError
from nodeside.trial.machine.guest import PORT
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.values import frozen

_PROBE_SECONDS = 6.0  # with a working KVM, a kernel prints its first line in a fraction of that
# The last two lines save a tenth of the boot: by default, Debian's kernels clear every page and
# call seven LSMs.
_ALWAYS = (
    "panic=-1", "oops=panic", "loglevel=5", "net.ifnames=0", "mitigations=off",
    "init_on_alloc=0",
    "lsm=lockdown",
)  # fmt: skip
# QEMU takes a GiB for itself. The rest is for devices: a vendor's trial.yaml may name one of any
# size, and the driver in the machine may fill it.
_OF_QEMU_MIB = 4096
# An emulated CPU gets the CPU time that the host can spare. If that is little, the kernel reports a
# stall, which would be blamed on the driver.
_EMULATED = ("rcupdate.rcu_cpu_stall_timeout=300", "watchdog_thresh=60")


@frozen
class MachineSettings:
    """The hardware of a machine, and the extra words for its kernel's command line.

    `more` are further words for QEMU, and `descriptors` the open files that they name.
    """

    accelerator: str = "tcg"
    memory_mib: int = 1536
    cpus: int = 2
    devices: tuple[str, ...] = ()
    append: tuple[str, ...] = ()
    network: bool = False
    more: tuple[str, ...] = ()
    descriptors: tuple[int, ...] = ()


@frozen
class MachineFiles:
    """The files a machine runs on. Only the node disk is written."""

    kernel: KernelDisk
    node: Path
    payload: Path
    serial: Path


def make_argv(settings: MachineSettings, files: MachineFiles, agent_fd: int) -> list[str]:
    """Return the whole command.

    setpriv makes QEMU die with us, whatever kills us, and prlimit limits its memory.
    """
    architecture = files.kernel.architecture
    emulated = (*_EMULATED, *architecture.emulated_words) if settings.accelerator == "tcg" else ()
    append = [f"console={architecture.console}", *_ALWAYS, *emulated, *settings.append]
    if settings.network:
        append.append("nodeside.network=1")
    words = [
        "setpriv", "--pdeathsig", "KILL", "--",
        "prlimit", f"--data={settings.memory_mib + _OF_QEMU_MIB << 20}", "--",
        architecture.qemu, *base_arguments(settings, architecture),
        "-kernel", str(files.kernel.vmlinuz), "-initrd", str(files.kernel.initramfs),
        "-append", " ".join(append),
        "-serial", f"file:{files.serial}",
        *drive_arguments(files.node, "node"),
        *drive_arguments(files.kernel.image, "kernel", read_only=True),
        *drive_arguments(files.payload, "payload", read_only=True),
        "-device", "virtio-serial-pci",
        "-chardev", f"socket,id=agent,fd={agent_fd}",
        "-device", f"virtserialport,chardev=agent,name={PORT}",
    ]  # fmt: skip
    if settings.network:
        words += ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="]
    for device in settings.devices:
        words += ["-device", device]
    return [*words, *settings.more]


def base_arguments(settings: MachineSettings, architecture: Architecture) -> list[str]:
    cpu = "host" if settings.accelerator == "kvm" else architecture.emulated_cpu
    return [
        "-machine", architecture.qemu_machine, "-accel", settings.accelerator, "-cpu", cpu,
        "-m", f"{settings.memory_mib}M", "-smp", str(settings.cpus),
        "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
    ]  # fmt: skip


def check_accelerator(requested: str, architecture: Architecture) -> None:
    """Raise UsageError for KVM with machines of another architecture than the host's."""
    if requested == "kvm" and architecture.is_foreign:
        raise UsageError(
            f"KVM runs only machines of this host's architecture, not {architecture.name}",
            hint="leave out --accel: software emulation runs it",
        )


def choose_accelerator(requested: str, kernel: KernelDisk, cache: TrialCache) -> str:
    """Return `kvm` if it works, else `tcg`. Anything but "auto" is returned as it is."""
    if requested != "auto":
        return requested
    if kernel.architecture.is_foreign or not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    path = cache.directory / "accelerator.json"
    circumstances = {"boot": Host().boot_id, "qemu": qemu_version(kernel.architecture)}
    with cache.hold_lock("qemu", "accelerator"):
        record = read_untrusted(path) or {}
        if record.get("circumstances") != circumstances:
            works = kvm_works(kernel)
            record = {"circumstances": circumstances, "accelerator": "kvm" if works else "tcg"}
            publish(path, record)
    return str(record["accelerator"])


def kvm_works(kernel: KernelDisk) -> bool:
    """Return whether a kernel prints its first line within seconds under KVM."""
    architecture = kernel.architecture
    console = architecture.console
    with scratch_directory("kvm") as directory:
        serial = directory / "serial"
        settings = MachineSettings(accelerator="kvm", memory_mib=512, cpus=1)
        words = [
            *(
                architecture.qemu,
                *base_arguments(settings, architecture),
                "-kernel",
                str(kernel.vmlinuz),
            ),
            *("-append", f"console={console} earlyprintk={console} panic=-1"),
            *("-serial", f"file:{serial}"),
        ]
        child = process.start(words)
        try:
            deadline = time.monotonic() + _PROBE_SECONDS
            while time.monotonic() < deadline and child.poll() is None:
                if serial.exists() and b"Linux version" in serial.read_bytes():
                    return True
                time.sleep(0.05)
            return serial.exists() and b"Linux version" in serial.read_bytes()
        finally:
            process.kill_group(child.pid)
            child.wait()


def qemu_version(architecture: Architecture = AMD64) -> str:
    """Return the first line of `qemu --version`. Raises TrialError if QEMU is missing."""
    require_qemu(architecture)
    return process.run([architecture.qemu, "--version"], timeout=10).output.splitlines()[0]


def require_qemu(architecture: Architecture) -> None:
    """Raise TrialError unless the QEMU of this architecture is installed."""
    if shutil.which(architecture.qemu) is None:
        raise TrialError(
            f"{architecture.qemu} is missing",
            hint=f"apt-get install {architecture.qemu_package}",
        )


def device_models(words: Sequence[str]) -> tuple[str, ...]:
    """Return the models among `-device` arguments: `edu` for `edu,dma_mask=0xffffffff`."""
    return tuple(word.split(",", 1)[0] for word in words)


def list_device_models(architecture: Architecture = AMD64) -> frozenset[str]:
    """Return every device model that this QEMU has."""
    machine = ("-accel", "tcg", "-machine", architecture.qemu_machine)
    text = process.run([architecture.qemu, *machine, "-device", "help"], timeout=30).output
    rows = (row for row in text.splitlines() if row.startswith("name "))
    return frozenset(row.split('"')[1] for row in rows)


def drive_arguments(
    image: Path, name: str, *, read_only: bool = False
) -> tuple[str, str, str, str]:
    """Return QEMU's words for a disk: an image that is only read, or an overlay in qcow2."""
    kind = "format=raw,read-only=on" if read_only else "format=qcow2,read-only=off"
    where = f"if=none,id={name},file={image},{kind}"
    options = f"{where},cache=writeback,discard=unmap"
    return "-drive", options, "-device", f"virtio-blk-pci,drive={name}"


def require_devices(devices: Sequence[str], architecture: Architecture) -> None:
    """Raise UsageError for an unknown device; QEMU's own message would come a minute later."""
    if not devices:
        return
    unknown = sorted(set(device_models(devices)) - list_device_models(architecture))
    if unknown:
        raise UsageError(
            f"QEMU has no device named {', '.join(unknown) or '(nothing)'}",
            hint=f"list all devices: {architecture.qemu} "
            f"-machine {architecture.qemu_machine} -device help",
        )
