"""Keeps a build from the network of its pod: a seccomp filter that lets it open no socket.

A toolkit container shares the network namespace of its pod, which on most nodes reaches the cloud's
metadata service and the credentials of the node's role. A namespace of its own takes privilege that
this container does not have; a filter takes none (seccomp(2), with no_new_privs).

What is refused, with EPERM: `socket` of every family (an abstract UNIX socket is a name in the
network namespace), `connect` and `bind` (a datagram socket of a pair could name another peer),
`socketpair` except of connected UNIX sockets, which builds use as pipes, and io_uring, which opens
sockets without a system call of that name. Of a 32-bit program on a 64-bit kernel the same calls
are refused by its own numbers, and x32 and every other ABI altogether.

ctypes is imported on the first build only, so an idle sidecar does not pay for it.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from nodeside import log

# linux/bpf_common.h and linux/filter.h: the classes and modes that this program needs.
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM  # linux/seccomp.h: SECCOMP_RET_*
_NR, _ARCH = 0, 4  # offsets in struct seccomp_data
_FIRST, _SECOND = (20, 28) if sys.byteorder == "big" else (16, 24)  # of arguments, the low word
_TYPE_MASK = 0xF  # SOCK_TYPE_MASK of linux/net.h; the other bits are flags
_AF_UNIX, _SOCK_STREAM, _SOCK_SEQPACKET = 1, 1, 5
_X32 = 0x40000000  # the bit of the calls of x32, which has the architecture of x86-64
_IO_URING_SETUP = 425  # the same number everywhere

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2


class Abi(NamedTuple):
    """The numbers of the calls of an ABI: asm/unistd.h of its architecture.

    `audit` is its AUDIT_ARCH of linux/audit.h. `socketcall` is -1 where there is none.
    """

    audit: int
    socket: int
    socketpair: int
    bind: int
    connect: int
    socketcall: int = -1

    @property
    def refused_calls(self) -> tuple[int, ...]:
        numbers = (self.socket, self.bind, self.connect, self.socketcall, _IO_URING_SETUP)
        return tuple(number for number in numbers if number >= 0)


_I386 = Abi(0x40000003, 359, 360, 361, 362, socketcall=102)
_ARM = Abi(0x40000028, 281, 288, 282, 283)
_X86_64 = Abi(0xC000003E, 41, 53, 49, 42)
_ARM64 = Abi(0xC00000B7, 198, 199, 200, 203)
_RISCV64 = Abi(0xC00000F3, 198, 199, 200, 203)
_PPC64LE = Abi(0xC0000015, 326, 333, 327, 328, socketcall=102)
_S390X = Abi(0x80000016, 359, 360, 361, 362, socketcall=102)

# By the machine of `uname -m`: its own ABI, and those of 32-bit programs.
ABIS = {
    "x86_64": (_X86_64, _I386),
    "aarch64": (_ARM64, _ARM),
    "riscv64": (_RISCV64,),
    "ppc64le": (_PPC64LE,),
    "s390x": (_S390X,),
}


def close_network() -> Callable[[], None]:
    """Return the function that takes the network from the calling process and its children.

    It is called between fork and exec, after PR_SET_NO_NEW_PRIVS. It raises OSError if the kernel
    refuses the filter. On a kernel without seccomp filters, or a machine that is not in `ABIS`, it
    does nothing, and a warning says so.
    """
    libc = _load_libc()
    abis = ABIS.get(os.uname().machine)
    if libc is None or abis is None or not _kernel_has_filters(libc):
        log.warning("this build can reach the network of its pod: no seccomp filter here")
        return lambda: None
    import ctypes

    code = b"".join(make_filter(abis))
    program = ctypes.create_string_buffer(code, len(code))

    def close() -> None:
        # struct sock_fprog: a count, and the address of the instructions.
        header = struct.pack("@HP", len(code) // 8, ctypes.addressof(program))
        if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "the kernel refuses the seccomp filter")

    return close


def make_filter(abis: tuple[Abi, ...]) -> list[bytes]:
    """Return the instructions, each a struct sock_filter, that refuse sockets to these ABIs."""
    program = [_instruction(_LOAD, _ARCH)]
    for abi in abis:
        body = _filter_calls(abi)
        program += [_instruction(_JUMP_IF_EQUAL, abi.audit, 0, len(body)), *body]
    return [*program, _instruction(_RETURN, _REFUSE)]


def _filter_calls(abi: Abi) -> list[bytes]:
    pair = [
        _instruction(_LOAD, _FIRST),
        _instruction(_JUMP_IF_EQUAL, _AF_UNIX, 0, 5),
        _instruction(_LOAD, _SECOND),
        _instruction(_AND, _TYPE_MASK),
        _instruction(_JUMP_IF_EQUAL, _SOCK_STREAM, 1, 0),
        _instruction(_JUMP_IF_EQUAL, _SOCK_SEQPACKET, 0, 1),
        _instruction(_RETURN, _ALLOW),
        _instruction(_RETURN, _REFUSE),
    ]
    refused = abi.refused_calls
    last = len(pair) - 1  # the distance from before `pair` to its refusal
    program = [_instruction(_LOAD, _NR)]
    if abi is _X86_64:
        program.append(_instruction(_JUMP_IF_AT_LEAST, _X32, len(refused) + 2 + last, 0))
    for at, number in enumerate(refused):
        program.append(_instruction(_JUMP_IF_EQUAL, number, len(refused) - at + 1 + last, 0))
    program += [
        _instruction(_JUMP_IF_EQUAL, abi.socketpair, 1, 0),
        _instruction(_RETURN, _ALLOW),
    ]
    return program + pair


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _kernel_has_filters(libc: Any) -> bool:
    """Ask for a filter at no address: a kernel that has filters answers EFAULT (seccomp(2))."""
    import ctypes

    libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, None, 0, 0)
    return ctypes.get_errno() == errno.EFAULT


def _load_libc() -> Any:
    """Return the C library, or None if the interpreter has no ctypes."""
    try:
        import ctypes

        return ctypes.CDLL(None, use_errno=True)
    except (ImportError, OSError, MemoryError):
        return None
