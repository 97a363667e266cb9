"""Timeouts for nodes in progress: how long a silent node is waited for, and what is reported then.

Pure. All deadlines count from times stored in the API server (managed fields, pod creation), so
another controller continues where the last one stopped, on the server's clock (server_time.py).
Times are wall-clock times; 0 is unknown. A time that is too far in the future counts as long past:
nothing is waited for after it (timestamps.py).

    no pod         `NO_POD` after the node was assigned and the DaemonSet controller was last active
                   (it creates pods gradually, so its work for other nodes counts for a while)
    no report      `NO_REPORT` after the pod was created, or after the node came up with it;
                   no wait at all if the name of its NodeDriver would be too long
    last report    `LAST_REPORT` plus the build deadline after that report: the node has deadlines
                   for everything it does and reports how each of them ended; none while it
                   waits for a driver that it comes after
    correction     `NO_REPORT` after a failure that the next pod will not repeat, and after we last
                   changed the node's DaemonSet or a label of the node; none while the DaemonSet
                   still has the old image
    node down      `NODE_DOWN` after it went down, e.g. in the middle of a change; then it is given
                   up
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from cluster.kube.timestamps import distrust_far_future
from cluster.model.names import daemonset_name
from cluster.model.snapshot import DriverPod, Node, NodeReport, Snapshot
from nodeside.protocol.labels import node_driver_name
from nodeside.protocol.node_status import WAITS_FOR_DRIVER
from nodeside.protocol.timestamps import rfc3339
from nodeside.spec import Driver

NO_POD: Final = 60.0  # seconds
NO_REPORT: Final = 600.0
LAST_REPORT: Final = 3600.0
NODE_DOWN: Final = 600.0
_WORK_ELSEWHERE = 900.0  # seconds for which the DaemonSet controller's work for other nodes counts
_LONGEST_NAME: Final = 253  # characters, the limit for object names
_NEVER = math.inf


@dataclass(frozen=True, slots=True)
class NodeDeadline:
    """A deadline. `until` is when waiting ends; `message` is what to report then, "" before."""

    until: float = _NEVER
    message: str = ""


NO_DEADLINE: Final = NodeDeadline()


def down_deadline(node: Node, now: float) -> NodeDeadline:
    """Return the deadline for a node that went down while it was being changed."""
    until = distrust_far_future(node.ready_since, now) + NODE_DOWN
    if not node.ready_since:
        return NO_DEADLINE
    if now < until:
        return NodeDeadline(until)
    since = rfc3339(node.ready_since)
    return NodeDeadline(
        message=f"its node has been down since {since}, in the middle of its change"
    )


@dataclass(frozen=True)
class NodeDeadlines:
    """The deadlines for the nodes of one Driver."""

    snapshot: Snapshot
    driver: Driver

    def report_deadline(self, node: Node, assigned: str, report: NodeReport | None) -> NodeDeadline:
        """Return the deadline for the node's next report.

        `report` is its report for this boot and its revision, None if there is none.
        """
        waits = report is not None and report.reason == WAITS_FOR_DRIVER
        if waits and self.driver.spec.after:
            return NO_DEADLINE
        if report is not None and report.state:
            return self._deadline_since(
                self._plausible_time(report.time),
                LAST_REPORT + self.driver.spec.build.timeout_seconds,
                lambda: f"it reported {report.state} at {rfc3339(report.time)}, and nothing since",
            )
        if not assigned:
            return NO_DEADLINE
        if (length := len(node_driver_name(self.driver.name, node.name))) > _LONGEST_NAME:
            return NodeDeadline(
                message=f"its NodeDriver would have a name of {length} characters, but the API "
                f"server accepts {_LONGEST_NAME}: give the Driver or the node a shorter name"
            )
        daemonset = daemonset_name(self.driver.name, assigned)
        if (pod := self._pods_by_node.get((node.name, daemonset))) is not None:
            return self._deadline_since(
                max(pod.created, self._plausible_time(node.ready_since)) if pod.created else 0.0,
                NO_REPORT,
                lambda: f"its pod has not reported: see {self._describe_command} pod {pod.name}",
            )
        return self._pod_deadline(node, daemonset)

    def correction_deadline(
        self, node: Node, assigned: str, report: NodeReport, image: str
    ) -> NodeDeadline:
        """Return the deadline for the report of the node's next pod, which has the toolkit `image`.

        That pod will not repeat the failure in `report`.
        """
        name = daemonset_name(self.driver.name, assigned)
        daemonset = self.snapshot.daemonsets.get(name)
        if daemonset is None or daemonset.toolkit != image:
            return NO_DEADLINE  # it waits for the controller
        times = report.time, daemonset.applied_at, node.labelled
        return self._deadline_since(
            max(map(self._plausible_time, times)),
            NO_REPORT,
            lambda: (
                f"it failed at {rfc3339(report.time)}, and its next pod, with toolkit "
                f"image {image}, has not reported: "
                f"see {self._describe_command} daemonset {name}"
            ),
        )

    def _pod_deadline(self, node: Node, name: str) -> NodeDeadline:
        """Return the deadline for the creation of a node's pod.

        There is none while its DaemonSet does not exist: then the node waits for the controller.
        """
        daemonset = self.snapshot.daemonsets.get(name)
        if daemonset is None or daemonset.deleting or not node.labelled:
            return NO_DEADLINE
        # Limited: a pod on another node changes the DaemonSet whenever its readiness changes.
        labelled = self._plausible_time(node.labelled)
        own = max(labelled, min(daemonset.touched, labelled + _WORK_ELSEWHERE))
        return self._deadline_since(
            max(own, min(self._controller_last_active, own + _WORK_ELSEWHERE)),
            NO_POD,
            lambda: (
                f"assigned at {rfc3339(node.labelled)}, but no pod was created for it: "
                f"see {self._describe_command} daemonset {name}"
            ),
        )

    def _deadline_since(
        self, since: float, patience: float, describe: Callable[[], str]
    ) -> NodeDeadline:
        if not since:
            return NO_DEADLINE
        until = since + patience
        return (
            NodeDeadline(until) if self.snapshot.now < until else NodeDeadline(message=describe())
        )

    def _plausible_time(self, moment: float) -> float:
        return distrust_far_future(moment, self.snapshot.now)

    @property
    def _describe_command(self) -> str:
        return f"kubectl -n {self.snapshot.settings.namespace} describe"

    @cached_property
    def _controller_last_active(self) -> float:
        """Returns when the DaemonSet controller was last active on any of our DaemonSets."""
        return max((each.touched for each in self.snapshot.daemonsets.values()), default=0.0)

    @cached_property
    def _pods_by_node(self) -> Mapping[tuple[str, str], DriverPod]:
        """Returns the driver pods by node and DaemonSet; terminating pods count until gone."""
        pods = self.snapshot.driver_pods_of(self.driver.name)
        return {(pod.node, pod.daemonset): pod for pod in pods}
