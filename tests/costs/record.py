"""What a whole run used: by tier, by file, and by the processes that ran side by side.

    $XDG_CACHE_HOME/nodeside/tests/costs.json    the last `make test` (`--costs FILE`: elsewhere)
    python -m tests.costs OLD.json NEW.json      what changed between two runs

The order of the next run comes from it (tests/lanes.py).
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nodeside.errors import NodesideError
from nodeside.system import process
from nodeside.system.files import publish_bytes
from nodeside.text.table import table
from tests.costs.meter import KINDS

_GIT = 60.0  # seconds
_MOST = 20  # files that are shown
_LARGE = 20.0  # seconds; a lane that took less is not shown by itself


@dataclass
class File:
    """The tests of one file that are of one tier."""

    path: str
    tier: str
    tests: int = 0
    seconds: float = 0.0  # on the wall
    used: dict[str, float] = field(default_factory=dict)  # seconds of a processor, by kind

    @property
    def processor(self) -> float:
        """Seconds of a processor, of every kind."""
        return sum(self.used.values())


@dataclass
class Lane:
    """What one process ran in a row: a file, or the files that share what there is one of."""

    name: str
    process: str
    began: float  # seconds since the run began
    ended: float
    processor: float = 0.0


@dataclass
class Costs:
    """A run. `began` is a moment of time.time()."""

    began: float
    commit: str = ""
    memory: int = 0  # bytes at most: tests/costs/memory.py
    files: list[File] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)

    def add(  # what a report of pytest says
        self,
        path: str,
        *,
        tier: str,
        lane: str,
        process: str,
        began: float,
        ended: float,
        used: Mapping[str, float],
        counts: bool,
    ) -> None:
        """Add a phase of a test. `counts`: this phase stands for the test."""
        file = self._file(path, tier)
        file.tests += counts
        file.seconds += ended - began
        file.used = dict(Counter(file.used) + Counter(used))
        last = next((each for each in reversed(self.lanes) if each.process == process), None)
        if last is None or last.name != lane:
            last = Lane(lane, process, began - self.began, 0.0)
            self.lanes.append(last)
        last.ended = ended - self.began
        last.processor += sum(used.values())

    def _file(self, path: str, tier: str) -> File:
        for file in reversed(self.files):
            if file.path == path and file.tier == tier:
                return file
        self.files.append(File(path, tier))
        return self.files[-1]

    @property
    def by_lane(self) -> dict[str, float]:
        """Seconds of a processor that each lane used."""
        return {lane.name: lane.processor for lane in self.lanes}


def default_path() -> Path:
    """Where the costs of the last run are: outside the checkout."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "nodeside" / "tests" / "costs.json"


def commit_of(checkout: Path) -> str:
    """The commit of a checkout, or "" if it has none."""
    words = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    with suppress(NodesideError):
        return process.run(words, timeout=_GIT).output.strip()
    return ""


def write(path: Path, costs: Costs) -> None:
    """Write the costs by rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    publish_bytes(path, (json.dumps(asdict(costs), indent=1) + "\n").encode())


def read(path: Path) -> Costs | None:
    """The costs at `path`; None if there are none, or they are of another version of this file."""
    try:
        record = json.loads(path.read_text())
        files = [File(**file) for file in record.pop("files")]
        lanes = [Lane(**lane) for lane in record.pop("lanes")]
        return Costs(files=files, lanes=lanes, **record)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def by_tier(costs: Costs, tiers: Iterable[str]) -> str:
    """A table: a row for each tier, a column for each kind of program, and what nobody used."""
    rows = [_tier_row(tier, [f for f in costs.files if f.tier == tier]) for tier in tiers]
    rows.append(_tier_row("all", costs.files))
    return table(rows, header=("CPU-SECONDS", *KINDS, "all", "waits"))


def _tier_row(tier: str, files: Sequence[File]) -> tuple[str, ...]:
    """What a file waits is the part of its time in which it used less than one processor."""
    used: Counter[str] = Counter()
    for file in files:
        used.update(file.used)
    waits = sum(max(0.0, file.seconds - file.processor) for file in files)
    cells = [*(used[kind] for kind in KINDS), sum(used.values()), waits]
    return (tier, *(f"{cell:6.0f}" if cell >= 0.5 else f"{'.':>6}" for cell in cells))


def by_file(costs: Costs) -> str:
    """The files that used most."""
    files = sorted(costs.files, key=lambda file: -file.processor)[:_MOST]
    rows = [(f"{f.processor:6.0f}", f"{f.seconds:6.0f}", str(f.tests), f.path) for f in files]
    return table(rows, header=("CPU-SECONDS", "seconds", "tests", "file"))


def by_process(costs: Costs) -> str:
    """What each process ran, in its order; short lanes in a row are one line."""
    lanes: dict[str, list[Lane]] = defaultdict(list)
    for lane in costs.lanes:
        lanes[lane.process].append(lane)
    rows = [row for process in sorted(lanes) for row in _process_rows(process, lanes[process])]
    return table(rows, header=("PROCESS", "from", "to", "CPU-s", "lane"))


def _process_rows(process: str, lanes: Sequence[Lane]) -> list[tuple[str, ...]]:
    rows: list[list[Lane]] = []
    for lane in lanes:
        short = lane.ended - lane.began < _LARGE
        if short and rows and rows[-1][0].ended - rows[-1][0].began < _LARGE:
            rows[-1].append(lane)
        else:
            rows.append([lane])
    return [
        (
            process,
            f"{row[0].began:5.0f}",
            f"{row[-1].ended:5.0f}",
            f"{sum(lane.processor for lane in row):5.0f}",
            row[0].name if len(row) == 1 else f"{len(row)} lanes of less than {_LARGE:.0f} s",
        )
        for row in rows
    ]


def difference(old: Costs, new: Costs) -> str:
    """Two runs side by side: the files whose processor time changed most, then the sum."""
    before, after = (_processor_by_file(costs) for costs in (old, new))
    paths = sorted({*before, *after}, key=lambda path: -abs(after[path] - before[path]))[
        : 2 * _MOST
    ]
    rows = [_difference_row(path, before[path], after[path]) for path in paths]
    rows.append(_difference_row("all", sum(before.values()), sum(after.values())))
    return table(rows, header=("CPU-SECONDS", "then", "change", "file"))


def _processor_by_file(costs: Costs) -> dict[str, float]:
    used: dict[str, float] = defaultdict(float)
    for file in costs.files:
        used[file.path] += file.processor
    return used


def _difference_row(name: str, before: float, after: float) -> tuple[str, ...]:
    return (f"{before:6.0f}", f"{after:6.0f}", f"{after - before:+6.0f}", name)
