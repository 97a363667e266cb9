"""A node of the lab over its boots, deletions and outages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property

from nodeside.errors import UsageError
from nodeside.system.process import Completed
from nodeside.trial.errors import MachineLost, TrialError
from nodeside.trial.machine.kernel_disk import KernelDisk
from tests.controlplane.certificates import sign_client, write_kubeconfig
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.nodes import Nodes
from tests.lab import network
from tests.lab.features import ASKED, features
from tests.lab.holding import waited
from tests.lab.network import Network
from tests.lab.system import os_release
from tests.node.configuration import NodeAddresses, of_this_boot
from tests.node.machine import Computer
from tests.patience import patience

_MOMENT = _LINES = patience(1800.0)  # seconds
_COMMAND = patience(600.0)  # seconds
_READY = patience(900.0)  # seconds; an emulated machine beside others that boot


@dataclass
class LabNode:
    """Node `number`, from 1. `kernel` is the one of its next boot."""

    number: int
    kernel: KernelDisk
    computer: Computer
    network: Network
    control_plane: ControlPlane
    registry_port: int
    _complaints: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    @property
    def is_on(self) -> bool:
        return self.computer.is_on

    @cached_property
    def _kubeconfig(self) -> str:
        """Of the kubelet: a node's own name and group, with a node's rights and no more."""
        certificates = self.control_plane.place.certificates
        who = sign_client(certificates, f"system:node:{self.name}", "system:nodes")
        path = self.control_plane.place.directory / f"kubelet-{self.name}.kubeconfig"
        write_kubeconfig(path, certificates, self.control_plane.url, who)
        return path.read_text()

    def boot(self) -> None:
        """Switch it on; wait until the kubelet has said that the node is Ready, and label it."""
        if self.is_on:
            raise UsageError(
                f"{self.name} is on", hint=f"python -m tests.lab node reboot {self.name}"
            )
        settings = of_this_boot(
            self._addresses, self._kubeconfig, self.control_plane.ca.read_text()
        )
        settings["usr/lib/os-release"] = os_release(self.kernel.release)
        self.computer.switch_on(self.kernel, settings)
        what = f"{self.name} to be Ready"
        waited(self.control_plane, [self], self._is_ready, what, timeout=_READY)
        labels = features(self.run("sh", "-c", ASKED).output)
        Nodes(self.control_plane).label(self.name, labels)

    def shut_down(self) -> None:
        """Services end, disks are written."""
        self._note_complaints()
        self.computer.shut_down()

    def cut_power(self) -> None:
        """What was not written to disk is lost; it stays off until `boot`."""
        self._note_complaints()
        self.computer.cut_power()

    @contextmanager
    def power_cut_when(self, condition: str) -> Iterator[None]:
        """As soon as this condition of the shell holds; waits for it after the block."""
        lines = f"until {condition}; do :; done; echo b >/proc/sysrq-trigger"
        self._note_complaints()
        child = self.computer.machine.start(["sh", "-c", lines], "node")
        yield
        with suppress(MachineLost):
            done = child.wait(_MOMENT)
            raise TrialError(f"{self.name} still has power: {done}")
        self.computer.cut_power()

    def plug(self, *, into: bool) -> None:
        """Its network cable."""
        self.network.plug(self.number, into=into)

    def close(self) -> None:
        """Switch it off for good."""
        self.computer.cut_power()
        os.close(self.computer.cable.descriptor)

    def run(self, *argv: str, check: bool = True, timeout: float = _COMMAND) -> Completed:
        """A command on the node, as its administrator."""
        return self.computer.run(*argv, check=check, timeout=timeout)

    def type(self, lines: str, *, check: bool = True) -> Completed:
        """Lines as its administrator types them in a shell, each of which must succeed."""
        return self.run("bash", "-eu", "-c", lines, check=check, timeout=_LINES)

    def check(self) -> None:
        """Raise if a kernel has complained, in this boot or an earlier one."""
        self._note_complaints()
        if self._complaints:
            said = "\n".join(self._complaints)
            raise TrialError(f"a kernel of {self.name} complained:\n{said}")

    def _note_complaints(self) -> None:
        if self.is_on:
            new = self.computer.machine.splats()
            self._complaints += [each for each in new if each not in self._complaints]

    @property
    def boot_id(self) -> str:
        """Of the kernel that runs now."""
        return self.computer.machine.boot_id

    def _is_ready(self) -> bool:
        """By the kubelet of this boot: the API server remembers what an earlier one said."""
        answer = self.control_plane.request("GET", f"/api/v1/nodes/{self.name}")
        if answer.status != 200:
            return False
        this_boot = answer.document["status"]["nodeInfo"]["bootID"] == self.boot_id
        return this_boot and Nodes(self.control_plane).is_ready(self.name)

    @property
    def _addresses(self) -> NodeAddresses:
        return NodeAddresses(
            name=self.name,
            address=network.address(self.number),
            host=network.HOST,
            pods=network.pods(self.number),
            api_port=self.control_plane.place.ports["kube-apiserver"],
            registry_port=self.registry_port,
            routes=network.routes(self.number),
        )
