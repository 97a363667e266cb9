"""Debian's Prometheus as a process, and the scrape jobs that the Prometheus operator would give it.

It evaluates the rules of examples/monitoring, scrapes every second, and answers over HTTP.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import requests

from cluster.install.manifests import InstallSettings, all_manifests
from cluster.model.snapshot import Settings
from cluster.options.devices.agent_manifests import device_agent
from nodeside.system import process
from tests import yaml_in_c as yaml
from tests.device_agent.agent_process import EDU
from tests.device_agent.node import driver
from tests.monitoring.rules import SCRAPE, program, write_rules
from tests.patience import patience

LONG = patience(60.0)  # seconds: a deadline that only a broken test meets
Job = dict[str, Any]
Labels = dict[str, str]
OPERATOR = "operator"
PLAIN: dict[str, Job] = {job["job_name"]: job for job in SCRAPE["scrape_configs"]}


@dataclass(frozen=True)
class Prometheus:
    """`patience` is in seconds."""

    url: str
    patience: float = LONG

    def query(self, expression: str) -> list[tuple[Labels, float]]:
        """The labels and the value of each result, by now."""
        answer = self._get("query", query=expression)
        return [(each["metric"], float(each["value"][1])) for each in answer["result"]]

    def until(self, expression: str, count: int = 1) -> list[tuple[Labels, float]]:
        """The results, when there are so many."""
        deadline = time.monotonic() + self.patience
        while len(found := self.query(expression)) != count:
            assert time.monotonic() < deadline, (expression, found, self._get("targets"))
            time.sleep(0.05)
        return found

    def until_some(self, expression: str) -> list[tuple[Labels, float]]:
        """The results, as soon as there is one. A scrape that failed in between may hide it."""
        deadline = time.monotonic() + self.patience
        while not (found := self.query(expression)):
            assert time.monotonic() < deadline, (expression, self._get("targets"))
            time.sleep(0.05)
        return found

    def alert(self, name: str) -> Mapping[str, Any]:
        """An alert that is pending or fires, when there is one, with its words."""
        deadline = time.monotonic() + self.patience
        while True:
            for each in self._get("alerts")["alerts"]:
                if each["labels"]["alertname"] == name:
                    return dict(each)
            assert time.monotonic() < deadline, self._get("rules")
            time.sleep(0.05)

    def _get(self, what: str, **parameters: str) -> Any:
        answer = requests.get(f"{self.url}/api/v1/{what}", params=parameters, timeout=LONG).json()
        assert answer["status"] == "success", answer
        return answer["data"]


@contextmanager
def prometheus(
    directory: Path, *jobs: Job, at_once: bool = False, every: int = 1, patience: float = LONG
) -> Iterator[Prometheus]:
    """It is ready, on a port that the kernel chose, and is killed at the end.

    `at_once`: alerts do not wait before they fire. It scrapes `every` so many seconds.
    """
    intervals = ("scrape_interval", "scrape_timeout", "evaluation_interval")
    config = {
        "global": dict.fromkeys(intervals, f"{every}s"),
        "rule_files": [str(write_rules(directory, at_once=at_once))],
        "scrape_configs": list(jobs),
    }
    path = directory / "prometheus.yaml"
    path.write_text(yaml.safe_dump(config))
    process.run([program("promtool"), "check", "config", path], timeout=LONG)
    log = directory / "prometheus.log"
    argv = [program("prometheus"), f"--config.file={path}", "--web.listen-address=127.0.0.1:0"]
    with log.open("wb") as said:
        child = process.start(
            ["setpriv", "--pdeathsig", "KILL", *argv, f"--storage.tsdb.path={directory / 'data'}"],
            stderr=said,
        )
    try:
        yield Prometheus(_when_ready(child, log), patience)
    finally:
        process.kill_group(child.pid)
        child.wait(LONG)


def _when_ready(child: process.Child, log: Path) -> str:
    deadline = time.monotonic() + LONG
    while True:
        assert child.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        connections = psutil.Process(child.pid).net_connections("tcp")
        for each in (each for each in connections if each.status == psutil.CONN_LISTEN):
            url = f"http://127.0.0.1:{each.laddr.port}"
            with suppress(requests.ConnectionError):
                if requests.get(f"{url}/-/ready", timeout=LONG).ok:
                    return url
        time.sleep(0.05)


# --- jobs ----------------------------------------------------------------------------------------


def of_monitor(name: str, endpoint: Mapping[str, Any]) -> Job:
    """The job that the Prometheus operator makes of an endpoint of a ServiceMonitor or PodMonitor.

    The names of the settings are the same, but for their spelling and that of two.
    """
    renamed = {"relabelings": "relabel_configs", "path": "metrics_path"}
    settings = {renamed.get(key, key): value for key, value in endpoint.items() if key != "port"}
    job: Job = _in_snake_case(settings)
    return {"job_name": name} | job


def _in_snake_case(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            re.sub("([A-Z])", r"_\1", key).lower(): _in_snake_case(each)
            for key, each in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_in_snake_case(each) for each in value]
    return value


def at(job: Job, port: int, labels: Labels) -> Job:
    """The job with one target that was found, and what discovery says of it in `labels`."""
    found = {"targets": [f"127.0.0.1:{port}"], "labels": labels}
    kept = {key: value for key, value in job.items() if key != "kubernetes_sd_configs"}
    return kept | {"static_configs": [found]}


def devices_jobs(port: int) -> list[Job]:
    """By the PodMonitor of the stage `devices`, and without the operator."""
    monitor = device_agent(driver(EDU), Settings())[2]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    labels = monitor["spec"]["selector"]["matchLabels"].items()
    found = {
        "__meta_kubernetes_pod_node_name": "n1",
        "__meta_kubernetes_pod_container_port_name": endpoint["port"],
        **{f"__meta_kubernetes_pod_label_{re.sub('[./]', '_', key)}": text for key, text in labels},
    }
    pod = {"namespace": "nodeside", "pod": "edu-devices-x", "container": "device-agent"}
    return [
        at(of_monitor(OPERATOR, endpoint), port, found | pod),  # the operator sets these three
        at(PLAIN["nodeside-devices"], port, found),
    ]


def controller_jobs(port: int, token: Path) -> list[Job]:
    """By the ServiceMonitor of `install --service-monitor`, and without the operator."""
    objects = all_manifests(InstallSettings(service_monitor=True))
    [monitor] = [each for each in objects if each["kind"] == "ServiceMonitor"]
    [endpoint] = monitor["spec"]["endpoints"]
    found = {
        "__meta_kubernetes_service_name": "nodeside-controller-metrics",
        "__meta_kubernetes_endpoint_port_name": "metrics",
        "__meta_kubernetes_pod_name": "nodeside-controller-x",
    }
    plain = PLAIN["nodeside-controller"] | {"authorization": {"credentials_file": str(token)}}
    operator = of_monitor(OPERATOR, endpoint) | {"bearer_token_file": str(token)}
    return [at(operator, port, {"pod": "nodeside-controller-x"}), at(plain, port, found)]
