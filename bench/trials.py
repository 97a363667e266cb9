"""How long an engineer waits for `nodeside try`: the first time, again, and with `--watch`.

The driver is `examples/edu`, whose trial has a device and a command. Everything is cached but what
a change of the source makes new.
"""

from __future__ import annotations

import io
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.page import Goal, Section, markdown_table
from bench.room import BenchError
from bench.samples import Samples, seconds
from bench.size import Size
from nodeside.errors import NodesideError
from nodeside.system.scratch import scratch_directory
from nodeside.trial.progress import Progress
from nodeside.trial.session import TryOptions, run_session
from nodeside.trial.watch import WatchSession
from nodeside.trial.workshop import Workshop

_EDU = Path(__file__).parents[1] / "examples" / "edu"
_KERNEL = "cloud-amd64"
_READY = 900.0  # seconds from the save to the driver that is ready
_TIMES = {Size.FULL: 7, Size.QUICK: 2, Size.SMALLEST: 1}


@dataclass
class _Stopwatch(Progress):
    """Saves the source whenever the trial waits for that, and notes when the driver is ready."""

    source: Path = Path()
    left: int = 0
    saved: float = 0.0
    times: list[float] = field(default_factory=list)
    said: str = ""

    def print_step(self, text: str) -> None:
        if not text.startswith("waiting "):
            self.said = text
        if text.startswith("ready: ") and self.saved:
            self.times.append(time.monotonic() - self.saved)
            self.saved = 0.0

    def pause(self, pause: float) -> None:
        if not self.saved:
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            _change(self.source)
            self.saved = time.monotonic()
        if time.monotonic() - self.saved > _READY:
            words = f"waited {_READY:g} s for a saved change to be ready; seen: {self.said}"
            raise BenchError(words)
        time.sleep(pause)


def _change(source: Path) -> None:
    source.write_text(f"{source.read_text()}\n/* {time.time_ns()} */\n")


def measure(progress: Progress, size: Size) -> tuple[Section, Mapping[str, str]]:
    times = _TIMES[size]
    with scratch_directory("bench") as scratch:
        tree = scratch / "edu"
        shutil.copytree(_EDU, tree)
        source = tree / "src" / "edu.c"
        progress.print_step("a trial with a changed source, and without a change")
        changed, same = [], []
        for _ in range(times):
            if size is not Size.SMALLEST:  # a boot less; what is watched is changed and built too
                _change(source)
                changed.append(_trial(tree))
            same.append(_trial(tree))
        progress.print_step("the same changes in a machine that stays")
        watched = Samples.of(_watched(tree, source, scratch, times))
    made, again = Samples.of(changed or same), Samples.of(same)
    ratio = made.against(watched)
    table = markdown_table(
        ("", "time"),
        [
            ("`nodeside try`, the source has changed", seconds(made)),
            ("`nodeside try`, nothing has changed", seconds(again)),
            ("`--watch`: saved → ready", seconds(watched)),
            ("a new trial / `--watch`", f"{ratio.median:.1f} ({ratio.low:.1f}-{ratio.high:.1f})"),
        ],
    )
    before = (
        f"`examples/edu` with kernel {_KERNEL}, its device and its command, {times} times each. "
        "A trial is everything from the command to its result, with the machine's end; a saved "
        "change is looked for three times a second, and tried when nothing more is saved."
    )
    goals = (
        Goal("a trial again", "≤ 25 s", seconds(again), again.median <= 25),
        Goal("saved → ready", "≤ 5 s", seconds(watched), watched.median <= 5),
    )
    return Section("Trials", before, table, goals=goals), {}


def _trial(tree: Path) -> float:
    started = time.monotonic()
    runs = run_session(TryOptions(str(tree), (_KERNEL,)), Progress(io.StringIO()))
    if any(run.verdict for run in runs):
        raise NodesideError("examples/edu is not ready in a trial, so nothing was measured")
    return time.monotonic() - started


def _watched(tree: Path, source: Path, scratch: Path, times: int) -> list[float]:
    stopwatch = _Stopwatch(io.StringIO(), source=source, left=times)
    with Workshop(stopwatch) as workshop:
        place = scratch / "watch"
        place.mkdir()
        session = WatchSession(tree, workshop.resolve(_KERNEL), workshop, place, stopwatch)
        try:
            session.run_for_ever(stopwatch.pause)
        except KeyboardInterrupt:
            return stopwatch.times
    raise AssertionError("it watches for ever")
