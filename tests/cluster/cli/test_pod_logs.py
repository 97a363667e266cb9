"""`logs`: which pod and container it finds, and what it says where there is nothing to show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from cluster.cli.options import LOOKING
from cluster.model.names import DRIVER_LABEL, MANAGED_BY, MANAGER
from nodeside.errors import ExitCode
from tests.cluster.fakes.model import document
from tests.cluster.fakes.scripted import Asked, Said, ScriptedServer, kubeconfig
from tests.cluster.fakes.stored import StoredObjects
from tests.console import Done
from tests.console import nodeside_cluster as command
from tests.refusals import refusal

RUNNING: dict[str, Any] = {"state": {"running": {"startedAt": "2026-11-28T02:41:07Z"}}}
BACK_OFF = "back-off 5m0s restarting failed container=toolkit pod=edu-a_nodeside(0b1c)"
# A container as the kubelet reports it, some time after it has ended with an error.
CRASHED: dict[str, Any] = {
    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": BACK_OFF}},
    "lastState": {"terminated": {"exitCode": 2, "reason": "Error"}},
    "restartCount": 7,
}
RESTARTED = RUNNING | {"lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
AWAITED: dict[str, Any] = {"state": {"waiting": {"reason": "PodInitializing"}}}
UNPULLED: dict[str, Any] = {
    "state": {
        "waiting": {
            "reason": "ImagePullBackOff",
            "message": 'Back-off pulling image "r.example.com/edu:9": manifest unknown: not found',
        }
    }
}


def pod(name: str, created: str = "2026-11-28T02:40:00Z", **statuses: Any) -> dict[str, Any]:
    """A driver pod on n1 as the API server has it; each container by its name."""
    reported = {key: {"name": key, **value} for key, value in statuses.items() if value}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "nodeside",
            "labels": {MANAGED_BY: MANAGER, DRIVER_LABEL: "edu"},
            "creationTimestamp": created,
        },
        "spec": {
            "nodeName": "n1",
            "initContainers": [{"name": "provide"}],
            "containers": [{"name": "driver"}, {"name": "toolkit"}],
        },
        "status": {
            "phase": "Running",
            "initContainerStatuses": [v for k, v in reported.items() if k == "provide"],
            "containerStatuses": [v for k, v in reported.items() if k != "provide"],
        },
    }


class Scene:
    """An API server with the Driver edu and two nodes, and the logs of all pods."""

    def __init__(self, server: ScriptedServer, place: Path) -> None:
        nodes = [
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
            for name in ("n1", "worker-2")
        ]
        self.objects = StoredObjects([document(), *nodes])
        self.log = Said(body="make: Entering directory '/src'\n\x1b[2Jall done\r\n")
        self.refused: tuple[str, ...] = ()
        self.asked: list[dict[str, str]] = []
        self.place = place
        server.always = self.answer

    def answer(self, asked: Asked) -> Said:
        path, _, query = asked.path.partition("?")
        if any(path.endswith(each) for each in self.refused):
            message = f"User cannot get resource {path}"
            return Said(403, json.dumps(refusal(403, message)))
        if not path.endswith("/log"):
            return self.objects.answer(asked)
        options = {key: values[0] for key, values in parse_qs(query).items()}
        self.asked.append(options | {"pod": path.split("/")[-2]})
        return self.log

    def add(self, *pods: dict[str, Any]) -> None:
        self.objects.documents.extend(pods)

    def logs(self, *words: str) -> Done:
        return command("logs", *words, "--kubeconfig", self.place)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ScriptedServer() as server:
        place = tmp_path / "kubeconfig"
        place.write_text(json.dumps(kubeconfig(server.url, "secret")))
        yield Scene(server, place)


def test_the_log_of_the_driver_is_on_stdout_and_moves_no_cursor(scene: Scene) -> None:
    scene.add(pod("edu-a", driver=RUNNING, toolkit=RUNNING))

    done = scene.logs("edu", "n1")

    assert done.code == 0
    assert done.output == "make: Entering directory '/src'\n\\x1b[2Jall done\n"
    assert done.errors == "log of container driver of pod edu-a on n1\n"
    assert scene.asked == [{"pod": "edu-a", "container": "driver"}]


@pytest.mark.parametrize(
    ("statuses", "container"),
    [
        ({"driver": RUNNING, "toolkit": CRASHED}, "toolkit"),
        ({"driver": CRASHED, "toolkit": CRASHED}, "driver"),
        ({"driver": RUNNING, "toolkit": RESTARTED}, "driver"),
        ({"provide": CRASHED, "driver": AWAITED, "toolkit": AWAITED}, "provide"),
    ],
)
def test_without_a_container_it_is_that_which_failed(
    scene: Scene, statuses: dict[str, Any], container: str
) -> None:
    scene.add(pod("edu-a", **statuses))

    assert scene.logs("edu", "n1").code == 0

    assert [each["container"] for each in scene.asked] == [container]


def test_follow_previous_and_container_reach_the_api_server(scene: Scene) -> None:
    scene.add(pod("edu-a", driver=RUNNING, toolkit=RESTARTED))

    done = scene.logs("edu", "n1", "-c", "toolkit", "-f", "--previous")

    [asked] = scene.asked
    assert asked == {"pod": "edu-a", "container": "toolkit", "follow": "true", "previous": "true"}
    assert "log of the previous run of container toolkit" in done.errors


def test_a_pod_that_ends_and_one_that_root_made_up_are_not_the_one(scene: Scene) -> None:
    ending = pod("edu-ending", "2026-11-28T02:50:00Z", driver=RUNNING)
    ending["metadata"]["deletionTimestamp"] = "2026-11-28T02:51:00Z"
    mirror = pod("edu-mirror", "2026-11-28T02:55:00Z", driver=RUNNING)
    mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    elsewhere = pod("edu-b", "2026-11-28T02:56:00Z", driver=RUNNING)
    elsewhere["spec"]["nodeName"] = "worker-2"
    scene.add(ending, mirror, elsewhere, pod("edu-a", driver=RUNNING))

    scene.logs("edu", "n1")

    assert [each["pod"] for each in scene.asked] == ["edu-a"]


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (("other", "n1"), "no Driver 'other' in this cluster", "there is: edu"),
        (("edu", "workre-2"), "no node 'workre-2'", "did you mean worker-2? kubectl get nodes"),
        (("edu", "n1"), "driver edu has no pod on node 'n1'", "nodeside-cluster explain edu n1"),
    ],
)
def test_what_is_not_there_is_named_with_the_next_command(
    scene: Scene, words: tuple[str, str], said: str, hint: str
) -> None:
    done = scene.logs(*words)

    assert done.code == ExitCode.USAGE
    assert f"error: {said}" in done.errors
    assert hint in done.errors


def test_who_may_not_list_nodes_is_told_that_there_is_no_pod(scene: Scene) -> None:
    scene.refused = ("/nodes",)

    assert "driver edu has no pod on node 'nowhere'" in scene.logs("edu", "nowhere").errors


def unscheduled() -> dict[str, Any]:
    """A pod of a DaemonSet that finds no room: it is bound to no node, and pinned to one."""
    made = pod("edu-a")
    field = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    node = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    made["spec"] |= {"nodeName": "", "affinity": {"nodeAffinity": node}}
    why = "0/3 nodes are available: 1 Insufficient ephemeral-storage."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    made["status"] = {"phase": "Pending", "conditions": [{**condition, "message": why}]}
    return made


@pytest.mark.parametrize(
    ("made", "said", "hint"),
    [
        (
            unscheduled(),
            (
                "pod edu-a is not scheduled on n1 yet: Unschedulable: 0/3 nodes are available: "
                "1 Insufficient ephemeral-storage."
            ),
            "nodeside-cluster explain edu n1",
        ),
        (
            pod("edu-a", provide=UNPULLED, driver=AWAITED),
            "container provide of pod edu-a has not started: ImagePullBackOff: Back-off pulling",
            "the registry has no such image: push it, or correct its name",
        ),
        (
            pod("edu-a", driver={"state": {"waiting": {"reason": "ContainerCreating"}}}),
            "container driver of pod edu-a has not started: ContainerCreating",
            "kubectl -n nodeside describe pod edu-a",
        ),
        (
            pod("edu-a") | {"status": {"phase": "Pending"}},
            "pod edu-a is Pending, and n1 has not reported its containers yet",
            "nodeside-cluster explain edu n1",
        ),
    ],
    ids=["unscheduled", "no image", "creating", "unreported"],
)
def test_a_container_that_has_not_started_has_no_log(
    scene: Scene, made: dict[str, Any], said: str, hint: str
) -> None:
    scene.add(made)

    done = scene.logs("edu", "n1")

    assert done.code == ExitCode.NOT_READY
    assert f"error: {said}" in done.errors
    assert hint in done.errors
    assert not scene.asked


def test_a_container_that_was_never_restarted_has_no_previous_log(scene: Scene) -> None:
    scene.add(pod("edu-a", driver=RUNNING))

    done = scene.logs("edu", "n1", "--previous")

    assert done.code == ExitCode.NOT_READY
    assert "container driver of pod edu-a has not run before: it was never restarted" in done.errors
    assert "hint: its present run: nodeside-cluster logs edu n1 --container driver" in done.errors


def test_a_container_that_the_pod_lacks_is_named_with_those_it_has(scene: Scene) -> None:
    scene.add(pod("edu-a", driver=RUNNING))

    done = scene.logs("edu", "n1", "-c", "agent")

    assert done.code == ExitCode.USAGE
    assert "no container 'agent'; it has provide, driver, toolkit" in done.errors


def test_without_the_right_to_read_logs_the_role_is_named(scene: Scene) -> None:
    scene.add(pod("edu-a", driver=RUNNING))
    scene.refused = ("/log",)

    done = scene.logs("edu", "n1")

    assert done.code == ExitCode.CLUSTER
    assert 'no permission to get pods/log "edu-a" in namespace nodeside' in done.errors
    assert LOOKING in done.errors


def test_a_kubelet_that_does_not_answer_is_a_question_about_its_node(scene: Scene) -> None:
    scene.add(pod("edu-a", driver=RUNNING))
    timeout = 'Get "https://10.0.0.7:10250/containerLogs": dial tcp 10.0.0.7:10250: i/o timeout'
    scene.log = Said(500, json.dumps(refusal(500, timeout)))

    done = scene.logs("edu", "n1")

    assert done.code == ExitCode.CLUSTER
    assert "dial tcp 10.0.0.7:10250" in done.errors
    assert "hint: is the node ready? kubectl get node n1" in done.errors


def test_a_log_that_was_removed_is_no_question_about_its_node(scene: Scene) -> None:
    """The kubelet removes dead containers, and the one before the last restart first."""
    scene.add(pod("edu-a", driver=RESTARTED))
    message = 'previous terminated container "driver" in pod "edu-a" not found'
    scene.log = Said(400, json.dumps(refusal(400, message)))

    done = scene.logs("edu", "n1", "--previous")

    assert done.code == ExitCode.CLUSTER
    assert message in done.errors
    assert "is the node ready" not in done.errors
