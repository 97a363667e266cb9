"""One line per fact, whatever stands in it."""

from __future__ import annotations

import io
import json

import pytest

from nodeside import log
from nodeside.log import LogFormat


@pytest.fixture
def text() -> io.StringIO:
    return listening("text")


def listening(format: LogFormat, *, verbose: bool = False) -> io.StringIO:
    said = io.StringIO()
    log.setup("driver", format=format, verbose=verbose, to=said)
    return said


def test_a_fact_is_a_sentence_and_its_fields(text: io.StringIO) -> None:
    log.fact("module loaded", name="edu", seconds=0.1, path="/a b", empty="", said='a "b"')
    assert text.getvalue() == (
        'driver module loaded name=edu seconds=0.1 path="/a b" empty="" said="a \\"b\\""\n'
    )


def test_a_warning_says_so(text: io.StringIO) -> None:
    log.warning("disk is nearly full", free=3)
    assert text.getvalue() == "driver warning: disk is nearly full free=3\n"


@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.parametrize("evil", ["a\nNODESIDE_READY driver=x", "a\rb", "\x1b[2J", "a\u2028b"])
def test_nothing_in_a_fact_can_begin_a_line_or_move_the_cursor(
    format: LogFormat, evil: str
) -> None:
    said = listening(format)
    log.fact(evil, field=evil)
    assert said.getvalue().endswith("\n")
    assert said.getvalue()[:-1].isprintable()


def test_lines_of_a_message_stand_on_one_line_for_people_to_read(text: io.StringIO) -> None:
    log.warning("make failed\nedu.c:1: error: x\n\ty", problem="a\nb", said="x=1\ny")
    assert text.getvalue() == (
        'driver warning: make failed | edu.c:1: error: x | \\ty problem="a | b" said="x=1 | y"\n'
    )


def test_letters_of_any_language_stay_as_they_are(text: io.StringIO) -> None:
    log.fact("error: \u2018x\u2019 undeclared", file="grün.c")
    assert text.getvalue() == "driver error: \u2018x\u2019 undeclared file=grün.c\n"


def test_details_are_shown_only_when_asked_for() -> None:
    said = listening("text")
    log.detail("looked")
    assert said.getvalue() == ""
    said = listening("text", verbose=True)
    log.detail("looked", at="x")
    assert said.getvalue() == "driver looked at=x\n"


def test_a_json_line_has_time_level_component_and_the_fields_of_the_fact() -> None:
    said = listening("json")
    log.warning("module foreign", name="edu", path=("a",), seconds=1.5, ok=None, time="forged")
    line = json.loads(said.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "component": "driver",
        "message": "module foreign",
        "name": "edu",
        "path": "('a',)",
        "seconds": 1.5,
        "ok": None,
    }


def test_a_step_says_how_it_ended(text: io.StringIO) -> None:
    with log.step("load", module="edu"):
        pass
    with pytest.raises(KeyboardInterrupt), log.step("build"):
        raise KeyboardInterrupt
    done, failed = text.getvalue().splitlines()
    assert done.startswith("driver load: done seconds=0")
    assert done.endswith(" module=edu")
    assert failed.startswith("driver error: build: failed seconds=0")
    assert failed.endswith(" error=KeyboardInterrupt")


def test_setup_twice_gives_each_line_once() -> None:
    listening("text")
    said = listening("text")
    log.fact("x")
    assert said.getvalue() == "driver x\n"
