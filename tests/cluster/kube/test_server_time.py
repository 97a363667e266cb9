"""Deadlines are counted by the API server's clock, since their times are of that clock."""

from __future__ import annotations

import time
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import pytest

from cluster.kube.resources import NODES
from cluster.kube.server_time import ServerTime
from tests.cluster.fakes.model import Model
from tests.cluster.fakes.scripted import Said, ScriptedServer

THEN = 1_800_000_000.0


def date(wall: float) -> str:
    return formatdate(wall, usegmt=True)


def test_the_time_is_that_of_the_last_answer(tmp_path: Path) -> None:
    with ScriptedServer(Said(), Said()) as server:
        api = server.api(tmp_path)
        assert abs(api.now() - time.time()) < 1000
        server.date = date(THEN)
        api.get(NODES, "n")

    assert THEN <= api.now() < THEN + 1000


@pytest.mark.parametrize("ahead", [-90.0, 0.0, 61.0, 601.0])
def test_a_canary_is_waited_for_as_long_whatever_the_clock_here_says(ahead: float) -> None:
    model, here = Model(), ServerTime(wall=lambda: THEN + ahead)
    here.update_from_response(date(THEN))
    model.add(["n0", "n1"])
    model.apply_driver()
    model.settle_ready()
    model.apply_driver(version="2")
    model.carry_out(model.plan(here.now()).actions)
    model.nodes = {name: replace(n, labelled=THEN) for name, n in model.nodes.items()}
    model.daemonsets = {name: replace(d, touched=THEN) for name, d in model.daemonsets.items()}

    model.carry_out(model.plan(here.now()).actions)

    assert model.condition("Ready")["reason"] == "Canary"
    assert model.plan(here.now()).requeue_after == pytest.approx(60.0, abs=2.0)


def test_a_clock_that_is_near_enough_is_left_alone_and_one_that_is_not_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    here = ServerTime(wall=lambda: THEN)
    for near in (THEN, THEN - 1, THEN + 1):
        here.update_from_response(date(near))
        assert here.now() == THEN
    assert caplog.messages == []

    here = ServerTime(wall=lambda: THEN)
    here.update_from_response(date(THEN - 100))
    here.update_from_response(date(THEN - 101))  # rounding, say: time does not go to and fro

    assert here.now() == THEN - 99.5
    assert caplog.messages == ["the local clock is 100 s ahead of the API server's, which is used"]


@pytest.mark.parametrize("odd", ["", "soon", "Fri, 99 Jan 2027 08:00:00 GMT", "²"])
def test_a_date_that_says_nothing_changes_nothing(odd: str) -> None:
    here = ServerTime(wall=lambda: THEN)

    here.update_from_response(odd)

    assert here.now() == THEN


def test_one_of_several_api_servers_with_another_time_moves_nothing() -> None:
    """Whoever is on its way would be late at once, and that is remembered."""
    here = ServerTime(wall=lambda: THEN)
    for turn in range(20):
        here.update_from_response(date(THEN + turn % 2))
        here.update_from_response(date(THEN + 3600))

    assert here.now() == THEN


def test_a_clock_that_is_set_is_followed_after_some_answers() -> None:
    wall = THEN
    here = ServerTime(wall=lambda: wall)
    here.update_from_response(date(THEN))
    for _ in range(10):
        wall += 1
        here.update_from_response(date(wall + 3600))

    assert here.now() == pytest.approx(wall + 3600.5)
