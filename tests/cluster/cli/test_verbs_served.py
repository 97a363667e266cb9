"""The verbs of a rollout with a real API server: what they send, and that kubectl does the same."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from cluster.cli import verbs
from cluster.cli.verbs import Order
from cluster.driver.revisions import config_map, revision_of, revision_text
from cluster.install.manifests import InstallSettings
from cluster.kube.client import Api
from cluster.kube.errors import NotFound
from cluster.kube.resources import CONFIG_MAPS, DRIVERS, PODS
from cluster.model.names import DRIVER_LABEL, MANAGED_BY, MANAGER, NAMESPACE
from cluster.model.parse import driver_from
from cluster.model.snapshot import Settings
from tests.cluster.fakes.model import document
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.nodes import Nodes

pytestmark = pytest.mark.cluster

NAME, NODE = "verbs", "verbs.example.com"
OLD = document(NAME, conflicts={"modules": ["other"]})
NEW = document(NAME, version="2.0.0", rollout={"maxUnavailable": "3"})


def applied(api: Api, driver: dict[str, Any]) -> dict[str, Any]:
    return api.apply({**driver, "metadata": {"name": NAME}})


@pytest.fixture
def two_revisions(api: Api, installed: InstallSettings) -> Iterator[tuple[str, str]]:
    """The Driver is there, and both of its revisions are."""
    made = []
    for each in (OLD, NEW):
        found = driver_from(applied(api, each))
        assert found.driver is not None
        text = revision_text(found.driver)
        made.append(revision_of(text))
        api.apply(config_map(found, made[-1], text, Settings(namespace=NAMESPACE)))
    yield made[0], made[1]
    api.delete(DRIVERS, NAME)
    for revision in made:
        with suppress(NotFound):  # the garbage collector may have been here
            api.delete(CONFIG_MAPS, f"{NAME}-revision-{revision}", namespace=NAMESPACE)


def newest(api: Api) -> str:
    found = driver_from(api.get(DRIVERS, NAME)).driver
    assert found is not None
    return revision_of(revision_text(found))


def send(api: Api, order: Order) -> None:
    assert order.send is not None
    order.send(api)


def type_command(plane: ControlPlane, order: Order) -> None:
    plane.kubectl(*shlex.split(order.command)[1:])


def test_undo_there_and_back_by_the_request_and_by_the_command(
    control_plane: ControlPlane, api: Api, two_revisions: tuple[str, str]
) -> None:
    old, new = two_revisions

    send(api, verbs.undo(api, NAMESPACE, NAME))
    assert newest(api) == old
    type_command(control_plane, verbs.undo(api, NAMESPACE, NAME, new))

    assert newest(api) == new
    spec = api.get(DRIVERS, NAME)["spec"]
    assert (spec["rollout"]["maxUnavailable"], spec["hardware"]) == ("3", NEW["spec"]["hardware"])
    found = {each.revision: each.newest for each in verbs.history(api, NAMESPACE, NAME)}
    assert found == {old: False, new: True}


def test_pause_resume_and_retry_by_the_command(
    control_plane: ControlPlane, api: Api, two_revisions: tuple[str, str]
) -> None:
    for paused in (True, False):
        type_command(control_plane, verbs.pause(api, NAME, paused=paused))
        assert api.get(DRIVERS, NAME)["spec"]["rollout"]["paused"] is paused
        assert verbs.pause(api, NAME, paused=paused).send is None
    type_command(control_plane, verbs.retry(api, NAME))
    [(node, _)] = driver_from(api.get(DRIVERS, NAME)).retries
    assert node == ""
    type_command(control_plane, verbs.rebuild(api, NAME))
    assert driver_from(api.get(DRIVERS, NAME)).rebuild


def test_restart_deletes_the_pod(
    control_plane: ControlPlane, api: Api, nodes: Nodes, two_revisions: tuple[str, str]
) -> None:
    nodes.create(NODE)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "verbs-pod",
            "namespace": NAMESPACE,
            "labels": {MANAGED_BY: MANAGER, DRIVER_LABEL: NAME},
        },
        "spec": {"nodeName": NODE, "containers": [{"name": "driver", "image": "a.example/b:1"}]},
    }
    api.create(pod)

    send(api, verbs.restart(api, NAMESPACE, NAME, NODE))

    def is_gone() -> bool:
        try:
            return (
                "deletionTimestamp" in api.get(PODS, "verbs-pod", namespace=NAMESPACE)["metadata"]
            )
        except NotFound:
            return True

    control_plane.wait_for(is_gone, "the pod to be deleted")
