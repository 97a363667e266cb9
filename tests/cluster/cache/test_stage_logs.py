"""Reading the logs of stages' pods: until a line matches, not too often, and for how long."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from cluster.cache.stage_logs import StageLogs
from cluster.model.log_pattern import PatternRefused, compile_pattern
from cluster.model.stages import LogMatch, LogWanted
from nodeside.spec.expressions import EXPECTED
from tests.cluster.fakes.clock import Clock
from tests.cluster.fakes.scripted import Said, ScriptedServer
from tests.patience import patience

LONG = patience(30.0)  # seconds: a deadline that only a broken test meets
WANTED = LogWanted("uid-1", "plugin-1", "main", r"registered \d+", 60)


def looked(logs: StageLogs) -> LogMatch:
    """What one look finds, in this thread."""
    [case] = logs._cases.values()
    logs.look_at(case)
    return logs.get_matches()["uid-1"]


def quiet(logs: StageLogs, wanted: LogWanted = WANTED) -> StageLogs:
    """Wanted, without the thread: the test looks by itself."""
    logs.stop()
    logs.poll_logs([wanted])
    return logs


def test_the_first_look_begins_at_the_start_and_later_ones_near_the_end(tmp_path: Path) -> None:
    with ScriptedServer(Said(body="starting\n"), Said(body="registered 3 devices\n")) as server:
        logs = quiet(StageLogs(server.api(tmp_path), "nodeside", lambda: None))

        assert looked(logs) == LogMatch()
        assert looked(logs) == LogMatch(matched=True)

        first, second = (urlsplit(asked.path) for asked in server.asked)
        assert first.path == "/api/v1/namespaces/nodeside/pods/plugin-1/log"
        assert parse_qs(first.query) == {"container": ["main"], "limitBytes": ["1048576"]}
        assert parse_qs(second.query)["tailLines"] == ["2000"]


def test_of_a_log_no_more_is_read_than_was_asked_for(tmp_path: Path) -> None:
    """A kubelet limits a log as it is asked to. Root on its node may be that kubelet."""
    with ScriptedServer(Said(body="registered 1\n" + "x" * (1 << 20))) as server:
        logs = quiet(StageLogs(server.api(tmp_path), "nodeside", lambda: None))

        sight = looked(logs)

    assert not sight.matched
    assert sight.error.endswith("has more than 1024 KiB")


def test_a_log_that_cannot_be_read_says_why_and_is_late_after_its_time(tmp_path: Path) -> None:
    refusal = Said(403, json.dumps({"kind": "Status", "message": "no rule"}))
    clock = Clock()
    with ScriptedServer(refusal, refusal, Said(body="registered 1")) as server:
        api = server.api(tmp_path)
        logs = quiet(StageLogs(api, "nodeside", lambda: None, now=clock))

        first = looked(logs)
        assert not first.late
        assert 'no permission to get pods/log "plugin-1" in namespace nodeside' in first.error
        clock.time = 60.0
        assert looked(logs).late
        assert looked(logs) == LogMatch(matched=True), "late is not never"


def test_looks_grow_rarer_and_none_is_missed_at_the_deadline(tmp_path: Path) -> None:
    clock = Clock()
    with ScriptedServer(*[Said(body="")] * 9) as server:
        logs = quiet(StageLogs(server.api(tmp_path), "nodeside", lambda: None, now=clock))
        dues = []
        for _ in range(9):
            looked(logs)
            [case] = logs._cases.values()
            clock.time = case.due
            dues.append(case.due)

    assert dues == [1, 3, 7, 15, 31, 60, 90, 120, 150]


def test_the_thread_looks_by_itself_and_wakes_the_controller(tmp_path: Path) -> None:
    woken = threading.Event()
    with ScriptedServer(Said(body="registered 1\n")) as server:
        logs = StageLogs(server.api(tmp_path), "nodeside", woken.set)
        logs.poll_logs([WANTED])

        assert woken.wait(LONG)
        assert logs.get_matches() == {"uid-1": LogMatch(matched=True)}
        logs.poll_logs([])
        assert logs.get_matches() == {}
        logs.stop()


def test_a_line_is_judged_by_its_beginning(tmp_path: Path) -> None:
    with ScriptedServer(Said(body="x" * 5000 + "registered 1\n")) as server:
        logs = quiet(StageLogs(server.api(tmp_path), "nodeside", lambda: None))

        assert looked(logs) == LogMatch()


def test_an_expression_without_end_in_pythons_engine_is_judged_at_once(tmp_path: Path) -> None:
    endless = replace(WANTED, pattern=r"^(\S+\s*)+: ready")
    with ScriptedServer(Said(body="x" * 4000 + "!\n" + "plugin: ready\n")) as server:
        logs = quiet(StageLogs(server.api(tmp_path), "nodeside", lambda: None), endless)

        assert looked(logs) == LogMatch(matched=True)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(?=a)", "invalid perl operator: (?="),
        ("(((x?){30}){30}){30}", "invalid repetition size"),
        ("(x{30}y{30}){30}", "it is too large after its repetitions are expanded"),
    ],
)
def test_what_re2_refuses_is_said_with_the_words_of_the_schema(pattern: str, words: str) -> None:
    with pytest.raises(PatternRefused, match=re.escape(f"{EXPECTED}: {words}")):
        compile_pattern(pattern)
