"""Where the programs of the control plane come from."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nodeside.errors import SystemRefused
from tests.controlplane import binaries as module
from tests.controlplane.binaries import MODULE, TOOLS, binaries, cache_directory, fits, versions
from tests.controlplane.fakego import fake_go, program
from tests.costs.cold import built_since

SAYS = {
    "etcd": "etcd Version: 3.6.8\nGit SHA: not provided",
    "kube-apiserver": "Kubernetes v1.36.3",
    "kube-controller-manager": "Kubernetes v1.36.3",
    "kube-scheduler": "Kubernetes v1.36.3",
    "kubectl": "Client Version: v1.36.3\nKustomize Version: v5.7.1",
    "kwok": "kwok version v0.8.0 go1.26.0 (linux/amd64)",
}


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a shell and an empty cache, and no Go."""
    monkeypatch.setenv("NODESIDE_CONTROLPLANE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(module, "_find_go", lambda say: Path("/nonexistent/go"))
    return tmp_path


def test_the_programs_are_the_tools_of_go_mod() -> None:
    block = re.search(
        r"^tool \((.*?)^\)", (MODULE / "go.mod").read_text(), re.DOTALL | re.MULTILINE
    )
    assert block is not None
    assert set(block[1].split()) == {tool.package for tool in TOOLS}


def test_versions_are_pinned_in_go_mod() -> None:
    assert all(re.fullmatch(r"v\d+\.\d+\.\d+", version) for version in versions().values())


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_a_program_of_the_pinned_minor_version_fits(tool: module.Tool) -> None:
    minor = versions()[tool.module].rpartition(".")[0]
    said = re.sub(r"v?\d+\.\d+\.\d+", f"{minor}.99", SAYS[tool.name], count=1)
    assert fits(said, versions()[tool.module])
    assert not fits(said.replace(minor, "v1.2", 1), versions()[tool.module])
    assert not fits("", versions()[tool.module])


def test_etcd_is_called_server_by_go() -> None:
    assert [tool.built_as for tool in TOOLS][:2] == ["server", "kube-apiserver"]


def test_programs_of_the_machine_are_taken_if_they_fit(
    empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assets, pinned = empty / "assets", versions()
    for tool in TOOLS:
        said = re.sub(r"v?\d+\.\d+\.\d+", pinned[tool.module], SAYS[tool.name], count=1)
        program(assets, tool.name, said)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    (cache_directory() / module.digest() / "stages").mkdir(parents=True)

    found = binaries()

    assert {tool.name: assets / tool.name for tool in TOOLS} == found.paths


def test_a_program_of_another_version_is_built_instead(
    empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(empty / "assets", "etcd", "etcd Version: 3.4.1")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(empty / "assets"))
    asked: list[str] = []
    monkeypatch.setattr(
        module, "_make", lambda place, tools, *_: asked.extend(t.name for t in tools)
    )
    (cache_directory() / module.digest() / "stages").mkdir(parents=True)
    binaries()
    assert asked == [tool.name for tool in TOOLS]


@pytest.mark.slow
def test_the_build_says_what_it_does_and_leaves_only_whole_programs(
    empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = fake_go(empty / "go")
    monkeypatch.setattr(module, "_find_go", lambda say: go)
    (cache_directory() / module.digest() / "stages").mkdir(parents=True)
    said: list[str] = []

    found = binaries(said.append)

    assert said[0].startswith("building etcd, kube-apiserver, kube-controller-manager")
    assert all(path.read_text() == "ok\n" for path in found.paths.values())
    assert not (cache_directory() / module.digest() / ".tmp-bin").exists()
    binaries(said.append)
    assert len(said) == 1
    [built] = built_since(0.0, [cache_directory()])
    assert built.what == ", ".join(tool.name for tool in TOOLS)


@pytest.mark.slow
def test_two_builders_build_once(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = fake_go(empty / "go")
    monkeypatch.setattr(module, "_find_go", lambda say: go)
    (cache_directory() / module.digest() / "stages").mkdir(parents=True)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: binaries(), range(2))
    assert first == second
    assert (empty / "go" / "builds").read_text() == "build\n"


def test_without_go_and_without_a_way_to_it_the_hint_says_what_to_install(
    empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = program(empty / "python", "python", "")
    pip.write_text("#!/bin/sh\necho 'no such host' >&2\nexit 1\n")
    monkeypatch.setattr("sys.executable", str(pip))
    with pytest.raises(
        SystemRefused, match="Go is not installed, and fetching it failed"
    ) as caught:
        module._fetch_go(cache_directory() / "go-1", lambda _: None)
    assert "install Go 1.21 or later" in caught.value.hint
