"""What the dashboards ask, a real Prometheus answers: of a real controller and a real device agent.

The controller has Drivers on a real API server; the agent's kubelet is a played one. Each of them
is scraped twice, as in tests/monitoring/test_prometheus.py: nothing may count twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.model.names import METRICS_READER, NAMESPACE
from nodeside.protocol.node_status import State
from nodeside.protocol.ready_file import clear_ready
from tests.cluster.e2e.controllers import Replica, Replicas
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.scene import Scene
from tests.cluster.e2e.staged import TWO, until_staged
from tests.controlplane.controlplane import ControlPlane
from tests.device_agent.agent_process import BOTH, EDU, agent, kubelet_directory, node
from tests.device_agent.played_kubelet import played_kubelet
from tests.monitoring.dashboards.files import CONSOLE, DASHBOARDS, GRAFANA, asked, read
from tests.monitoring.dashboards.fleet import FLEET
from tests.monitoring.dashboards.model import ANY, Dashboard, Kind, Panel, Query
from tests.monitoring.dashboards.node import NODE
from tests.monitoring.prometheus import Prometheus, controller_jobs, devices_jobs, prometheus
from tests.monitoring.rules import DIRECTORY

pytestmark = pytest.mark.cluster

_BINDING = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
_APPLIED = 262144  # bytes of annotations, of which `kubectl apply` keeps one with the whole object


@dataclass(frozen=True)
class Answers:
    """A Prometheus, and the values of the variables."""

    server: Prometheus
    chosen: Mapping[str, str]

    def fill(self, text: str) -> str:
        filled = re.sub(r"\$(\w+)", lambda found: self.chosen[found[1]], text)
        assert "$" not in filled
        return filled

    def until_some(self, text: str) -> list[tuple[dict[str, str], float]]:
        """The series, as soon as there is one."""
        return self.server.until_some(self.fill(text))

    def until_none(self, text: str) -> None:
        self.server.until(self.fill(text), 0)

    def until_number(self, board: Dashboard, title: str, value: int) -> None:
        [panel] = [panel for panel in panels(board) if panel.title == title]
        self.server.until(self.fill(f"({panel.queries[0].text}) == {value}"))


def panels(board: Dashboard) -> Iterator[Panel]:
    for row in board.rows:
        yield from row.panels


@pytest.fixture
def leader(staged: Scene, replicas: Replicas, fleet: Fleet) -> Replica:
    """It leads, and a Driver with two stages works on three nodes."""
    for name in ("n1", "n2", "n3"):
        staged.node(name)
    replica = replicas.start()
    staged.driver()
    staged.change({"stages": TWO})
    staged.until_ready(3)
    until_staged(staged, 3)
    return replica


@pytest.fixture
def token(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Path]:
    """Of an account that may read the metrics."""
    account = {"kind": "ServiceAccount", "name": "default", "namespace": "default"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": METRICS_READER}
    binding = {"metadata": {"name": "dashboards"}, "roleRef": role, "subjects": [account]}
    control_plane.do("POST", _BINDING, binding)
    path = tmp_path / "token"
    path.write_text(control_plane.pod_token("default", "default", None))
    yield path
    control_plane.do("DELETE", f"{_BINDING}/dashboards")


def test_every_panel_has_data(
    staged: Scene, fleet: Fleet, leader: Replica, token: Path, tmp_path: Path
) -> None:
    host = node(tmp_path / "host")
    device = {"resource_name": EDU["resource"], "device_ids": ["00:06.0"]}
    holder: dict[str, Any] = {"name": "main", "devices": [device]}
    pods = [{"name": "worker", "namespace": "default", "containers": [holder]}]
    with ExitStack() as there:
        directory = there.enter_context(kubelet_directory())
        options = ("--metrics-port", "0", "--pod-resources", str(directory / "kubelet.sock"))
        process = there.enter_context(agent(host, directory, *options))
        kubelet = there.enter_context(played_kubelet(directory))
        kubelet.call(pods=pods)
        kubelet.until_list(BOTH)
        jobs = [
            *controller_jobs(leader.metrics_port, token),
            *devices_jobs(process.metrics_port()),
        ]
        named = [job | {"job_name": str(number)} for number, job in enumerate(jobs)]
        server = there.enter_context(prometheus(tmp_path, *named, at_once=True))
        every = [Answers(server, {"node": "n1", "driver": name}) for name in (ANY, "edu")]
        server.until("nodeside_device_allocated", 2)

        for answers in every:
            _while_all_is_well(answers)
        _until_numbers(every[0], FLEET, _WELL | _BOTH_WELL)
        _until_numbers(every[0], NODE, _BOTH_WELL | {"Drivers work": 1})
        clear_ready(host, "edu")
        for answers in every:
            _while_a_driver_is_not_ready(answers)
        for board in DASHBOARDS:
            sick = {"Alerts that fire": 1, "Devices that do not work": 2}
            _until_numbers(every[0], board, sick)
        _until_numbers(every[0], NODE, {"Drivers work": 0})
        _while_a_rollout_stops(every[0], staged, fleet)


def _while_all_is_well(answers: Answers) -> None:
    """Both kinds ask the same, as it must be: each file is asked for its own words."""
    for board in DASHBOARDS:
        for variable in board.variables:
            values = f"count({variable.selector}) by ({variable.name})"  # as the console asks
            assert answers.chosen[variable.name] in (
                ANY,
                *(labels[variable.name] for labels, _ in answers.until_some(values)),
            )
        quiet = {panel.title for panel in panels(board) if panel.quiet}
        for place in (GRAFANA, CONSOLE):
            for title, queries in asked(read(place, board.uid)):
                for _, text in queries:
                    (answers.until_none if title in quiet else answers.until_some)(text)
        for panel in panels(board):
            if not panel.quiet:
                _check_labels(panel, answers)


def _check_labels(panel: Panel, answers: Answers) -> None:
    """Each column and each name of a line is of a label that is there."""
    for query in panel.queries:
        found = answers.until_some(query.text)
        there = {label for labels, _ in found for label in labels}
        assert there >= {*panel.labels, *re.findall(r"\{\{(\w+)\}\}", query.title)}, panel.title
        if panel.kind is Kind.STAT:
            assert len(found) == 1, panel.title
        if panel.kind is Kind.TABLE:
            assert there == {*panel.labels}, "the console joins rows by all labels"


_WELL = {
    "Nodes that should have the driver": 3,
    "Nodes where it works": 3,
    "Nodes where it failed": 0,
    "Nodes that report nothing": 0,
    "Nodes assigned to the newest version": 3,
    "Rollouts in progress": 0,
    "Rollouts that stopped": 0,
    "Controllers that lead": 1,
    "Caches behind the API server": 0,
}
_BOTH_WELL = {
    "Alerts that fire": 0,
    "Devices": 2,
    "Devices that do not work": 0,
    "Devices that containers have": 1,
    "Resources that the kubelet does not listen to": 0,
}


def _until_numbers(answers: Answers, board: Dashboard, numbers: Mapping[str, int]) -> None:
    for title, value in numbers.items():
        answers.until_number(board, title, value)


def _while_a_rollout_stops(answers: Answers, scene: Scene, fleet: Fleet) -> None:
    """The canary gets a version that does not work."""
    fleet.outcome = lambda _node, version: State.FAILED if version == "2.0.0" else State.READY
    scene.driver("2.0.0")
    scene.until_reason("Degraded", "RolloutStopped")
    stopped = {
        "Nodes where it works": 2,
        "Nodes where it failed": 1,
        "Nodes assigned to the newest version": 1,
        "Rollouts that stopped": 1,
    }
    _until_numbers(answers, FLEET, stopped)


def _while_a_driver_is_not_ready(answers: Answers) -> None:
    """What is rightly empty otherwise has data now, without the zero that stands for none."""
    for board in DASHBOARDS:
        for panel in panels(board):
            for query in panel.queries:
                if panel.quiet or query.or_zero:
                    answers.until_some(query.expression)
            if panel.quiet:
                assert _labels(answers, panel.queries[0]) <= {*panel.labels}


def _labels(answers: Answers, query: Query) -> set[str]:
    return {label for labels, _ in answers.until_some(query.text) for label in labels}


# --- how they are found --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("directory", "namespace", "label", "count"),
    [
        (DIRECTORY, NAMESPACE, {"grafana_dashboard": "1"}, 1),
        (CONSOLE, "openshift-config-managed", {"console.openshift.io/dashboard": "true"}, 2),
    ],
    ids=["Grafana", "OpenShift"],
)
def test_kustomize_makes_config_maps_with_the_label_that_is_looked_for(
    control_plane: ControlPlane, directory: Path, namespace: str, label: dict[str, str], count: int
) -> None:
    made = list(yaml.safe_load_all(control_plane.kubectl("kustomize", directory).output))
    maps = [each for each in made if each["kind"] == "ConfigMap"]

    assert len(maps) == count
    for found in maps:
        assert found["metadata"]["namespace"] == namespace
        assert found["metadata"]["labels"] == label
        assert len(yaml.safe_dump(found)) < _APPLIED
