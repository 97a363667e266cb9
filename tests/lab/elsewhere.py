"""The story on a cluster of yours: the parts that need no power over its nodes.

`make lab-story` tells it where NODESIDE_LAB_KUBECONFIG is set; docs/lab.md says what else.
Versions of the example differ in a flag of the compiler only, so one image serves all of them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import requests
import yaml

import nodeside
from cluster.model.names import NAMESPACE
from nodeside.errors import DeadlinePassed, UsageError
from nodeside.system import process
from nodeside.system.scratch import scratch_directory
from tests.cluster.e2e.controllers import LEASE
from tests.cluster.e2e.scene import DRIVERS, EDU, NODE_DRIVERS, Scene
from tests.cluster.e2e.staged import STAGE_DAEMON_SETS, write
from tests.controlplane.api_server import ApiServer
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.nodes import Nodes
from tests.lab.holding import waited

_LONG, _START, _LOOK = 1800.0, 60.0, 0.05  # seconds
_STAGE = """\
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
          image: {image}
          command: [sh, -c, "echo follower is here; exec sleep 1000000"]
"""


class Elsewhere(ApiServer):
    """Asked through `kubectl proxy`, which knows every way to log in."""

    def __init__(self, kubeconfig: Path, kubectl: Path, home: Path) -> None:
        super().__init__(patience=_LONG)
        self._kubeconfig, self._kubectl, self._home = kubeconfig, kubectl, home
        self._url = ""

    @contextmanager
    def reached(self) -> Iterator[None]:
        words: list[str | Path]
        words = [self._kubectl, f"--kubeconfig={self._kubeconfig}", "proxy", "--port=0"]
        log = self._home / "proxy.log"
        with log.open("wb") as output:
            child = process.start(words, stdout=output, stderr=process.INTO_STDOUT, env=_here())
        try:
            self._url = _served(child, log)
            yield
        finally:
            self.close_sessions()
            process.kill_group(child.pid)
            child.wait(_START)

    @property
    def url(self) -> str:
        return self._url

    @property
    def kubeconfig(self) -> Path:
        return self._kubeconfig

    @property
    def kubectl_program(self) -> Path:
        return self._kubectl

    @property
    def home(self) -> Path:
        return self._home

    def new_session(self, token: str) -> requests.Session:
        assert not token, "whoever asks through the proxy is the administrator"
        session = requests.Session()
        session.trust_env = False
        return session


def _served(child: process.Child, log: Path) -> str:
    """The address that kubectl names."""
    deadline = time.monotonic() + _START
    while True:
        said = log.read_text(errors="replace")
        if found := re.search(r"Starting to serve on (\S+)", said):
            return f"http://{found[1]}"
        if child.poll() is not None or time.monotonic() > deadline:
            raise DeadlinePassed(f"kubectl proxy does not serve: {process.last_lines_of(said)}")
        time.sleep(_LOOK)


def _here() -> dict[str, str]:
    """What kubectl and its login helpers read."""
    return dict(os.environ)


@dataclass(frozen=True)
class Guest:
    """The driver `edu` on nodes that are another's."""

    scene: Scene
    kubeconfig: Path
    registry: str
    changes: Mapping[str, Any]  # of `spec`

    @property
    def image(self) -> str:
        return f"{self.registry}/edu:1.0.0"

    def cluster(self, *argv: str) -> process.Completed:
        """`nodeside-cluster ...` as the administrator. Raises ToolError if it fails."""
        words = [sys.executable, "-m", "cluster", *argv, "--kubeconfig", str(self.kubeconfig)]
        return process.run(words, timeout=_LONG, env=_here())

    def install(self) -> None:
        """The controller, as docs/cluster.md has it."""
        plane = self.scene.control_plane
        scc = plane.request("GET", "/apis/security.openshift.io/v1").status == 200
        image = f"{self.registry}/nodeside-cluster:{nodeside.__version__}"
        self.cluster("install", "--image", image, *(["--openshift"] if scc else []))

        def leads() -> object:
            return plane.request("GET", LEASE).document.get("spec", {}).get("holderIdentity")

        waited(plane, [], leads, "the controller to lead")

    def apply(self, version: str, flag: str, **changes: Any) -> None:
        """A version whose compiler gets this flag."""
        document = yaml.safe_load(EDU.read_text())
        spec = document["spec"] | {"version": version, "image": self.image}
        spec["build"] = {"kind": "kbuild", "makeArguments": [f"KCFLAGS={flag}"]}
        document["spec"] = spec | self.changes | changes
        if "nodeSelector" in document["spec"]["hardware"]:
            del document["spec"]["validate"]  # of the device, which is nowhere but in QEMU
        self.scene.control_plane.kubectl("apply", "-f", "-", input=json.dumps(document))

    def until_ready(self, version: str, source: str) -> None:
        """Every node says so; the version came from there."""

        def holds() -> bool:
            status = self.scene.status()
            nodes = status.get("nodes", {})
            drivers = [each.get("status", {}) for each in self.scene.items(NODE_DRIVERS)]
            wanted = {"state": "ready", "version": version, "source": source}
            return (
                status.get("observedGeneration") == self._generation
                and self.scene.condition("Ready")["status"] == "True"
                and nodes["ready"] == nodes["updated"] == nodes["wanted"] == len(drivers) > 0
                and all(wanted.items() <= told.items() for told in drivers)
            )

        what = f"edu {version} to be ready on every node, {source}"
        waited(self.scene.control_plane, [], holds, what)

    @property
    def _generation(self) -> int:
        found = self.scene.control_plane.do("GET", f"{DRIVERS}/edu")
        return int(found["metadata"]["generation"])


def _required(name: str, example: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise UsageError(f"{name} is not set", hint=f"{name}={example}, see docs/lab.md")
    return value


def _changes(registry: str) -> dict[str, Any]:
    """Of the example's `spec`: which nodes, whose toolkit."""
    changes: dict[str, Any] = {}
    if label := os.environ.get("NODESIDE_LAB_NODES", ""):
        key, _, value = label.partition("=")
        changes["hardware"] = {"nodeSelector": {key: value}}
    if template := os.environ.get("NODESIDE_LAB_TOOLKIT", ""):
        changes["toolkit"] = {"imageTemplate": template}
    follower = {"name": "follower", "manifests": "follower"}
    changes["devices"] = []  # no image of the device agent is asked for
    return changes | {"stages": [follower | {"waitFor": {"log": "^follower is here$"}}]}


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    kubeconfig = Path(_required("NODESIDE_LAB_KUBECONFIG", "$HOME/.kube/config"))
    registry = _required("NODESIDE_LAB_REGISTRY", "registry.example.com/nodeside")
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise UsageError("kubectl is not installed", hint="the one of this cluster, in PATH")
    with scratch_directory("elsewhere") as home:
        plane = Elsewhere(kubeconfig, Path(kubectl), home)
        with plane.reached():
            if plane.request("GET", DRIVERS).status != 404:  # it would be uninstalled at the end
                raise UsageError(
                    "nodeside is installed in this cluster, or nobody can tell",
                    hint="tell the story where it is not: nodeside-cluster uninstall",
                )
            scene = Scene(cast(ControlPlane, plane), Nodes(plane))
            guest = Guest(scene, kubeconfig, registry, _changes(registry))
            guest.install()
            write(scene, "follower", _STAGE.format(image=guest.image))
            try:
                yield guest
            finally:
                guest.cluster("uninstall", "--yes")


def test_every_node_builds_and_a_stage_follows(guest: Guest) -> None:
    """In its toolkit container; the log of the stage is read through the kubelet."""
    guest.apply("1.0.0", "-DSTORY=0")
    guest.until_ready("1.0.0", "built")
    guest.scene.until_reason("StagesReady", "Ready")


def test_pods_that_are_deleted_find_the_module_loaded(guest: Guest) -> None:
    """And so nothing is built or loaded."""
    plane = guest.scene.control_plane
    before = {pod["metadata"]["uid"] for pod in guest.scene.pods()}
    words = ("-n", NAMESPACE, "-l", "nodeside.io/driver=edu,!nodeside.io/stage", "--wait=false")
    plane.kubectl("delete", "pods", *words)
    waited(
        plane,
        [],
        lambda: (
            len(now := {pod["metadata"]["uid"] for pod in guest.scene.pods()}) == len(before)
            and not now & before
        ),
        "new pods",
    )
    guest.until_ready("1.0.0", "loaded")


def test_a_version_that_does_not_compile_stops_at_one_node(guest: Guest) -> None:
    """The others keep their driver; the old version is applied again."""
    guest.apply("1.0.1", "-include/no-more.h")
    message = guest.scene.until_reason("Progressing", "RolloutStopped")
    assert "no-more.h" in message
    states = [each["status"] for each in guest.scene.items(NODE_DRIVERS)]
    assert [each["reason"] for each in states if each["state"] == "failed"] == ["Compile"]
    guest.apply("1.0.0", "-DSTORY=0")
    guest.until_ready("1.0.0", "loaded")


def test_a_new_version_reaches_every_node(guest: Guest) -> None:
    """In place of the old one."""
    guest.apply("1.0.2", "-DSTORY=2")
    guest.until_ready("1.0.2", "built")


def test_images_for_each_kernel_that_are_missing_are_done_without(guest: Guest) -> None:
    """ErrImagePull: the nodes build instead."""
    missing = {"image": f"{guest.registry}/no-such-driver:{{version}}-{{kernel}}"}
    guest.apply("1.0.3", "-DSTORY=3", prebuilt=missing)
    guest.until_ready("1.0.3", "built")


def test_a_driver_that_is_deleted_leaves_nothing(guest: Guest) -> None:
    """Unloaded on every node."""
    plane, scene = guest.scene.control_plane, guest.scene
    plane.kubectl("delete", "driver", "edu", "--wait=false")
    waited(plane, [], lambda: not scene.items(DRIVERS), "the Driver to be gone")
    waited(plane, [], lambda: not scene.pods(), "its pods to be gone")
    assert scene.items(NODE_DRIVERS) == scene.daemonsets() == scene.items(STAGE_DAEMON_SETS) == []
    for node in plane.do("GET", "/api/v1/nodes")["items"]:
        labels = node["metadata"].get("labels", {})
        assert [key for key in labels if key.startswith("nodeside.io/edu.")] == []
