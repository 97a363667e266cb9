"""Locks between processes, on a real file: flock(2) is between descriptors, so two of them do."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest

from nodeside.system.clock import Clock
from nodeside.system.file_lock import LockFile, take_lock


@dataclass
class Time:
    """A clock that `sleep` moves."""

    passed: float = 0.0
    sleeps: list[float] = field(default_factory=list)

    def clock(self) -> Clock:
        return Clock(now=lambda: self.passed, sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.passed += seconds


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """One file, opened twice."""
    path = tmp_path / "lock"
    with open(path, "wb") as one, open(path, "rb") as other:
        yield one, other


def test_a_free_lock_is_taken_at_once(two: tuple[IO[bytes], IO[bytes]]) -> None:
    time = Time()
    assert take_lock(two[0].fileno(), within=5, clock=time.clock())
    assert time.sleeps == []


def test_a_held_lock_is_waited_for_until_the_deadline(two: tuple[IO[bytes], IO[bytes]]) -> None:
    time = Time()
    assert take_lock(two[0].fileno())
    assert not take_lock(two[1].fileno(), within=5, clock=time.clock())
    assert time.passed == pytest.approx(5)


def test_without_a_deadline_nobody_waits(two: tuple[IO[bytes], IO[bytes]]) -> None:
    time = Time()
    assert take_lock(two[0].fileno())
    assert not take_lock(two[1].fileno(), clock=time.clock())
    assert time.sleeps == []


def test_a_lock_that_becomes_free_while_waiting_is_taken(
    two: tuple[IO[bytes], IO[bytes]],
) -> None:
    assert take_lock(two[0].fileno())
    clock = Clock(now=lambda: 0.0, sleep=lambda _: two[0].close())
    assert take_lock(two[1].fileno(), within=5, clock=clock)


def test_shared_locks_exclude_only_an_exclusive_one(two: tuple[IO[bytes], IO[bytes]]) -> None:
    assert take_lock(two[0].fileno(), shared=True)
    assert take_lock(two[1].fileno(), shared=True)
    assert not take_lock(two[1].fileno())


def test_a_lock_file_is_held_by_one_and_given_up_by_its_process(tmp_path: Path) -> None:
    one, other = LockFile(tmp_path / "lock"), LockFile(tmp_path / "lock")
    assert one.take()
    assert one.take()
    assert not other.take()
    one.release()
    assert other.take()
    assert not one.is_held


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_lock_file_that_somebody_removed_is_lost(tmp_path: Path, is_replaced: bool) -> None:
    lock = LockFile(tmp_path / "lock")
    assert not lock.is_lost
    assert lock.take()
    assert not lock.is_lost
    (tmp_path / "lock").unlink()
    if is_replaced:
        (tmp_path / "lock").touch()
    assert lock.is_lost


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_where_nothing_can_be_locked_no_descriptor_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_fd: int, _kind: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    lock = LockFile(tmp_path / "lock")
    before = open_files()
    for _ in range(3):
        with pytest.raises(OSError, match=os.strerror(errno.ENOLCK)):
            lock.take()
    assert open_files() == before
