"""`status`: what the controller wrote, and a word where that is not of now."""

from __future__ import annotations

import json

import pytest

from cluster.cli.leader_status import LeaderStatus
from cluster.cli.status import NoSuchObject, Overview, overview
from nodeside.protocol.node_status import State
from tests.cluster.fakes.model import Model
from tests.cluster.fakes.stagedriver import up, with_stages

LEADS = LeaderStatus(True)
NOBODY = LeaderStatus(False, "no controller leads; see kubectl -n nodeside get pods")


def ready() -> Model:
    made = Model()
    made.add(["n1", "n2"])
    made.apply_driver()
    made.settle_ready()
    return made


def shown(made: Model, who: LeaderStatus = LEADS) -> Overview:
    return overview(made.snapshot.drivers, who)


def test_status_shows_each_driver_and_its_pools() -> None:
    found = shown(ready())

    head, row, empty, pools, pool = found.table().splitlines()
    assert " ".join(head.split()) == "DRIVER VERSION NODES UPDATED READY FAILED STATUS WHY"
    assert " ".join(row.split()) == "edu 1.0.0 2 2 2 0 Ready"
    assert empty == ""
    assert " ".join(pools.split()).startswith("DRIVER OS VERSION KERNEL NODES UPDATED READY")
    assert " ".join(pool.split()).endswith("6.1.0-50-amd64 2 2 2 0 template")
    assert found.ready


def test_status_shows_the_stages_and_what_is_wrong_with_them() -> None:
    model = up(with_stages(2))
    model.config_map("two", ds_yaml="{{ nothing }}")
    model.settle()

    found = shown(model)

    lines = [" ".join(line.split()) for line in found.table().splitlines()]
    whole = " ".join(found.table().split())
    wrong = "ConfigMap two, ds.yaml, line 1: 'nothing' is undefined"
    assert f"2 0 StageInvalid works on 2 nodes; stage second: {wrong}" in whole
    assert "DRIVER STAGE NODES READY STATE WHY" in lines
    assert "edu first 2 2 Ready" in lines
    assert whole.endswith(f"edu second 2 2 Invalid {wrong}")
    assert found.ready, "the driver works"


def test_status_as_json_is_the_status_of_the_drivers() -> None:
    made = ready()

    document = json.loads(shown(made).json())

    assert document["edu"] == made.drivers["edu"].status
    assert document["edu"]["nodes"]["ready"] == 2


def test_a_failure_is_what_makes_a_driver_not_ready() -> None:
    made = ready()
    made.report("n1", State.FAILED, reason="BuildFailed", message="edu.c:42: error")
    made.settle()

    assert not shown(made).ready
    assert "NodesFailed" in shown(made).table()


def test_without_a_controller_that_comes_first_and_nothing_is_called_ready() -> None:
    made = ready()
    made.add(["n3"])

    found = shown(made, NOBODY)

    first, empty, _, row, *_ = found.table().splitlines()
    assert first == NOBODY.words
    assert empty == ""
    assert " ".join(row.split()) == "edu 1.0.0 2 2 2 0 Ready", "what is there, not what would be"
    assert not found.ready


def test_who_may_not_read_the_lease_still_sees_the_drivers() -> None:
    found = shown(
        ready(), LeaderStatus(None, "whether a controller leads is not known: no permission")
    )

    assert found.ready
    assert found.table().startswith("whether a controller leads is not known")


def test_a_status_of_an_older_document_is_said_to_be_one() -> None:
    made = ready()
    made.apply_driver(version="2.0.0")

    found = shown(made)

    words = " ".join(found.table().split())
    assert "Ready the status is about generation 1; the Driver has changed since" in words
    assert not found.ready


def test_a_driver_that_nobody_looked_at_is_not_ready() -> None:
    made = Model()
    made.apply_driver()

    assert not shown(made).ready
    assert "not reported yet" in shown(made).table()


def test_status_of_an_empty_cluster_says_how_to_begin() -> None:
    assert shown(Model()).table().endswith("kubectl apply -f driver.yaml")


def test_a_driver_that_is_not_there_is_said_with_what_is() -> None:
    with pytest.raises(NoSuchObject, match="no Driver 'none' in this cluster") as caught:
        overview(ready().snapshot.drivers, LEADS, "none")

    assert caught.value.hint == "there is: edu"
