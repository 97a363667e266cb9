"""A kernel made of a temporary directory: /proc and /sys that follow the module system calls.

A module file is a text: its name, then the names of modules it needs. The fake refuses what it was
told to refuse, with the lines a real kernel would log, and counts references as a real one does.
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
import threading
from dataclasses import dataclass, field
from pathlib import Path

from nodeside.driver.kernel.loader import Loader
from nodeside.errors import NodesideError
from nodeside.system.clock import Clock
from nodeside.system.host import Host

RELEASE = "6.1.0-test"


@dataclass
class FakeModule:
    refcnt: int = 0
    holders: list[str] = field(default_factory=list)
    permanent: bool = False
    state: str = "Live"
    build_id: str = ""
    parameters: str = ""
    taint: str = " (OE)"


@dataclass(frozen=True)
class Refusal:
    error: int
    lines: tuple[str, ...] = ()


class FakeKernel:
    """Implements `Syscalls`; `host` is its node."""

    def __init__(self, root: Path) -> None:
        self.host = Host(root)
        self.modules: dict[str, FakeModule] = {}
        self.log: list[str] = []
        self.refuse_load: dict[str, list[Refusal]] = {}
        self.refuse_unload: dict[str, list[int]] = {}
        self.calls: list[str] = []
        self.log_error: int = 0
        self.init_denied: int = 0
        self.never_returns: NodesideError | None = None
        self.seconds = 0.0
        self.sleeps: list[float] = []
        write(root / "proc/sys/kernel/osrelease", RELEASE)
        write(root / "proc/sys/kernel/version", "#1 SMP")
        (root / "sys/module").mkdir(parents=True)
        self.show()

    @property
    def clock(self) -> Clock:
        return Clock(now=lambda: self.seconds, sleep=self.sleep)

    @property
    def loader(self) -> Loader:
        return Loader(self.host, self, self.clock)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.sleeps.append(seconds)

    def say(self, line: str) -> None:
        self.log.append(f"<4>[{len(self.log):5d}.000000] {line}")

    def module_file(self, name: str, *needs: str) -> Path:
        return write(self.host.root / f"bundle/{name}.ko", " ".join((name, *needs)))

    def add(
        self, name: str, module: FakeModule | None = None, *, uses: tuple[str, ...] = ()
    ) -> None:
        """A module that is in the kernel already."""
        self.modules[name] = module or FakeModule()
        for used in uses:
            self.modules[used].refcnt += 1
            self.modules[used].holders.append(name)
        self.show()

    # --- the system calls ---

    def finit_module(self, fd: int, parameters: str, timeout: float) -> None:
        self.calls.append("finit_module")
        if self.never_returns:
            raise self.never_returns
        if self.init_denied:
            raise OSError(self.init_denied, os.strerror(self.init_denied))
        self._load(os.pread(fd, 1000, 0), parameters)

    def init_module(self, image: bytes, parameters: str, timeout: float) -> None:
        self.calls.append("init_module")
        self._load(image, parameters)

    def _load(self, image: bytes, parameters: str) -> None:
        name, *needs = image.decode().split()
        if self.refuse_load.get(name):
            refusal = self.refuse_load[name].pop(0)
            for line in refusal.lines:
                self.say(line)
            raise OSError(refusal.error, os.strerror(refusal.error))
        if name in self.modules:
            raise FileExistsError(errno.EEXIST, "File exists")
        for need in needs:
            if need not in self.modules:
                self.say(f"{name}: Unknown symbol {need}_call (err -2)")
                raise OSError(errno.ENOENT, "Unknown symbol in module")
        self.add(name, FakeModule(parameters=parameters), uses=tuple(needs))

    def delete_module(self, name: str, timeout: float = 1) -> None:
        self.calls.append(f"delete_module {name}")
        if self.never_returns:
            raise self.never_returns
        if self.refuse_unload.get(name):
            error = self.refuse_unload[name].pop(0)
            raise OSError(error, os.strerror(error))
        if name not in self.modules:
            raise OSError(errno.ENOENT, "No such file or directory")
        if self.modules[name].refcnt:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        del self.modules[name]
        for other in self.modules.values():
            if name in other.holders:
                other.holders.remove(name)
                other.refcnt -= 1
        self.show()

    def kernel_log(self) -> str:
        if self.log_error:
            raise OSError(self.log_error, os.strerror(self.log_error))
        return "".join(f"{line}\n" for line in self.log)

    # --- what a reader sees ---

    def show(self) -> None:
        rows = []
        root = self.host.sys_module
        for name in [path.name for path in root.iterdir() if (path / "initstate").exists()]:
            if name not in self.modules:
                shutil.rmtree(root / name)
        for name, module in self.modules.items():
            users = "".join(f"{user}," for user in module.holders)
            users += "[permanent]," if module.permanent else ""
            rows.append(
                f"{name} 16384 {module.refcnt} {users or '-'} {module.state} 0x0{module.taint}\n"
            )
            states = {"Live": "live", "Loading": "coming", "Unloading": "going"}
            self._show(root / name / "initstate", f"{states[module.state]}\n".encode())
            if module.build_id:
                note = build_id_note(module.build_id)
                self._show(root / name / "notes/.note.gnu.build-id", note)
        self._show(self.host.proc / "modules", "".join(rows).encode())

    def _show(self, path: Path, data: bytes) -> None:
        """By rename: a reader in another thread never sees half of it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(write_bytes(self.host.root / f".shown-{threading.get_ident()}", data), path)


def build_id_note(build_id: str) -> bytes:
    """An ELF note as /sys/module/X/notes has it."""
    description = bytes.fromhex(build_id)
    return struct.pack("<III", 4, len(description), 3) + b"GNU\0" + description


def write(path: Path, text: str) -> Path:
    return write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def link(path: Path, target: Path) -> None:
    """A relative link, as sysfs has them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent.resolve()))


def add_pci_device(host: Host, address: str, vendor: str, device: str, *drivers: str) -> Path:
    """A PCI device, bound to a driver (and its module) if named. Returns its real directory."""
    driver, module = (*drivers, "", "")[:2]
    real = host.sys / "devices/pci0000:00" / address
    write(real / "vendor", f"0x{vendor}\n")
    write(real / "device", f"0x{device}\n")
    link(host.sys / "bus/pci/devices" / address, real)
    write(host.sys / "bus/pci/drivers_probe", "")
    if driver:
        directory = host.sys / "bus/pci/drivers" / driver
        write(directory / "unbind", "")
        if module and not (directory / "module").exists():
            link(directory / "module", host.sys_module / module)
        link(real / "driver", directory)
    return real


def add_device(host: Host, number: str, node: str, directory: str) -> Path:
    """A character (c1:3) or block (b8:0) device whose directory in /sys/devices is given."""
    real = host.sys / "devices" / directory
    kind = "char" if number[0] == "c" else "block"
    write(real / "uevent", f"MAJOR=1\nDEVNAME={node}\n")
    link(host.sys / "dev" / kind / number[1:], real)
    return real


def add_process(host: Host, pid: int, command: str, opened: tuple[str, ...] = ()) -> Path:
    """A process with these files open."""
    directory = host.proc / str(pid)
    write(directory / "cmdline", "\0".join(command.split()) + "\0")
    write(directory / "comm", command.split(maxsplit=1)[0][:15] + "\n")
    (directory / "fd").mkdir()
    for number, path in enumerate(opened):
        (directory / "fd" / str(number)).symlink_to(path)
    return directory
