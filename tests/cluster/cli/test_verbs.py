"""The verbs of a rollout: each is one request, which a person may make with kubectl as well."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.cli import verbs
from cluster.cli.options import ORDERING
from cluster.cli.status import NoSuchObject
from cluster.cli.verbs import NoWayBack, Order
from cluster.driver.revisions import revision_of, revision_text
from cluster.kube.client import Api
from cluster.kube.errors import Conflict
from cluster.kube.merge_patch import apply_merge_patch
from cluster.model.names import DRIVER_LABEL, MANAGED_BY, MANAGER, REVISION_LABEL
from cluster.model.parse import driver_from
from nodeside.protocol.labels import API_VERSION
from nodeside.protocol.timestamps import parse_rfc3339
from tests.cluster.fakes.model import document
from tests.cluster.fakes.scripted import Asked, Said, ScriptedServer, kubeconfig
from tests.cluster.fakes.stored import StoredObjects
from tests.console import nodeside_cluster as command

NAMESPACE = "nodeside"
OLD = document(image="registry.example.com/drivers/edu:1.0.0")
NEW = document(
    version="2.0.0",
    image="registry.example.com/drivers/edu:2.0.0",
    conflicts={"modules": ["other"]},
    rollout={"maxUnavailable": "3"},
)


TRIED = document(version="1.5.0", image="registry.example.com/drivers/edu:1.5.0")


def revision(driver: dict[str, Any]) -> str:
    found = driver_from(driver).driver
    assert found is not None
    return revision_of(revision_text(found))


def stored_revision(driver: dict[str, Any], created: str) -> dict[str, Any]:
    found = driver_from(driver).driver
    assert found is not None
    labels = {MANAGED_BY: MANAGER, DRIVER_LABEL: "edu", REVISION_LABEL: revision(driver)}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"edu-revision-{revision(driver)}",
            "namespace": NAMESPACE,
            "labels": labels,
            "creationTimestamp": created,
        },
        "data": {"driver.yaml": revision_text(found)},
    }


def pod(name: str, node: str, created: str, **metadata: Any) -> dict[str, Any]:
    labels = {MANAGED_BY: MANAGER, DRIVER_LABEL: "edu"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "labels": labels,
            "creationTimestamp": created,
            **metadata,
        },
        "spec": {"nodeName": node, "containers": []},
        "status": {},
    }


class Scene:
    """An API server with the Driver edu, in version 2.0.0, and its two revisions."""

    def __init__(self, server: ScriptedServer, api: Api) -> None:
        self.driver = json.loads(json.dumps(NEW))
        self.driver["status"] = {"lastGoodRevision": revision(OLD)}
        report = {
            "apiVersion": API_VERSION,
            "kind": "NodeDriver",
            "metadata": {"name": "edu.n1", "labels": {DRIVER_LABEL: "edu"}},
            "spec": {"driver": "edu", "node": "n1"},
            "status": {"state": "failed"},
        }
        self.objects = StoredObjects(
            [
                self.driver,
                stored_revision(OLD, "2026-01-01T00:00:00Z"),
                stored_revision(NEW, "2026-02-01T00:00:00Z"),
                pod("edu-a", "n1", "2026-01-01T00:00:00Z"),
                report,
            ]
        )
        self.server = server
        server.always = self.objects.answer
        self.api, self.url = api, server.url

    def patch_of(self, order: Order) -> dict[str, Any]:
        """What the order sends; its command must say the same."""
        assert order.send is not None
        order.send(self.api)
        [sent] = self.objects.written
        assert sent.method == "PATCH"
        words = shlex.split(order.command)
        assert words[:-1] == ["kubectl", "patch", "driver", "edu", "--type=merge", "-p"]
        assert json.loads(words[-1]) == json.loads(sent.body)
        found: dict[str, Any] = json.loads(sent.body)
        return found


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ScriptedServer() as server:
        yield Scene(server, server.api(tmp_path))


def test_undo_gives_the_last_good_revision_again_and_leaves_the_rollout_alone(scene: Scene) -> None:
    order = verbs.undo(scene.api, NAMESPACE, "edu")

    patch = scene.patch_of(order)
    assert patch == {
        "spec": {
            "version": "1.0.0",
            "image": "registry.example.com/drivers/edu:1.0.0",
            "conflicts": None,
        }
    }
    after = apply_merge_patch(scene.driver, patch)
    assert revision(after) == revision(OLD)
    assert after["spec"]["rollout"] == {"maxUnavailable": "3"}
    assert f"from 2.0.0 ({revision(NEW)}) to 1.0.0 ({revision(OLD)})" in order.what
    assert "Git" in order.note


def test_undo_goes_to_the_revision_that_is_named_and_says_if_it_is_there(scene: Scene) -> None:
    assert verbs.undo(scene.api, NAMESPACE, "edu", revision(OLD)[:6]).send is not None
    there = verbs.undo(scene.api, NAMESPACE, "edu", revision(NEW))
    assert there.send is None
    assert "already" in there.what
    with pytest.raises(NoWayBack) as caught:
        verbs.undo(scene.api, NAMESPACE, "edu", "xyz")
    assert caught.value.hint == "nodeside-cluster history edu"


@pytest.mark.parametrize("good", [OLD, NEW], ids=["never good", "good since"])
def test_a_second_undo_does_not_bring_the_newer_version_again(
    scene: Scene, good: dict[str, Any]
) -> None:
    scene.driver["spec"] = json.loads(json.dumps(OLD["spec"]))  # an undo has been here
    scene.driver["status"] = {"lastGoodRevision": revision(good)}

    with pytest.raises(verbs.NoWayBack, match="no earlier revision"):
        verbs.undo(scene.api, NAMESPACE, "edu")


@pytest.mark.parametrize("changes", [{"status": {"conditions": []}}, {"spec": OLD["spec"]}])
def test_undo_and_retry_are_for_the_driver_as_it_was_read_whatever_its_status(
    scene: Scene, changes: dict[str, Any]
) -> None:
    """The status changes all the time while a rollout fails."""
    scene.driver["metadata"] |= {"resourceVersion": "7", "generation": 3}
    orders = (verbs.undo(scene.api, NAMESPACE, "edu"), verbs.retry(scene.api, "edu", "n1"))
    assert all("resourceVersion" not in order.command for order in orders)
    answer = scene.objects.answer

    def refuse_the_old(asked: Asked) -> Said:
        if asked.method == "PATCH":
            version = json.loads(asked.body)["metadata"]["resourceVersion"]
            if version != scene.driver["metadata"]["resourceVersion"]:
                return Said(409, json.dumps({"kind": "Status", "code": 409}))
        return answer(asked)

    scene.server.always = refuse_the_old
    scene.driver |= changes
    scene.driver["metadata"] |= {"resourceVersion": "8"}
    if "spec" in changes:
        scene.driver["metadata"]["generation"] = 4

    for order in orders:
        assert order.send is not None
        if "spec" in changes:
            with pytest.raises(Conflict):
                order.send(scene.api)
        else:
            order.send(scene.api)
    assert len(scene.objects.written) == (0 if "spec" in changes else 2)


def test_what_a_stored_revision_says_moves_no_cursor(scene: Scene) -> None:
    old = document(image=OLD["spec"]["image"], hooks={"afterLoad": [{"command": ["a", "b\x9bc"]}]})
    scene.objects.documents.append(stored_revision(old, "2026-01-02T00:00:00Z"))

    order = verbs.undo(scene.api, NAMESPACE, "edu", revision(old))

    assert order.command.isascii()
    assert "\\u009b" in order.command


def test_undo_of_a_driver_with_mistakes_goes_back_too(scene: Scene) -> None:
    scene.driver["spec"]["version"] = {"not": "a version"}
    with pytest.raises(NoWayBack, match="no patch gives"):  # which of its fields were meant?
        verbs.undo(scene.api, NAMESPACE, "edu")
    del scene.driver["spec"]["conflicts"]

    patch = scene.patch_of(verbs.undo(scene.api, NAMESPACE, "edu"))

    assert patch["spec"]["version"] == "1.0.0"


def test_without_an_earlier_revision_undo_says_what_to_do(scene: Scene) -> None:
    del scene.objects.documents[1]
    with pytest.raises(NoWayBack, match="no earlier revision") as caught:
        verbs.undo(scene.api, NAMESPACE, "edu")
    assert "driver.yaml" in caught.value.hint


def test_history_has_every_revision_with_what_it_is(scene: Scene) -> None:
    old, new = verbs.history(scene.api, NAMESPACE, "edu")

    assert (old.version, old.good, old.newest) == ("1.0.0", True, False)
    assert (new.version, new.good, new.newest) == ("2.0.0", False, True)
    assert "last good" in verbs.history_text([old, new])
    assert [each["revision"] for each in json.loads(verbs.history_json([old, new]))] == [
        revision(OLD),
        revision(NEW),
    ]


@pytest.mark.parametrize("paused", [True, False])
def test_pause_and_resume_are_one_field(scene: Scene, paused: bool) -> None:
    scene.driver["spec"]["rollout"]["paused"] = not paused
    patch = scene.patch_of(verbs.pause(scene.api, "edu", paused=paused))
    assert patch == {"spec": {"rollout": {"paused": paused}}}

    scene.driver["spec"]["rollout"]["paused"] = paused
    assert verbs.pause(scene.api, "edu", paused=paused).send is None


def test_retry_is_an_annotation_with_the_time_of_the_api_server(scene: Scene) -> None:
    patch = scene.patch_of(verbs.retry(scene.api, "edu"))

    [value] = patch["metadata"]["annotations"].values()
    [(node, time)] = driver_from(apply_merge_patch(scene.driver, patch)).retries
    assert node == ""
    assert abs(time - scene.api.now()) < 60, value


def test_retry_of_a_node_keeps_the_orders_for_others(scene: Scene) -> None:
    scene.driver["metadata"]["annotations"] = {"nodeside.io/retry": "n2=2026-01-01T00:00:00Z"}

    patch = scene.patch_of(verbs.retry(scene.api, "edu", "n1"))

    retries = dict(driver_from(apply_merge_patch(scene.driver, patch)).retries)
    assert sorted(retries) == ["n1", "n2"]


def test_retry_of_a_node_counts_however_many_orders_there_are(scene: Scene) -> None:
    many = ",".join(f"a{number}=2026-01-01T00:00:00Z" for number in range(400))
    scene.driver["metadata"]["annotations"] = {"nodeside.io/retry": many}

    patch = scene.patch_of(verbs.retry(scene.api, "edu", "n1"))

    retries = dict(driver_from(apply_merge_patch(scene.driver, patch)).retries)
    assert abs(retries["n1"] - scene.api.now()) < 60


def test_retry_of_a_node_keeps_the_order_for_all_nodes_and_none_before_it(scene: Scene) -> None:
    many = ",".join(f"a{number}=2026-01-01T00:00:00Z" for number in range(150))
    younger = ",".join(f"b{number}=2026-03-01T00:00:00Z" for number in range(100))
    notes = {"nodeside.io/retry": f"2026-02-01T00:00:00Z,{younger},{many}"}
    scene.driver["metadata"]["annotations"] = notes

    patch = scene.patch_of(verbs.retry(scene.api, "edu", "n1"))

    names = {name for name, _ in driver_from(apply_merge_patch(scene.driver, patch)).retries}
    assert {"", "n1", "b0", "b99"} <= names
    assert "a0" not in names


def test_retry_of_a_node_without_the_driver_is_a_mistake(scene: Scene) -> None:
    with pytest.raises(NoSuchObject, match="nowhere"):
        verbs.retry(scene.api, "edu", "nowhere")


def test_rebuild_is_an_annotation_and_forgives_no_kernel_that_died(scene: Scene) -> None:
    patch = scene.patch_of(verbs.rebuild(scene.api, "edu"))

    changed = driver_from(apply_merge_patch(scene.driver, patch))
    assert abs(parse_rfc3339(changed.rebuild) - scene.api.now()) < 60
    assert changed.retries == ()


def test_restart_deletes_the_one_pod_of_the_node(scene: Scene) -> None:
    order = verbs.restart(scene.api, NAMESPACE, "edu", "n1")

    assert order.command == "kubectl -n nodeside delete pod edu-a"
    assert order.send is not None
    order.send(scene.api)
    [sent] = scene.objects.written
    assert (sent.method, json.loads(sent.body)["preconditions"]) == ("DELETE", {"uid": "uid-edu-a"})


def test_restart_takes_no_pod_that_root_on_the_node_made_up(scene: Scene) -> None:
    mirror = {"annotations": {"kubernetes.io/config.mirror": "x"}}
    scene.objects.documents.append(pod("edu-younger", "n1", "2026-03-01T00:00:00Z", **mirror))

    order = verbs.restart(scene.api, NAMESPACE, "edu", "n1")

    assert order.command == "kubectl -n nodeside delete pod edu-a"


def test_an_unknown_driver_is_named_with_those_that_there_are(scene: Scene) -> None:
    with pytest.raises(NoSuchObject) as caught:
        verbs.pause(scene.api, "other", paused=True)
    assert caught.value.hint == "there is: edu"


@pytest.mark.parametrize(
    "words",
    [
        ["undo", "edu"],
        ["pause", "edu"],
        ["retry", "edu", "n1"],
        ["rebuild", "edu"],
        ["restart", "edu", "n1"],
    ],
    ids=lambda words: words[0],
)
def test_a_dry_run_prints_what_would_be_sent_and_sends_nothing(
    scene: Scene, tmp_path: Path, words: list[str]
) -> None:
    place = tmp_path / "kubeconfig"
    place.write_text(json.dumps(kubeconfig(scene.url, "secret")))

    dry = command(*words, "--dry-run", "--kubeconfig", str(place))
    assert (dry.code, scene.objects.written) == (0, [])
    done = command(*words, "--kubeconfig", str(place))

    assert done.code == 0
    assert len(scene.objects.written) == 1
    for each in (dry, done):
        assert sum(line.startswith("kubectl ") for line in each.output.splitlines()) == 1


def test_who_may_not_patch_is_told_what_that_needs(tmp_path: Path) -> None:
    place = tmp_path / "kubeconfig"
    with ScriptedServer() as server:
        server.always = lambda _: Said(403, json.dumps({"kind": "Status", "code": 403}))
        place.write_text(json.dumps(kubeconfig(server.url, "secret")))
        done = command("pause", "edu", "--kubeconfig", str(place))

    assert done.code != 0
    assert ORDERING in done.errors


def test_undo_prefers_the_revision_that_was_good_before_to_one_that_was_tried(scene: Scene) -> None:
    tried = document(version="1.5.0", image="registry.example.com/drivers/edu:1.5.0")
    scene.driver["status"] = {
        "lastGoodRevision": revision(NEW),
        "previousGoodRevision": revision(OLD),
    }
    stored = [(OLD, "2026-01-01T00:00:00Z"), (tried, "2026-01-15T00:00:00Z")]
    stored.append((NEW, "2026-02-01T00:00:00Z"))
    scene.server.always = StoredObjects(
        [scene.driver, *(stored_revision(each, created) for each, created in stored)]
    ).answer

    order = verbs.undo(scene.api, NAMESPACE, "edu")

    assert order.what.startswith(
        f"edu goes from 2.0.0 ({revision(NEW)}) to 1.0.0 ({revision(OLD)})"
    )


@pytest.mark.parametrize(
    ("good", "before", "newest", "to"),
    [
        (NEW, OLD, TRIED, NEW),  # what was tried again is older than the last good one
        (OLD, NEW, OLD, None),  # undone, and complete
        (NEW, OLD, OLD, None),  # undone, and under way
        (NEW, None, NEW, OLD),  # nothing is known of what was good
    ],
)
def test_undo_goes_to_what_was_good_and_never_back_and_forth(
    scene: Scene,
    good: dict[str, Any],
    before: dict[str, Any] | None,
    newest: dict[str, Any],
    to: dict[str, Any] | None,
) -> None:
    driver = {**scene.driver, "spec": newest["spec"]}
    driver["status"] = {
        "lastGoodRevision": revision(good),
        "previousGoodRevision": revision(before) if before else "",
    }
    stored = [(TRIED, "2025-12-01T00:00:00Z"), (OLD, "2026-01-01T00:00:00Z")]
    stored.append((NEW, "2026-02-01T00:00:00Z"))
    scene.server.always = StoredObjects(
        [driver, *(stored_revision(each, created) for each, created in stored)]
    ).answer

    if to is None:
        with pytest.raises(NoWayBack):
            verbs.undo(scene.api, NAMESPACE, "edu")
    else:
        assert f" to {to['spec']['version']} (" in verbs.undo(scene.api, NAMESPACE, "edu").what
