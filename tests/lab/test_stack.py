"""The recipe of examples/edu/stack, as a new user applies it, with a real Prometheus beside it."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.model.names import NAMESPACE
from nodeside.system import process
from tests import TOP
from tests.controlplane.controlplane import ControlPlane
from tests.lab import devices
from tests.lab.lab import Lab
from tests.lab.node import LabNode
from tests.lab.story import Story
from tests.monitoring.dashboards.files import DASHBOARDS
from tests.monitoring.prometheus import PLAIN, prometheus
from tests.node.configuration import SANDBOX
from tests.vm.hostbuilds import HostBuilds

pytestmark = [pytest.mark.vm, pytest.mark.long, pytest.mark.usefixtures("shown_if_it_fails")]

STACK = TOP / "examples/edu/stack"
PAGE = TOP / "docs/monitoring.md"
# As the page has them, each in a line or two.
RIGHTS = [
    shlex.split(line)
    for line in re.findall(
        r"^\$ kubectl (.*prometheus-k8s.*)$",
        PAGE.read_text().replace("\\\n    ", ""),
        re.MULTILINE,
    )
]
_ROWS = "jsonpath={range .status.stages[*]}{.name}={.state} {end}"
# Podman has no network of its own there, and needs none.
_HOOKS = "/run/containers/oci/hooks.d"
_RUN = "run --rm --network none --annotation example.com/edu=true"
_PODMAN = f"podman --hooks-dir {_HOOKS} {_RUN}"
_NOTHING = f"{_PODMAN} --entrypoint /bin/busybox {SANDBOX} true"


@pytest.fixture(scope="module")
def story(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with HostBuilds(lab.workshop, tmp_path_factory.mktemp("host-builds")) as builds:
        yield Story(lab, tmp_path_factory.mktemp("drivers"), builds)


@pytest.fixture
def node(story: Story) -> LabNode:
    [node] = story.lab.nodes.values()
    return node


def rows(plane: ControlPlane) -> list[str]:
    found = plane.kubectl("get", "driver", "edu", "-o", _ROWS, check=False)
    return found.output.split()


def test_one_command_brings_up_a_driver_and_what_follows_it(story: Story, node: LabNode) -> None:
    story.plane.kubectl("apply", "-k", str(STACK))
    names = ("runtime", "devices", "selftest", "dashboard")
    expected = [f"{name}=Ready" for name in names]
    story.wait_for(lambda: rows(story.plane) == expected, "every stage to be Ready")
    devices.until_devices(story, node, 2, 2)

    def lines() -> list[str]:
        pods = devices.pods(story, "edu-workload")
        found = [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running"]
        return [story.plane.kubectl("logs", name, "--tail=1").output.strip() for name in found]

    story.wait_for(lambda: lines() == ["10! = 3628800 (mod 2^32)"] * 2, "two pods to compute")
    status = story.scene.cli("status", "edu").output
    for name in names:
        assert name in status
    assert "Ready" in status


def test_prometheus_finds_controllers_and_agents_and_answers_the_dashboards(
    story: Story, tmp_path: Path
) -> None:
    """Debian's, on this host, by the jobs and with the rights of the page.

    Debian's does not ask Kubernetes for targets, so that is done for it with the same rights.
    """
    plane = story.plane
    plane.kubectl("create", "namespace", "monitoring")
    plane.kubectl("create", "serviceaccount", "prometheus-k8s", "-n", "monitoring")
    for command in RIGHTS:
        plane.kubectl(*command)
    token = plane.pod_token("monitoring", "prometheus-k8s", None)
    (tmp_path / "token").write_text(token)
    found = [*ports(plane, token), *pods(plane, token)]
    jobs = [
        {key: value for key, value in job.items() if key != "kubernetes_sd_configs"}
        | {"static_configs": found}
        for job in PLAIN.values()
    ]
    jobs[0]["authorization"] = {"credentials_file": str(tmp_path / "token")}
    with prometheus(tmp_path, *jobs, every=15, patience=600) as server:
        for job, count in (("nodeside-controller", 2), ("nodeside-devices", 1)):
            server.until(f'up{{job="{job}"}} == 1', count)
        for query in [*panels(), *own_panels()]:
            server.until(f"count({query}) > bool 0")
        both = server.until('nodeside_device_allocated{resource="example.com/edu"}', 2)
        assert {labels["node"] for labels, _ in both} == {"node-1"}


def asked(plane: ControlPlane, token: str, kind: str) -> list[dict[str, Any]]:
    config = ("--kubeconfig", str(plane.kubeconfig_of(token)), "--namespace", NAMESPACE)
    argv = [str(plane.kubectl_program), *config, "get", kind, "-o", "json"]
    return list(json.loads(process.run(argv, timeout=60).output)["items"])


def ports(plane: ControlPlane, token: str) -> Iterator[dict[str, Any]]:
    """What Prometheus finds with `role: endpoints`, as far as the jobs look at it."""
    for each in asked(plane, token, "endpoints"):
        for subset in each.get("subsets", ()):
            for address, port in itertools.product(subset["addresses"], subset["ports"]):
                labels = {
                    "__meta_kubernetes_service_name": each["metadata"]["name"],
                    "__meta_kubernetes_endpoint_port_name": port["name"],
                    "__meta_kubernetes_pod_name": address["targetRef"]["name"],
                }
                yield {"targets": [f"{address['ip']}:{port['port']}"], "labels": labels}


def pods(plane: ControlPlane, token: str) -> Iterator[dict[str, Any]]:
    """The same with `role: pod`."""
    for pod in asked(plane, token, "pods"):
        containers = pod["spec"]["containers"]
        for port in (port for each in containers for port in each.get("ports", ())):
            labels = {
                "__meta_kubernetes_pod_node_name": pod["spec"]["nodeName"],
                "__meta_kubernetes_pod_container_port_name": port["name"],
            }
            for key, value in pod["metadata"]["labels"].items():
                labels[f"__meta_kubernetes_pod_label_{re.sub('[^a-zA-Z0-9]', '_', key)}"] = value
            where = f"{pod['status']['podIP']}:{port['containerPort']}"
            yield {"targets": [where], "labels": labels}


def panels() -> Iterator[str]:
    """What the dashboards ask while all is well, of this node and driver."""
    for board in DASHBOARDS:
        for panel in (panel for row in board.rows for panel in row.panels if not panel.quiet):
            for query in panel.queries:
                yield query.text.replace("$node", "node-1").replace("$driver", "edu")


def own_panels() -> Iterator[str]:
    """What the recipe's dashboard asks."""
    text = (STACK / "dashboard/configmap.yaml").read_text()
    for expression in re.findall(r'"expr": "((?:[^"\\]|\\.)*)"', text):
        yield json.loads(f'"{expression}"')


def test_a_container_of_podman_starts_only_while_the_driver_works(node: LabNode) -> None:
    node.type(_NOTHING)
    hidden = f"mount -t tmpfs nothing /run/nodeside/edu && {_NOTHING}"
    refused = node.run("unshare", "--mount", "sh", "-c", hidden, check=False)
    assert refused.exit_code != 0
    assert "driver edu is not ready on this node" in refused.errors


def test_the_recipe_goes_and_leaves_no_hook(story: Story, node: LabNode) -> None:
    story.plane.kubectl("delete", "-k", str(STACK), "--wait=false")
    story.until_gone()
    story.nothing_is_left()
    for path in (_HOOKS, "/var/lib/edu-hook"):
        assert node.run("ls", path).output.split() == []
    node.type(_NOTHING)
