"""How long a node may be on its way: until when silence is patience, and what is said after that.

Pure. Everything is counted from times that stand in the API server (who changed an object when, and
when a pod was made), so another controller goes on counting where the last one stopped, and with
its clock (server_time.py). Times are of the wall clock, 0 is unknown; where one cannot be true yet
nobody waits (timestamps.py).

    no pod         `NO_POD` after the node was assigned, and after the DaemonSet controller was last
                   at work: it makes thousands by and by, so work on others counts for a while too
    no word        `NO_WORD` after the pod was made, or the node came up with it
                   not at all where the name of its NodeDriver would be too long
    the last word  `LAST_WORD` and the deadline of a build after it was said: the node has deadlines
                   for everything it does, and says how each of them ended
    a correction   `NO_WORD` after a failure that the next pod will not meet, and after the
                   DaemonSet controller was last at work on it
    the machine    `LOST` after it went down, say in the middle of its change: nobody waits then
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from cluster.kube.timestamps import believed
from cluster.model.names import daemonset_name
from cluster.model.snapshot import DriverPod, Node, NodeDriverObject, Snapshot
from nodeside.contract import node_driver_name
from nodeside.spec import Driver
from nodeside.timestamps import rfc3339

NO_POD: Final = 60.0  # seconds
NO_WORD: Final = 600.0
LAST_WORD: Final = 3600.0
LOST: Final = 600.0
_OTHERS = 900.0  # seconds for which pods that are made for other nodes count as progress
_LONGEST_NAME: Final = 253  # characters, of any object
_NEVER = math.inf


@dataclass(frozen=True, slots=True)
class Deadline:
    """`until` is when waiting ends; `words` is what is said from then on, "" until then."""

    until: float = _NEVER
    words: str = ""


PATIENT: Final = Deadline()


def gone(node: Node, now: float) -> Deadline:
    """How long a machine is waited for that went down; the words are of one in its change."""
    until = believed(node.ready_since, now) + LOST
    if not node.ready_since:
        return PATIENT
    if now < until:
        return Deadline(until)
    since = rfc3339(node.ready_since)
    return Deadline(words=f"its node is down since {since}, in the middle of its change")


@dataclass(frozen=True)
class Deadlines:
    """Listens to the nodes of one Driver."""

    snapshot: Snapshot
    driver: Driver

    def hear(self, node: Node, assigned: str, word: NodeDriverObject | None) -> Deadline:
        """`word` is what the node said in this boot and for the revision that it has, if it did."""
        if word is not None and word.state:
            return self._waiting(
                self._believed(word.said),
                LAST_WORD + self.driver.spec.build.timeout_seconds,
                lambda: f"it said {word.state} at {rfc3339(word.said)}, and nothing since",
            )
        if not assigned:
            return PATIENT
        if (length := len(node_driver_name(self.driver.name, node.name))) > _LONGEST_NAME:
            return Deadline(
                words=f"its NodeDriver would have a name of {length} characters, and the API "
                f"server takes {_LONGEST_NAME}: give the Driver or the node a shorter one"
            )
        daemonset = daemonset_name(self.driver.name, assigned)
        if (pod := self._pods.get((node.name, daemonset))) is not None:
            return self._waiting(
                max(pod.created, self._believed(node.ready_since)) if pod.created else 0.0,
                NO_WORD,
                lambda: f"its pod says nothing: see {self._describe} pod {pod.name}",
            )
        return self._without_a_pod(node, daemonset)

    def corrected(self, assigned: str, word: NodeDriverObject) -> Deadline:
        """`word` is a failure that its next pod will not meet."""
        found = self.snapshot.daemonsets.get(daemonset_name(self.driver.name, assigned))
        said = self._believed(word.said)
        return self._waiting(
            max(said, min(found.touched, said + _OTHERS)) if found else said,
            NO_WORD,
            lambda: (
                f"it failed at {rfc3339(word.said)}, and its next pod, with another toolkit image, "
                f"says nothing: see {self._describe} daemonset {found.name if found else ''}"
            ),
        )

    def _without_a_pod(self, node: Node, daemonset: str) -> Deadline:
        """A node whose DaemonSet is still to be made waits for us."""
        found = self.snapshot.daemonsets.get(daemonset)
        if found is None or found.deleting or not node.labelled:
            return PATIENT
        own = max(self._believed(node.labelled), found.touched)
        return self._waiting(
            max(own, min(self._at_work, own + _OTHERS)),
            NO_POD,
            lambda: (
                f"assigned at {rfc3339(node.labelled)}, and nobody makes a pod for it: "
                f"see {self._describe} daemonset {found.name}"
            ),
        )

    def _waiting(self, since: float, patience: float, words: Callable[[], str]) -> Deadline:
        if not since:
            return PATIENT
        until = since + patience
        return Deadline(until) if self.snapshot.now < until else Deadline(words=words())

    def _believed(self, moment: float) -> float:
        return believed(moment, self.snapshot.now)

    @property
    def _describe(self) -> str:
        return f"kubectl -n {self.snapshot.settings.namespace} describe"

    @cached_property
    def _at_work(self) -> float:
        """When the DaemonSet controller was last seen to do anything for us."""
        return max((found.touched for found in self.snapshot.daemonsets.values()), default=0.0)

    @cached_property
    def _pods(self) -> Mapping[tuple[str, str], DriverPod]:
        """By node and DaemonSet; one that is ending is a pod too, until it is gone."""
        mine = (pod for pod in self.snapshot.pods_of(self.driver.name) if pod.unloader is None)
        return {(pod.node, pod.daemonset): pod for pod in mine}
