"""The system calls that Python 3.11 has no function for."""

from __future__ import annotations

import ctypes
import os
import signal

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

_MNT_DETACH = 2
_PR_SET_PDEATHSIG = 1
_RB_POWER_OFF = 0x4321FEDC
# arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h of the kernel.
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_LIBC = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    _check_result(_LIBC.unshare(flags), "unshare")


def setns(fd: int, flags: int) -> None:
    """Enter namespaces of the process behind a pidfd, or the namespace behind any other fd."""
    _check_result(_LIBC.setns(fd, flags), "setns")


def die_with_parent(parent: int) -> None:
    """Die (SIGKILL) when `parent` dies, the caller's parent. Raises OSError if it is dead."""
    _check_result(_LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getppid() != parent:
        raise ProcessLookupError(f"the parent {parent} is dead")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    words = (word.encode() or None for word in (source, target, kind))
    _check_result(_LIBC.mount(*words, ctypes.c_ulong(flags), options.encode() or None), target)


def pivot_root(root: str) -> None:
    """Make `root` the root of this mount namespace and detach the old one.

    Both arguments of pivot_root(2) are the same directory, as its man page suggests.
    """
    os.chdir(root)
    _check_result(_LIBC.syscall(_SYS_PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    _check_result(_LIBC.umount2(b".", _MNT_DETACH), "umount")
    os.chdir("/")


def power_off() -> None:
    """Power off the machine. Returns only if it cannot."""
    _check_result(_LIBC.reboot(ctypes.c_int(_RB_POWER_OFF)), "reboot")


def _check_result(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
