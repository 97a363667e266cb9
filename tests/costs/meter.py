"""The meter: seconds of a processor that this process and its descendants used, by kind of program.

A process knows what it used itself, and what its children used together. Which programs these
were, the kernel tells root (taskstats over netlink, Documentation/accounting/taskstats.rst): one
message for each thread that ends, with its name, its parent and its times. Messages wait in the
socket until a test has ended; whoever is the parent of a thread then either has a message as well,
or is still there.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import socket
import struct
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

PYTHON, MACHINES, COMPILERS, KUBERNETES, OTHERS, UNKNOWN = KINDS = (
    "python",
    "machines",
    "compilers",
    "kubernetes",
    "others",
    "unknown",
)

# By the name of a thread: at most 15 characters, so `kube-controller`. QEMU names those of a
# processor `CPU 0/TCG`.
_NAMES = (
    (PYTHON, re.compile(r"python|pytest|nodeside")),
    (MACHINES, re.compile(r"qemu|CPU \d+/|IO |vnc_worker")),
    (
        COMPILERS,
        re.compile(
            r"(cc1|g?cc|g\+\+|as|ld|ar|nm|objcopy|strip|cpp)\b|(x86_64|aarch64)-linux|make\b|collect2"
            r"|go$|compile$|link$|asm$|cgo$|objtool|modpost|genksyms|fixdep|dkms|cmake|pahole|resolve_btfids"
        ),
    ),
    (KUBERNETES, re.compile(r"kube|etcd|kwok|helm|containerd|k8s")),
)

_MOST = 128 << 20  # bytes that may wait to be read: a hundred thousand messages, an hour's
_LARGEST = 1 << 16  # bytes of one message
_ANSWER = 10.0  # seconds for an answer of the kernel

ParentOf = Callable[[int], int]


def kind_of(name: str) -> str:
    """The kind of program that a thread of this name belongs to."""
    return next((kind for kind, pattern in _NAMES if pattern.match(name)), OTHERS)


@dataclass(frozen=True)
class Exit:
    """A thread that has ended: its processor time in seconds."""

    pid: int
    parent: int
    name: str
    seconds: float


class Exits(Protocol):
    """Where a meter hears what has ended."""

    lost: bool

    def read(self) -> list[Exit]: ...


class Taskstats:
    """The kernel's messages about threads that end, on all processors. Raises OSError."""

    # include/uapi/linux/{netlink,genetlink,taskstats}.h
    _CONTROL, _GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 16, 3, 1, 2
    _GET, _REGISTER = 1, 3  # TASKSTATS_CMD_GET, TASKSTATS_CMD_ATTR_REGISTER_CPUMASK
    _STATS, _AGGREGATE_PID = 3, 4  # TASKSTATS_TYPE_STATS, TASKSTATS_TYPE_AGGR_PID
    _HEADERS = 20  # bytes of nlmsghdr and genlmsghdr
    _NAME = slice(80, 112)  # ac_comm
    _IDS = struct.Struct("=II")  # ac_pid, ac_ppid
    _TIMES = struct.Struct("=QQ")  # ac_utime, ac_stime, in microseconds

    def __init__(self) -> None:
        self.lost = False
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)  # NETLINK_GENERIC
        try:
            self._socket.bind((0, 0))
            self._socket.setsockopt(socket.SOL_SOCKET, 33, _MOST)  # SO_RCVBUFFORCE
            self._socket.settimeout(_ANSWER)
            self._register()
            self._socket.setblocking(False)
        except BaseException:
            self._socket.close()
            raise

    def _register(self) -> None:
        answer = self._ask(self._CONTROL, self._GET_FAMILY, self._FAMILY_NAME, b"TASKSTATS\0")
        family = dict(_attributes(answer[self._HEADERS :]))[self._FAMILY_ID]
        processors = b"0-%d\0" % ((os.cpu_count() or 1) - 1)
        self._ask(int.from_bytes(family, sys.byteorder), self._GET, self._REGISTER, processors)

    def _ask(self, family: int, command: int, kind: int, value: bytes) -> bytes:
        """Send a request with one attribute; return the answer. Raises OSError if refused."""
        length = 4 + len(value)
        body = struct.pack("=BBHHH", command, 1, 0, length, kind) + value + b"\0" * (-length % 4)
        self._socket.send(struct.pack("=IHHII", 16 + len(body), family, 5, 0, 0) + body)
        answer = self._socket.recv(_LARGEST)
        is_error = answer[4:6] == struct.pack("=H", 2)  # NLMSG_ERROR, which also acknowledges
        if is_error and (error := struct.unpack_from("=i", answer, 16)[0]):
            raise OSError(-error, os.strerror(-error))
        return answer

    def read(self) -> list[Exit]:
        """All that has ended since the last call; `lost`, if the socket could not hold it all."""
        self.lost = False
        exits: list[Exit] = []
        while True:
            try:
                message = self._socket.recv(_LARGEST)
            except BlockingIOError:
                return exits
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self.lost = True
                continue
            exits += self._exits(message[self._HEADERS :])

    def _exits(self, payload: bytes) -> Iterator[Exit]:
        for kind, value in _attributes(payload):
            stats = dict(_attributes(value)).get(self._STATS)
            if kind == self._AGGREGATE_PID and stats:
                pid, parent = self._IDS.unpack_from(stats, 128)
                user, system = self._TIMES.unpack_from(stats, 152)
                name = stats[self._NAME].partition(b"\0")[0].decode(errors="replace")
                yield Exit(pid, parent, name, (user + system) / 1e6)

    def close(self) -> None:
        self._socket.close()


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            return
        yield kind, data[4:length]
        data = data[(length + 3) & ~3 :]


def read_parent(pid: int) -> int:
    """The parent of a process that is there, else 0."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # it is asked thousands of times
            text = file.read()
    except OSError:
        return 0
    return int(text.rpartition(b")")[2].split()[1])


def descendants(root: int, exits: Sequence[Exit], parent_of: ParentOf = read_parent) -> list[Exit]:
    """Those of `exits` that descend from the process `root`.

    A process whose parent ended first has another one by then; it is nobody's.
    """
    ended = {exit_.pid: exit_.parent for exit_ in exits}
    known: dict[int, bool] = {root: True, 0: False, 1: False}

    def descends(pid: int) -> bool:
        path = []
        while pid not in known and pid not in path:
            path.append(pid)
            pid = ended[pid] if pid in ended else parent_of(pid)
        answer = known.get(pid, False)
        known.update(dict.fromkeys(path, answer))
        return answer

    return [exit_ for exit_ in exits if descends(exit_.parent)]


class Meter:
    """What this process and its descendants used, by kind.

    Without root, or if the kind is not asked for: `python` and `unknown`. To hear of every process
    of the machine takes time.
    """

    def __init__(self, exits: Exits | None = None, *, by_kind: bool = True) -> None:
        self._own, self._children = _own(), _children()
        self._exits = exits
        if by_kind and exits is None:
            with suppress(OSError):
                self._exits = Taskstats()

    def take(self) -> dict[str, float]:
        """Seconds of a processor since the last call. A program counts when it has ended."""
        used: dict[str, float] = defaultdict(float)
        own, children = _own(), _children()
        used[PYTHON] += own - self._own
        if self._exits is None:
            used[UNKNOWN] += children - self._children
        else:
            heard = descendants(os.getpid(), self._exits.read())
            for exit_ in heard:
                used[kind_of(exit_.name)] += exit_.seconds
            if self._exits.lost:
                missing = children - self._children - sum(exit_.seconds for exit_ in heard)
                used[UNKNOWN] += max(0.0, missing)
        self._own, self._children = own, children
        return dict(used)


def _own() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
