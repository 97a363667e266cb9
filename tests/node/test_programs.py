"""Which kubelet and containerd a real node has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.controlplane import binaries
from tests.controlplane.binaries import cache_directory, digest, versions
from tests.controlplane.fakego import fake_go
from tests.node.programs import CONTAINERD, KUBELET, MODULE, node_programs


def test_the_programs_are_the_tools_of_go_mod_and_the_kubelet_is_the_control_planes() -> None:
    named = (MODULE / "go.mod").read_text()
    assert all(f"\t{tool.package}\n" in named for tool in CONTAINERD)
    assert versions(CONTAINERD, MODULE)[CONTAINERD[0].module].startswith("v2.")
    assert versions([KUBELET]) == {KUBELET.module: versions()[KUBELET.module]}


def test_the_programs_of_a_node_are_built_once_in_two_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODESIDE_CONTROLPLANE_CACHE", str(tmp_path / "cache"))
    go = fake_go(tmp_path / "go")
    monkeypatch.setattr(binaries, "_find_go", lambda say: go)
    said: list[str] = []

    found = node_programs(said.append)

    assert found["kubelet"] == cache_directory() / digest() / "bin" / "kubelet"
    assert found["ctr"] == cache_directory() / digest(MODULE) / "bin" / "ctr"
    assert said == [
        "building kubelet: once, two minutes on two cores",
        "building containerd, containerd-shim-runc-v2, ctr: once, two minutes on two cores",
    ]
    assert node_programs(said.append) == found
    assert len(said) == 2
