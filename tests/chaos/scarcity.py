"""Disks that are full, read-only or broken; too little memory, too few processes; clocks that jump.

Whatever happens, the driver ends with an exit code that says what it was, never with a traceback,
and is right again as soon as the shortage is over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from nodeside.errors import DeadlinePassed, ExitCode
from nodeside.system.process import Completed
from nodeside.trial.machine.containers import DRIVER, TOOLKIT
from nodeside.trial.machine.machine import GuestProcess
from tests.chaos.ledger import Ledger, Round
from tests.chaos.nodes import VERSIONS, Target
from tests.patience import patience
from tests.vm.pod import CACHE, SHARED

NAME = "shortage"
_DRIVERS = ("one", "two", "large", "stored")
_LONGEST = patience(300.0)  # seconds; longer than any deadline that is met here
_LOOP = "/run/chaos"  # a tmpfs too small for the disk image in it
_BUG = (ExitCode.BUG, ExitCode.USAGE)

Shortage = Callable[[Target, Round], Iterator[GuestProcess]]


def endure(ledger: Ledger, target: Target, count: int) -> None:
    for turn in ledger.rounds(NAME, count):
        name = turn.fate.choice(list(SHORTAGES))
        target.pod.node("sh", "-c", f"rmmod tiny; rm -f /run/nodeside/tiny/ready {CACHE}/*; true")
        with contextmanager(SHORTAGES[name])(target, turn) as driver:
            ended = _end_of(turn, driver, name)
        if name not in _TOLD_APART:
            short = ended is None or ended.exit_code != 0
            turn.happened(f"{name}: there was too little for the driver", short)
        target.judge_after(turn, turn.fate.choice(list(VERSIONS)))
        turn.outcome(f"{name}: {'no end' if ended is None else ended.exit_code}")


def _end_of(turn: Round, driver: GuestProcess, name: str) -> Completed | None:
    try:
        ended = driver.wait(_LONGEST)
    except DeadlinePassed:
        driver.kill()
        driver.wait(60)
        turn.finding(f"{name}: no end after {_LONGEST:g} s")
        return None
    if ended.exit_code in _BUG or "Traceback" in ended.errors:
        turn.finding(f"{name}: exit code {ended.exit_code}\n{ended.errors[-3000:]}")
    return ended


def _begin(target: Target, turn: Round, **limits: str) -> GuestProcess:
    where = replace(DRIVER, limits={name.replace("_", "."): v for name, v in limits.items()})
    driver = turn.fate.choice(_DRIVERS)
    return target.pod.start_driver("run", "--once", of=driver, where=where).process


def _soon(target: Target, turn: Round) -> None:
    """A moment in the middle of a run."""
    threading.Event().wait(turn.fate.uniform(0.0, 5.0))


@contextmanager
def _mounted(target: Target, place: str, kind: str) -> Iterator[None]:
    """A file system at a place that both containers see, and so they start anew."""
    target.pod.close()
    target.pod.node("sh", "-c", f"mkdir -p {place} && mount {kind} {place}")
    try:
        target.pod.start_sidecar()
        yield
    finally:
        target.pod.close()
        target.pod.node("sh", "-c", f"umount {place} || umount -l {place}; true")
        target.pod.start_sidecar()


def _full_cache(target: Target, turn: Round) -> Iterator[GuestProcess]:
    kib = turn.fate.choice((4, 16, 64, 512, 8192))
    with _mounted(target, CACHE, f"-t tmpfs -o size={kib}k,mode=755 full"):
        yield _begin(target, turn)


def _full_hand_off(target: Target, turn: Round) -> Iterator[GuestProcess]:
    """So many KiB are free once the packed Python is there, which takes some 90 MiB."""
    room = turn.fate.choice((0, 4, 16, 64, 512, 8192))
    with _mounted(target, SHARED, "-t tmpfs -o size=120m,mode=755 full"):
        free = f"free=$(df -k {SHARED} | awk 'END {{ print $4 }}')"
        fill = f"dd if=/dev/zero of={SHARED}/filler bs=1k count=$((free - {room})) 2>/dev/null"
        target.pod.node("sh", "-c", f"{free}; {fill}; true")
        yield _begin(target, turn)


def _read_only(target: Target, turn: Round) -> Iterator[GuestProcess]:
    with _mounted(target, CACHE, "-t tmpfs -o size=64m,mode=755 reads"):
        driver = _begin(target, turn)
        _soon(target, turn)
        target.pod.node("sh", "-c", f"mount -o remount,ro {CACHE}; true")
        refused = target.pod.node("sh", "-c", f"touch {CACHE}/new 2>/dev/null || echo refused")
        works = driver.poll() is None
        turn.happened("read-only cache: while the driver ran", works and bool(refused))
        yield driver


def _broken_disk(target: Target, turn: Round) -> Iterator[GuestProcess]:
    """A disk whose writes fail with EIO from some block on, since what it lies on is full."""
    kib = turn.fate.choice((512, 1024, 4096, 20480))
    target.pod.node(
        "sh",
        "-c",
        f"mkdir -p {_LOOP} && mount -t tmpfs -o size={kib}k broken {_LOOP} && "
        f"truncate -s 64M {_LOOP}/disk && mke2fs -q -F {_LOOP}/disk && losetup -f {_LOOP}/disk",
    )
    device = target.pod.node("sh", "-c", f"losetup -a | grep {_LOOP} | cut -d: -f1").split()[0]
    try:
        with _mounted(target, CACHE, device):
            yield _begin(target, turn)
    finally:
        target.pod.node("sh", "-c", f"losetup -d {device}; umount {_LOOP} || umount -l {_LOOP}")


def _little_memory(target: Target, turn: Round) -> Iterator[GuestProcess]:
    yield _begin(target, turn, memory_max=str(turn.fate.randrange(8, 40) << 20))


def _little_memory_to_build(target: Target, turn: Round) -> Iterator[GuestProcess]:
    limit = {"memory.max": str(turn.fate.randrange(8, 32) << 20)}
    target.pod.close()
    target.pod.start_sidecar(replace(TOOLKIT, limits=limit))
    driver = _begin(target, turn)
    yield driver
    target.pod.close()


def _few_processes(target: Target, turn: Round) -> Iterator[GuestProcess]:
    yield _begin(target, turn, pids_max=str(turn.fate.randrange(1, 6)))


def _few_processes_to_build(target: Target, turn: Round) -> Iterator[GuestProcess]:
    target.pod.close()
    limit = {"pids.max": str(turn.fate.randrange(1, 7))}
    target.pod.start_sidecar(replace(TOOLKIT, limits=limit))
    yield _begin(target, turn)
    target.pod.close()


def _clock_jumps(target: Target, turn: Round) -> Iterator[GuestProcess]:
    driver = _begin(target, turn)
    for _ in range(3):
        _soon(target, turn)
        seconds = turn.fate.choice((0, 1, 10**9, 2**31 + 5, 4 * 10**9)) + turn.fate.randrange(10**6)
        target.pod.node("date", "-s", f"@{seconds}")
        passed = int(target.pod.node("date", "+%s")) - seconds
        turn.happened("clock jumps: the node's clock has jumped", 0 <= passed < 600, enough=1)
    yield driver


SHORTAGES: dict[str, Shortage] = {
    "full cache": _full_cache,
    "full hand-off": _full_hand_off,
    "read-only cache": _read_only,
    "broken disk": _broken_disk,
    "memory limit of the driver": _little_memory,
    "memory limit of the build": _little_memory_to_build,
    "process limit of the driver": _few_processes,
    "process limit of the build": _few_processes_to_build,
    "clock jumps": _clock_jumps,
}
_TOLD_APART = ("read-only cache", "clock jumps")  # a driver may do its work in spite of these
