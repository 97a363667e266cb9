"""`nodes`: a line for each node of each Driver, also for one that says nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.cli.node_list import SILENT, STATES, format_age, list_nodes
from cluster.cli.node_verbs import SILENT as SILENT_OF_OPTION
from nodeside.errors import ExitCode
from nodeside.protocol.labels import API_VERSION
from nodeside.protocol.node_status import State
from tests.cluster.fakes.model import document
from tests.cluster.fakes.scripted import Asked, Said, ScriptedServer, kubeconfig
from tests.cluster.fakes.stored import StoredObjects
from tests.console import Done
from tests.console import nodeside_cluster as command
from tests.refusals import refusal

KERNEL = "5.14.0-427.50.1.el9_4.x86_64"


def node(name: str, *drivers: str, boot: str = "b1") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {f"nodeside.io/{each}.assigned": "d9d18a397f6e" for each in drivers},
        },
        "status": {
            "nodeInfo": {"architecture": "amd64", "kernelVersion": KERNEL, "bootID": boot},
        },
    }


def reported(driver: str, name: str, state: str, **fields: Any) -> dict[str, Any]:
    """A NodeDriver as a node writes it."""
    ready = "True" if state == "ready" else "False"
    since = fields.pop("since", "2026-11-28T02:00:00Z")
    return {
        "apiVersion": API_VERSION,
        "kind": "NodeDriver",
        "metadata": {"name": f"{driver}.{name}"},
        "status": {
            "state": state,
            "bootId": "b1",
            "kernel": KERNEL,
            "version": "1.0.0",
            "revision": "b8c870f3e0de",
            "conditions": [
                {"type": "Ready", "status": ready, "reason": "X", "lastTransitionTime": since}
            ],
            **fields,
        },
    }


class Scene:
    def __init__(self, server: ScriptedServer, place: Path) -> None:
        server.date = "Sat, 28 Nov 2026 05:00:00 GMT"
        self.objects = StoredObjects(
            [
                document(),
                document("net"),
                node("worker-0", "edu"),
                node("worker-1", "edu", "net"),
                node("worker-2", "edu", boot="b2"),
                node("worker-3", "edu"),
                node("worker-4"),
                reported("edu", "worker-0", "ready"),
                reported(
                    *("edu", "worker-1", "failed"),
                    reason="BuildFailed",
                    message="edu.c:42: error: too few arguments\n  make[1]: Error 2",
                ),
                reported("edu", "worker-2", "ready"),
                reported("gone", "worker-0", "ready"),
                reported("net", "worker-1", "building"),
            ]
        )
        self.server, self.place = server, place
        server.always = self.objects.answer

    def nodes(self, *words: str) -> Done:
        return command("nodes", *words, "--kubeconfig", self.place)

    def lines(self, *words: str) -> list[str]:
        done = self.nodes(*words)
        assert (done.code, done.errors) == (0, "")
        return [" ".join(line.split()) for line in done.output.splitlines()]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ScriptedServer() as server:
        place = tmp_path / "kubeconfig"
        place.write_text(json.dumps(kubeconfig(server.url, "secret")))
        yield Scene(server, place)


def test_there_is_one_line_for_each_node_the_worst_first(scene: Scene) -> None:
    revision = "1.0.0 (b8c870f3e0de)"

    assert scene.lines() == [
        "NODE DRIVER STATE VERSION KERNEL SINCE WHY",
        (
            f"worker-1 edu failed {revision} {KERNEL} 3h BuildFailed: edu.c:42: error: "
            "too few arguments make[1]: Error 2"
        ),
        (
            f"worker-2 edu silent {revision} {KERNEL} no report since its last reboot; "
            "before that it was ready"
        ),
        f"worker-3 edu silent {KERNEL} no report yet: nodeside-cluster explain edu worker-3",
        f"worker-1 net building {revision} {KERNEL} 3h",
        f"worker-0 edu ready {revision} {KERNEL} 3h",
    ]


def test_one_driver_and_some_states_are_chosen(scene: Scene) -> None:
    assert [line.split()[:3] for line in scene.lines("net")[1:]] == [
        ["worker-1", "net", "building"]
    ]
    found = scene.lines("edu", "--state", "ready", "--state", "failed")[1:]
    assert [line.split()[:3] for line in found] == [
        ["worker-1", "edu", "failed"],
        ["worker-0", "edu", "ready"],
    ]


def test_json_has_every_field_and_the_whole_message(scene: Scene) -> None:
    [row] = scene.nodes("--state", "failed", "--output", "json").document

    assert row == {
        "node": "worker-1",
        "driver": "edu",
        "state": "failed",
        "version": "1.0.0",
        "revision": "b8c870f3e0de",
        "kernel": KERNEL,
        "since": "2026-11-28T02:00:00Z",
        "reason": "BuildFailed",
        "message": "edu.c:42: error: too few arguments\n  make[1]: Error 2",
    }
    assert scene.nodes("--state", "unloading", "-o", "json").document == []


def test_no_such_node_is_a_sentence(scene: Scene) -> None:
    assert scene.lines("net", "--state", "failed") == ["no node of driver net is failed"]
    assert scene.lines("--state", "loading", "--state", "unloading") == [
        "no node of any driver is loading or unloading"
    ]
    scene.objects.documents[:] = [document()]
    assert scene.lines("edu") == [
        "no node has driver edu; to see why: nodeside-cluster explain edu"
    ]


def test_an_unknown_state_or_driver_is_told_with_those_there_are(scene: Scene) -> None:
    state = scene.nodes("--state", "faild")
    driver = scene.nodes("ed")

    assert (state.code, driver.code) == (ExitCode.USAGE, ExitCode.USAGE)
    assert all(repr(each) in state.errors for each in STATES)
    assert "no Driver 'ed' in this cluster" in driver.errors
    assert "there is: edu, net" in driver.errors


def test_who_may_not_list_nodes_sees_the_reports_and_what_they_lack(scene: Scene) -> None:
    answer = scene.objects.answer

    def refuse(asked: Asked) -> Said:
        if asked.path.startswith("/api/v1/nodes"):
            return Said(403, json.dumps(refusal(403, "no")))
        return answer(asked)

    scene.server.always = refuse

    done = scene.nodes("edu")

    assert done.code == 0
    assert [line.split()[:3] for line in done.output.splitlines()[1:]] == [
        ["worker-1", "edu", "failed"],
        ["worker-0", "edu", "ready"],
        ["worker-2", "edu", "ready"],
    ]
    assert "whether a node has rebooted since its report is not known" in done.errors
    assert "ClusterRole nodeside-explain" in done.errors


def test_a_node_that_is_gone_is_not_ready(scene: Scene, tmp_path: Path) -> None:
    scene.objects.documents.append(reported("net", "worker-9", "ready"))

    [row] = [
        each for each in list_nodes(scene.server.api(tmp_path), "net").rows if each.state == SILENT
    ]

    assert (row.node, row.message) == ("worker-9", "the cluster has no such node any more")


def test_a_node_without_conditions_is_what_it_is_since_it_last_wrote(scene: Scene) -> None:
    """An older version of nodeside on a node writes none."""
    old = reported("net", "worker-1", "building", conditions=[])
    old["metadata"]["managedFields"] = [{"manager": "nodeside", "time": "2026-11-28T04:48:00Z"}]
    scene.objects.documents[-1] = old

    [_, line] = scene.lines("net")

    assert line.endswith(f"{KERNEL} 12m")


def test_the_states_are_those_of_the_protocol() -> None:
    assert (*(state.value for state in State), SILENT_OF_OPTION) == STATES


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-3, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172800, "2d")],
)
def test_an_age_is_in_its_largest_unit(seconds: float, shown: str) -> None:
    assert format_age(seconds) == shown
