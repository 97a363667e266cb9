"""The table that decides what happens to a node."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from cluster.driver.update_table import UPDATE_TABLE, Act, UpdateSituation, decide_update
from cluster.model.states import Boot, Health, Phase, Place, Supply
from nodeside.spec.model import Upgrade

EVERY = [UpdateSituation(*parts) for parts in product(Place, Phase, Health, Boot, Upgrade, Supply)]


def test_every_situation_has_exactly_one_row() -> None:
    rows = Counter(situation for row in UPDATE_TABLE for situation in row.situations())

    assert {situation: rows[tuple(situation)] for situation in EVERY} == dict.fromkeys(EVERY, 1)


def test_a_paused_or_stopped_rollout_gives_the_newest_revision_to_nobody() -> None:
    acts = {
        decide_update(s).act for s in EVERY if s.phase in (Phase.PAUSED, Phase.STOPPED, Phase.HELD)
    }

    assert acts == {Act.KEEP, Act.RELEASE, Act.GIVE_GOOD}


def test_on_reboot_a_driver_that_works_is_left_alone_until_the_reboot() -> None:
    there = (Place.GOOD, Place.STALE, Place.NEWEST)
    acts = {
        decide_update(s).act
        for s in EVERY
        if s.upgrade is Upgrade.ON_REBOOT
        and s.boot is Boot.RUNNING
        and s.health is Health.WORKING
        and s.place in there
    }

    assert acts == {Act.KEEP}


def test_a_working_driver_is_only_changed_in_its_turn() -> None:
    there = (Place.GOOD, Place.STALE, Place.NEWEST)
    acts = {
        decide_update(s).act
        for s in EVERY
        if s.health is Health.WORKING and s.boot is Boot.RUNNING and s.place in there
    }

    assert acts == {Act.KEEP, Act.IN_TURN}


def test_a_node_that_is_down_and_knows_its_place_is_left_alone() -> None:
    there = (Place.GOOD, Place.STALE, Place.NEWEST)
    acts = {decide_update(s).act for s in EVERY if s.health is Health.DOWN and s.place in there}

    assert acts == {Act.KEEP}


def test_a_node_loses_its_assignment_only_where_the_pod_is_of_no_use() -> None:
    places = {s.place for s in EVERY if decide_update(s).act is Act.RELEASE}

    assert places == {Place.MOVED}


@pytest.mark.parametrize("supply", Supply)
@pytest.mark.parametrize("place", Place)
def test_every_row_says_why(place: Place, supply: Supply) -> None:
    situation = UpdateSituation(
        place, Phase.OPEN, Health.WORKING, Boot.RUNNING, Upgrade.LIVE, supply
    )

    assert decide_update(situation).why
