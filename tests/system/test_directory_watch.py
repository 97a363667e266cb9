"""A change in a directory is noticed at once, whatever else the process does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeside.protocol.records import publish
from nodeside.system import directory_watch
from nodeside.system.directory_watch import DirectoryWatch
from tests.patience import patience

LONG = patience(60.0)  # seconds: a wait that only a broken test sees the end of


@pytest.fixture
def noticed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether each wait was ended by a signal; the look interval is out of the way."""
    seen: list[bool] = []
    real = signal.sigtimedwait

    def record(signals: Any, timeout: float) -> Any:
        answer = real(signals, timeout)
        if timeout:
            seen.append(answer is not None)
        return answer

    monkeypatch.setattr(directory_watch, "_SLOW", LONG)
    monkeypatch.setattr(signal, "sigtimedwait", record)
    yield seen
    assert signal.SIGIO not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_published_record_ends_the_wait(tmp_path: Path, noticed: list[bool]) -> None:
    with DirectoryWatch([tmp_path]) as changes:
        for number in range(20):
            publish(tmp_path / f"{number}.json", {})
            changes.wait(LONG)
    assert all(noticed)


def test_a_change_before_the_wait_is_not_lost(tmp_path: Path, noticed: list[bool]) -> None:
    with DirectoryWatch([tmp_path]) as changes:
        (tmp_path / "a").touch()
        changes.wait(LONG)
    assert noticed == [True]


def test_a_change_by_another_thread_ends_the_wait(tmp_path: Path, noticed: list[bool]) -> None:
    go = threading.Event()

    def write() -> None:
        go.wait(LONG)
        (tmp_path / "a").touch()

    thread = threading.Thread(target=write)
    thread.start()
    with DirectoryWatch([tmp_path]) as changes:
        go.set()
        changes.wait(LONG)
    thread.join()
    assert noticed == [True]


def test_a_thread_that_does_not_block_the_signal_does_not_take_it(
    tmp_path: Path, noticed: list[bool]
) -> None:
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait, args=(LONG,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        with DirectoryWatch([tmp_path]) as changes:
            for number in range(50):
                (tmp_path / str(number)).touch()
                changes.wait(LONG)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert noticed == [True] * 50


def test_writing_to_a_file_and_removing_it_end_the_wait(
    tmp_path: Path, noticed: list[bool]
) -> None:
    file = (tmp_path / "log").open("ab", buffering=0)
    with file, DirectoryWatch([tmp_path]) as changes:
        file.write(b"line\n")
        changes.wait(LONG)
        (tmp_path / "log").unlink()
        changes.wait(LONG)
    assert noticed == [True, True]


def test_a_directory_added_later_is_watched(tmp_path: Path, noticed: list[bool]) -> None:
    (tmp_path / "out").mkdir()
    with DirectoryWatch([tmp_path / "none"]) as changes:
        changes.add(tmp_path / "out")
        (tmp_path / "out" / "a").touch()
        changes.wait(LONG)
    assert noticed == [True]


def test_a_wait_ends_at_its_deadline(tmp_path: Path, noticed: list[bool]) -> None:
    with DirectoryWatch([tmp_path]) as changes:
        changes.wait(0.01)
        changes.wait(-1)
    assert noticed == [False]


def test_the_handler_of_the_process_is_put_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGIO)
    with DirectoryWatch([tmp_path]):
        assert signal.getsignal(signal.SIGIO) is not before
        (tmp_path / "a").touch()
    assert signal.getsignal(signal.SIGIO) is before


def test_outside_the_main_thread_it_polls(tmp_path: Path) -> None:
    ended = []

    def look() -> None:
        with DirectoryWatch([tmp_path]) as changes:
            changes.wait(LONG)  # returns after the short interval of a poll
            ended.append(True)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert ended == [True]
