"""How much memory a run of the tests holds at most: all its processes together, by kind.

A thread of the process that began the run looks at /proc every three seconds, which takes a
hundredth of a second. It counts what is a process's own: the memory of machines, the heap of
Python; not files that it maps, which many share, nor a program that no longer descends from us.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.costs.meter import kind_of

MUCH = 6 << 30  # bytes: a run that holds more is named, since an ordinary machine has eight GiB

_EVERY = 3.0  # seconds between two looks
_GIB = 1 << 30
_PROC = Path("/proc")


@dataclass(frozen=True)
class Peak:
    """Bytes by kind of program, and how many seconds after the run began."""

    held: Mapping[str, int] = field(default_factory=dict)
    moment: float = 0.0

    @property
    def total(self) -> int:
        return sum(self.held.values())

    def __str__(self) -> str:
        by_kind = sorted(self.held.items(), key=lambda item: -item[1])
        kinds = ", ".join(f"{kind} {held / _GIB:.1f}" for kind, held in by_kind)
        text = f"{self.total / _GIB:.1f} GiB of memory at most, after {self.moment:.0f} s: {kinds}"
        much = f"more than {MUCH / _GIB:.0f} GiB: " if self.total > MUCH else ""
        return f"{much}{text}"


class Watch:
    """Keeps the peak of this process and of all that descend from it, from `begin` to `end`."""

    def __init__(self, proc: Path = _PROC) -> None:
        self.peak = Peak()
        self._proc = proc
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> Peak:
        """Look once more. Called again, the same."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        return self.peak

    def _watch(self) -> None:
        over = False
        while not over:
            over = self._over.wait(_EVERY)
            self.look()

    def look(self) -> None:
        held = held_by(os.getpid(), self._proc)
        if sum(held.values()) > self.peak.total:
            self.peak = Peak(held, time.monotonic() - self._began)


def held_by(root: int, proc: Path = _PROC) -> dict[str, int]:
    """Bytes by kind that a process and its descendants hold now."""
    found = {pid: (parent, name) for pid, parent, name in _processes(proc)}
    parents = {pid: parent for pid, (parent, _) in found.items()}
    held: Counter[str] = Counter()
    for pid in _family(root, parents):
        with suppress(OSError, ValueError):  # it has ended
            _, resident, shared, *_ = map(int, (proc / str(pid) / "statm").read_text().split())
            held[kind_of(found[pid][1])] += (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    return dict(held)


def _family(root: int, parents: Mapping[int, int]) -> set[int]:
    """A process that is there, and its descendants."""
    children: dict[int, list[int]] = defaultdict(list)
    for pid, parent in parents.items():
        children[parent].append(pid)
    family, left = set(), [root]
    while left:
        pid = left.pop()
        family.add(pid)
        left += [child for child in children[pid] if child not in family]
    return family & parents.keys()


def _processes(proc: Path) -> Iterator[tuple[int, int, str]]:
    """The number, the parent and the name of each."""
    for each in proc.iterdir():
        if each.name.isdigit():
            with suppress(OSError):  # it has ended
                first, _, rest = (each / "stat").read_text().rpartition(")")
                yield int(each.name), int(rest.split()[1]), first.partition("(")[2]
