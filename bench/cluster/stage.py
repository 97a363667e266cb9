"""A control plane with nodeside installed, nodes in pools, and controllers that come and go."""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
import yaml

from bench.cluster import usage
from bench.cluster.speakers import Heard, Speakers
from bench.cluster.usage import Usage
from bench.room import BenchError
from bench.waiting import Waiting
from cluster.install.manifests import InstallSettings
from cluster.kube.client import connect
from cluster.kube.errors import ApiError
from cluster.kube.resources import NODES
from cluster.model.names import CONTROLLER, METRICS_READER, NAMESPACE, OURS
from cluster.model.parse import node_from
from nodeside.system import process
from nodeside.system.scratch import scratch_directory
from tests.cluster.fakes.installed import install_all
from tests.controlplane.certificates import write_kubeconfig
from tests.controlplane.components import LOOPBACK, free_ports
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.imagestreams import install_image_streams, set_image_stream
from tests.controlplane.nodes import node_info

POOLS = 20
EDU = Path("examples/edu/driver.yaml")
HARDWARE = "feature.node.kubernetes.io/pci-1234.present"
FIRST_OF_POOL = "example.com/first-of-pool"

_DRIVERS = "/apis/nodeside.io/v1alpha1/drivers"
_OURS = OURS.replace("=", "%3D")
_LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{CONTROLLER}"
_LABELS = 40  # of Node Feature Discovery, on each node
_IMAGES = 20  # that the kubelet lists, on each node
_MAKERS = 12  # nodes made at once
_DEADLINE, _DEADLINE_OF_NODE = 300.0, 0.3  # seconds; 5,000 nodes take 400 to 1,000, by the day
_LOOK = 0.05  # seconds
_REQUEST = 20.0  # seconds


def system(pool: int) -> tuple[str, str]:
    """Kernel and OS version of a pool."""
    return f"5.14.0-{400 + pool}.el9.x86_64", f"418.94.20250122{1300 + pool}-0"


@dataclass
class Controller:
    """A replica as a process. `started` is by the monotonic clock."""

    child: process.Child
    port: int
    log: Path
    token: str
    started: float
    stopped: bool = False

    @property
    def broken(self) -> str:
        """Why nothing can be expected of it any more; "" while it runs, or was stopped."""
        if self.child.poll() is None or self.stopped:
            return ""
        words = process.last_lines_of(self.log.read_text(errors="replace"), 40)
        return f"the controller ended by itself\n{words}"

    def usage(self) -> Usage:
        if self.broken:
            raise BenchError(self.broken)
        return usage.of_process(self.child.pid, usage.calls_of(self.exposition()))

    def exposition(self) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the certificate is the controller's own
            try:
                answer = requests.get(
                    f"https://{LOOPBACK}:{self.port}/metrics",
                    headers={"Authorization": f"Bearer {self.token}"},
                    timeout=_REQUEST,
                    verify=False,  # noqa: S501
                )
            except requests.RequestException as exc:
                raise BenchError(self.broken or f"no metrics of the controller: {exc}") from exc
        if not answer.ok:
            raise BenchError(f"no metrics: {answer.status_code} {answer.text}")
        return answer.text

    @property
    def rounds(self) -> int:
        """How many rounds it made."""
        name = "nodeside_round_duration_seconds_count "
        lines = self.exposition().splitlines()
        return int(float(next(line for line in lines if line.startswith(name)).split()[1]))

    def stop(self) -> None:
        self.stopped = True
        if self.child.poll() is None:
            self.child.terminate()
            self.child.wait(_REQUEST)


class Stage:
    """Use as a context manager."""

    def __init__(self, nodes: int, say: Callable[[str], None]) -> None:
        self.size = nodes
        self._say = say
        self._stack = ExitStack()
        self._controllers: list[Controller] = []
        self.speakers: Speakers | None = None

    def __enter__(self) -> Stage:
        with ExitStack() as stack:
            self.control_plane = stack.enter_context(ControlPlane())
            self._directory = stack.enter_context(scratch_directory("bench-cluster"))
            install_all(self.control_plane, InstallSettings())
            install_image_streams(self.control_plane)
            set_image_stream(self.control_plane, dict(_tag(pool) for pool in range(POOLS)))
            self._reader = self._make_reader()
            self._make_nodes()
            tokens = self._directory / "tokens"
            self.speakers = stack.enter_context(Speakers(self.control_plane, tokens))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # --- what is on it ----------------------------------------------------------------------------

    def _make_nodes(self) -> None:
        self._say(f"{self.size} nodes in {POOLS} pools")
        with ThreadPoolExecutor(_MAKERS) as makers:
            list(makers.map(self._make_node, range(self.size)))
        look = max(1.0, self.size / 1000)  # seconds: a look reads all nodes
        self.wait_for(lambda: self._ready() == self.size, "all to be ready", self._ready, look=look)

    def _make_node(self, number: int) -> None:
        """One request, with all that a kubelet would say in its first minute: 5,000 are made."""
        kernel, version = system(number % POOLS)
        name = f"node-{number:04}"
        labels = {HARDWARE: "true", "kubernetes.io/hostname": name, **_nfd(kernel)}
        labels |= {FIRST_OF_POOL: "true"} if number < POOLS else {}
        image = f"Red Hat Enterprise Linux CoreOS {version}"
        info = node_info(kernel, image) | {"architecture": "amd64"}
        node = {
            "metadata": {"name": name, "labels": labels},
            "status": {"nodeInfo": info, "images": _images(), **_UP},
        }
        self.control_plane.do("POST", "/api/v1/nodes", node)

    def _ready(self) -> int:
        """Nodes that KWOK has taken over."""
        api = connect(self.control_plane.kubeconfig)
        try:
            return sum(node.ready for node in api.list(NODES, node_from).items)
        except ApiError:
            return 0  # it has its hands full
        finally:
            api.close()

    def _make_reader(self) -> str:
        """The token of an account that may read metrics."""
        accounts = "/api/v1/namespaces/default/serviceaccounts"
        self.control_plane.do("POST", accounts, {"metadata": {"name": "bench"}})
        binding: dict[str, Any] = {
            "metadata": {"name": "bench-reads-metrics"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": METRICS_READER,
            },
            "subjects": [{"kind": "ServiceAccount", "name": "bench", "namespace": "default"}],
        }
        path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        self.control_plane.do("POST", path, binding)
        return self.control_plane.pod_token("default", "bench", None)

    # --- what is done on it -----------------------------------------------------------------------

    def start_controller(self) -> Controller:
        """A replica with the rights that are installed; not waited for."""
        name = f"controller-{len(self._controllers) + 1}"
        ports = free_ports("health", "metrics")
        log = self._directory / f"{name}.log"
        config = self._directory / f"{name}.kubeconfig"
        token = self.control_plane.pod_token(NAMESPACE, CONTROLLER, None)
        place = self.control_plane.place
        write_kubeconfig(config, place.certificates, self.control_plane.url, {"token": token})
        # As the control plane's programs: whoever kills the bench kills it too.
        argv = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "cluster", "run"]
        argv += ["--kubeconfig", str(config)]
        argv += ["--health-port", str(ports["health"]), "--metrics-port", str(ports["metrics"])]
        with log.open("wb") as output:
            started = time.monotonic()
            child = process.start(
                argv, stdout=output, stderr=process.INTO_STDOUT, env={"POD_NAME": name}
            )
        made = Controller(child, ports["metrics"], log, self._reader, started)
        self._controllers.append(made)
        self._stack.callback(made.stop)
        return made

    def wait_leading(self) -> None:
        """Until the newest controller leads."""
        name = f"controller-{len(self._controllers)}"

        def leader() -> object:
            lease = self.control_plane.request("GET", _LEASE).document
            return lease.get("spec", {}).get("holderIdentity")

        self.wait_for(lambda: leader() == name, f"{name} to lead", leader)

    def apply_driver(self, name: str = "edu", version: str = "1.0.0", **spec: Any) -> None:
        """examples/edu/driver.yaml, with other fields in its spec and without devices."""
        document = yaml.safe_load(EDU.read_text())
        del document["spec"]["devices"]  # without stages, whose objects would be watched too
        document["metadata"]["name"] = name
        image = f"registry.example.com/drivers/{name}:{version}"
        document["spec"] |= {"version": version, "image": image, **spec}
        path = f"{_DRIVERS}/{name}?fieldManager=bench&force=true"
        kind = "application/apply-patch+yaml"
        self.control_plane.do("PATCH", path, document, content_type=kind)

    def driver(self, name: str = "edu") -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.control_plane.do("GET", f"{_DRIVERS}/{name}")
        return dict(found.get("status") or {})

    def served(self) -> Counter[str]:
        """What the API server says that it was asked so far, by verb."""
        return usage.served_of(self.control_plane.request("GET", "/metrics").message)

    def daemonsets(self, name: str = "edu") -> int:
        selector = f"{_OURS},nodeside.io/driver%3D{name}"
        path = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets?labelSelector={selector}"
        return len(self.control_plane.do("GET", path)["items"])

    def pod_bound(self, node: str, kernel: str) -> bool:
        """Whether a driver pod for this kernel is on a node, and is not ending."""
        return kernel in self.kernels_of_pods(node)

    def kernels_of_pods(self, node: str) -> list[str]:
        """For which kernels there are driver pods on a node that are not ending."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?fieldSelector=spec.nodeName%3D{node}"
        return [
            variable["value"]
            for pod in self.control_plane.do("GET", path)["items"]
            if "deletionTimestamp" not in pod["metadata"]
            for variable in pod["spec"]["containers"][0]["env"]
            if variable["name"] == "NODESIDE_KERNEL"
        ]

    def heard(self) -> Heard:
        """What the nodes said so far."""
        assert self.speakers is not None, "there are none before the stage is entered"
        return self.speakers.heard()

    def wait_for(
        self,
        holds: Callable[[], object],
        what: str,
        seen: Callable[[], object],
        *,
        look: float = _LOOK,
    ) -> float:
        """The moment at which something was seen to be so; see `bench.waiting`."""
        waiting = Waiting(_DEADLINE + _DEADLINE_OF_NODE * self.size, self._broken)
        return waiting.until(holds, f"{self.size} nodes: {what}", seen, look=look)

    def _broken(self) -> str:
        """The first of the processes that the stage consists of that will not go on."""
        words = [each.broken for each in self._controllers]
        if self.speakers is not None:
            words.append(self.speakers.heard().broken)
        return next(filter(None, words), "")


_ROOM = {"cpu": "32", "memory": "256Gi", "pods": "250"}
_UP: Mapping[str, Any] = {
    "capacity": _ROOM,
    "allocatable": _ROOM,
    "conditions": [
        {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "as if it were"}
    ],
}


def _tag(pool: int) -> tuple[str, str]:
    kernel, version = system(pool)
    return version, f"quay.example.com/toolkit:{kernel}"


def _nfd(kernel: str) -> dict[str, str]:
    """What Node Feature Discovery sets on a node."""
    prefix = "feature.node.kubernetes.io"
    found = {f"{prefix}/cpu-cpuid.FEATURE{i}": "true" for i in range(_LABELS)}
    return found | {f"{prefix}/kernel-version.full": kernel}


def _images() -> list[dict[str, Any]]:
    """What a kubelet says of the images that it has: most of the size of a Node."""
    return [
        {
            "names": [
                f"quay.example.com/openshift-release-dev/image-{i}@sha256:{'ab' * 32}",
                f"quay.example.com/openshift-release-dev/image-{i}:v4.18",
            ],
            "sizeBytes": 100_000_000 + i,
        }
        for i in range(_IMAGES)
    ]
