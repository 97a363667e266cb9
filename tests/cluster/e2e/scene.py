"""What a test does to the cluster, and what it looks for: in the words of an administrator."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from cluster.model.names import CONTROLLER, NAMESPACE, OSTREE_LABEL, OURS
from nodeside.system import process
from tests.cluster.e2e.watching import Watching
from tests.controlplane.api_server import MERGE_PATCH
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.imagestreams import set_image_stream
from tests.controlplane.nodes import Nodes
from tests.patience import patience

EDU = Path("examples/edu/driver.yaml")
HARDWARE = {"feature.node.kubernetes.io/pci-1234.present": "true"}
OLD = ("5.14.0-427.el9.x86_64", "418.94.202501221327-0")
NEW = ("5.14.0-503.el9.x86_64", "419.96.202507011200-0")
_COMMAND = patience(60.0)  # seconds
_ROLES = (
    f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{CONTROLLER}",
    f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles/{CONTROLLER}",
)
COREOS = "Red Hat Enterprise Linux CoreOS"
_OURS = OURS.replace("=", "%3D")
_IN = f"/namespaces/{NAMESPACE}"
DAEMON_SETS = f"/apis/apps/v1{_IN}/daemonsets?labelSelector={_OURS}"
PODS = f"/api/v1{_IN}/pods?labelSelector={_OURS}"
REVISIONS = f"/api/v1{_IN}/configmaps?labelSelector={_OURS}%2Cnodeside.io/revision"
POLICIES = f"/api/v1{_IN}/configmaps?labelSelector={_OURS}%2C%21nodeside.io/revision"
JOBS = f"/apis/batch/v1{_IN}/jobs?labelSelector={_OURS}"
DRIVERS = "/apis/nodeside.io/v1alpha1/drivers"
NODE_DRIVERS = "/apis/nodeside.io/v1alpha1/nodedrivers"


@dataclass
class Scene:
    """Nodes, toolkit tags and Drivers of a test; `clear` leaves none of them."""

    control_plane: ControlPlane
    nodes: Nodes

    # --- what an administrator does ---------------------------------------------------------------

    def node(self, name: str, system: tuple[str, str] = OLD, *, hardware: bool = True) -> str:
        """A node of CoreOS with this kernel and version."""
        kernel, version = system
        labels = HARDWARE if hardware else {}
        self.nodes.create(name, kernel=kernel, os_image=f"{COREOS} {version}", labels=labels)
        return name

    def some_nodes(
        self,
        prefix: str,
        count: int,
        system: tuple[str, str] = OLD,
        *,
        architecture: str = "amd64",
    ) -> list[str]:
        """Several nodes of one kind, in less time than one after the other."""
        kernel, version = system
        labels = {**HARDWARE, OSTREE_LABEL: version}
        names = [f"{prefix}{i:02}" for i in range(count)]
        for name in names:
            self.nodes.create(
                name,
                kernel=kernel,
                os_image=f"{COREOS} {version}",
                architecture=architecture,
                labels=labels,
                ready=False,
            )
        for name in names:
            self.control_plane.wait_for(partial(self.nodes.is_ready, name), f"node {name}")
        return names

    def reboot(self, name: str, system: tuple[str, str]) -> None:
        kernel, version = system
        self.nodes.reboot(name, kernel=kernel, os_image=f"{COREOS} {version}")

    def toolkits(self, *systems: tuple[str, str]) -> None:
        """The tags of the image stream; none: there is only one that fits no node."""
        tags = {version: f"quay.example.com/toolkit:{kernel}" for kernel, version in systems}
        set_image_stream(self.control_plane, tags or {"410.84.202207140725-0": "old"})

    def driver(
        self,
        version: str = "1.0.0",
        *,
        name: str = "edu",
        prebuilt: Mapping[str, object] | None = None,
        **rollout: object,
    ) -> None:
        """The edu driver, as `kubectl apply` makes it of examples/edu/driver.yaml.

        It declares no devices: their stage would follow in every test.
        """
        document = yaml.safe_load(EDU.read_text().replace("1.0.0", version))
        document["metadata"]["name"] = name
        del document["spec"]["devices"]
        document["spec"] |= {"rollout": rollout} if rollout else {}
        document["spec"] |= {"prebuilt": prebuilt} if prebuilt else {}
        self.control_plane.kubectl("apply", "-f", "-", input=json.dumps(document))

    def change(self, patch: Mapping[str, Any], name: str = "edu") -> None:
        path = f"{DRIVERS}/{name}"
        self.control_plane.do("PATCH", path, {"spec": patch}, content_type=MERGE_PATCH)

    @contextmanager
    def rule_missing(self, plural: str, verb: str) -> Iterator[None]:
        """The controller's account may not do this in the block."""
        whole = {path: self.control_plane.do("GET", path)["rules"] for path in _ROLES}
        for path, rules in whole.items():
            self._set_rules(path, _without(rules, plural, verb))
        try:
            self._until_allowed(plural, verb, "no")
            yield
        finally:
            for path, rules in whole.items():
                self._set_rules(path, rules)

    def _set_rules(self, path: str, rules: Sequence[Mapping[str, Any]]) -> None:
        self.control_plane.do("PATCH", path, {"rules": rules}, content_type=MERGE_PATCH)

    def _until_allowed(self, plural: str, verb: str, answer: str) -> None:
        """A role is heeded a moment after it was written."""
        account = f"system:serviceaccount:{NAMESPACE}:{CONTROLLER}"
        plural, _, part = plural.partition("/")
        asked = ["auth", "can-i", verb, plural, "-n", NAMESPACE, "--as", account]
        asked += ["--subresource", part] if part else []
        self.control_plane.wait_for(
            lambda: self.control_plane.kubectl(*asked, check=False).output.strip() == answer,
            f"{verb} {plural} to be answered with {answer}",
        )

    def clear(self) -> None:
        """With or without a controller: finalizers are taken away."""
        plane = self.control_plane
        for item in self.items(DRIVERS):
            path = f"{DRIVERS}/{item['metadata']['name']}"
            plane.request(
                "PATCH", path, {"metadata": {"finalizers": None}}, content_type=MERGE_PATCH
            )
            plane.request("DELETE", path)
        for kind in (DAEMON_SETS, REVISIONS, POLICIES, NODE_DRIVERS):
            for item in self.items(kind):
                plane.request("DELETE", f"{kind.partition('?')[0]}/{item['metadata']['name']}")
        for item in self.items(JOBS):
            path = f"{JOBS.partition('?')[0]}/{item['metadata']['name']}"
            plane.request("DELETE", path, {"propagationPolicy": "Background"})
        for item in self.items(PODS):
            path = f"{PODS.partition('?')[0]}/{item['metadata']['name']}"
            plane.request("DELETE", path, {"gracePeriodSeconds": 0})

    # --- what is there ----------------------------------------------------------------------------

    def items(self, path: str) -> list[dict[str, Any]]:
        return list(self.control_plane.do("GET", path)["items"])

    def daemonsets(self) -> list[dict[str, Any]]:
        return self.items(DAEMON_SETS)

    def pods(self, node: str = "") -> list[dict[str, Any]]:
        """Driver pods that are not ending, on a node."""
        return [
            pod
            for pod in self.items(PODS)
            if "deletionTimestamp" not in pod["metadata"]
            and node in ("", pod["spec"].get("nodeName"))
        ]

    def labels(self, node: str) -> Mapping[str, str]:
        found: Mapping[str, str] = self.nodes.get(node)["metadata"].get("labels", {})
        return found

    def status(self, name: str = "edu") -> Mapping[str, Any]:
        """Of a Driver, empty if there is none."""
        answer = self.control_plane.request("GET", f"{DRIVERS}/{name}")
        return dict(answer.document.get("status") or {}) if answer.status == 200 else {}

    def has_settled(self, name: str = "edu") -> bool:
        """By a Driver's own word: it works with what is asked for now. Costs one request."""
        found = self.control_plane.do("GET", f"{DRIVERS}/{name}")
        status = found.get("status") or {}
        current = status.get("observedGeneration") == found["metadata"]["generation"]
        return bool(current and status["revision"] == status.get("lastGoodRevision"))

    def condition(self, kind: str, name: str = "edu") -> Mapping[str, str]:
        found = (c for c in self.status(name).get("conditions", ()) if c["type"] == kind)
        return next(found, {"status": "", "reason": "", "message": ""})

    def events(self, reason: str, node: str = "") -> list[dict[str, Any]]:
        """Events with this reason, about this node of all that had its name."""
        found = self.items("/apis/events.k8s.io/v1/namespaces/default/events")
        uid = self.nodes.get(node)["metadata"]["uid"] if node else ""
        return [
            each
            for each in found
            if each["reason"] == reason and uid in ("", each["regarding"].get("uid"))
        ]

    def age(self, name: str = "edu") -> float:
        """Whole seconds since a Driver was made, by the wall clock."""
        made = self.control_plane.do("GET", f"{DRIVERS}/{name}")["metadata"]["creationTimestamp"]
        then = datetime.strptime(made, "%Y-%m-%dT%H:%M:%S%z")
        return (datetime.now(UTC) - then).total_seconds()

    def cli(self, *argv: str) -> process.Completed:
        """`nodeside-cluster …` as the administrator."""
        config = ("--kubeconfig", str(self.control_plane.kubeconfig))
        words = [sys.executable, "-m", "cluster", *argv, *config]
        return process.run(words, timeout=_COMMAND, check=False, env={"COLUMNS": "400"})

    @contextmanager
    def status_watched(self, output: Path) -> Iterator[None]:
        """`nodeside-cluster status --watch` runs in the block and writes to a file."""
        config = ("--kubeconfig", str(self.control_plane.kubeconfig))
        words = [sys.executable, "-m", "cluster", "status", "--watch", *config]
        with output.open("wb") as file:
            child = process.start(words, stdout=file, env={"PYTHONUNBUFFERED": "1"})
        try:
            yield
        finally:
            child.kill()
            child.wait(_COMMAND)

    def column(self, heading: str, name: str = "edu") -> str:
        """What `kubectl get drivers` says."""
        said = self.control_plane.kubectl("get", "drivers", name).output.splitlines()
        start = said[0].index(heading)
        return said[1][start:].split("  ")[0].strip()

    # --- what is waited for -----------------------------------------------------------------------

    def until_ready(self, nodes: int, name: str = "edu") -> None:
        """The Driver says that it works on so many nodes."""

        def holds() -> bool:
            return (
                self.condition("Ready", name)["status"] == "True"
                and self.status(name)["nodes"]["ready"] == nodes
            )

        self.control_plane.wait_for(holds, f"driver {name} to be ready on {nodes} nodes")

    def until_reason(self, kind: str, reason: str, name: str = "edu") -> str:
        """A condition has this reason; its message."""
        self.control_plane.wait_for(
            lambda: self.condition(kind, name)["reason"] == reason,
            f"condition {kind} of {name} to be {reason}",
        )
        return self.condition(kind, name)["message"]

    def until_said(self, kind: str, words: str, name: str = "edu") -> str:
        """A condition's message has these words; the message."""
        self.control_plane.wait_for(
            lambda: words in self.condition(kind, name)["message"],
            f"condition {kind} of {name} to say {words!r}",
        )
        return self.condition(kind, name)["message"]

    def until_kernels(self, *kernels: str) -> None:
        """The Driver's status has pools of these kernels and of no others."""
        self.control_plane.wait_for(
            lambda: [row["kernel"] for row in self.status().get("pools", ())] == list(kernels),
            f"pools of {kernels}",
        )

    def until_complete(self, version: str, nodes: int, name: str = "edu") -> None:
        """So many nodes work with this version, and there is nothing left of older ones."""

        def holds() -> bool:
            status = self.status(name)  # of a Driver that is new there is none yet
            counted = status.get("nodes", {})
            return (
                list(self.versions().values()) == [version] * nodes
                and counted.get("ready") == counted.get("updated") == nodes
                and status["revision"] == status.get("lastGoodRevision")
                and self.condition("Progressing", name)["reason"] == "Complete"
                and len(self.daemonsets()) == 1
            )

        self.control_plane.wait_for(holds, f"{nodes} nodes to work with version {version}")

    def until_versions(self, version: str, nodes: int) -> None:
        """At least so many nodes have a pod of this version."""
        self.control_plane.wait_for(
            lambda: list(self.versions().values()).count(version) >= nodes,
            f"{nodes} nodes to have version {version}",
        )

    def versions(self) -> dict[str, str]:
        """By node, the driver version of its pod."""
        return {
            pod["spec"]["nodeName"]: pod["spec"]["containers"][0]["image"].rpartition(":")[2]
            for pod in self.pods()
            if pod["spec"].get("nodeName")
        }

    def watching(self) -> Watching:
        """What happens in the block, from the API server's own watches."""
        return Watching(self.control_plane)


def _without(rules: Sequence[Mapping[str, Any]], plural: str, verb: str) -> list[dict[str, Any]]:
    """The rules of a role but for one verb of one kind."""
    lessened = (
        {**rule, "verbs": [each for each in rule["verbs"] if each != verb]}
        if plural in rule.get("resources", ())
        else dict(rule)
        for rule in rules
    )
    return [rule for rule in lessened if rule["verbs"]]
