"""Four system calls that are missing in the standard library, with deadlines.

finit_module(2), init_module(2), delete_module(2) and syslog(2) are called by number through ctypes;
prctl(2), which has no deadline, is for a child process. Nothing else in the driver uses ctypes, and
it is imported late (3 MiB). Tests pass another implementation of `Syscalls` to the loader and the
kernel log. Nothing can be forced: there is no flag argument, so neither O_TRUNC (forced unload) nor
MODULE_INIT_IGNORE_* can be requested.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from nodeside.errors import DeadlinePassed, NodesideError, SystemRefused
from nodeside.system.child import ChildDied, run_in_child
from nodeside.values import frozen

_READ_ALL = 3  # SYSLOG_ACTION_READ_ALL, syslog(2)
_SIZE_BUFFER = 10  # SYSLOG_ACTION_SIZE_BUFFER
_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h


class DiedInKernel(NodesideError):
    """The calling process was killed inside the kernel: an oops in the module's code."""

    reason = "DiedInKernel"


class Syscalls(Protocol):
    """The system calls in use. Every method raises OSError with the kernel's errno.

    Methods with a `timeout` (seconds) run code of a module. They also raise DeadlinePassed if it
    does not return in time, and DiedInKernel if it crashes.
    """

    def finit_module(self, fd: int, parameters: str, timeout: float) -> None:
        """Load the module in an open file."""

    def init_module(self, image: bytes, parameters: str, timeout: float) -> None:
        """Load the module in a buffer; unlike finit_module, there is no file label to check."""

    def delete_module(self, name: str, timeout: float) -> None:
        """Unload an unused module; never waits for a module in use, never forces."""

    def kernel_log(self) -> str:
        """Return the whole kernel log buffer, one `<priority>[time] text` per line."""


@frozen
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
    """The real system calls of the running kernel."""

    def __init__(self) -> None:
        machine = os.uname().machine
        if machine not in _NUMBERS:
            raise SystemRefused(
                f"modules cannot be loaded on {machine}: expected one of {', '.join(_NUMBERS)}"
            )
        self._numbers = _NUMBERS[machine]

    def finit_module(self, fd: int, parameters: str, timeout: float) -> None:
        call = _prepare_syscall(self._numbers.finit_module, fd, parameters.encode(), 0)
        call_kernel_in_child(call, timeout, keep=(fd,))

    def init_module(self, image: bytes, parameters: str, timeout: float) -> None:
        call = _prepare_syscall(self._numbers.init_module, image, len(image), parameters.encode())
        call_kernel_in_child(call, timeout)

    def delete_module(self, name: str, timeout: float) -> None:
        call_kernel_in_child(
            _prepare_syscall(self._numbers.delete_module, name.encode(), os.O_NONBLOCK), timeout
        )

    def kernel_log(self) -> str:
        import ctypes

        # The buffer holds plain texts; the output adds priority and time to each.
        size = 2 * _prepare_syscall(self._numbers.syslog, _SIZE_BUFFER, None, 0)()
        buffer = ctypes.create_string_buffer(size)
        length = _prepare_syscall(self._numbers.syslog, _READ_ALL, buffer, size)()
        return buffer.raw[:length].decode(errors="replace")


def call_kernel_in_child(
    call: Callable[[], object], timeout: float, *, keep: Sequence[int] = ()
) -> None:
    """Run `call` in a child process. Raises its OSError, DeadlinePassed or DiedInKernel.

    A module's init or exit function, or an unbind, may hang, and no signal ends it; the child is
    then left behind. An oops there kills the calling process, which is only the child. Ctrl-C does
    not reach the child, so it leaves no load half done.
    """
    try:
        run_in_child(call, timeout, keep=keep)
    except ChildDied as exc:
        raise DiedInKernel("the process was killed inside the kernel") from exc
    except DeadlinePassed as exc:
        raise DeadlinePassed(f"the kernel has not returned after {timeout:g} s") from exc


def _prepare_syscall(number: int, *arguments: Any) -> Callable[[], int]:
    """Prepare a syscall(2) with these arguments; integers are passed as long, as in the kernel.

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


def prepare_death_with_parent() -> Callable[[], None]:
    """Return a function that makes a child get SIGTERM when its parent exits for any reason.

    Call this before the fork, and the result between fork and exec: imports are not allowed there.
    """
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
