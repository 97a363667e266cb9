"""An upgrade of the operating system, played as OpenShift's machine-config operator does it.

One node of a pool after the other: cordoned, rebooted, uncordoned. The kubelet says the new kernel
when it is back; Node Feature Discovery says the new version later; the pods of before start again
first. What takes minutes in real life takes seconds here: 1 second for 60.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cluster.model.names import OSTREE_LABEL
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.scene import Scene
from tests.patience import patience

System = tuple[str, str]  # kernel release, OSTREE_VERSION

_DOWN = 0.5  # seconds that a node is down; 30 in real life
_LABELS = 1.0  # seconds until Node Feature Discovery has looked again; 60 in real life
_END = patience(600.0)  # seconds for what is under way to end


@dataclass
class Upgrade:
    """Use as a context manager: it waits for all pools. `cordons` are the changes that it made.

    `rebooted` maps a node to when it came back, in monotonic seconds.
    """

    scene: Scene
    fleet: Fleet
    cordons: set[int] = field(default_factory=set)
    rebooted: dict[str, float] = field(default_factory=dict)
    _threads: list[threading.Thread] = field(default_factory=list)
    _failures: list[Exception] = field(default_factory=list)

    def __enter__(self) -> Upgrade:
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join(_END)
        assert not any(thread.is_alive() for thread in self._threads)
        assert not self._failures

    def pool(self, nodes: Sequence[str], system: System) -> None:
        """Begin with a pool; its nodes go one after the other."""

        def one_by_one() -> None:
            for name in nodes:
                self.node(name, system)

        self._begin(one_by_one)

    def count(self, nodes: Sequence[str]) -> int:
        """How many of these are back."""
        return sum(name in self.rebooted for name in nodes)

    def node(self, name: str, system: System) -> None:
        """One node, until it is in service again; its driver is not waited for."""
        nodes = self.scene.nodes
        self.cordons.add(nodes.cordon(name))
        nodes.down(name)
        self.fleet.power_off(name)
        time.sleep(_DOWN)
        self.scene.reboot(name, system)
        nodes.up(name)
        self.rebooted[name] = time.monotonic()
        self.fleet.power_on(name)
        self._begin(lambda: self._discover(name, system))
        self.cordons.add(nodes.cordon(name, on=False))

    def _discover(self, name: str, system: System) -> None:
        time.sleep(_LABELS)
        self.scene.nodes.label(name, {OSTREE_LABEL: system[1]})

    def _begin(self, work: Callable[[], object]) -> None:
        def run() -> None:
            try:
                work()
            except Exception as exc:
                self._failures.append(exc)

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()
