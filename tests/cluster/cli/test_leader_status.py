"""Whether a controller leads, from what the API server says of the Lease."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.cli.leader_status import (
    ControllerNotInstalled,
    LeaderStatus,
    leader_status,
    read,
    read_leader,
)
from nodeside.errors import ExitCode
from tests.cluster.fakes.scripted import Said, ScriptedServer

RENEWED = 1_735_732_800.0  # 2025-01-01T12:00:00Z
NOTHING = Said(404, json.dumps({"kind": "Status", "code": 404, "message": "not found"}))
FORBIDDEN = Said(403, json.dumps({"kind": "Status", "code": 403, "message": "no"}))
SEE = "see kubectl -n nodeside get pods"


def lease(**spec: Any) -> dict[str, Any]:
    usual = {"holderIdentity": "controller-0", "leaseDurationSeconds": 15}
    return {"spec": {**usual, "renewTime": "2025-01-01T12:00:00.123456Z", **spec}}


def test_a_lease_that_is_renewed_has_a_leader() -> None:
    assert read(lease(), "nodeside", RENEWED + 10) == LeaderStatus(True)


def test_clocks_that_differ_by_some_seconds_are_no_silence() -> None:
    assert read(lease(), "nodeside", RENEWED + 40).leads
    assert read(lease(), "nodeside", RENEWED - 3600).leads


def test_a_lease_that_was_given_back_has_none() -> None:
    said = read(lease(holderIdentity=""), "nodeside", RENEWED)

    assert said == LeaderStatus(False, f"no controller leads since 2025-01-01T12:00:00Z; {SEE}")


def test_a_leader_that_died_is_named_with_when_it_was_heard_last() -> None:
    said = read(lease(), "nodeside", RENEWED + 60)

    assert said.absent
    assert said.words == (
        "no controller leads: controller-0 did, and has been silent since 2025-01-01T12:00:00Z; "
        f"{SEE}"
    )


@pytest.mark.parametrize("spec", [{"renewTime": None}, {"renewTime": "yesterday"}])
def test_a_lease_without_a_time_that_can_be_read_has_no_leader(spec: dict[str, Any]) -> None:
    assert read(lease(**spec), "nodeside", RENEWED).absent


ENDING = Said(body=json.dumps({"status": {"phase": "Terminating"}}))
THERE = Said(body=json.dumps({"status": {"phase": "Active"}}))
SILENT = Said(body=json.dumps(lease(holderIdentity="")))


@pytest.mark.parametrize("before", [[NOTHING, NOTHING, NOTHING], [SILENT]])
def test_a_namespace_that_is_being_deleted_is_said(tmp_path: Path, before: list[Said]) -> None:
    with ScriptedServer(*before, ENDING) as server:
        server.always = lambda _: NOTHING
        said = leader_status(server.api(tmp_path), "nodeside")

    assert said.absent
    assert said.words.startswith(
        "no controller leads: namespace nodeside is being deleted, with all that is in it; wait "
        "for its end: kubectl wait --for=delete namespace/nodeside --timeout=10m; then install"
    )


def test_a_namespace_that_stays_is_not_blamed(tmp_path: Path) -> None:
    with ScriptedServer(SILENT, THERE) as server:
        server.always = lambda _: NOTHING
        assert "being deleted" not in leader_status(server.api(tmp_path), "nodeside").words
    unknown = (NOTHING, NOTHING, NOTHING, FORBIDDEN)
    with ScriptedServer(*unknown) as server, pytest.raises(ControllerNotInstalled):
        leader_status(server.api(tmp_path), "nodeside")


def test_a_controller_that_is_installed_and_never_led_is_said(tmp_path: Path) -> None:
    with ScriptedServer(NOTHING, Said(body="{}")) as server:
        said = read_leader(server.api(tmp_path), "nodeside")

    assert said == LeaderStatus(False, f"no controller has led yet; {SEE}")


def test_who_may_not_read_the_lease_is_told_that_it_is_not_known(tmp_path: Path) -> None:
    with ScriptedServer(FORBIDDEN) as server:
        said = read_leader(server.api(tmp_path), "nodeside")

    assert said.leads is None
    assert said.words.startswith("whether a controller leads is not known: no permission")


def test_a_wrong_namespace_is_refused_with_the_right_one(tmp_path: Path) -> None:
    binding = Said(body=json.dumps({"subjects": [{"namespace": "drivers"}]}))
    with (
        ScriptedServer(NOTHING, NOTHING, binding) as server,
        pytest.raises(ControllerNotInstalled) as caught,
    ):
        read_leader(server.api(tmp_path), "nodeside")

    assert str(caught.value).startswith("nodeside is not installed in namespace nodeside: ")
    assert caught.value.hint == "it is in namespace drivers: add --namespace drivers"
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_cluster_without_nodeside_says_how_it_is_installed(tmp_path: Path) -> None:
    with (
        ScriptedServer(NOTHING, NOTHING, NOTHING) as server,
        pytest.raises(ControllerNotInstalled) as caught,
    ):
        read_leader(server.api(tmp_path), "nodeside")

    assert caught.value.hint == "nodeside-cluster install --help"
