"""When stages are looked for, and what is kept of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.cache.stages import StageView, read_once
from cluster.kube.client import Api
from cluster.kube.errors import ApiError
from cluster.model.parse_stages import cluster_version_from, stage_item_from, stage_pod_from
from cluster.model.stages import WATCHED, Stages
from tests.cluster.fakes.scripted import Said, ScriptedServer, page
from tests.cluster.fakes.stage_pods import LONG, STAGES, snapshot


def test_no_stage_watch_without_stages(tmp_path: Path) -> None:
    with ScriptedServer() as server:
        api = server.api(tmp_path)
        view = StageView(api, "nodeside", lambda: None)

        assert view.add_to_snapshot(snapshot()).stages is None
        assert read_once(api, snapshot()).stages is None
        view.stop()
        view.join(0.0)

        assert server.asked == []


def test_with_stages_every_kind_is_asked_for_in_our_namespace_only(tmp_path: Path) -> None:
    with ScriptedServer() as server:
        absent = ("monitoring.coreos.com", "config.openshift.io")
        server.always = lambda asked: (
            Said(404) if any(each in asked.path for each in absent) else Said(body=page())
        )
        api = server.api(tmp_path)

        found = read_once(api, snapshot(stages=STAGES)).stages

    assert found is not None
    assert found.absent == {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    *asked, version = server.asked
    assert len(asked) == len(WATCHED) + 1
    assert all("/namespaces/nodeside/" in each.path for each in asked)
    assert version.path.startswith("/apis/config.openshift.io/v1/clusterversions")


def test_what_cannot_be_read_is_said_and_nothing_is_concluded(tmp_path: Path) -> None:
    refusal = json.dumps({"kind": "Status", "message": "deployments is forbidden"})
    with ScriptedServer() as server:
        server.always = lambda asked: Said(403, refusal)
        view = StageView(server.api(tmp_path), "nodeside", lambda: None)

        first = view.add_to_snapshot(snapshot(stages=STAGES)).stages
        view._reflectors[WATCHED[0]].wait_current(0.1)
        view.stop()
        view.join(LONG)
        later = view.add_to_snapshot(snapshot()).stages

    assert isinstance(first, Stages)
    assert first.unknown != ""
    assert later is not None
    assert "deployments is forbidden" in later.unknown


def seen(api: Api) -> Stages | None:
    """What a controller knows when every kind has been asked for."""
    view = StageView(api, "nodeside", lambda: None)
    view.add_to_snapshot(snapshot(stages=STAGES))
    view.wait_current(LONG)
    found = view.add_to_snapshot(snapshot(stages=STAGES)).stages
    view.stop()
    view.join(LONG)
    return found


def test_a_version_that_may_not_be_read_holds_no_stage_up(tmp_path: Path) -> None:
    """An older ClusterRole, or one of a person: without OpenShift, too, it is 403 and not 404."""
    refusal = json.dumps({"kind": "Status", "message": "clusterversions is forbidden"})
    with ScriptedServer() as server:
        server.always = lambda asked: (
            Said(403, refusal) if "clusterversions" in asked.path else Said(body=page())
        )
        api = server.api(tmp_path)
        found = seen(api)
        once = read_once(api, snapshot(stages=STAGES)).stages

    for stages in (found, once):
        assert stages is not None
        assert (stages.unknown, stages.cluster_version) == ("", "")


def test_a_version_that_cannot_be_read_now_is_waited_for(tmp_path: Path) -> None:
    """A template that names it would be rendered without it: a new revision, by an outage."""
    with ScriptedServer() as server:
        server.always = lambda asked: (
            Said(503) if "clusterversions" in asked.path else Said(body=page())
        )
        api = server.api(tmp_path, deadline=3.0)
        found = seen(api)
        with pytest.raises(ApiError, match="503"):
            read_once(api, snapshot(stages=STAGES))

    assert found is not None
    assert "503" in found.unknown


@pytest.mark.parametrize(
    ("status", "version"),
    [
        (
            {
                "desired": {"version": "4.19.1"},
                "history": [
                    {"state": "Partial", "version": "4.19.1"},
                    {"state": "Completed", "version": "4.18.3"},
                    {"state": "Completed", "version": "4.17.9"},
                ],
            },
            "4.18.3",
        ),
        ({"desired": {"version": "4.19.1"}, "history": []}, "4.19.1"),
        ({}, ""),
    ],
)
def test_the_version_of_a_cluster_is_the_last_one_that_was_installed(
    status: dict[str, Any], version: str
) -> None:
    found = cluster_version_from({"metadata": {"name": "version"}, "status": status})

    assert found.version == version


def test_a_config_map_of_a_person_is_a_source_and_one_of_ours_is_none() -> None:
    theirs = {"metadata": {"name": "one"}, "data": {"a.yaml": "x"}}
    ours = {
        "metadata": {"name": "two", "labels": {"app.kubernetes.io/managed-by": "nodeside"}},
        "data": {"driver.yaml": "x"},
    }

    found = stage_item_from("ConfigMap", theirs)
    assert found.source is not None
    assert (found.source.files, found.object.driver) == ({"a.yaml": "x"}, "")
    assert stage_item_from("ConfigMap", ours).source is None


def test_nothing_is_kept_of_the_config_map_of_a_preflight() -> None:
    labels = {"app.kubernetes.io/managed-by": "nodeside-preflight"}
    metadata = {"name": "edu-preflight-0123abcd", "labels": labels}
    data = {"metadata": metadata, "data": {"driver.yaml": "x" * 1_000_000}}
    assert stage_item_from("ConfigMap", data).source is None


def test_a_deployment_is_rolled_out_when_kubectl_would_say_so() -> None:
    def deployment(**status: int) -> Any:
        labels = {"app.kubernetes.io/managed-by": "nodeside-stages"}
        metadata = {"name": "board", "generation": 2, "labels": labels}
        return stage_item_from(
            "Deployment", {"metadata": metadata, "spec": {"replicas": 2}, "status": status}
        ).object

    done = deployment(observedGeneration=2, updatedReplicas=2, availableReplicas=2)
    assert done.rolled_out
    late = deployment(observedGeneration=2, updatedReplicas=2, availableReplicas=1)
    assert (late.rolled_out, late.progress) == (False, "1 of 2 replicas available")
    assert not deployment(observedGeneration=1, updatedReplicas=2, availableReplicas=2).rolled_out


def test_a_pod_is_ready_by_its_condition() -> None:
    pod = {
        "metadata": {
            "name": "p",
            "labels": {"nodeside.io/driver": "edu", "nodeside.io/stage": "first"},
            "ownerReferences": [{"kind": "DaemonSet", "name": "plugin"}],
        },
        "spec": {"nodeName": "n0"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }

    found = stage_pod_from(pod)

    assert (found.driver, found.stage, found.daemonset, found.node, found.ready) == (
        "edu",
        "first",
        "plugin",
        "n0",
        True,
    )
