"""A command in a root file system on this machine, and how long it took.

Every command gets a container of its own (see `nodeside.trial.host.container`): the time it takes
to enter one is part of what is measured here, for everybody the same; `Room.entry` says how much.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from bench.samples import Samples
from nodeside.errors import DeadlinePassed, NodesideError
from nodeside.system import process
from nodeside.trial.host.container import ENVIRONMENT, make_entrance

_TAIL_BYTES = 1 << 16


class BenchError(NodesideError):
    """Something that must work before it can be measured did not."""

    reason = "BenchFailed"


@dataclass(frozen=True)
class Timing:
    """Seconds on the wall, and of all CPUs together (user and system, descendants included)."""

    wall: float
    cpu: float

    def __add__(self, other: Timing) -> Timing:
        return Timing(self.wall + other.wall, self.cpu + other.cpu)


@dataclass(frozen=True)
class Room:
    """Layers of root file systems, the first on top, and what is bound into them."""

    layers: tuple[Path, ...]
    scratch: Path
    binds: Mapping[Path, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def running(self, argv: Sequence[str], output: int | IO[bytes]) -> Iterator[process.Child]:
        """A command that the caller supervises; if it still runs at the end, it is killed."""
        with make_entrance(self.layers, self.scratch, self.binds) as enter:
            child = process.start(
                argv,
                env={**ENVIRONMENT, **self.env},
                stdout=output,
                stderr=output,
                wrapper=enter,
            )
        try:
            yield child
        finally:
            if child.returncode is None:
                process.kill_group(child.pid)
                child.wait()

    def time(self, argv: Sequence[str], *, log: Path, timeout: float) -> Timing:
        """Run a command to its end. Its output goes to a file."""
        with open(log, "wb") as file:
            started = time.monotonic()
            with self.running(argv, file) as child:
                timing = finish(child, started, timeout)
        if child.returncode != 0:
            raise failed(argv, child.returncode, log)
        return timing

    def run(self, argv: Sequence[str], *, timeout: float) -> str:
        """Run a command to its end; what it said."""
        env = {**ENVIRONMENT, **self.env}
        with make_entrance(self.layers, self.scratch, self.binds) as enter:
            return process.run(argv, env=env, wrapper=enter, timeout=timeout).output

    def entry(self, times: int = 5) -> Samples:
        """How long it takes to enter and leave."""
        log = self.scratch / "entry.log"
        return Samples.of(self.time(["true"], log=log, timeout=30).wall for _ in range(times))


def await_end(child: process.Child, timeout: float) -> float:
    """Wait for the end of a process; the moment it ended, to the millisecond.

    `Popen.wait` with a deadline looks every 50 ms, which is too coarse.
    """
    pidfd = os.pidfd_open(child.pid)
    try:
        if not select.select([pidfd], [], [], timeout)[0]:
            raise DeadlinePassed(f"no end after {timeout:g} s: {child.args!r}")
        return time.monotonic()
    finally:
        os.close(pidfd)


def has_ended(child: process.Child) -> bool:
    """Whether a process has ended, without taking its exit code and its usage."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def finish(child: process.Child, started: float, timeout: float) -> Timing:
    """Wait for the end of a process that was started at `started`."""
    ended = await_end(child, timeout)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return Timing(ended - started, usage.ru_utime + usage.ru_stime)


def failed(argv: Sequence[str], code: int, log: Path) -> BenchError:
    said = log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
    words = f"{process.exit_code_in_words(code)}: {' '.join(argv)}"
    return BenchError(f"{words}\n{process.last_lines_of(said)}")
