"""The log of a build: whole lines as they come, an end, a first error, and a limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeside.toolkit_sidecar.buildlog import BuildLog


def ignore(_: Sequence[str]) -> None:
    """An echo that nobody hears."""


def test_lines_are_handed_over_as_they_become_whole(tmp_path: Path) -> None:
    heard: list[str] = []
    with BuildLog(tmp_path / "build.log", heard.extend) as log:
        log.add_output(b"CC a.o\nCC ")
        assert heard == ["CC a.o"]
        log.add_output(b"b.o\n")
    assert heard == ["CC a.o", "CC b.o"]
    assert (tmp_path / "build.log").read_text() == "CC a.o\nCC b.o\n"


def test_the_first_error_of_the_compiler_is_remembered(tmp_path: Path) -> None:
    with BuildLog(tmp_path / "build.log", ignore) as log:
        log.add_output(b"make: *** [Makefile:3: all] Error 2\n")
        assert log.first_error.line == "make: *** [Makefile:3: all] Error 2"
        log.add_output(b"a.c:3:1: warning: x\na.c:7:9: error: expected ;\nb.c:1:1: error: y\n")
        assert log.first_error.line == "a.c:7:9: error: expected ;"


def test_the_first_error_of_a_configure_script_is_remembered(tmp_path: Path) -> None:
    with BuildLog(tmp_path / "build.log", ignore) as log:
        log.add_output(b"Checking iptables: not found\n! Error: Can not find iptables version\n")
        assert log.first_error.line == "! Error: Can not find iptables version"


def test_a_log_that_is_too_long_is_cut_with_a_note_and_its_end_is_known(tmp_path: Path) -> None:
    with BuildLog(tmp_path / "build.log", ignore, limit=100) as log:
        for number in range(1000):
            log.add_output(b"line %d\n" % number)
        assert log.tail()[-1] == "line 999"
    text = (tmp_path / "build.log").read_text()
    assert text.endswith("# cut here: the log reached 100 bytes\n")
    assert len(text) < 200


def test_a_full_disk_ends_the_file_and_not_the_build(tmp_path: Path) -> None:
    log = BuildLog(tmp_path / "build.log", ignore)
    with log:
        full = open("/dev/full", "wb")
        log._fd, mine = full.fileno(), log._fd
        log.add_output(b"one\n")
        log.add_output(b"two\n")
        log._fd = mine
        full.close()
    assert log.out_of_space
    assert log.tail() == ("one", "two")


@pytest.mark.parametrize(
    ("said", "believed"),
    [
        ("cp: write error: No space left on device\nmake: *** [x] Error 1\n", True),
        ("a.c:1: fatal error: x.d: No space left on device\na.c:2: error: x\n", True),
        ("warning: No space left on device: skipped\na.c:1: error: x\n", False),
        ("a.c:1: error: x\ncp: x: No space left on device\n", False),
    ],
)
def test_words_of_a_full_disk_are_believed_where_no_other_error_came_first(
    tmp_path: Path, said: str, believed: bool
) -> None:
    with BuildLog(tmp_path / "build.log", ignore) as log:
        log.add_output(said.encode())
        assert log.out_of_space is believed
        assert log.reported_full


def test_control_characters_do_not_reach_a_terminal(tmp_path: Path) -> None:
    with BuildLog(tmp_path / "build.log", ignore) as log:
        log.add_output(b"\x1b[2J\x07gone\xff\ttab\r\n")
        assert log.tail() == ("?[2J?gone\ufffd\ttab",)


@given(st.lists(st.binary()))
def test_no_output_breaks_the_log(pieces: list[bytes]) -> None:
    log = BuildLog(Path("/dev/null"), ignore)
    log._fd = 1 << 20  # no such descriptor: only what is remembered counts here
    for piece in pieces:
        log.add_output(piece)
    assert all(len(line) <= 1000 for line in log.tail())
