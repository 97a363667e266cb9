"""Following the log of a build that somebody else writes, and who may be hostile."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from nodeside import log
from nodeside.driver.handoff import log_follower, result
from nodeside.driver.handoff.listener import Listener
from nodeside.driver.handoff.request import request_build
from nodeside.protocol.shared_directory import SharedDir
from nodeside.toolkit_sidecar.buildlog import LOG_LIMIT
from tests.driver.fakes.handoff import Clock, succeeded, wait, wish
from tests.tries import sampled


@pytest.fixture
def shared(tmp_path: Path) -> SharedDir:
    found = SharedDir(tmp_path / "shared")
    found.create()
    return found


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "_LOOK", 0.0)


class Building:
    """A build whose log is written by hand, look by look."""

    def __init__(self, shared: SharedDir) -> None:
        self.shared = shared
        self.request = request_build(shared, wish())
        self.out = shared.out_dir(self.request.id)
        self.log = shared.build_log(self.request.id)
        self.heard: list[str] = []
        self.acts: dict[int, Callable[[], object]] = {}

    def follow(self, *acts: Callable[[], object]) -> list[str]:
        """Do one act a look, then succeed; what was heard."""
        steps = [*acts, self.succeed]

        def then(look: int) -> None:
            if 2 <= look < len(steps) + 2:
                steps[look - 2]()

        listener = Listener(on_build_line=self.heard.append)
        wait(self.shared, self.request, clock=Clock(then=then), listener=listener)
        return self.heard

    def succeed(self) -> None:
        self.shared.publish_result(succeeded(self.request))

    def write(self, text: str) -> None:
        self.out.mkdir(exist_ok=True)
        with open(self.log, "a") as file:
            file.write(text)

    def restart(self) -> None:
        """What a sidecar does that begins the build anew."""
        self.log.unlink()
        self.write("")


@pytest.fixture
def building(shared: SharedDir) -> Building:
    return Building(shared)


def test_lines_are_handed_over_as_they_appear_and_once(building: Building) -> None:
    heard = building.follow(
        lambda: building.write("one\ntw"),
        lambda: building.write("o\n"),
        lambda: building.write("three\n"),
    )
    assert heard == ["one", "two", "three"]


def test_a_last_line_without_an_end_is_handed_over_at_the_end(building: Building) -> None:
    assert building.follow(lambda: building.write("one\nlast words")) == ["one", "last words"]


def test_a_log_that_begins_anew_is_followed_from_its_start(building: Building) -> None:
    heard = building.follow(
        lambda: building.write("first life\nhalf a li"),
        building.restart,
        lambda: building.write("second life\n"),
    )
    assert heard == ["first life", "second life"]


def test_a_log_that_was_cut_in_place_is_followed_from_its_start(building: Building) -> None:
    heard = building.follow(
        lambda: building.write("a long first line\n"),
        lambda: os.truncate(building.log, 0),
        lambda: building.write("again\n"),
    )
    assert heard == ["a long first line", "again"]


def test_a_line_without_an_end_does_not_grow_in_memory(building: Building) -> None:
    heard = building.follow(*(lambda: building.write("x" * (1 << 18)) for _ in range(3)))
    assert "".join(heard) == "x" * (3 << 18)
    assert max(map(len, heard)) <= 1 << 19


def test_a_log_that_never_ends_does_not_keep_us_after_the_answer(
    building: Building, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that a build left behind goes on writing, faster than anybody reads."""
    monkeypatch.setattr(os, "pread", lambda *_: b"more\n" * 1000)
    building.write("more\n")
    assert set(building.follow()) == {"more"}


def test_a_log_that_is_cut_and_filled_again_and_again_is_shown_up_to_a_total(
    building: Building, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeside.driver.handoff.log_follower._TOTAL", 1 << 20)

    def refill() -> None:
        building.out.mkdir(exist_ok=True)
        building.log.write_text(("x" * 1023 + "\n") * 300)

    heard = building.follow(*[refill, lambda: os.truncate(building.log, 0)] * 6)
    assert len(heard) == (1 << 20) // (1023 + len('""') + 120) + 1
    assert heard[-1] == "[log truncated: only the first 1 MiB are shown]"


def test_a_log_that_is_a_link_or_a_pipe_is_not_followed(building: Building, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("root:x\n")
    building.out.mkdir()
    building.log.symlink_to(tmp_path / "secret")
    assert building.follow(lambda: None, building.log.unlink, lambda: os.mkfifo(building.log)) == []


def test_escapes_and_returns_in_the_log_are_shown_and_not_obeyed(building: Building) -> None:
    heard = building.follow(lambda: building.write("\x1b]0;owned\x07\rNODESIDE_READY\tok \xe9\n"))
    assert heard == ["\\x1b]0;owned\\x07\\rNODESIDE_READY\tok \xe9"]


LIMIT = "nodeside.driver.handoff.log_follower._TOTAL"
TRUNCATED = "[log truncated: only the first 1 MiB are shown]"


@pytest.mark.parametrize(
    "line", sampled([b"\xff" * 400, b"\x01" * 400, b"\\" * 400, b"cc -c x.c", b""], 5)
)
def test_no_kind_of_line_takes_more_of_the_log_than_the_limit(
    building: Building, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    monkeypatch.setattr(LIMIT, 1 << 20)
    building.out.mkdir()
    building.log.write_bytes((line + b"\n") * ((1 << 20) // (len(line) + 1)))

    formatter = log._Json("driver")
    written = 0
    for text in building.follow():
        record = logging.makeLogRecord({"msg": text, "fields": {"stream": "build"}})
        written += len(formatter.format(record)) + 1

    assert building.heard.count(TRUNCATED) == 1
    assert building.heard[-1] == TRUNCATED
    assert (3 << 18) < written < (1 << 20) + 200


def test_a_build_that_prints_faster_than_we_read_is_stopped_at_once(
    shared: SharedDir, building: Building
) -> None:
    building.write("\n" * (1 << 18))
    asked: list[int] = []

    def stopping() -> bool:
        asked.append(len(building.heard))
        return len(asked) == 3

    listener = Listener(on_build_line=building.heard.append, stopping=stopping)
    with pytest.raises(result.StoppedWaiting):
        wait(shared, building.request, listener=listener)
    assert all(0 < b - a < 30_000 for a, b in pairwise([0, *asked]))


def test_a_stop_is_seen_while_the_rest_of_the_log_is_shown(
    shared: SharedDir, building: Building
) -> None:
    building.write("\n" * (1 << 18))
    building.succeed()
    listener = Listener(on_build_line=building.heard.append, stopping=lambda: True)
    assert wait(shared, building.request, listener=listener).succeeded
    assert len(building.heard) < 60_000


@pytest.mark.slow
def test_the_whole_log_of_a_large_build_is_shown_even_if_it_has_ended(building: Building) -> None:
    """As a driver finds it that starts again and joins the build."""
    lines = [f"  CC [M]  drivers/gpu/drm/part{n}.o" + " -I../include" * 15 for n in range(50_000)]
    building.write("\n".join(lines))
    building.succeed()
    assert building.follow() == lines


def test_a_log_as_long_as_the_sidecar_writes_it_fits_the_limit() -> None:
    per_line = 80 + len('""') + log_follower._FRAME
    assert LOG_LIMIT // 81 * per_line < log_follower._TOTAL
