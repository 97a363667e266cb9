"""Which Helm it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.controlplane import binaries
from tests.controlplane.binaries import cache_directory, digest, fits, versions
from tests.controlplane.fakego import fake_go, program
from tests.helm.program import HELM, MODULE, helm_program


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a Go that writes programs, an empty cache, and no Helm."""
    monkeypatch.setenv("NODESIDE_CONTROLPLANE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")
    go = fake_go(tmp_path / "go")
    monkeypatch.setattr(binaries, "_find_go", lambda say: go)
    return tmp_path


def test_the_program_is_the_tool_of_go_mod_and_its_version_is_pinned() -> None:
    assert f"tool {HELM.package}\n" in (MODULE / "go.mod").read_text()
    assert fits("v4.3.1+gdeadbee", versions([HELM], MODULE)[HELM.module])


def test_helm_is_built_once_beside_the_control_plane_and_not_with_it(empty: Path) -> None:
    said: list[str] = []
    found = helm_program(said.append)
    assert found == cache_directory() / digest(MODULE) / "bin" / "helm"
    assert digest(MODULE) != digest()
    assert said == ["building helm: once, two minutes on two cores"]
    assert helm_program(said.append) == found
    assert len(said) == 1


def test_helm_of_the_machine_is_taken_if_it_fits(empty: Path) -> None:
    theirs = program(empty / "path", "helm", versions([HELM], MODULE)[HELM.module] + "+g1234567")
    assert helm_program() == theirs
    program(empty / "path", "helm", "v3.1.0+g1234567")
    assert helm_program() != theirs
