"""What is done to a driver in the lab, and what is seen: on the API server, and on its nodes."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from cluster.model.names import DRIVER_LABEL, NAMESPACE, STAGE_LABEL, UNLOAD_LABEL, stage_label
from nodeside.protocol.labels import node_driver_name, state_label
from nodeside.protocol.node_status import READY_PATTERN, State
from nodeside.system import process
from nodeside.trial.machine.kernel_disk import KernelDisk
from tests.cluster.e2e.scene import DRIVERS, EDU, JOBS, NODE_DRIVERS, REVISIONS, Scene
from tests.cluster.e2e.staged import STAGE_DAEMON_SETS, STAGE_JOBS, write
from tests.controlplane.api_server import MERGE_PATCH, Answer
from tests.controlplane.audit import Audit
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.nodes import Nodes
from tests.images.built import engine
from tests.lab.content import EDU_IMAGE
from tests.lab.holding import waited
from tests.lab.lab import Lab
from tests.lab.node import LabNode
from tests.lab.tour import Wait
from tests.node.configuration import REGISTRY, SANDBOX
from tests.patience import patience
from tests.vm.hostbuilds import HostBuilds

LONG = patience(1800.0)  # seconds; a module is compiled in several emulated machines
_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
_CONSUMER = """\
import os, sys, time
sys.path.insert(0, "/driver-image")
from factorial import factorial
held = os.open("/dev/edu0", os.O_RDWR)
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
SELFTEST = "/var/tmp/selftest"  # on a node; a file `dark` in it makes the Job fail
_JOB = f"""\
apiVersion: batch/v1
kind: Job
metadata:
  name: selftest
  annotations: {{nodeside.io/run: perNode}}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      volumes:
        - name: state
          hostPath: {{path: {SELFTEST}, type: DirectoryOrCreate}}
      containers:
        - name: main
          image: {SANDBOX}
          command:
            - /bin/busybox
            - sh
            - -c
            - |
              [ -d /sys/module/edu ] || {{ echo there is no driver; exit 4; }}
              [ ! -e /state/dark ] || {{ echo LED 2 is dark; exit 3; }}
          volumeMounts:
            - {{name: state, mountPath: /state}}
"""
JOB_STAGE = {"name": "selftest", "manifests": "selftest"}
QUICK = {"kind": "command", "command": ["bash", "-u", "build.sh"]}
FOR_KERNELS = f"{REGISTRY}/drivers/edu:{{version}}-{{kernel}}"  # as in `spec.prebuilt.image`
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
    series: str = "1.0"  # of versions: nodes keep the images of another story's
    edits: dict[str, str] = field(default_factory=dict)  # of edu.c, in versions from now on
    waits: list[Wait] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    _patches: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def plane(self) -> ControlPlane:
        return self.lab.plane

    @property
    def scene(self) -> Scene:
        return Scene(self.plane, Nodes(self.plane))

    def wait_for(self, holds: Callable[[], object], what: str) -> None:
        """Look until something is so; it is remembered how long that took."""
        start = time.monotonic()
        waited(self.plane, self.lab.nodes.values(), holds, what, timeout=LONG)
        self.waits.append(Wait(what, time.monotonic() - start))

    def boot(self, node: LabNode) -> None:
        """Switch it on."""
        start = time.monotonic()
        self.lab.boot(node)
        self.waits.append(Wait(f"{node.name} to boot", time.monotonic() - start))

    def reboot(self, node: LabNode, kernel: KernelDisk | None = None) -> None:
        """As an administrator does it, into the same or another kernel."""
        start = time.monotonic()
        self.lab.reboot(node, kernel)
        self.waits.append(Wait(f"{node.name} to reboot", time.monotonic() - start))

    # --- what an administrator does ---------------------------------------------------------------

    def write_stages(self) -> None:
        """Two that follow the driver; the first must say so in its log."""
        for stage in STAGES:
            name = str(stage["name"])
            write(self.scene, name, _STAGE.format(name=name, image=SANDBOX))

    def write_job(self) -> None:
        """A stage of one Job, which runs on each node."""
        write(self.scene, JOB_STAGE["manifests"], _JOB)

    def apply(self, version: str, **changes: Any) -> None:
        """This version, by `kubectl apply`; `changes` replace parts of `spec`, None removes one."""
        document = yaml.safe_load(EDU.read_text())
        spec = document["spec"]
        spec["version"] = version
        spec["image"] = EDU_IMAGE.replace("1.0.0", version)
        spec |= self.changes | changes
        document["spec"] = {name: part for name, part in spec.items() if part is not None}
        self.plane.kubectl("apply", "-f", "-", input=json.dumps(document))

    def push(self, version: str, script: str = "") -> None:
        """The vendor's image of a version whose build (`QUICK`) takes no time.

        It runs the shell lines `script`, and then takes a module that lies in the source: this
        version's, compiled on this host for each kernel of the lab.
        """
        example, content = self._example(version), self.directory / version
        shutil.copytree(example, content)
        document = yaml.safe_load((content / EDU.name).read_text())
        document["spec"]["build"] = QUICK
        (content / EDU.name).write_text(json.dumps(document))
        module = "$NODESIDE_KERNELRELEASE.bin"
        build = f'{script}\ncp "{module}" "$NODESIDE_OUTPUT/edu.ko"\n'
        (content / "src" / "build.sh").write_text(build)
        for kernel in self.lab.own_kernels:
            built = self.host_builds(example, kernel).module_path("edu")
            shutil.copyfile(built, content / "src" / f"{kernel.release}.bin")
        with engine(self.lab.workshop.cache) as builder:
            tag = builder.assemble(f"localhost/edu:{version}", content)
            builder.push(tag, f"{self.lab.registry}/drivers/edu:{version}")

    def _example(self, version: str) -> Path:
        """The example of another version, which its module says, too."""
        example = self.directory / f"example-{version}"
        shutil.copytree(EDU.parent, example)
        for name in (EDU.name, "src/edu.c"):
            path = example / name
            path.write_text(path.read_text().replace("1.0.0", version))
        source = example / "src" / "edu.c"
        text = source.read_text()
        for old, new in self.edits.items():
            assert old in text
            text = text.replace(old, new)
        source.write_text(text)
        return example

    def roll_out(self, script: str = "", **changes: Any) -> str:
        """Push the next version, and apply it; its name."""
        version = self.push_next(script)
        self.apply_again(version, **changes)
        return version

    def push_next(self, script: str = "") -> str:
        """Push the next version; its name."""
        version = f"{self.series}.{next(self._patches)}"
        self.push(version, script)
        return version

    def apply_again(self, version: str, **changes: Any) -> None:
        """One that was pushed."""
        self.apply(version, **{"build": QUICK, **changes})

    def begin(self) -> str:
        """The version that is ready on all nodes; a new one if none is that was pushed."""
        named = {each["metadata"]["name"]: each for each in self.scene.items(DRIVERS)}
        version = named["edu"]["spec"]["version"] if "edu" in named else ""
        is_ready = version and self.scene.condition("Ready")["status"] == "True"
        if not is_ready or not (self.directory / version).is_dir():
            version = self.roll_out()
        self.until_ready(version)
        return version

    def touch(self) -> None:
        """A change of the Driver that changes nothing, so that `until_ready` waits for a look."""
        rollout = {"rollout": {"canary": next(self._patches)}}
        self.plane.do("PATCH", f"{DRIVERS}/edu", {"spec": rollout}, content_type=MERGE_PATCH)

    @property
    def store(self) -> dict[str, Any]:
        """`spec.prebuilt` of a driver that is built once for each kernel."""
        bundles = f"{self.lab.registry}/bundles/edu"
        return {"sources": [{"oci": bundles, "publish": True, "insecure": True}]}

    def token(self, node: LabNode) -> str:
        """Of the driver's pod on a node, as whoever is root there finds it."""
        volumes = f"/var/lib/kubelet/pods/{self.uid(node)}/volumes"
        found = node.run("find", volumes, "-name", "token", "!", "-type", "d")
        return node.run("cat", found.output.split()[0]).output.strip()

    def ask(self, token: str, method: str, path: str, document: Any) -> Answer:
        """The API server, as whoever has the token."""
        kind = MERGE_PATCH if method == "PATCH" else "application/json"
        return self.plane.request(method, path, document, content_type=kind, token=token)

    def push_on(self, base: str, version: str) -> str:
        """The image of a version that was pushed, on another base; its pull spec."""
        name = f"edu:{version}-on-another-base"
        with engine(self.lab.workshop.cache) as builder:
            tag = builder.assemble(f"localhost/{name}", self.directory / version, base)
            builder.push(tag, f"{self.lab.registry}/drivers/{name}")
        return f"{REGISTRY}/drivers/{name}"

    def push_for_kernels(self, version: str) -> None:
        """The driver image of a version for each kernel, with what was built in it."""
        for kernel in self.lab.own_kernels:
            prebuilt = self.directory / f"{version}-{kernel.release}"
            prebuilt.mkdir()
            self.host_builds.publish(self.directory / version, kernel, str(prebuilt))
            lines = f"FROM localhost/edu:{version}\nCOPY . /prebuilt/\n"
            (prebuilt / "Containerfile").write_text(lines)
            name = f"edu:{version}-{kernel.release.replace('+', '_')}"
            with engine(self.lab.workshop.cache) as builder:
                tag = builder.assemble(f"localhost/{name}", prebuilt)
                builder.push(tag, f"{self.lab.registry}/drivers/{name}")

    @staticmethod
    def late_toolkit(node: LabNode) -> dict[str, Any]:
        """`spec.toolkit` with an image that is not there until `push_late_toolkit`."""
        release = node.kernel.release
        return {"images": {release: f"{REGISTRY}/{_late(release)}"}}

    def push_late_toolkit(self, node: LabNode) -> None:
        release = node.kernel.release
        with engine(self.lab.workshop.cache) as builder:
            builder.push(builder.toolkit(release), f"{self.lab.registry}/{_late(release)}")

    def shell(self, lines: str) -> str:
        """Lines as an administrator types them, each of which must succeed; what they say."""
        programs = self.plane.binaries["kubectl"].parent
        env = {"PATH": f"{programs}:{os.environ['PATH']}", "KUBECONFIG": str(self.plane.kubeconfig)}
        env["HOME"] = str(self.directory)
        return process.run(["bash", "-eux", "-c", lines], timeout=LONG, env=env).output

    def start_consumer(self, node: LabNode, name: str = "consumer") -> None:
        """A pod that holds the device, computes with it twice a second, and counts."""
        container = {
            "name": "main",
            "image": EDU_IMAGE,
            "command": ["python3", "-c", _CONSUMER],
            "securityContext": {"privileged": True},  # until a device plugin gives it the device
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
            "spec": {
                "nodeName": node.name,
                "restartPolicy": "Never",
                "tolerations": [{"operator": "Exists"}],  # stays where the network is gone
                "terminationGracePeriodSeconds": 1,
                "containers": [container],
            },
        }
        self.plane.do("POST", "/api/v1/namespaces/default/pods", pod)
        self.until_counts(name)

    def end_consumer(self, name: str = "consumer") -> None:
        self.plane.kubectl("delete", "pod", name, "--wait=false", "--ignore-not-found")
        self.until_consumer_is_gone(name)

    def delete_driver_pod(self, node: LabNode) -> None:
        """The DaemonSet makes another one."""
        old = self.pod(node)["metadata"]
        self.plane.kubectl("delete", "pod", old["name"], "-n", NAMESPACE, "--wait=false")
        self.wait_for(lambda: self.uid(node) not in ("", old["uid"]), f"another pod on {node.name}")

    def kill_driver_container(self, node: LabNode) -> None:
        """As the kernel does it where memory is short."""
        before = self.container(node, "driver")["restartCount"]
        node.run("pkill", "--signal", "KILL", "--full", "nodeside driver run")
        self.wait_for(
            lambda: self.container(node, "driver").get("restartCount", 0) > before,
            "the driver container to be started again",
        )

    def kill_controllers(self) -> int:
        """All replicas at once, by the kernel; how many there were."""
        words = ("pkill", "--signal", "KILL", "--echo", "--full", "nodeside-cluster run")
        done = [node.run(*words, check=False) for node in self.lab.nodes.values()]
        return sum(len(each.output.splitlines()) for each in done)

    # --- what is seen -----------------------------------------------------------------------------

    def until_ready(self, version: str, **sources: str) -> None:
        """All nodes have said so, in this boot, by their pod of now; so does the Driver.

        `sources` are by the node's name, as node_1="built".
        """
        for node in self.lab.nodes.values():
            source = sources.get(node.name.replace("-", "_"), "")
            self.until_node_ready(node, version, source)
        count = len(self.lab.nodes)

        def holds() -> bool:
            ready, status = self.scene.condition("Ready"), self.scene.status()
            nodes = status["nodes"]
            return (
                status["observedGeneration"] == self._generation
                and ready["status"] == "True"
                and nodes["updated"] == nodes["ready"] == count
            )

        self.wait_for(holds, f"edu {version} to be Ready")

    @property
    def _generation(self) -> int:
        """Of the Driver's spec."""
        return int(self.plane.do("GET", f"{DRIVERS}/edu")["metadata"]["generation"])

    def until_node_ready(self, node: LabNode, version: str, source: str = "") -> None:
        """It has said so in this boot, by its pod of now."""

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
        self.wait_for(holds, what)

    def _has_said_ready(self, node: LabNode) -> bool:
        """The driver container of now, in its log, as `kubectl logs` shows it."""
        if not self.uid(node):
            return False
        pod = self.pod(node)["metadata"]["name"]
        asked = ("logs", pod, "--namespace", NAMESPACE, "--container", "driver")
        done = self.plane.kubectl(*asked, check=False)
        return done.exit_code == 0 and READY_PATTERN.search(done.output) is not None

    def until_node(self, node: LabNode, **wanted: str) -> None:
        """Its NodeDriver has these fields."""
        what = f"{node.name} to report {wanted}"
        self.wait_for(lambda: wanted.items() <= self.node_driver(node).items(), what)

    def until_reason(self, kind: str, reason: str) -> str:
        """A condition of the Driver has it; its message."""
        self.wait_for(
            lambda: self.scene.condition(kind)["reason"] == reason,
            f"condition {kind} to be {reason}",
        )
        return self.scene.condition(kind)["message"]

    def until_said(self, kind: str, words: str) -> None:
        """A condition of the Driver has them in its message."""
        self.wait_for(
            lambda: words in self.scene.condition(kind)["message"],
            f"condition {kind} to say {words!r}",
        )

    def until_built_for(self, count: int) -> None:
        """So many Jobs have built, and the controller knows how they ended."""

        def holds() -> bool:
            jobs = self.scene.items(JOBS)
            return sum("nodeside.io/outcome" in str(job["metadata"]) for job in jobs) == count

        self.wait_for(holds, f"{count} Jobs to have built")

    def until_some_node(self, what: str, **wanted: str) -> LabNode:
        """The first node whose NodeDriver has these fields."""

        def found() -> list[LabNode]:
            nodes = self.lab.nodes.values()
            return [node for node in nodes if wanted.items() <= self.node_driver(node).items()]

        self.wait_for(found, f"a node {what}")
        return found()[0]

    def until_pod_of(self, node: LabNode, version: str) -> None:
        """The driver's pod on a node is this version's."""

        def holds() -> bool:
            pods = self._pods(node)
            images = [pod["spec"]["containers"][0]["image"] for pod in pods]
            return any(image.endswith(f":{version}") for image in images)

        self.wait_for(holds, f"a pod of edu {version} on {node.name}")

    def until_not_ready(self, node: LabNode) -> None:
        """The API server has heard nothing of its kubelet for too long."""
        nodes = Nodes(self.plane)
        what = f"{node.name} to be missed"
        self.wait_for(lambda: not nodes.is_ready(node.name), what)

    def until_node_condition(self, node: LabNode, kind: str, status: str) -> None:
        """As its kubelet reports it."""

        def holds() -> bool:
            found = self.scene.nodes.get(node.name)["status"]["conditions"]
            return any((c["type"], c["status"]) == (kind, status) for c in found)

        self.wait_for(holds, f"{kind} of {node.name} to be {status}")

    def until_pull_fails(self, image: str) -> None:
        """The kubelet says so of a driver's pod."""
        path = f"/api/v1/namespaces/{NAMESPACE}/events?fieldSelector=reason%3DFailed"

        def holds() -> bool:
            return any(image in event["message"] for event in self.scene.items(path))

        self.wait_for(holds, f"a pull of {image} to fail")

    def until_explained(self, node: LabNode, words: str) -> str:
        """`explain` says so of a node; all that it says."""
        said: list[str] = []

        def holds() -> bool:
            said[:] = [self.scene.cli("explain", "edu", node.name).output]
            return words in " ".join(said[0].split())

        self.wait_for(holds, f"explain to say {words!r}")
        return said[0]

    def until_leader_is_not(self, pod: str) -> None:
        """A pod of another Deployment revision leads."""
        self.wait_for(
            lambda: self.lab.leader.rpartition("-")[0] not in ("", pod.rpartition("-")[0]),
            "the controller that was installed to lead",
        )

    def until_event(self, *words: str) -> None:
        """One has all of them."""
        self.wait_for(
            lambda: any(all(word in note for word in words) for note in self._notes()),
            f"an Event with {' and '.join(words)!r}",
        )

    def until_gone(self) -> None:
        """The Driver, which waits for its modules to be unloaded."""
        self.wait_for(lambda: not self.scene.items(DRIVERS), "the Driver to be gone")

    def until_stages(self) -> None:
        """Both are ready on every node: the Driver says so, and so do the nodes' labels."""
        marks = {stage_label("edu", str(stage["name"])) for stage in STAGES}

        def holds() -> bool:
            labels = [self.scene.labels(node.name) for node in self.lab.nodes.values()]
            return self.scene.condition("StagesReady")["status"] == "True" and all(
                marks <= each.keys() for each in labels
            )

        self.wait_for(holds, "both stages to be ready")

    def jobs(self) -> dict[str, str]:
        """The names of the Jobs of stages, by the node that they are for."""
        found = (each["metadata"] for each in self.scene.items(STAGE_JOBS))
        return {each["annotations"]["nodeside.io/node"]: each["name"] for each in found}

    def until_consumer_is_gone(self, name: str = "consumer") -> None:
        path = f"/api/v1/namespaces/default/pods/{name}"
        self.wait_for(lambda: self.plane.request("GET", path).status == 404, f"{name} to be gone")

    def until_counts(self, name: str = "consumer") -> None:
        """A consumer that computes now: three more times."""
        start = self.counted(name)
        self.wait_for(lambda: self.counted(name) >= start + 3, f"{name} to compute")

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
        return [
            status["state"]["terminated"]
            for pod in self.stage_pods(node)
            for status in pod["status"].get("initContainerStatuses", ())
            if "terminated" in status["state"]
        ]

    def stage_pods(self, node: LabNode) -> list[dict[str, Any]]:
        """Also those that are ending."""
        label = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={STAGE_LABEL}"
        return [p for p in self.scene.items(label) if p["spec"].get("nodeName") == node.name]

    def stages_at(self, node: LabNode) -> set[str]:
        """The stages that have pods on a node."""
        return {pod["metadata"]["labels"][STAGE_LABEL] for pod in self.stage_pods(node)}

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
        return driver_pods(self.scene, node, "edu")

    def uid(self, node: LabNode) -> str:
        """Of the only driver pod of a node, "" while there is none or two."""
        pods = self._pods(node)
        return str(pods[0]["metadata"]["uid"]) if len(pods) == 1 else ""

    def events(self, reason: str) -> list[str]:
        return [each["note"] for each in self.scene.items(_EVENTS) if each["reason"] == reason]

    def _notes(self) -> list[str]:
        """Of all Events."""
        return [each.get("note", "") for each in self.scene.items(_EVENTS)]

    def build_said(self, node: LabNode, words: str) -> float:
        """When a build said this last, in seconds since 1970, by the clock of its node."""
        pod = self.pod(node)["metadata"]["name"]
        asked = ("logs", pod, "-n", NAMESPACE, "-c", "toolkit", "--timestamps")
        lines = [each for each in self.plane.kubectl(*asked).output.splitlines() if words in each]
        return datetime.fromisoformat(lines[-1].split()[0]).timestamp()

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
        self.wait_for(lambda: not self.scene.pods(), "the pods to be gone")
        for node in self.lab.nodes.values():
            labels = self.scene.labels(node.name)
            ours = ("nodeside.io/", "feature.nodeside.io/")
            assert not [key for key in labels if key.startswith(ours)]
            for path in ("/sys/module/edu", "/dev/edu0"):
                assert node.run("test", "-e", path, check=False).exit_code == 1, path
            files = node.run("find", "/run/nodeside", "-type", "f", check=False).output.split()
            # Locks are never removed, also those of other drivers; a boot removes them.
            assert [file for file in files if not file.endswith(".lock")] == []

    def container(self, node: LabNode, name: str) -> Mapping[str, Any]:
        """The status of a container of the driver's pod, empty if there is none."""
        if not self.uid(node):
            return {}
        found = self.pod(node)["status"].get("containerStatuses", ())
        return next((each for each in found if each["name"] == name), {})


def driver_pods(scene: Scene, node: LabNode, driver: str) -> list[dict[str, Any]]:
    """The pods of a driver on a node that are not ending, without those that unload."""
    labelled = ((pod, pod["metadata"]["labels"]) for pod in scene.pods(node.name))
    return [
        pod
        for pod, labels in labelled
        if labels[DRIVER_LABEL] == driver and UNLOAD_LABEL not in labels
    ]


def _late(release: str) -> str:
    return f"late/toolkit:{release.replace('+', '_')}"
