"""The same command many times in one container, timed by the shell that starts it.

So neither the entry into the container nor the line to a machine is part of the numbers.
"""

from __future__ import annotations

import re

from bench.room import BenchError
from bench.samples import Samples
from nodeside.system import process

# Arguments: how often, what to do before each run (not timed), and the command.
_LOOP = (
    'n=$1 before=$2; shift 2; for i in $(seq "$n"); do $before >/tmp/said 2>&1; s=$EPOCHREALTIME; '
    '"$@" >/tmp/said 2>&1 || { cat /tmp/said; exit 1; }; echo "took $s $EPOCHREALTIME"; done'
)
_TOOK = re.compile(r"^took (\d+\.\d+) (\d+\.\d+)\r?$", re.MULTILINE)


def repeat(times: int, *argv: str, before: str = "") -> list[str]:
    """The command that runs another one so many times, `before` before each."""
    return ["bash", "-c", _LOOP, "bash", str(times), before, *argv]


def timings(said: str) -> Samples:
    """What `repeat` printed, in seconds. Raises BenchError if the command failed."""
    pairs = _TOOK.findall(said)
    if not pairs:
        raise BenchError(f"a command that was to be timed failed\n{process.last_lines_of(said)}")
    return Samples.of(float(end) - float(start) for start, end in pairs)
