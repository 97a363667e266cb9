"""What is done to a real node, and what is seen there: on the API server, and in the machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.model.names import UNLOAD_LABEL, stage_label
from nodeside.contract import READY_PATTERN, node_driver_name, state_label
from tests.cluster.e2e.controllers import Replicas
from tests.cluster.e2e.scene import DRIVERS, EDU, HARDWARE, NODE_DRIVERS, REVISIONS, Scene
from tests.cluster.e2e.staged import STAGE_DAEMON_SETS, write
from tests.controlplane.audit import Audit
from tests.controlplane.controlplane import ControlPlane
from tests.node.configuration import NAME, REGISTRY, SANDBOX
from tests.node.realnode import RealNode

_FOLLOWER = f"""
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: follower
spec:
  selector:
    matchLabels: {{app: follower}}
  template:
    metadata:
      labels: {{app: follower}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: main
          image: {SANDBOX}
"""
_LONG = 1800.0  # seconds; images are pulled and a module compiled in an emulated machine
_RUNS = "nodeside driver run"  # the command line of the driver container


@dataclass
class Story:
    """A driver `edu` on one real node."""

    node: RealNode
    scene: Scene
    replicas: Replicas
    directory: Path

    # --- what an administrator does, and what befalls a node --------------------------------------

    def until_node_ready(self) -> None:
        """The kubelet has registered; then the device is found, as by Node Feature Discovery."""
        path = f"/api/v1/nodes/{NAME}"
        self.plane.wait_for(
            lambda: (
                self.plane.request("GET", path).status == 200 and self.scene.nodes.is_ready(NAME)
            ),
            f"node {NAME} to be ready",
            timeout=_LONG,
        )
        self.scene.nodes.label(NAME, HARDWARE)

    def start_controller(self) -> None:
        self.replicas.start()

    def apply_driver(self, version: str, timeout_ms: str) -> None:
        """Push a vendor's image of this version, and apply its driver.yaml.

        Versions differ in a parameter of the module: to compile one is slow enough here.
        """
        content = self._content(version, timeout_ms)
        images = self.node.images
        document = yaml.safe_load((content / "driver.yaml").read_text())
        document["spec"]["image"] = images.driver(f"drivers/edu:{version}", content)
        images.toolkit(f"toolkit:{self.kernel}", self.node.kernel)
        document["spec"]["toolkit"] = {"imageTemplate": f"{REGISTRY}/toolkit:{{kernel}}"}
        document["spec"]["stages"] = [{"name": "follower", "manifests": "follower"}]
        self.plane.kubectl("apply", "-f", "-", input=json.dumps(document))

    def write_stage(self) -> None:
        """What follows the driver: one pod, whose gate is a container of the driver's image."""
        write(self.scene, "follower", _FOLLOWER)

    def kill_driver_container(self) -> None:
        """As the kernel does it where memory is short; the kubelet starts another one."""
        self.node.machine.run("pkill", "--signal", "KILL", "--full", _RUNS)
        self.plane.wait_for(
            lambda: self._driver_container().get("restartCount") == 1 and self._runs(),
            "the driver container to be started again",
            timeout=_LONG,
        )

    def delete_pod(self) -> None:
        """The DaemonSet makes another one."""
        old = self.pod()["metadata"]
        self.plane.kubectl("delete", "pod", old["name"], "-n", old["namespace"], "--wait=false")
        self.plane.wait_for(
            lambda: self._pods() and self.pod()["metadata"]["uid"] != old["uid"] and self._runs(),
            "another pod to run",
            timeout=_LONG,
        )

    def delete_driver(self) -> None:
        self.plane.kubectl("delete", "driver", "edu", "--wait=false")
        self.plane.wait_for(
            lambda: not self.scene.items(DRIVERS), "the Driver to be gone", timeout=_LONG
        )

    # --- what is seen -----------------------------------------------------------------------------

    def until_ready(self, version: str, *, source: str) -> None:
        """The pod that runs now has said that it is, what follows it runs, and both are known."""

        def holds() -> bool:
            told = self.node_driver()
            wanted = {"state": "ready", "version": version, "source": source}
            return (
                wanted.items() <= told.items()
                and self._said_ready()
                and self.scene.condition("Ready")["status"] == "True"
                and self.scene.status()["nodes"]["updated"] == 1
                and self.scene.labels(NAME)[state_label("edu")] == "ready"
                and self.scene.labels(NAME).get(stage_label("edu", "follower")) == "ready"
                and self.scene.condition("StagesReady")["status"] == "True"
            )

        self.plane.wait_for(holds, f"edu {version} to be ready ({source})", timeout=_LONG)

    def node_driver(self) -> Mapping[str, Any]:
        """The status that the pod wrote."""
        path = f"{NODE_DRIVERS}/{node_driver_name('edu', NAME)}"
        answer = self.plane.request("GET", path)
        return answer.document.get("status", {}) if answer.status == 200 else {}

    def pod(self) -> Mapping[str, Any]:
        [pod] = self._pods()
        return pod

    def events(self, reason: str) -> list[str]:
        found = self.scene.items("/apis/events.k8s.io/v1/namespaces/default/events")
        return [each["note"] for each in found if each["reason"] == reason]

    def relabellings(self) -> int:
        """How often the controller changed the node, by the API server's audit log."""
        written = Audit(self.plane.place.directory).writes()
        return sum(write.kind == "patch nodes" and write.name == NAME for write in written)

    @property
    def plane(self) -> ControlPlane:
        return self.scene.control_plane

    @property
    def kernel(self) -> str:
        return self.node.kernel.release

    @property
    def boot_id(self) -> str:
        return self.node.machine.machine.boot_id

    @property
    def timeout_ms(self) -> str:
        """The parameter of the module in the machine's kernel."""
        return self._read("/sys/module/edu/parameters/timeout_ms")

    @property
    def loading(self) -> str:
        """Another one for each loading: the kernel numbers what it shows in sysfs."""
        return self.node.machine.run("stat", "--format=%i", "/sys/module/edu").output.strip()

    def _read(self, path: str) -> str:
        return self.node.machine.run("cat", path).output.strip()

    def nothing_is_left(self) -> None:
        for kind in (DRIVERS, NODE_DRIVERS, REVISIONS):
            assert self.scene.items(kind) == []
        assert self.scene.daemonsets() == self.scene.items(STAGE_DAEMON_SETS) == []
        assert not [key for key in self.scene.labels(NAME) if key.startswith("nodeside.io/")]
        self.plane.wait_for(
            lambda: not self.scene.pods(), "the pods of the driver to be gone", timeout=_LONG
        )
        for path in ("/sys/module/edu", "/dev/edu0"):
            assert self.node.machine.run("test", "-e", path, check=False).exit_code == 1, path
        files = self.node.machine.run("find", "/run/nodeside", "-type", "f").output.split()
        assert sorted(files) == ["/run/nodeside/edu.lock", "/run/nodeside/edu.pod.lock"]

    def _content(self, version: str, timeout_ms: str) -> Path:
        """What is at /driver-image: the example, with these in its driver.yaml."""
        content = self.directory / version
        shutil.copytree(EDU.parent, content)
        text = EDU.read_text().replace("1.0.0", version).replace('"2000"', f'"{timeout_ms}"')
        (content / EDU.name).write_text(text)
        return content

    def _pods(self) -> list[dict[str, Any]]:
        """Of the driver itself, that are not ending."""
        pods = self.scene.pods(NAME)
        return [pod for pod in pods if UNLOAD_LABEL not in pod["metadata"]["labels"]]

    def _driver_container(self) -> Mapping[str, Any]:
        found = self.pod()["status"].get("containerStatuses", ())
        return next((each for each in found if each["name"] == "driver"), {})

    def _said_ready(self) -> bool:
        """Whether the driver container that runs now has said so in its log, on the node."""
        if len(self._pods()) != 1:
            return False
        meta, count = self.pod()["metadata"], self._driver_container().get("restartCount", 0)
        log = f"{meta['namespace']}_{meta['name']}_{meta['uid']}/driver/{count}.log"
        said = self.node.machine.run("cat", f"/var/log/pods/{log}", check=False).output
        return READY_PATTERN.search(said) is not None

    def _runs(self) -> bool:
        return "running" in self._driver_container().get("state", {})
