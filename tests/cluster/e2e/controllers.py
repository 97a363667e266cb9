"""Replicas of the controller, as processes of their own with the controller's own real rights."""

from __future__ import annotations

import json
import signal
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from cluster.model.names import CONTROLLER, NAMESPACE
from nodeside.system import process
from tests.controlplane.certificates import write_kubeconfig
from tests.controlplane.components import LOOPBACK, free_ports
from tests.controlplane.controlplane import ControlPlane

_END = 20.0  # seconds for a replica to end by itself
_REQUEST = 10.0  # seconds
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/nodeside-controller"


@dataclass
class Replica:
    """One process. `name` is what its pod would be called."""

    name: str
    child: process.Child
    port: int
    log: Path
    metrics_port: int
    _lines: list[dict[str, Any]] = field(default_factory=list)
    _read: int = 0  # bytes of the log

    def terminate(self) -> int:
        """As the kubelet ends it; the exit code."""
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(_END)

    def kill(self) -> None:
        process.kill_group(self.child.pid)
        self.child.wait(_END)

    def health(self, path: str) -> requests.Response:
        return requests.get(f"http://{LOOPBACK}:{self.port}{path}", timeout=_REQUEST)

    def metrics(self, token: str = "") -> requests.Response:
        """What a scraper with this token gets."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the certificate is the controller's own
            return requests.get(
                f"https://{LOOPBACK}:{self.metrics_port}/metrics",
                headers={"Authorization": f"Bearer {token}"} if token else {},
                timeout=_REQUEST,
                verify=False,
            )

    @property
    def lines(self) -> list[dict[str, Any]]:
        """All that it has logged. Who waits asks often, so each line is read once."""
        with self.log.open("rb") as log:
            log.seek(self._read)
            whole, end, _ = log.read().rpartition(b"\n")
        self._read += len(whole + end)
        new = whole.decode(errors="replace").split("\n")
        self._lines += [json.loads(line) for line in new if line.startswith("{")]
        return self._lines

    def said(self, message: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if message in line["message"]]

    @property
    def last_words(self) -> str:
        return process.last_lines_of(self.log.read_text(errors="replace"), 60)


@dataclass
class Replicas:
    """Starts replicas, and ends those that a test left running."""

    control_plane: ControlPlane
    directory: Path
    running: list[Replica] = field(default_factory=list)

    def start(
        self,
        name: str = "controller-0",
        *,
        url: str = "",
        lead: bool = True,
        lease: int = 15,
        pod: Mapping[str, Any] | None = None,
    ) -> Replica:
        """A replica with a token of the controller's account; `lead`: wait until it leads.

        `lease` is in seconds. The token is good for as long as the `pod` is there.
        """
        ports = free_ports("health", "metrics")
        port = ports["health"]
        log = self.directory / f"{name}-{port}.log"
        config = self.give_token(name, url, pod)
        argv = [sys.executable, "-m", "cluster", "run", "--kubeconfig", str(config)]
        argv += ["--health-port", str(port), "--metrics-port", str(ports["metrics"])]
        argv += ["--verbose", f"--lease-seconds={lease}"]
        with log.open("wb") as output:
            child = process.start(
                argv, stdout=output, stderr=process.INTO_STDOUT, env={"POD_NAME": name}
            )
        replica = Replica(name, child, port, log, ports["metrics"])
        self.running.append(replica)
        if lead:
            self.control_plane.wait_for(lambda: self.leader == name, f"{name} to lead")
        return replica

    @property
    def leader(self) -> str:
        """Who holds the lease, "" for nobody."""
        answer = self.control_plane.request("GET", LEASE)
        return str(answer.document.get("spec", {}).get("holderIdentity", ""))

    def clear(self) -> None:
        """None runs any more, and nobody waits for the lease of a dead one."""
        for replica in self.running:
            if replica.child.poll() is None:
                replica.kill()
        self.running.clear()
        self.control_plane.request("DELETE", LEASE)

    def give_token(self, name: str, url: str = "", pod: Mapping[str, Any] | None = None) -> Path:
        """A kubeconfig with a new token, in the place of an older one of this replica."""
        token = self.control_plane.pod_token(NAMESPACE, CONTROLLER, pod)
        path, new = self.directory / f"{name}.kubeconfig", self.directory / f"{name}.new"
        certificates = self.control_plane.place.certificates
        write_kubeconfig(new, certificates, url or self.control_plane.url, {"token": token})
        return new.replace(path)
