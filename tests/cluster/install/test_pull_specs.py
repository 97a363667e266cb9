"""The image of the device agent: where it is if nobody says where."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from cluster.cli.main import root
from cluster.install.kustomize import KUSTOMIZATION
from cluster.install.pull_specs import agent_image_beside
from tests import yaml_in_c as yaml

DIGEST = "sha256:" + "a" * 64
CONTROLLER = "registry.example.com/nodeside-cluster:1.0"
AGENT = "registry.example.com/nodeside-agent:1.0"


@pytest.mark.parametrize(
    ("image", "agent"),
    [
        (CONTROLLER, AGENT),
        ("registry:5000/a/nodeside-cluster", "registry:5000/a/nodeside-agent"),
        ("nodeside-cluster:1", "nodeside-agent:1"),
        (f"registry.example.com/nodeside-cluster@{DIGEST}", ""),
        (f"registry.example.com/nodeside-cluster:1.0@{DIGEST}", ""),
        ("registry.example.com/my-nodeside-cluster:1.0", ""),
        ("registry.example.com/nodeside-cluster/mirror:1.0", ""),
    ],
)
def test_the_agents_image_is_beside_the_controllers_if_that_tells_its_version(
    image: str, agent: str
) -> None:
    assert agent_image_beside(image) == agent


def printed(*options: str) -> str:
    done = CliRunner().invoke(root, ["manifests", *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def arguments(text: str) -> list[str]:
    """Those of the controller that name the agent's image."""
    [deployment] = [each for each in yaml.safe_load_all(text) if each["kind"] == "Deployment"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    return [word for word in container["args"] if word.startswith("--agent-image")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--image", CONTROLLER), [f"--agent-image={AGENT}"]),
        (("--image", CONTROLLER, "--agent-image", "a:1"), ["--agent-image=a:1"]),
        (("--image", f"r/nodeside-cluster@{DIGEST}"), []),
    ],
)
def test_the_controller_is_told_the_agents_image_in_every_form(
    tmp_path: Path, options: tuple[str, ...], said: list[str]
) -> None:
    assert arguments(printed(*options)) == said

    printed(*options, "--format", "kustomize", "--output", str(tmp_path / "base"))
    assert (tmp_path / "base" / KUSTOMIZATION).exists()
    assert arguments((tmp_path / "base" / "controller.yaml").read_text()) == said

    printed(*options, "--format", "helm", "--output", str(tmp_path / "chart"))
    chosen = yaml.safe_load((tmp_path / "chart" / "values.yaml").read_text())["agentImage"]
    assert bool(chosen["repository"]) is bool(said)
    template = (tmp_path / "chart" / "templates" / "controller.yaml").read_text()
    assert (
        '{{- with include "nodeside.pullSpec" .Values.agentImage }}\n'
        '            - {{ printf "--agent-image=%s" . | quote }}\n'
    ) in template


def test_the_option_that_install_writes_is_one_that_the_controller_reads() -> None:
    context = root.commands["run"].make_context("run", [f"--agent-image={AGENT}"])
    assert context.params["agent_image"] == AGENT
