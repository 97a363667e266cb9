"""Runs a function in a forked child; returns its bytes, raises its error, or reports its death.

This is for two kinds of work. A call into the kernel may hang or crash in a module's code; its
child is then left behind. Code that parses untrusted files may exhaust the memory or never end; its
child gets `ChildLimits` and is killed at the deadline. The answer has a bounded size and is treated
as plain data only. All imports are at the top: after a fork in a multi-threaded process, the child
must not take a lock that another thread may hold.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import select
import signal
import struct
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from nodeside.errors import DeadlinePassed, ExitCode, NodesideError, SystemRefused
from nodeside.system.process import exit_code_in_words
from nodeside.values import frozen

_HEAD = struct.Struct("=cQ")  # kind of the answer, and its size in bytes
_RETURNED, _REFUSED, _ERRNO, _RAISED = b"R", b"E", b"O", b"X"
_CHUNK = 1 << 16
_ANSWER = 1 << 20  # bytes, if no limits are given: an errno, or a traceback
_left_behind: dict[str, int] = {}  # process ids of abandoned children, by `alone`
_reading: set[int] = set()  # process ids of children that only read and are waited for
_GRACE = 5  # seconds of processor time between SIGXCPU and SIGKILL


@frozen
class ChildLimits:
    """Resource limits of a child.

    `memory` is in bytes beyond the memory that this process has mapped, `processor` in seconds of
    processor time, and `answer` in bytes.
    """

    memory: int
    processor: int
    answer: int


class ChildDied(NodesideError):
    """The child ended without a complete answer: a limit, the OOM killer, or a crash."""

    reason = "ChildDied"


class NoProcess(SystemRefused):
    """No child could be started: a limit of processes, or too little memory."""

    reason = "NoProcess"
    retryable = True


class ChildRaised(Exception):
    """An unexpected exception in the child. `kind` is the name of its class.

    This includes MemoryError, which Python raises at the memory limit.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"in a child process: {text}")
        self.kind = kind


def run_in_child(
    call: Callable[[], object],
    timeout: float,
    *,
    keep: Sequence[int] = (),
    limits: ChildLimits | None = None,
    alone: str = "",
) -> bytes:
    """Run `call` in a child process and return its result if that is bytes, else empty bytes.

    Re-raises an OSError or NodesideError of `call`. Raises ChildRaised for any other exception,
    ChildDied, NoProcess, and DeadlinePassed. The child only inherits the open files in `keep`: a
    child that is left behind must not hold our lock or our output. Without limits, signals are
    blocked in the child, and it is left behind at the deadline: no signal ends a call that hangs in
    the kernel, and a thread hanging there would prevent this process from ever exiting.

    `alone` names work that only reads, of which at most one child is left behind: if an earlier one
    still exists, raises DeadlinePassed at once. Such a child is killed when this process exits.
    """
    if alone and _is_still_there(_left_behind.get(alone)):
        raise DeadlinePassed("the child process of an earlier attempt is still running")
    until = time.monotonic() + timeout
    reader, pid = _fork_child(call, keep, limits)
    if alone:
        _reading.add(pid)
    try:
        data = _read_answer(reader, until, limits.answer if limits else _ANSWER)
    except BaseException:
        if limits:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            _reap_child(pid)
        elif alone:
            _left_behind[alone] = pid
        raise
    finally:
        _reading.discard(pid)
        os.close(reader)
    return _decode_answer(data, _reap_child(pid))


# --- in the parent ----------------------------------------------------------------------------


def _fork_child(
    call: Callable[[], object], keep: Sequence[int], limits: ChildLimits | None
) -> tuple[int, int]:
    """Fork; return the read end of the pipe for the answer, and the child's process id."""
    try:
        reader, writer = os.pipe()
    except OSError as exc:
        raise _no_process_error(exc) from exc
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with warnings.catch_warnings():
            # Python warns about forks with threads; the child takes no lock that one could hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _run_and_exit(call, writer, keep, limits)
    except OSError as exc:  # not to be taken for an error of `call`: EAGAIN has many meanings
        os.close(reader)
        raise _no_process_error(exc) from exc
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
        os.close(writer)
    return reader, pid


def _no_process_error(exc: OSError) -> NoProcess:
    return NoProcess(
        f"cannot start a child process: {exc.strerror}",
        hint="find what uses up the processes or the memory of the node, or of this pod: "
        "see pids.current, pids.max and memory.max in /sys/fs/cgroup",
    )


def _read_answer(reader: int, until: float, limit: int) -> bytes:
    """Return everything the child writes until it ends."""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    data = bytearray()
    while len(data) <= _HEAD.size + limit:
        left = until - time.monotonic()
        if not poll.poll(max(0.0, left * 1000)):
            raise DeadlinePassed("the child process did not end before its deadline")
        chunk = os.read(reader, _CHUNK)
        if not chunk:
            return bytes(data)
        data += chunk
    raise ChildDied(f"its answer has more than {limit} bytes")


def _reap_child(pid: int) -> str:
    """Wait for the child and return how it ended, in words."""
    try:
        return exit_code_in_words(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    except ChildProcessError:  # already reaped as an orphan
        return "ended"


@atexit.register
def kill_left_behind() -> None:
    """Kill children that only read, also those that other threads wait for.

    A child that hangs in the kernel ends when its call returns. A process that ends by os._exit
    must call this function itself, since no atexit handler runs then.
    """
    for pid in (*_left_behind.values(), *_reading):
        if _is_still_there(pid):
            os.kill(pid, signal.SIGKILL)


def _is_still_there(pid: int | None) -> bool:
    """Return whether a child that was left behind is still running; reap it if not."""
    if pid is None:
        return False
    with suppress(ChildProcessError):  # already reaped as an orphan
        return os.waitpid(pid, os.WNOHANG)[0] == 0
    return False


def _decode_answer(data: bytes, ended: str) -> bytes:
    kind, size = _HEAD.unpack_from(data) if len(data) >= _HEAD.size else (b"", 0)
    answer = data[_HEAD.size :]
    if not kind or len(answer) != size:
        raise ChildDied(ended)
    if kind == _RETURNED:
        return answer
    record = json.loads(answer)
    if kind == _ERRNO:
        raise OSError(record["errno"], os.strerror(record["errno"]))
    if kind == _REFUSED:
        raise _rebuild_error(record)
    raise ChildRaised(record["class"], record["text"])


def _rebuild_error(record: dict[str, Any]) -> NodesideError:
    """Recreate the child's error, with only the attributes that every NodesideError has."""
    kinds = (
        kind for kind in _known_exceptions(NodesideError) if kind.__qualname__ == record["class"]
    )
    kind = next(kinds, NodesideError)
    error = kind.__new__(kind)
    NodesideError.__init__(
        error, str(record["text"]), hint=str(record["hint"]), retryable=bool(record["retryable"])
    )
    error.exit_code, error.reason = ExitCode(record["exit_code"]), str(record["reason"])
    return error


def _known_exceptions(kind: type[NodesideError]) -> Iterator[type[NodesideError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _known_exceptions(child)


# --- in the child -----------------------------------------------------------------------------


def _run_and_exit(
    call: Callable[[], object], writer: int, keep: Sequence[int], limits: ChildLimits | None
) -> None:
    """Run the child to its exit. An exception must not escape: the caller would return twice."""
    try:
        kind, data = _encode_outcome(call, (writer, *keep), limits)
        _write_whole(writer, _HEAD.pack(kind, len(data)))
        _write_whole(writer, data)
        os._exit(0)
    finally:
        os._exit(1)


def _write_whole(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _encode_outcome(
    call: Callable[[], object], keep: Sequence[int], limits: ChildLimits | None
) -> tuple[bytes, bytes]:
    try:
        _close_all_but(keep)
        if limits:
            _apply_limits(limits)
        result = call()
    except NodesideError as exc:
        return _REFUSED, _describe_error(exc)
    except MemoryError:  # describing it would take more memory
        return _RAISED, b'{"class": "MemoryError", "text": "MemoryError"}'
    except BaseException as exc:
        if isinstance(exc, OSError) and exc.errno:
            return _ERRNO, json.dumps({"errno": exc.errno}).encode()
        text = "".join(traceback.format_exception(exc))[-_CHUNK:]
        return _RAISED, json.dumps({"class": type(exc).__name__, "text": text}).encode()
    return _RETURNED, result if isinstance(result, bytes) else b""


def _describe_error(error: NodesideError) -> bytes:
    record = {
        "class": type(error).__qualname__,
        "text": str(error),
        "hint": error.hint,
        "retryable": error.retryable,
        "exit_code": int(error.exit_code),
        "reason": error.reason,
    }
    return json.dumps(record).encode()


def _close_all_but(keep: Sequence[int]) -> None:
    """Close the open files by their list.

    Before Linux 5.9, os.closerange tries every number below a limit, of up to a billion in a pod.
    """
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - no Path in a forked child
        if int(name) not in keep:
            with suppress(OSError):  # that of the listing itself
                os.close(int(name))


def _apply_limits(limits: ChildLimits) -> None:
    """Set the limits. Ctrl-C is left to the parent, which kills the child if it gives up."""
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    _set_rlimit(resource.RLIMIT_AS, mapped + limits.memory)
    _set_rlimit(resource.RLIMIT_CPU, limits.processor, grace=_GRACE)
    _set_rlimit(resource.RLIMIT_CORE, 0)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Commands started from here, such as zstd, must be killable by their own limits.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _set_rlimit(kind: int, value: int, *, grace: int = 0) -> None:
    """Lower a limit, unless it is already lower."""
    _, hard = resource.getrlimit(kind)
    highest = value + grace if hard == resource.RLIM_INFINITY else min(value + grace, hard)
    with suppress(ValueError):
        resource.setrlimit(kind, (min(value, highest), highest))
