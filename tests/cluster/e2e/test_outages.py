"""The API server is cut off or gone: what the controller says meanwhile, and that it comes back."""

from __future__ import annotations

import shutil

import pytest

from cluster.model.names import CONTROLLER, NAMESPACE
from nodeside.errors import ExitCode
from tests.cluster.e2e.controllers import Replica, Replicas
from tests.cluster.e2e.endstate import end_state
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.relay import Relay
from tests.cluster.e2e.scene import NEW, OLD, REVISIONS, Scene
from tests.controlplane.audit import Audit

pytestmark = pytest.mark.cluster

LEASE = 3  # seconds: who cannot renew it gives it up after two
NODES = 3


def test_watches_that_are_cut_are_resumed_and_nothing_is_missed(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD, NEW)
    scene.node("n0")
    with Relay(scene.control_plane.url) as relay:
        controller = replicas.start(url=relay.url)
        scene.driver()
        scene.until_ready(1)
        for system in (NEW, OLD, NEW):
            relay.cut()
            scene.reboot("n0", system)
            scene.until_kernels(system[0])
            scene.until_ready(1)
        assert controller.child.poll() is None


def test_an_api_server_that_is_gone_is_said_and_survived_without_a_restart(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    scene.toolkits(OLD, NEW)
    scene.node("n0")
    with Relay(scene.control_plane.url) as relay:
        controller = replicas.start(url=relay.url, lease=LEASE)
        scene.driver()
        scene.until_ready(1)

        relay.close()
        scene.reboot("n0", NEW)
        scene.control_plane.wait_for(
            lambda: controller.said("no longer leading"), "the lead to be given up"
        )
        assert "nothing heard for" in controller.health("/readyz").text
        assert controller.health("/healthz").text == "ok\n"

        relay.open()
        scene.until_kernels(NEW[0])
        scene.until_ready(1)
        assert controller.child.poll() is None
        scene.control_plane.wait_for(
            lambda: "nothing heard" not in controller.health("/readyz").text,
            "all watches to be back",
        )


def test_an_api_server_that_died_finds_nothing_changed_when_it_is_back(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    plane = scene.control_plane
    controller = _at_rest(scene, replicas)
    before, audit = end_state(scene, "1.0.0"), Audit(plane.place.directory)
    mark = audit.mark()
    with plane.without("kube-apiserver"):
        plane.wait_for(lambda: controller.said("no longer leading"), "the lead to be given up")
        plane.wait_for(lambda: all(map(_unheard, _readiness(controller))), "all kinds to say so")
        assert controller.health("/healthz").text == "ok\n", "a restart would not help"
        asked = scene.cli("status")
        assert asked.exit_code == ExitCode.CLUSTER
        assert asked.errors.splitlines()[0] == (
            f"error: no answer from the API server {plane.url}: Connection refused"
        )

    _until_at_work_again(scene, controller)
    plane.wait_for(lambda: not any(map(_unheard, _readiness(controller))), "all to be heard")
    # A node whose heartbeat was missed for long may be called not ready meanwhile; it changes
    # the status and nothing else.
    assert {write.kind for write in audit.writes(mark)} <= {"patch drivers/status"}
    plane.wait_for(lambda: end_state(scene, "1.0.0") == before, "the state of before")
    scene.driver("2.0.0")
    scene.until_complete("2.0.0", NODES)
    assert "patch nodes" in {write.kind for write in audit.writes(mark)}, "the log goes on"
    assert controller.child.poll() is None


def test_an_api_server_that_takes_connections_and_never_answers_is_one_that_is_gone(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    controller = _at_rest(scene, replicas)
    with scene.control_plane.frozen("kube-apiserver"):
        scene.control_plane.wait_for(
            lambda: controller.said("no longer leading"), "the lead to be given up"
        )
        assert controller.said("cannot renew the lease: no answer from the API server")
        assert controller.health("/healthz").text == "ok\n"

    _until_at_work_again(scene, controller)
    scene.driver("2.0.0")
    scene.until_complete("2.0.0", NODES)
    assert controller.child.poll() is None


def test_an_etcd_that_is_restored_is_noticed_and_nothing_is_done_by_what_it_has_undone(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    """The leader keeps its lease, and what it saw last: an upgrade that has not happened now.

    What Kubernetes itself runs is restarted, as etcd's manual asks for.
    https://etcd.io/docs/v3.6/op-guide/recovery/
    """
    plane = scene.control_plane
    scene.toolkits(OLD)
    scene.some_nodes("n", NODES)
    controller = replicas.start(lease=120)
    scene.driver()
    scene.until_complete("1.0.0", NODES)
    in_use = {each["metadata"]["name"] for each in (*scene.items(REVISIONS), *scene.daemonsets())}
    data, kept = plane.place.directory / "etcd", plane.place.directory / "etcd-of-before"
    with plane.frozen("etcd"):  # what is on disk is what a kill would leave
        shutil.copytree(data, kept)
    scene.driver("2.0.0")
    scene.until_complete("2.0.0", NODES)

    audit = Audit(plane.place.directory)
    mark = audit.mark()
    with plane.without("kube-apiserver"), plane.without("etcd"):
        shutil.rmtree(data)
        kept.rename(data)
    for name in ("kube-controller-manager", "kube-scheduler", "kwok"):
        with plane.without(name):
            pass

    plane.wait_for(lambda: controller.said("has older data than before"), "it to be noticed")
    scene.until_complete("1.0.0", NODES)
    assert not in_use & {each.name for each in audit.writes(mark) if each.verb == "delete"}
    assert not controller.said("no longer leading")
    scene.driver("2.0.0")
    scene.until_complete("2.0.0", NODES)


def _at_rest(scene: Scene, replicas: Replicas) -> Replica:
    """A controller, and a Driver that works everywhere."""
    scene.toolkits(OLD)
    scene.some_nodes("n", NODES)
    controller = replicas.start(lease=LEASE)
    scene.driver()
    scene.until_complete("1.0.0", NODES)
    return controller


def _readiness(controller: Replica) -> list[str]:
    """A line for each kind."""
    return controller.health("/readyz").text.splitlines()


def _unheard(line: str) -> bool:
    return "nothing heard for" in line and "no answer from the API server to watch" in line


def _until_at_work_again(scene: Scene, controller: Replica) -> None:
    """It leads once more, and has looked at everything."""
    scene.control_plane.wait_for(
        lambda: len(controller.said("first look")) == 2 and _has_planned(controller),
        "the controller to be at work again",
    )


def _has_planned(controller: Replica) -> bool:
    said = [line["message"] for line in controller.lines]
    since = said[len(said) - said[::-1].index("first look") :]
    return "nothing to do" in since or "round" in since


def test_a_token_that_is_good_no_more_is_replaced_under_a_running_replica(
    scene: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    """A token may not be made for less than ten minutes, but ends with the pod that it is of."""
    plane, pods = scene.control_plane, f"/api/v1/namespaces/{NAMESPACE}/pods"
    container = {"name": "one", "image": "registry.example.com/one"}
    spec = {"serviceAccountName": CONTROLLER, "containers": [container]}
    pod = plane.do("POST", pods, {"metadata": {"name": "owner"}, "spec": spec})
    scene.toolkits(OLD)
    scene.node("n0")
    controller = replicas.start(pod=pod)
    scene.driver()
    scene.until_ready(1)

    plane.do("DELETE", f"{pods}/owner", {"gracePeriodSeconds": 0})
    plane.wait_for(
        lambda: controller.said("the API server does not accept our credentials"),
        "the token to be refused",
    )
    scene.driver("2.0.0")
    replicas.give_token(controller.name)

    scene.until_complete("2.0.0", 1)
    assert controller.child.poll() is None, "the same process all the time"
