"""The four system calls that have no function in the standard library, and the deadline on them.

finit_module(2), init_module(2), delete_module(2) and syslog(2), by number through ctypes, which
nothing else of the driver side uses and which is imported late (3 MiB); and prctl(2) for a child.
Tests hand the loader and the kernel log another implementation of `Syscalls`.
Nothing here can force anything: there is no flag argument, so neither O_TRUNC (forced unload) nor
MODULE_INIT_IGNORE_* can be asked for.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nodeside.driver.child import ChildDied, run_in_child
from nodeside.errors import DeadlinePassed, NodesideError, SystemRefused

_READ_ALL = 3  # SYSLOG_ACTION_READ_ALL, syslog(2)
_SIZE_BUFFER = 10  # SYSLOG_ACTION_SIZE_BUFFER
_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h


class DiedInKernel(NodesideError):
    """The process that made a call was killed inside it: an oops in the module's code."""

    reason = "DiedInKernel"


class Syscalls(Protocol):
    """What the kernel is asked for. Every method raises OSError with the kernel's errno.

    Those with a `timeout` (seconds) run code of a module, and also raise DeadlinePassed if that
    does not return, and DiedInKernel if it crashes.
    """

    def finit_module(self, fd: int, parameters: str, timeout: float) -> None:
        """Load the module in an open file."""

    def init_module(self, image: bytes, parameters: str, timeout: float) -> None:
        """Load the module in a buffer; unlike finit_module it knows no file label."""

    def delete_module(self, name: str, timeout: float) -> None:
        """Unload an unused module; never waits for one in use, never forces."""

    def kernel_log(self) -> str:
        """All of the kernel's log buffer, one `<priority>[time] text` a line."""


@dataclass(frozen=True)
class _Numbers:
    init_module: int
    delete_module: int
    finit_module: int
    syslog: int


# include/uapi/asm-generic/unistd.h and arch/*/kernel/syscalls/syscall*.tbl of the kernel.
_NUMBERS = {
    "x86_64": _Numbers(init_module=175, delete_module=176, finit_module=313, syslog=103),
    "aarch64": _Numbers(init_module=105, delete_module=106, finit_module=273, syslog=116),
    "ppc64le": _Numbers(init_module=128, delete_module=129, finit_module=353, syslog=103),
    "s390x": _Numbers(init_module=128, delete_module=129, finit_module=344, syslog=103),
}


class KernelSyscalls:
    """The real ones, of the running kernel."""

    def __init__(self) -> None:
        machine = os.uname().machine
        if machine not in _NUMBERS:
            raise SystemRefused(
                f"modules cannot be loaded on {machine}: expected one of {', '.join(_NUMBERS)}"
            )
        self._numbers = _NUMBERS[machine]

    def finit_module(self, fd: int, parameters: str, timeout: float) -> None:
        call = _prepared(self._numbers.finit_module, fd, parameters.encode(), 0)
        in_child(call, timeout, keep=(fd,))

    def init_module(self, image: bytes, parameters: str, timeout: float) -> None:
        call = _prepared(self._numbers.init_module, image, len(image), parameters.encode())
        in_child(call, timeout)

    def delete_module(self, name: str, timeout: float) -> None:
        in_child(_prepared(self._numbers.delete_module, name.encode(), os.O_NONBLOCK), timeout)

    def kernel_log(self) -> str:
        import ctypes

        # The buffer holds texts; each comes out with its priority and time in front.
        size = 2 * _prepared(self._numbers.syslog, _SIZE_BUFFER, None, 0)()
        buffer = ctypes.create_string_buffer(size)
        got = _prepared(self._numbers.syslog, _READ_ALL, buffer, size)()
        return buffer.raw[:got].decode(errors="replace")


def in_child(call: Callable[[], object], timeout: float, *, keep: Sequence[int] = ()) -> None:
    """Run `call` in a child process. Raises its OSError, DeadlinePassed or DiedInKernel.

    A module's init or exit function, or an unbind, may hang, and no signal ends that: the child
    is then left behind. If the kernel crashes in there (an oops), it kills the process that called,
    which is only the child. Ctrl-C does not reach it, and so leaves no load half done.
    """
    try:
        run_in_child(call, timeout, keep=keep)
    except ChildDied as exc:
        raise DiedInKernel("the process was killed inside the kernel") from exc
    except DeadlinePassed as exc:
        raise DeadlinePassed(f"the kernel has not returned after {timeout:g} s") from exc


def _prepared(number: int, *arguments: Any) -> Callable[[], int]:
    """syscall(2) with these arguments, to be called later: integers as long, as the kernel's.

    Everything that takes a lock (import, dlopen) is done here, before a fork.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]

    def call() -> int:
        result: int = libc.syscall(ctypes.c_long(number), *words)
        if result < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return result

    return call


def dying_with_parent() -> Callable[[], None]:
    """For a child between fork and exec: SIGTERM when its parent ends, however that ends.

    Made before the fork: after it, nothing may be imported.
    """
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
