"""Whether this host runs programs of another architecture, under QEMU's user emulation.

A root file system of another architecture is made and used by running its programs on this host.
The kernel starts them under QEMU if binfmt_misc has an entry for them. In a root file system there
is no QEMU, so the entry needs the flag F: then the kernel keeps the QEMU open that was there when
the entry was made. See Documentation/admin-guide/binfmt-misc.rst of the kernel.

What counts is whether a program runs. The entries in /proc only explain why it does not: they are
not visible in every container that can run the program.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from nodeside.system import process
from nodeside.system.scratch import scratch_directory
from nodeside.trial.architecture import Architecture
from nodeside.trial.errors import TrialError

_ENTRIES = Path("/proc/sys/fs/binfmt_misc")
_PACKAGES = "qemu-user-static binfmt-support"
_MOUNT = f"mount -t binfmt_misc binfmt_misc {_ENTRIES}"

# For each architecture, its number in an ELF header and the code of exit(0).
_EXIT = {
    "arm64": (183, bytes.fromhex("000080d2 a80b80d2 010000d4")),  # mov x0,#0; mov x8,#93; svc #0
}
_BASE = 0x400000  # the address of the program
_HEADERS = 64 + 56  # bytes of an ELF header and one program header


def require_emulation(architecture: Architecture) -> None:
    """Raise TrialError unless programs of this architecture run here in a root file system."""
    if architecture.is_foreign and not runs_here(architecture):
        why, hint = explain_failure(architecture)
        raise TrialError(
            f"this host cannot run programs for {architecture.name}, which the root file systems "
            f"of its machine consist of: {why}",
            hint=hint,
        )


def runs_here(architecture: Architecture) -> bool:
    """Return whether the smallest program of this architecture runs in a root of its own."""
    with scratch_directory("emulation") as root:
        (root / "exit").write_bytes(exit_program(architecture))
        (root / "exit").chmod(0o755)
        try:
            done = process.run(["/exit"], wrapper=lambda: os.chroot(root), timeout=60, check=False)
        except (process.ToolMissing, process.WrapperFailed, OSError):
            return False
    return done.exit_code == 0


def exit_program(architecture: Architecture) -> bytes:
    """Return a static ELF program that ends with exit code 0."""
    number, code = _EXIT[architecture.name]
    size = _HEADERS + len(code)
    ident = b"\x7fELF" + bytes((2, 1, 1)).ljust(12, b"\0")
    header = struct.pack(
        "<HHIQQQIHHHHHH", 2, number, 1, _BASE + _HEADERS, 64, 0, 0, 64, 56, 1, 64, 0, 0
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x10000)
    return ident + header + segment + code


def explain_failure(architecture: Architecture, entries: Path = _ENTRIES) -> tuple[str, str]:
    """Return why programs do not run, and what to do about it."""
    name = architecture.user_emulation
    install = f"apt-get install {_PACKAGES}"
    enable = f"update-binfmts --enable {name}"
    if not (entries / "status").exists():
        return f"binfmt_misc is not mounted at {entries}", f"{_MOUNT} && {install} && {enable}"
    try:
        text = (entries / name).read_text()
    except OSError:
        return f"binfmt_misc has no entry {name}", f"{install} && {enable}"
    if not text.startswith("enabled"):
        return f"the entry {name} of binfmt_misc is switched off", f"echo 1 > {entries / name}"
    flags = next((row for row in text.splitlines() if row.startswith("flags:")), "")
    if "F" not in flags.removeprefix("flags:"):
        why = f"the entry {name} of binfmt_misc has no flag F, so a root file system lacks its QEMU"
        return why, f"{install}, which makes an entry with that flag"
    return f"the entry {name} of binfmt_misc is there, but its QEMU does not run", install
