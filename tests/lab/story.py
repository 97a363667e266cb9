"""What is done to a driver in the lab, and what is seen: on the API server, and on its nodes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from cluster.model.names import NAMESPACE, STAGE_LABEL, UNLOAD_LABEL
from nodeside.contract import READY_PATTERN, State, node_driver_name, state_label
from tests.cluster.e2e.scene import DRIVERS, EDU, NODE_DRIVERS, REVISIONS, Scene
from tests.cluster.e2e.staged import STAGE_DAEMON_SETS, write
from tests.controlplane.audit import Audit
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.nodes import Nodes
from tests.images.built import engine
from tests.lab.content import EDU_IMAGE, toolkit_image
from tests.lab.lab import Lab
from tests.lab.node import LabNode
from tests.node.configuration import SANDBOX
from tests.vm.hostbuilds import HostBuilds

LONG = 1800.0  # seconds; a module is compiled in several emulated machines
_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
_CONSUMER = """\
import sys, time
sys.path.insert(0, "/driver-image")
from factorial import factorial
count = 0
while True:
    assert factorial("/dev/edu0", 10) == 3628800
    count += 1
    print(count, flush=True)
    time.sleep(0.5)
"""
_STAGE = """\
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: {name}
spec:
  selector:
    matchLabels: {{app: {name}}}
  template:
    metadata:
      labels: {{app: {name}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: main
          image: {image}
          command: [/bin/busybox, sh, -c, "echo {name} is here; exec /bin/busybox sleep 1000000"]
"""
QUICK = {"kind": "command", "command": ["bash", "-u", "build.sh"]}
STAGES: list[dict[str, Any]] = [
    {"name": "first", "manifests": "first", "waitFor": {"log": "^first is here$"}},
    {"name": "second", "manifests": "second"},
]


@dataclass
class Story:
    """The driver `edu` of a lab."""

    lab: Lab
    directory: Path
    host_builds: HostBuilds
    changes: dict[str, Any] = field(default_factory=dict)  # of `spec`, in each version

    @property
    def plane(self) -> ControlPlane:
        return self.lab.plane

    @property
    def scene(self) -> Scene:
        return Scene(self.plane, Nodes(self.plane))

    # --- what an administrator does ---------------------------------------------------------------

    def write_stages(self) -> None:
        """Two that follow the driver; the first must say so in its log."""
        for stage in STAGES:
            name = str(stage["name"])
            write(self.scene, name, _STAGE.format(name=name, image=SANDBOX))

    def apply(self, version: str, **changes: Any) -> None:
        """This version, by `kubectl apply`; `changes` replace parts of `spec`."""
        document = yaml.safe_load(EDU.read_text())
        spec = document["spec"]
        spec["version"] = version
        spec["image"] = EDU_IMAGE.replace("1.0.0", version)
        spec["toolkit"] = {"imageTemplate": toolkit_image("{kernel}")}
        spec |= self.changes | changes
        self.plane.kubectl("apply", "-f", "-", input=json.dumps(document))

    def push(self, version: str, files: Mapping[str, bytes]) -> None:
        """The vendor's image of a version: the example with these files over its source."""
        content = self.directory / version
        shutil.copytree(EDU.parent, content)
        document = content / EDU.name
        document.write_text(document.read_text().replace("1.0.0", version))
        for name, data in files.items():
            (content / "src" / name).write_bytes(data)
        with engine(self.lab.workshop.cache) as builder:
            tag = builder.assemble(f"localhost/edu:{version}", content)
            builder.push(tag, f"{self.lab.registry}/drivers/edu:{version}")

    def push_quick(self, version: str, script: str = "") -> None:
        """A version whose build (`QUICK`) takes no time; it runs the shell lines `script` first.

        Its modules lie in the source: compiled on this host, for each kernel of the lab.
        """
        module = "$NODESIDE_KERNELRELEASE.bin"
        files = {"build.sh": f'{script}\ncp "{module}" "$NODESIDE_OUTPUT/edu.ko"\n'.encode()}
        for kernel in self.lab.kernels:
            bundle = self.host_builds(EDU.parent, kernel)
            files[f"{kernel.release}.bin"] = bundle.module_path("edu").read_bytes()
        self.push(version, files)

    def push_toolkits(self, repository: str) -> None:
        """The toolkit image of each kernel, once more."""
        with engine(self.lab.workshop.cache) as builder:
            for kernel in self.lab.kernels:
                tag = builder.toolkit(kernel.release)
                builder.push(tag, f"{self.lab.registry}/{repository}:{kernel.release}")

    def start_consumer(self, node: LabNode, name: str = "consumer") -> None:
        """A pod that computes with the device, twice a second, and counts."""
        container = {
            "name": "main",
            "image": EDU_IMAGE,
            "command": ["python3", "-c", _CONSUMER],
            "securityContext": {"privileged": True},  # until a device plugin gives it the device
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "nodeName": node.name,
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "containers": [container],
            },
        }
        self.plane.do("POST", "/api/v1/namespaces/default/pods", pod)
        self.until_counts(name)

    def end_consumer(self, name: str = "consumer") -> None:
        path = f"/api/v1/namespaces/default/pods/{name}"
        self.plane.do("DELETE", path)
        self.plane.wait_for(
            lambda: self.plane.request("GET", path).status == 404,
            f"{name} to be gone",
            timeout=LONG,
        )

    def delete_driver_pod(self, node: LabNode) -> None:
        """The DaemonSet makes another one."""
        old = self.pod(node)["metadata"]
        self.plane.kubectl("delete", "pod", old["name"], "-n", NAMESPACE, "--wait=false")
        self.plane.wait_for(
            lambda: self.uid(node) not in ("", old["uid"]),
            f"another pod on {node.name}",
            timeout=LONG,
        )

    def kill_driver_container(self, node: LabNode) -> None:
        """As the kernel does it where memory is short."""
        before = self.container(node, "driver")["restartCount"]
        node.run("pkill", "--signal", "KILL", "--full", "nodeside driver run")
        self.plane.wait_for(
            lambda: self.container(node, "driver").get("restartCount", 0) > before,
            "the driver container to be started again",
            timeout=LONG,
        )

    def kill_controllers(self) -> None:
        """All replicas at once, by the kernel."""
        for node in self.lab.nodes.values():
            node.run("pkill", "--signal", "KILL", "--full", "nodeside-cluster run", check=False)

    # --- what is seen -----------------------------------------------------------------------------

    def until_ready(self, version: str, **sources: str) -> None:
        """All nodes have said so, in this boot, by their pod of now; so does the Driver.

        `sources` are by the node's name, as node_1="built".
        """
        for node in self.lab.nodes.values():
            source = sources.get(node.name.replace("-", "_"), "")
            self._until_node_ready(node, version, source)
        count = len(self.lab.nodes)

        def holds() -> bool:
            ready, nodes = self.scene.condition("Ready"), self.scene.status()["nodes"]
            return ready["status"] == "True" and nodes["updated"] == nodes["ready"] == count

        self.plane.wait_for(holds, f"edu {version} to be Ready", timeout=LONG)

    def _until_node_ready(self, node: LabNode, version: str, source: str) -> None:
        def holds() -> bool:
            told = self.node_driver(node)
            wanted = {"state": "ready", "version": version, "bootId": node.boot_id}
            wanted |= {"source": source} if source else {}
            return (
                wanted.items() <= told.items()
                and self.scene.labels(node.name).get(state_label("edu")) == State.READY.value
                and self._has_said_ready(node)
            )

        what = f"edu {version} to be ready on {node.name} ({source or 'from anywhere'})"
        self.plane.wait_for(holds, what, timeout=LONG)

    def _has_said_ready(self, node: LabNode) -> bool:
        """The driver container of now, in its log, as `kubectl logs` shows it."""
        if not self.uid(node):
            return False
        pod = self.pod(node)["metadata"]["name"]
        asked = ("logs", pod, "--namespace", NAMESPACE, "--container", "driver")
        done = self.plane.kubectl(*asked, check=False)
        return done.exit_code == 0 and READY_PATTERN.search(done.output) is not None

    def until_some_node(self, what: str, **wanted: str) -> LabNode:
        """The first node whose NodeDriver has these fields."""

        def found() -> list[LabNode]:
            nodes = self.lab.nodes.values()
            return [node for node in nodes if wanted.items() <= self.node_driver(node).items()]

        self.plane.wait_for(found, f"a node {what}", timeout=LONG)
        return found()[0]

    def until_not_ready(self, node: LabNode) -> None:
        """The API server has heard nothing of its kubelet for too long."""
        nodes = Nodes(self.plane)
        what = f"{node.name} to be missed"
        self.plane.wait_for(lambda: not nodes.is_ready(node.name), what, timeout=LONG)

    def until_pull_fails(self, image: str) -> None:
        """The kubelet says so of a driver's pod."""
        path = f"/api/v1/namespaces/{NAMESPACE}/events?fieldSelector=reason%3DFailed"

        def holds() -> bool:
            return any(image in event["message"] for event in self.scene.items(path))

        self.plane.wait_for(holds, f"a pull of {image} to fail", timeout=LONG)

    def until_gone(self) -> None:
        """The Driver, which waits for its modules to be unloaded."""
        self.plane.wait_for(
            lambda: not self.scene.items(DRIVERS), "the Driver to be gone", timeout=LONG
        )

    def until_stages(self) -> None:
        """Both are ready on every node."""
        self.plane.wait_for(
            lambda: self.scene.condition("StagesReady")["status"] == "True",
            "both stages to be ready",
            timeout=LONG,
        )

    def until_counts(self, name: str = "consumer") -> None:
        """A consumer that computes now: three more times."""
        start = self.counted(name)
        self.plane.wait_for(
            lambda: self.counted(name) >= start + 3, f"{name} to compute", timeout=LONG
        )

    def counted(self, name: str = "consumer") -> int:
        """How often a consumer has computed; it has never failed."""
        status = self.plane.do("GET", f"/api/v1/namespaces/default/pods/{name}")["status"]
        said = self.plane.kubectl("logs", name, check=False).output.split()
        assert status["phase"] in ("Pending", "Running"), (status, said[-20:])
        return int(said[-1]) if said and said[-1].isdigit() else 0

    def ready_since(self, node: LabNode) -> str:
        """When the driver was ready in this boot, by the node's clock and in its kubelet's form."""
        asked = ("date", "--utc", "--reference=/run/nodeside/edu/ready", "+%Y-%m-%dT%H:%M:%SZ")
        return node.run(*asked).output.strip()

    def gates(self, node: LabNode) -> list[Mapping[str, Any]]:
        """The ends of the gates of the stages' pods on a node."""
        label = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={STAGE_LABEL}"
        pods = [p for p in self.scene.items(label) if p["spec"].get("nodeName") == node.name]
        return [
            status["state"]["terminated"]
            for pod in pods
            for status in pod["status"].get("initContainerStatuses", ())
            if "terminated" in status["state"]
        ]

    def node_driver(self, node: LabNode) -> Mapping[str, Any]:
        """The status that the pod of a node wrote."""
        path = f"{NODE_DRIVERS}/{node_driver_name('edu', node.name)}"
        answer = self.plane.request("GET", path)
        return answer.document.get("status", {}) if answer.status == 200 else {}

    def pod(self, node: LabNode) -> Mapping[str, Any]:
        """The driver's pod on a node."""
        [pod] = self._pods(node)
        return pod

    def _pods(self, node: LabNode) -> list[dict[str, Any]]:
        """Of the driver itself, that are not ending."""
        pods = self.scene.pods(node.name)
        return [pod for pod in pods if UNLOAD_LABEL not in pod["metadata"]["labels"]]

    def uid(self, node: LabNode) -> str:
        """Of the only driver pod of a node, "" while there is none or two."""
        pods = self._pods(node)
        return str(pods[0]["metadata"]["uid"]) if len(pods) == 1 else ""

    def events(self, reason: str) -> list[str]:
        return [each["note"] for each in self.scene.items(_EVENTS) if each["reason"] == reason]

    def relabellings(self) -> int:
        """How often the controller has changed a node, by the API server's audit log."""
        written = Audit(self.plane.place.directory).writes()
        return sum(write.kind == "patch nodes" for write in written)

    def loading(self, node: LabNode) -> str:
        """Another one for each loading: the kernel numbers what it shows in sysfs."""
        return node.run("stat", "--format=%i", "/sys/module/edu").output.strip()

    def nothing_is_left(self) -> None:
        """Of a Driver that was deleted, neither on the API server nor on a node."""
        for kind in (DRIVERS, NODE_DRIVERS, REVISIONS, STAGE_DAEMON_SETS):
            assert self.scene.items(kind) == []
        assert self.scene.daemonsets() == []
        self.plane.wait_for(lambda: not self.scene.pods(), "the pods to be gone", timeout=LONG)
        for node in self.lab.nodes.values():
            labels = self.scene.labels(node.name)
            assert not [key for key in labels if key.startswith("nodeside.io/")]
            for path in ("/sys/module/edu", "/dev/edu0"):
                assert node.run("test", "-e", path, check=False).exit_code == 1, path
            files = node.run("find", "/run/nodeside", "-type", "f").output.split()
            assert sorted(files) == ["/run/nodeside/edu.lock", "/run/nodeside/edu.pod.lock"]

    def container(self, node: LabNode, name: str) -> Mapping[str, Any]:
        """The status of a container of the driver's pod, empty if there is none."""
        if not self.uid(node):
            return {}
        found = self.pod(node)["status"].get("containerStatuses", ())
        return next((each for each in found if each["name"] == name), {})
