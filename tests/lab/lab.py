"""The lab: control plane, registry, nodes, and the controller that is installed in them.

    with Lab(workshop, say) as lab:
        lab.start(2)
        lab.plane.kubectl("get", "nodes")
        lab.node("node-1").reboot()

There is one lab at a time on a machine. However the block ends, nothing of it is left; what a
killed one left, the next one removes.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from nodeside.errors import Locked, UsageError
from nodeside.system import process
from nodeside.system.file_lock import take_lock
from nodeside.system.scratch import scratch_directory
from nodeside.trial.architecture import ARM64, Architecture
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.workshop import Workshop
from tests.cluster.e2e.controllers import LEASE
from tests.controlplane.binaries import Say
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.imagestreams import install_image_streams, set_image_stream
from tests.driver.fakes.registry import registry
from tests.images.built import engine
from tests.lab import network
from tests.lab.content import CONTROLLER_IMAGE, make_content, toolkit_image
from tests.lab.features import CONFIGURATION
from tests.lab.holding import waited
from tests.lab.network import MOST_NODES, Network
from tests.lab.node import LabNode
from tests.lab.system import ostree_version
from tests.node.configuration import REGISTRY
from tests.node.disk import make_disk
from tests.node.machine import Computer
from tests.node.programs import node_programs
from tests.patience import patience
from tests.vm.earlier import earlier_kernels

KERNEL = "cloud-amd64"  # it boots fastest
DEVICES = ("edu", "edu")
STATE = Path("/run/nodeside-lab")
_LOCK = STATE / "lock"
_REGISTRY_PORT = 5000
_COMMAND = patience(120.0)  # seconds
_LEADS = patience(900.0)  # seconds; Python starts in machines that start all else, too


@dataclass(frozen=True)
class _Base:
    """Of the nodes of one architecture: their root file system, and containerd's data."""

    workshop: Workshop
    disk: Path
    images: Path


class Lab:
    """A context manager; `start` brings up nodes and controller.

    There are toolkit images for the `kernels`, and tags of the Driver Toolkit's image stream; nodes
    start with the first.
    """

    def __init__(self, workshop: Workshop, say: Say, kernels: Sequence[KernelDisk]) -> None:
        self.workshop = workshop
        self.say = say
        self.nodes: dict[str, LabNode] = {}
        self.kernels = list(kernels)
        self._bases: dict[str, _Base] = {}
        self._stack = ExitStack()
        self._registry_runs = ExitStack()
        # QEMU dies with the thread that started it, so these live as long as the lab.
        self._starters = ThreadPoolExecutor(MOST_NODES, thread_name_prefix="node")

    def __enter__(self) -> Lab:
        with ExitStack() as stack:
            stack.enter_context(only_lab())
            programs = node_programs(self.say)
            releases = [kernel.release for kernel in self.kernels]
            content = make_content(self.workshop, releases, programs)
            disk = make_disk(self.workshop, programs)
            self._bases = {
                self.workshop.architecture.name: _Base(self.workshop, disk, content.disk)
            }
            self.directory = stack.enter_context(scratch_directory("lab"))
            content.copy_registry(self.directory / "registry")
            self._network = stack.enter_context(Network())
            stack.callback(self._registry_runs.close)
            self._start_registry()
            self.plane = stack.enter_context(
                ControlPlane(self.say, simulated=False, address=network.HOST)
            )
            install_image_streams(self.plane)
            self.offer_toolkits(*self.kernels)
            stack.callback(self._close_nodes)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, nodes: int = 2) -> None:
        """So many nodes, Ready; the controller, leading."""
        self.say(f"switching on {nodes} x kernel {self.kernels[0].release}, each with edu twice")
        self.say(f"devices get labels by a stand-in for Node Feature Discovery: {CONFIGURATION}")
        self.boot(*(self.new_node() for _ in range(nodes)))
        self.install()
        self.until_controller_leads()

    def install(self) -> None:
        """The controller, as docs/cluster.md has it; one that is there becomes it."""
        where = f"kubernetes.io/arch={self.workshop.architecture.name}"
        done = self.cluster("install", "--image", CONTROLLER_IMAGE, "--node-selector", where)
        self.say(done.output.splitlines()[-1] if done.output else "installed")

    def until_controller_leads(self) -> None:
        """A pod of the Deployment holds the lease."""
        leads = "the controller to lead"
        waited(self.plane, self.nodes.values(), lambda: self.leader, leads, timeout=_LEADS)
        self.say(f"the controller leads: {self.leader}")

    def kernel(self, name: str) -> KernelDisk:
        """One by its name, with a toolkit image and a tag of the image stream."""
        foreign = ARM64.name in name
        workshop = self._base(ARM64).workshop if foreign else self.workshop
        kernel = workshop.kernel(name)
        if kernel.release not in [each.release for each in self.kernels]:
            self.kernels.append(kernel)
            image = toolkit_image(kernel.release)
            with engine(self.workshop.cache) as builder:
                built = builder.toolkit(kernel.release, kernel.architecture)
                builder.push(built, image.replace(REGISTRY, self.registry))
            self.offer_toolkits(*self.kernels)
        return kernel

    @property
    def own_kernels(self) -> list[KernelDisk]:
        """Those of this host's architecture."""
        return [kernel for kernel in self.kernels if not kernel.architecture.is_foreign]

    def _base(self, architecture: Architecture) -> _Base:
        """What nodes of an architecture start with; made when it is asked for."""
        if architecture.name not in self._bases:
            self.say(f"preparing nodes of {architecture.name}: once, half an hour on two cores")
            workshop = Workshop(self.workshop.progress, architecture=architecture)
            self._stack.enter_context(workshop)
            kernels = [workshop.resolve(architecture.default_kernel).release]
            content = make_content(workshop, kernels, node_programs(self.say))
            disk = make_disk(workshop, node_programs(self.say, architecture))
            self._bases[architecture.name] = _Base(workshop, disk, content.disk)
        return self._bases[architecture.name]

    def offer_toolkits(self, *kernels: KernelDisk) -> None:
        """The image stream has the tags of the systems with these kernels, and no others."""
        releases = [kernel.release for kernel in kernels]
        tags = {ostree_version(each): toolkit_image(each) for each in releases}
        set_image_stream(self.plane, tags)

    @property
    def registry(self) -> str:
        """host:port of the registry, for nodes, pods and this host; it speaks plain HTTP."""
        return f"{network.HOST}:{_REGISTRY_PORT}"

    def _start_registry(self) -> None:
        self._registry_runs.enter_context(
            registry(self.directory / "registry", address=self.registry)
        )

    @contextmanager
    def without_registry(self) -> Iterator[None]:
        """In the block it is killed; its data stay."""
        self._registry_runs.close()
        try:
            yield
        finally:
            self._start_registry()

    @property
    def leader(self) -> str:
        """The pod that holds the controller's lease, "" for none."""
        answer = self.plane.request("GET", LEASE)
        return str(answer.document.get("spec", {}).get("holderIdentity", ""))

    def cluster(self, *argv: str, timeout: float = _COMMAND) -> process.Completed:
        """`nodeside-cluster ...` as the administrator. Raises ToolError if it fails."""
        config = ("--kubeconfig", str(self.plane.kubeconfig))
        words = [sys.executable, "-m", "cluster", *argv, *config]
        return process.run(words, timeout=timeout, env={"COLUMNS": "200"})

    # --- nodes

    def node(self, name: str) -> LabNode:
        """Raises UsageError if there is none of this name."""
        if name not in self.nodes:
            names = ", ".join(self.nodes) or "none"
            raise UsageError(f"no node is called {name}", hint=f"there are: {names}")
        return self.nodes[name]

    def new_node(self, kernel: KernelDisk | None = None) -> LabNode:
        """A node that has never been switched on."""
        taken = {node.number for node in self.nodes.values()}
        number = next((n for n in range(1, MOST_NODES + 1) if n not in taken), 0)
        if not number:
            raise UsageError(f"a lab has at most {MOST_NODES} nodes")
        directory = self.directory / f"node-{number}"
        directory.mkdir()
        cable = self._network.cable(number)
        kernel = kernel or self.kernels[0]
        base = self._base(kernel.architecture)
        node = LabNode(
            number=number,
            kernel=kernel,
            computer=Computer(base.workshop, directory, DEVICES, cable, base.disk, base.images),
            network=self._network,
            control_plane=self.plane,
            registry_port=_REGISTRY_PORT,
        )
        self.nodes[node.name] = node
        return node

    def boot(self, *nodes: LabNode) -> None:
        """Switch nodes on, side by side, and wait until they are Ready."""
        for booting in [self._starters.submit(self._boot, node) for node in nodes]:
            booting.result()

    def reboot(self, node: LabNode, kernel: KernelDisk | None = None) -> None:
        """Shut it down, and switch it on with the same or another kernel."""
        kernel = kernel or node.kernel
        if kernel.architecture != node.kernel.architecture:
            raise UsageError(
                f"{node.name} cannot run {kernel.release}",
                hint=f"it takes a kernel for {node.kernel.architecture.name}",
            )
        node.shut_down()
        node.kernel = kernel
        self.boot(node)

    def _boot(self, node: LabNode) -> None:
        node.boot()
        self.say(f"{node.name} is Ready: kernel {node.kernel.release}")

    def delete_node(self, node: LabNode) -> None:
        """Off, and unknown to the cluster; its disk is thrown away."""
        del self.nodes[node.name]
        node.check()
        node.close()
        shutil.rmtree(node.computer.directory)
        self.plane.do("DELETE", f"/api/v1/nodes/{node.name}")

    def check(self) -> None:
        """Raise if a kernel has complained."""
        for node in self.nodes.values():
            node.check()

    def last_words(self) -> str:
        """What nodes and controllers said last."""
        nodes = (f"--- {node.name}\n{node.computer.last_words()}" for node in self.nodes.values())
        return "\n".join(nodes)

    def _close_nodes(self) -> None:
        for node in self.nodes.values():
            node.close()
        self._starters.shutdown(cancel_futures=True)


def two_kernels(workshop: Workshop, name: str = KERNEL) -> list[KernelDisk]:
    """The kernel of this name, and the one that the distribution had before, if there is one."""
    newest = workshop.kernel(name)
    return [newest, *(workshop.kernel(each) for each in earlier_kernels(workshop, newest)[:1])]


@contextmanager
def only_lab() -> Iterator[None]:
    """Hold the one lab of this machine. Raises Locked if there is another."""
    STATE.mkdir(mode=0o700, exist_ok=True)
    with open(_LOCK, "ab", buffering=0) as lock:
        if not take_lock(lock.fileno()):
            raise Locked("another lab runs on this machine", hint="make lab-down")
        lock.truncate(0)
        lock.write(b"%d" % os.getpid())
        yield


def end_lab() -> None:
    """Ask the process of the one lab of this machine to end. Raises ValueError if none holds it."""
    os.kill(int(_LOCK.read_text()), signal.SIGTERM)
