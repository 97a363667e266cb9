"""Pods that a kubelet shows of its own files: root on one node writes them, with labels of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cluster.cache.cache import select_kinds
from cluster.cache.stages import StageView, read_once
from cluster.model.names import UNLOAD_LABEL
from cluster.model.parse_pods import build_pod_from, pod_from, skip_mirror_pods
from cluster.model.parse_stages import stage_pod_from
from tests.cluster.fakes.scripted import Said, ScriptedServer, page
from tests.cluster.fakes.stage_pods import LONG, STAGES, snapshot


def pod(name: str = "plugin-n3", **annotations: str) -> dict[str, Any]:
    labels = {"nodeside.io/driver": "edu", "nodeside.io/stage": "first", UNLOAD_LABEL: "0" * 12}
    return {
        "metadata": {"name": name, "uid": name, "labels": labels, "annotations": annotations},
        "spec": {"nodeName": "n3"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


HONEST, MIRROR = pod("honest"), pod("mirror", **{"kubernetes.io/config.mirror": "0123"})


def test_a_mirror_pod_is_left_out_whatever_it_says() -> None:
    for read in (pod_from, build_pod_from, stage_pod_from):
        trim = skip_mirror_pods(read)
        assert trim(MIRROR) is None
        assert trim(HONEST) == read(HONEST)


def test_no_mirror_pod_is_a_pod_of_a_driver_or_of_a_build() -> None:
    for kind in ("pods", "build_pods"):
        trim = select_kinds("nodeside")[kind].trim
        assert trim(MIRROR) is None
        assert getattr(trim(HONEST), "name", "") == "honest"


def test_no_mirror_pod_is_a_pod_of_a_stage(tmp_path: Path) -> None:
    def said(asked: Any) -> Said:
        if "watch=" in asked.path or "/pods" not in asked.path:
            return Said(404) if "monitoring" in asked.path else Said(body=page())
        return Said(body=json.dumps({"metadata": {}, "items": [MIRROR, HONEST]}))

    with ScriptedServer() as server:
        server.always = said
        api = server.api(tmp_path)
        once = read_once(api, snapshot(stages=STAGES)).stages
        view = StageView(api, "nodeside", lambda: None)
        view.add_to_snapshot(snapshot(stages=STAGES))
        view._pods.wait_synced(LONG)
        watched = view._pods.objects()
        view.stop()
        view.join(0.0)

    assert once is not None
    assert [*once.pods] == ["honest"]
    assert [*(watched or {})] == ["honest"]
