"""A kubeconfig that cannot be used: one sentence that names it, what is wrong, and what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster.kube.client import connect
from cluster.kube.credentials import BadKubeconfig
from cluster.kube.resources import NODES
from nodeside.errors import ExitCode
from tests.cluster.fakes.scripted import kubeconfig

WHOLE = kubeconfig("http://127.0.0.1:1", "token")


@pytest.mark.parametrize(
    ("content", "message", "hint"),
    [
        (b"", "the kubeconfig {} is empty", "--kubeconfig FILE"),
        (b"# nothing\n", "the kubeconfig {} is empty", "--kubeconfig FILE"),
        (b"- a\n", "the kubeconfig {} holds no mapping", "--kubeconfig FILE"),
        (b"a: [", "the kubeconfig {}:1 is not YAML: ", "--kubeconfig FILE"),
        (b"\xff\xfea", "the kubeconfig {} is not UTF-8: invalid start byte at byte 0", "UTF-8"),
        (
            json.dumps({**WHOLE, "current-context": ""}).encode(),
            "the kubeconfig {} names no current context",
            "it has: c; choose one: --context NAME",
        ),
        (
            json.dumps({**WHOLE, "current-context": "gone"}).encode(),
            "the kubeconfig {} has no context 'gone'",
            "it has: c; choose one: --context NAME",
        ),
        (
            json.dumps({**WHOLE, "clusters": []}).encode(),
            "the kubeconfig {} has no cluster 'c': context 'c' names it",
            "kubectl config view",
        ),
        (
            json.dumps({**WHOLE, "contexts": [{"name": "c"}]}).encode(),
            "the kubeconfig {} has no cluster '': context 'c' names it",
            "kubectl config view",
        ),
        (
            b"current-context: c\ncontexts: [7, {name: 8}]\n",
            "the kubeconfig {} has no context 'c'",
            "",
        ),
        (b"contexts: 7\n", "the kubeconfig {} names no current context", "it has: none"),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_named_with_what_is_wrong(
    tmp_path: Path, content: bytes, message: str, hint: str
) -> None:
    path = tmp_path / "config"
    path.write_bytes(content)

    with pytest.raises(BadKubeconfig) as caught:
        connect(path).get(NODES, "n")

    assert str(caught.value).startswith(message.format(path))
    assert hint in caught.value.hint
    assert caught.value.exit_code is ExitCode.USAGE


def test_a_directory_and_a_file_that_is_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadKubeconfig, match=f"cannot read the kubeconfig {tmp_path}: Is a dir"):
        connect(tmp_path).get(NODES, "n")
    with pytest.raises(BadKubeconfig, match=f"there is no kubeconfig {tmp_path}/none"):
        connect(tmp_path / "none").get(NODES, "n")


def test_a_context_that_is_not_there_is_said_with_those_that_are(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(json.dumps(WHOLE))
    with pytest.raises(BadKubeconfig, match="has no context 'other'") as caught:
        connect(path, "other").get(NODES, "n")
    assert caught.value.hint == "it has: c; choose one: --context NAME"
