"""What a wait of the lab says at its deadline; the API server's answers and a node are played."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from nodeside.errors import DeadlinePassed
from nodeside.system.process import Completed
from nodeside.trial.errors import MachineLost
from tests.controlplane.api_server import Answer
from tests.lab.holding import waited, who_holds

UID, CONTAINER = "0d1f7c1e-7d0e-4a55-9a3a-0a5a2f5d6c11", "3f" * 32
GOING: dict[str, Any] = {
    "metadata": {
        "namespace": "default",
        "name": "after-x7k2p",
        "uid": UID,
        "deletionTimestamp": "2026-11-27T03:04:05Z",
        "finalizers": ["foregroundDeletion"],
    },
    "spec": {"nodeName": "node-1", "terminationGracePeriodSeconds": 1},
    "status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [
            {
                "name": "main",
                "containerID": f"containerd://{CONTAINER}",
                "ready": False,
                "restartCount": 0,
                "state": {"running": {"startedAt": "2026-11-27T03:03:00Z"}},
            }
        ],
    },
}
WELL: dict[str, Any] = {
    "metadata": {"namespace": "nodeside", "name": "edu-1", "uid": "u"},
    "spec": {"nodeName": "node-1"},
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}
SET: dict[str, Any] = {
    "metadata": {
        "namespace": "default",
        "name": "after",
        "deletionTimestamp": "2026-11-27T03:04:05Z",
        "finalizers": ["foregroundDeletion"],
    }
}
FACTS = (
    "Running, deleted 2026-11-27T03:04:05Z, finalizers foregroundDeletion, grace 1 s, "
    "main running (startedAt=2026-11-27T03:03:00Z), not ready, 0 restarts"
)
PROCESS = "812 D (disk sleep) python3 in edu_wait"
SAID = {
    "journalctl": '"Killing container with a grace period" pod="default/after-x7k2p"',
    "sh": PROCESS,
}


class _Plane:
    def request(self, method: str, path: str) -> Answer:
        items = {"/api/v1/pods": [GOING, WELL], "/apis/apps/v1/replicasets": [SET]}[path]
        return Answer(200, {"items": items})

    def wait_for(self, holds: Callable[[], object], what: str, *, timeout: float = 0.0) -> None:
        if not holds():
            raise DeadlinePassed(f"waited {timeout:g} s for {what}")


@dataclass
class _Node:
    name: str = "node-1"
    is_on: bool = True
    asked: list[str] = field(default_factory=list)

    def run(self, *argv: str, check: bool = True, timeout: float = 600.0) -> Completed:
        line = " ".join(argv)
        self.asked.append(line)
        [said] = [text for words, text in SAID.items() if line.startswith(words)]
        return Completed(argv, 0, said, "", 0.1)


class _LostNode(_Node):
    def run(self, *argv: str, check: bool = True, timeout: float = 600.0) -> Completed:
        raise MachineLost("the machine has been switched off")


class _LostPlane(_Plane):
    def request(self, method: str, path: str) -> Answer:
        raise ConnectionRefusedError("Connection refused")


def test_a_wait_that_ends_well_asks_nobody() -> None:
    node = _Node()

    waited(_Plane(), [node], lambda: True, "after to be gone", timeout=1800)

    assert node.asked == []


def test_a_deadline_says_who_holds_a_pod_and_what_its_node_says_of_it() -> None:
    with pytest.raises(DeadlinePassed) as caught:
        waited(_Plane(), [_Node()], lambda: False, "after to be gone", timeout=1800)

    assert str(caught.value).splitlines() == [
        "waited 1800 s for after to be gone",
        f"pod default/after-x7k2p on node-1: {FACTS}",
        "pod nodeside/edu-1 on node-1: Running",
        "replicaset default/after: deleted 2026-11-27T03:04:05Z, finalizers foregroundDeletion",
        f"node-1: processes of default/after-x7k2p: {PROCESS}",
        f"node-1: kubelet about default/after-x7k2p: {SAID['journalctl']}",
        f"node-1: stuck processes: {PROCESS}",
    ]


def test_the_kubelet_is_asked_about_that_very_pod() -> None:
    node = _Node()

    who_holds(_Plane(), [node])

    [_, by_group] = [line for line in node.asked if line.startswith("sh ")][::-1]
    assert by_group.endswith(f" sh {UID}")
    [journal] = [line for line in node.asked if line.startswith("journalctl")]
    assert f"--grep={UID}|after-x7k2p" in journal


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (_LostNode(), "cannot be asked: the machine has been switched off"),
        (_Node(is_on=False), "stuck processes: it is off"),
    ],
)
def test_a_node_that_says_nothing_any_more_does_not_hide_the_rest(node: _Node, words: str) -> None:
    found = who_holds(_Plane(), [node])

    assert "pod default/after-x7k2p on node-1: Running" in found
    assert words in found


def test_an_api_server_that_is_gone_does_not_hide_the_nodes() -> None:
    assert who_holds(_LostPlane(), [_Node()]).splitlines() == [
        "/api/v1/pods cannot be asked: Connection refused",
        "/apis/apps/v1/replicasets cannot be asked: Connection refused",
        f"node-1: stuck processes: {PROCESS}",
    ]
