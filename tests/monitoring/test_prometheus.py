"""A real Prometheus that scrapes a real device agent, and the controller's own server of metrics.

Each is scraped twice: as the Prometheus operator does by what nodeside makes for it, and by the
jobs of examples/monitoring/scrape.yaml. Discovery is not played: what it would say of a target is
written down. Expressions are asked for what they return; test_alerts.py has the times.
"""

from __future__ import annotations

from collections import Counter
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from cluster.kube.transport import RequestCounts
from cluster.manager.metrics import Metrics
from cluster.manager.metrics_auth import AccessVerdict
from cluster.manager.metrics_server import MetricsServer
from cluster.manager.tls import ServingCertificate
from cluster.plan.planner import plan
from cluster.reconcile.executor import ExecutionResult
from cluster.reconcile.loop import ReconcileResult
from nodeside.protocol.node_status import State
from nodeside.protocol.ready_file import clear_ready
from nodeside.system.host import Host
from tests.cluster.fakes.model import Model
from tests.device_agent.agent_process import BOTH, EDU, agent, kubelet_directory, node
from tests.device_agent.node import say_ready
from tests.device_agent.played_kubelet import played_kubelet
from tests.monitoring.prometheus import (
    LONG,
    OPERATOR,
    Prometheus,
    controller_jobs,
    devices_jobs,
    prometheus,
)
from tests.monitoring.rules import ALERTS

pytestmark = pytest.mark.slow

ON_NODE = {"driver": "edu", "node": "n1"}
OFFERED = {**ON_NODE, "resource": EDU["resource"]}
TOKEN = "of the account that scrapes"


def expression(alert: str) -> str:
    return str(ALERTS[alert]["expr"])


# --- devices -------------------------------------------------------------------------------------


def test_alerts_about_devices_say_what_happens_to_them(tmp_path: Path) -> None:
    host = node(tmp_path / "host")
    device = {"resource_name": EDU["resource"], "device_ids": ["00:06.0"]}
    holder: dict[str, Any] = {"name": "main", "devices": [device]}
    pods = [{"name": "worker", "namespace": "default", "containers": [holder]}]
    with kubelet_directory() as directory:
        options = ("--metrics-port", "0", "--pod-resources", str(directory / "kubelet.sock"))
        with agent(host, directory, *options) as process, played_kubelet(directory) as kubelet:
            kubelet.call(pods=pods)
            kubelet.until_list(BOTH)
            with prometheus(tmp_path, *devices_jobs(process.metrics_port())) as server:
                _while_all_is_well(server)
                _while_a_device_does_not_work(server, host)
                _while_the_driver_is_not_ready(server, host)
                kubelet.process.kill()
                _while_there_is_no_kubelet(server)


def _while_all_is_well(server: Prometheus) -> None:
    held = {**OFFERED, "device": "00:06.0", "namespace": "default", "pod": "worker"}
    for job in (OPERATOR, "nodeside-devices"):
        [(labels, value)] = server.until(f'nodeside_device_allocated{{job="{job}"}}')
        assert value == 1
        assert labels.items() >= {**held, "container": "main"}.items(), "they are the pod's own"
        assert not [name for name in labels if name.startswith("exported_")]
    server.until("nodeside_device_healthy == 1", 2 * len(BOTH))
    for alert in ALERTS:
        if "nodeside_device" in expression(alert) or "nodeside_driver_ready" in expression(alert):
            server.until(expression(alert), 0)


def _while_a_device_does_not_work(server: Prometheus, host: Host) -> None:
    (host.sys / "bus/pci/devices/0000:00:05.0/liveness").write_text("dead\n")
    wanted = {**OFFERED, "device": "00:05.0"}
    assert server.until(expression("NodesideDeviceUnhealthy")) == [(wanted, 0.0)]

    alert = server.alert("NodesideDeviceUnhealthy")
    said = alert["annotations"]["summary"]
    assert alert["labels"].items() >= wanted.items()
    assert said == "Device 00:05.0 (example.com/edu) of node n1 does not work."


def _while_the_driver_is_not_ready(server: Prometheus, host: Host) -> None:
    clear_ready(host, "edu")
    assert server.until(expression("NodesideDriverNotReadyOnNode")) == [(ON_NODE, 0.0)]
    server.until(expression("NodesideDeviceUnhealthy"), 0)
    server.until("nodeside_device_healthy == 0", 2 * len(BOTH))
    server.until(expression("NodesideDeviceUnhealthy"), 0)  # the driver is the reason
    say_ready(host)
    server.until(expression("NodesideDriverNotReadyOnNode"), 0)


def _while_there_is_no_kubelet(server: Prometheus) -> None:
    assert server.until(expression("NodesideDevicesNotWatched")) == [(OFFERED, 0.0)]
    server.until("nodeside_device_holders_known == 0", 2)
    server.until(expression("NodesideDeviceHoldersUnknown"), 0)  # the other one says it


# --- the controller ------------------------------------------------------------------------------


class Leader:
    """A controller that leads, with the plans of a model; `server` answers its scrapers."""

    def __init__(self) -> None:
        self.leads = True
        self.model = Model()
        answers: Counter[int] = Counter()
        self._metrics = Metrics(
            tally=RequestCounts(), leads=lambda: self.leads, kinds=list, answers=answers
        )
        self.server = MetricsServer(
            0,
            serving=ServingCertificate(None, ["localhost"]),
            judge=judge,
            exposition=self._metrics.encode_samples,
            answers=answers,
            host="127.0.0.1",
            seconds=LONG,
        )

    def plans(self) -> None:
        self.model.settle()
        snapshot = self.model.snapshot
        self._metrics.record_round(
            ReconcileResult(snapshot, plan(snapshot, 0.0), ExecutionResult(), 0.5, 0.25)
        )


def judge(header: str, path: str) -> AccessVerdict:
    known = (header, path) == (f"Bearer {TOKEN}", "/metrics")
    return AccessVerdict(HTTPStatus.OK if known else HTTPStatus.UNAUTHORIZED)


def test_alerts_about_drivers_say_what_happens_to_them(tmp_path: Path) -> None:
    leader, nodes = Leader(), ("n1", "n2", "n3")
    leader.model.add(nodes)
    leader.model.apply_driver("edu", rollout={"canary": 0})
    leader.model.settle()
    for name in nodes:
        leader.model.report(name)
    leader.plans()
    (token := tmp_path / "token").write_text(TOKEN)
    with (
        leader.server as answering,
        prometheus(tmp_path, *controller_jobs(answering.port, token)) as server,
    ):
        server.until('nodeside_nodes{driver="edu", state="ready"} == 3', 2)
        for alert in ALERTS:
            server.until(expression(alert), 0)
        leader.model.report("n2", State.FAILED)
        leader.plans()
        _while_a_node_fails(server)
        leader.leads = False
        assert server.until(expression("NodesideWithoutLeader")) == [({}, 0.0)]


def _while_a_node_fails(server: Prometheus) -> None:
    failed = {"driver": "edu", "state": "failed"}
    assert server.until(expression("NodesideDriverNotReady")) == [(failed, 1.0)]
    said = server.alert("NodesideDriverNotReady")["annotations"]["summary"]
    assert said == "Driver edu is not ready on 1 node(s)."
    server.until('nodeside_driver_condition{condition="Degraded"} == 1', 2)
    server.until(expression("NodesideDriverDegraded"), 0)  # the other one says it
