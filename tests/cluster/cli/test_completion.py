"""Completion of the command, and of the plugin of kubectl."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.controlplane.controlplane import ControlPlane
from tests.tries import sampled

_COMPLETE = "from cluster.cli.main import complete; complete()"


def completed(*words: str) -> list[str]:
    argv = [sys.executable, "-c", _COMPLETE, *words]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("shell", sampled(["bash", "zsh", "fish"], 3))
def test_each_shell_gets_a_script(shell: str) -> None:
    argv = [sys.executable, "-m", "cluster", "completion", shell]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert "_NODESIDE_CLUSTER_COMPLETE" in done.stdout
    assert "nodeside-cluster" in done.stdout


@pytest.mark.slow
def test_commands_and_options_are_completed_for_kubectl() -> None:
    *found, directive = completed("stat")
    assert [line.partition("\t")[0] for line in found] == ["status"]
    assert directive == ":4"
    options = [line.partition("\t")[0] for line in completed("status", "--wat")]
    assert options == ["--watch", ":4"]
    assert completed("status", "--output", "j") == ["json", ":4"]
    assert len(completed("")) > 5


def test_files_are_left_to_the_shell() -> None:
    assert completed("status", "--kubeconfig", "")[-1] == ":0"


@pytest.mark.cluster
def test_kubectl_finds_and_completes_its_plugin(control_plane: ControlPlane) -> None:
    """Both programs are installed beside the command."""
    programs = Path(sys.executable).parent
    kubectl = control_plane.binaries["kubectl"]
    env = {**os.environ, "PATH": f"{programs}:{kubectl.parent}:{os.environ['PATH']}"}
    env["KUBECONFIG"] = str(control_plane.kubeconfig)

    def run(*words: str) -> str:
        argv = [str(kubectl), *words]
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout

    assert "kubectl-nodeside" in run("plugin", "list")
    assert run("nodeside", "--help").startswith("Usage: kubectl nodeside")
    assert "status\t" in run("__complete", "nodeside", "st")
    control_plane.do("POST", "/api/v1/nodes", {"metadata": {"name": "to-complete"}})
    try:
        assert run("__complete", "nodeside", "explain", "edu", "to-c").startswith("to-complete\n")
    finally:
        control_plane.do("DELETE", "/api/v1/nodes/to-complete")


@pytest.mark.slow
def test_names_are_no_completion_where_no_cluster_answers(tmp_path: Path) -> None:
    assert completed("explain", "--kubeconfig", str(tmp_path / "none"), "") == [":4"]
