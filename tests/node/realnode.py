"""A real node that has joined a control plane, and the registry that its images come from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.workshop import Workshop
from tests.controlplane.binaries import Say
from tests.controlplane.certificates import sign_client, write_kubeconfig
from tests.controlplane.components import LOOPBACK
from tests.controlplane.controlplane import ControlPlane
from tests.driver.fakes.registry import registry
from tests.node.configuration import HOST, NAME, of_this_boot
from tests.node.disk import make_disk
from tests.node.images import Images
from tests.node.machine import NodeMachine, switched_on
from tests.node.programs import node_programs


@dataclass(frozen=True)
class RealNode:
    """The machine, what its kernel is, and the images that it can pull."""

    machine: NodeMachine
    kernel: KernelDisk
    images: Images


@contextmanager
def real_node(
    workshop: Workshop, control_plane: ControlPlane, kernel: KernelDisk, directory: Path, say: Say
) -> Iterator[RealNode]:
    """Switched on, with the edu device, and on its way to be Ready."""
    disk = make_disk(workshop, node_programs(say))
    with registry(directory / "registry") as where:
        images = Images(workshop, where, directory / "layers")
        images.sandbox()
        port = int(where.rpartition(":")[2])
        settings = of_this_boot(_kubeconfig(control_plane), _api_port(control_plane), port)
        with switched_on(workshop, kernel, disk, settings, devices=("edu",)) as machine:
            yield RealNode(machine, kernel, images)


def _kubeconfig(control_plane: ControlPlane) -> str:
    """Of the kubelet: a node's own name and group, with a node's rights and no more."""
    place = control_plane.place
    who = sign_client(place.certificates, f"system:node:{NAME}", "system:nodes")
    path = place.directory / "kubelet.kubeconfig"
    url = f"https://{HOST}:{_api_port(control_plane)}"
    write_kubeconfig(path, place.certificates, url, who, server_name=LOOPBACK)
    return path.read_text()


def _api_port(control_plane: ControlPlane) -> int:
    return control_plane.place.ports["kube-apiserver"]
