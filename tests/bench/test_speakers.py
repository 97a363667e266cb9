"""The played nodes: what they say goes to the API server, and what they cannot say is told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.cluster import speakers
from bench.cluster.speakers import Heard, Speakers, _Voices
from bench.room import BenchError
from cluster.kube.errors import ApiError, NotFound
from cluster.kube.resources import NODES

POD: Mapping[str, Any] = {
    "metadata": {"name": "edu-x", "uid": "u1", "labels": {"nodeside.io/driver": "edu"}},
    "spec": {
        "nodeName": "node-0001",
        "containers": [
            {
                "image": "registry.example.com/edu:1.0.0",
                "env": [
                    {"name": "NODESIDE_KERNEL", "value": "6.1"},
                    {"name": "NODESIDE_REVISION", "value": "0123456789ab"},
                ],
            }
        ],
    },
}
NODE = {"metadata": {"name": "node-0001"}, "status": {"nodeInfo": {"kernelVersion": "6.1"}}}


class Pods:
    """The API server that the bench itself asks: a node, and a pod that is there or not."""

    def __init__(self, error: ApiError | None = None) -> None:
        self.error = error

    def get(self, resource: Any, _: str, **__: Any) -> Mapping[str, Any]:
        if resource is NODES:
            return {**NODE, "status": {"nodeInfo": {"kernelVersion": "6.1", "bootID": "b1"}}}
        if self.error is not None:
            raise self.error
        return POD


def voices(monkeypatch: pytest.MonkeyPatch, directory: Path, pods: Pods) -> _Voices:
    """Their API server is on a port where nobody listens."""
    monkeypatch.setattr(speakers, "connect", lambda _: pods)
    monkeypatch.setattr(speakers, "_TELL", 0.3)
    ca = directory / "ca.crt"
    ca.touch()
    there = SimpleNamespace(
        kubeconfig="", url="https://127.0.0.1:1", ca=ca, pod_token=lambda *_: "token"
    )
    return _Voices(there, directory / "tokens")  # type: ignore[arg-type]  # it needs no more


def test_a_node_that_cannot_speak_is_named_with_its_last_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = voices(monkeypatch, tmp_path, Pods())

    made._say(POD)

    heard = made.heard()
    assert heard.broken.startswith("node-0001 said: not everything within 0.3 s; its last error: ")
    assert 'https://127.0.0.1:1 to patch nodes "node-0001"' in heard.broken
    assert heard.broken.endswith("Connection refused"), "and not that it has no certificate"
    assert heard.words.startswith("0 nodes spoke, node-0001: no answer from the API server")


def test_a_node_whose_pod_is_gone_need_not_speak(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone = NotFound("gone", status=404)
    made = voices(monkeypatch, tmp_path, Pods(gone))

    made._say(POD)

    assert made.heard().broken == ""


def test_that_nobody_follows_the_pods_any_more_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = voices(monkeypatch, tmp_path, Pods())

    made.follow()  # there is no list in this API server: as if we had a mistake

    assert made.heard().broken.startswith("nobody follows the pods any more: AttributeError")


def test_what_was_heard_counts_the_nodes() -> None:
    assert Heard(nodes={"a": 1.0, "b": 2.0}).words == "2 nodes spoke"


def test_a_process_that_has_ended_is_an_error_and_no_wait(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def end(*_: object) -> None:
        raise SystemExit(1)

    monkeypatch.setattr(speakers, "_speak", end)
    with (
        Speakers(SimpleNamespace(), tmp_path) as played,  # type: ignore[arg-type]
        pytest.raises(BenchError, match="the process that plays the nodes has ended"),
    ):
        played.heard()
