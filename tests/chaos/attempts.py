"""One try in a child that has a deadline and little memory: what hangs or fills is a finding.

A fork costs milliseconds where a new interpreter costs half a second, and thousands are tried.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import traceback
from collections.abc import Callable

_MEMORY = 512 << 20  # bytes more than there are at the fork
_SECONDS = 30.0
_LONGEST = 1 << 16  # bytes of an answer

BUG = "bug"


def attempt(work: Callable[[], str]) -> str:
    """What `work` returns; else `bug: …` with a traceback, a signal or `no end`."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # thousands of log lines
        os.write(writer, _limited(work).encode(errors="replace")[-_LONGEST:])
        os._exit(0)
    os.close(writer)
    try:
        return _answer(pid, reader)
    finally:
        os.close(reader)


def _limited(work: Callable[[], str]) -> str:
    try:
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, used + _MEMORY))
        return work()
    except BaseException:
        return f"{BUG}: {traceback.format_exc()}"


def _answer(pid: int, reader: int) -> str:
    """Read before waiting: a large answer would fill the pipe."""
    found = b""
    while select.select([reader], [], [], _SECONDS)[0]:
        if not (data := os.read(reader, _LONGEST)):
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            return found.decode() or f"{BUG}: ended with {code} and no answer"
        found += data
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return f"{BUG}: no end after {_SECONDS:g} s"
