"""What was built for the tests that is kept outside the checkout, and how long that took.

    <cache>/built.jsonl   a line for each build: of the control plane's cache, of the trial's

Any process may build: the one that needs a program of Kubernetes first, or a benchmark that a test
starts. So it is written where it is built, and read at the end of a run.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from nodeside.text.table import table

LOG = "built.jsonl"


@dataclass(frozen=True)
class Built:
    """`ended` is a moment of time.time(); `seconds` are on the wall."""

    what: str
    seconds: float
    ended: float


@contextmanager
def building(cache: Path, what: str) -> Iterator[None]:
    """The block builds something into a cache; it is written down when it is there."""
    began = time.monotonic()
    yield
    built = Built(what, time.monotonic() - began, time.time())
    line = json.dumps(asdict(built)).encode() + b"\n"
    log = os.open(cache / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(log, line)  # one write, so that lines of two processes do not mix
    finally:
        os.close(log)


def built_since(moment: float, caches: Iterable[Path]) -> list[Built]:
    """In the order in which they were there."""
    logs = (cache / LOG for cache in caches)
    lines = (line for log in logs if log.exists() for line in log.read_text().splitlines())
    found = (Built(**json.loads(line)) for line in lines)
    return sorted((built for built in found if built.ended >= moment), key=lambda b: b.ended)


def as_table(built: Iterable[Built]) -> str:
    """A line for each, or one that says that there was none."""
    rows = [(f"{each.seconds:7.0f}", each.what) for each in built]
    if not rows:
        return "nothing was built anew: programs and images were in the caches"
    return table(rows, header=("SECONDS", "was not in the caches"))
