"""The actions of a plan, which the executor carries out in order.

A failed action ends the plan for its driver, since later actions may depend on it (a node is
labelled only after the DaemonSet of that label exists, a finalizer is removed last). There are two
exceptions. Only Events about the status and the deletion of old revisions depend on a status
update. Only actions on the same node depend on an action on one node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from cluster.kube.managed_fields import ExistingObject
from cluster.kube.resources import CONFIG_MAPS, DAEMON_SETS, NODE_DRIVERS, Resource
from cluster.model.lanes import CORDONS, MAIN, STATUS, Lane, LanePart
from cluster.model.pod_demand import PodDemand
from cluster.model.snapshot import Pool, Tag
from cluster.model.stages import Template
from cluster.model.states import BuildProgress, Phase, Place
from nodeside.protocol.labels import parse_node_driver_name


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of a whole document with force, as field manager nodeside-cluster.

    `over` describes the existing object, None if there is none. `part` belongs to the lane.
    """

    driver: str
    document: Mapping[str, Any]
    over: ExistingObject | None = None
    part: LanePart = MAIN

    @property
    def words(self) -> str:
        return f"apply {self.document['kind']} {self.document['metadata']['name']}"


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object whose name identifies its purpose, so an existing one is just as good.

    `node` is the only node it is for, "" for any. `part` belongs to the lane.
    """

    driver: str
    document: Mapping[str, Any]
    node: str = ""
    part: LanePart = MAIN

    @property
    def words(self) -> str:
        return f"create {self.document['kind']} {self.document['metadata']['name']}"

    @property
    def target(self) -> tuple[str, str, str]:
        """Kind, namespace and name of the object."""
        metadata = self.document["metadata"]
        return self.document["kind"], metadata.get("namespace", ""), metadata["name"]


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete one object if it still has this uid ("": any uid). `part` belongs to the lane.

    `of_status` means that the status may name the object until the preceding status update.
    """

    driver: str
    resource: Resource
    name: str
    namespace: str = ""
    uid: str = ""
    part: LanePart = MAIN
    of_status: bool = False

    @property
    def words(self) -> str:
        return f"delete {self.resource.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class LabelNode:
    """Set these labels of a node if they are unchanged since the snapshot; None removes one."""

    driver: str
    node: str
    labels: Mapping[str, str | None]
    why: str = ""

    @property
    def words(self) -> str:
        changed = (f"{key}={value}" if value else f"{key}-" for key, value in self.labels.items())
        return f"label node {self.node} {' '.join(changed)}"


@dataclass(frozen=True, slots=True)
class Annotate:
    """Set an annotation of an object that still has this uid. `node` is the only node it is for."""

    driver: str
    resource: Resource
    name: str
    namespace: str
    uid: str
    key: str
    value: str
    node: str = ""

    @property
    def words(self) -> str:
        return f"annotate {self.resource.kind} {self.name}: {self.key}"


@dataclass(frozen=True, slots=True)
class Cordon:
    """Start to drain a node: set these labels and cordon it in one request.

    A node that is already cordoned is left to whoever cordoned it.
    """

    driver: str
    node: str
    labels: Mapping[str, str | None]
    why: str = ""

    @property
    def words(self) -> str:
        return f"cordon node {self.node}"


@dataclass(frozen=True, slots=True)
class Uncordon:
    """End our drain of a node: set these labels, and uncordon it if `opens`."""

    driver: str
    node: str
    labels: Mapping[str, str | None]
    opens: bool = True

    @property
    def words(self) -> str:
        return f"uncordon node {self.node}"


@dataclass(frozen=True, slots=True)
class EvictPod:
    """Evict a pod through the eviction API if it still has this uid."""

    driver: str
    node: str
    namespace: str
    pod: str
    uid: str

    @property
    def words(self) -> str:
        return f"evict pod {self.namespace}/{self.pod} from node {self.node}"


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Replace the status of a Driver by a merge patch of its status subresource.

    The status is complete: fields it does not contain are removed. Lists are replaced as a whole.
    """

    driver: str
    status: Mapping[str, Any]

    @property
    def words(self) -> str:
        return f"set the status of driver {self.driver}"


@dataclass(frozen=True, slots=True)
class SetFinalizers:
    """Set the finalizers of a Driver if it still has this uid and resource version.

    The list is written as a whole and includes the finalizers of others, so a concurrent change
    must not be overwritten.
    """

    driver: str
    uid: str
    finalizers: tuple[str, ...]
    version: str = ""

    @property
    def words(self) -> str:
        if not self.finalizers:
            return f"remove the last finalizer of driver {self.driver}"
        return f"set the finalizers of driver {self.driver}: {', '.join(self.finalizers)}"


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """An Event about a Driver. It is emitted once, since the same plan also changes its cause.

    `of_status` means that its cause is changed by the preceding status update: without that, the
    Event would be emitted again.
    """

    driver: str
    uid: str
    warning: bool
    reason: str
    note: str
    of_status: bool = False

    @property
    def words(self) -> str:
        return f"create Event {self.reason} of driver {self.driver}"


Action = (
    Apply
    | Create
    | Delete
    | LabelNode
    | Cordon
    | Uncordon
    | EvictPod
    | Annotate
    | SetStatus
    | SetFinalizers
    | EmitEvent
)


def lane_of(action: Action) -> Lane:
    """Return the lane in which an action is carried out."""
    match action:
        case Apply(part=part) | Create(part=part) | Delete(part=part):
            return Lane(action.driver, part)
        case Uncordon():
            return Lane(action.driver, CORDONS)
        case _:
            return Lane(action.driver)


def depends_on(action: Action) -> tuple[Lane, ...]:
    """Return the lanes in which a failure blocks this action.

    A failed status update blocks only what is `of_status`. Nothing else blocks a status update,
    since the status reports the other failures.
    """
    lane, node = lane_of(action), node_of(action)
    match action:
        case SetStatus():
            return (Lane(action.driver, STATUS),)
        case EmitEvent(of_status=True) | Delete(of_status=True):
            return lane, Lane(action.driver, STATUS)
        case _:
            return (lane, lane.on_node(node)) if node else (lane,)


def node_of(action: Action) -> str:
    """Return the only node that an action concerns, "" if it is not limited to one node."""
    match action:
        case LabelNode() | Cordon() | Uncordon() | EvictPod() | Create() | Annotate():
            return action.node
        case Delete(resource=resource) if resource == NODE_DRIVERS:
            return parse_node_driver_name(action.name)[1]
        case _:
            return ""


def waits_for_all_nodes(action: Action, lanes: Collection[Lane]) -> bool:
    """Return whether a deletion must wait because a node of the driver has a failure in `lanes`.

    That node may still use the object to delete, since it could not be moved to its replacement.
    """
    if not isinstance(action, Delete) or action.resource not in (DAEMON_SETS, CONFIG_MAPS):
        return False
    own = lane_of(action)
    return any(lane.node and lane.on_node("") == own for lane in tuple(lanes))


@dataclass(frozen=True, slots=True)
class Plan:
    """A list of actions, and what the next plan needs.

    `requeue_after` is the seconds until the next plan even if nothing changes, None for never.
    `node_counts` are those of each Driver, for metrics. `demand` are the pods that must be
    watched to continue, None if there are none. `tags` are the image stream tags whose image labels
    are needed, `templates` the stage templates to render. `reads_all` means that the plan depends
    on objects of any Driver, so it is made anew each time. `errors` has, by Driver, the exceptions
    of Drivers that could not be planned and are left out; "" stands for what is for no Driver.
    """

    actions: tuple[Action, ...] = ()
    requeue_after: float | None = None
    node_counts: Mapping[str, NodeCounts] = field(default_factory=dict)
    demand: PodDemand | None = None
    tags: frozenset[Tag] = frozenset()
    templates: frozenset[Template] = frozenset()
    reads_all: bool = False
    errors: Mapping[str, Exception] = field(default_factory=dict)

    def requeued_within(self, waits: Iterable[float]) -> Plan:
        """Return the plan with `requeue_after` at most the shortest of these, in seconds."""
        every = waits if self.requeue_after is None else (*waits, self.requeue_after)
        return replace(self, requeue_after=min(every, default=None))

    def actions_by_lane(self) -> Mapping[Lane, Sequence[Action]]:
        """Return the actions by lane, in order: lanes do not wait for each other."""
        lanes: dict[Lane, list[Action]] = {}
        for action in self.actions:
            lanes.setdefault(lane_of(action), []).append(action)
        return lanes


def merge_plans(plans: Sequence[Plan], *more: Action) -> Plan:
    """Merge plans in their order, followed by the actions in `more`."""
    actions = [action for plan in plans for action in plan.actions]
    waits = [plan.requeue_after for plan in plans if plan.requeue_after is not None]
    node_counts = {name: found for plan in plans for name, found in plan.node_counts.items()}
    demands = [plan.demand for plan in plans if plan.demand is not None]
    demand = reduce(PodDemand.__or__, demands) if demands else None
    tags = frozenset().union(*(plan.tags for plan in plans))
    templates = frozenset().union(*(plan.templates for plan in plans))
    return Plan((*actions, *more), min(waits, default=None), node_counts, demand, tags, templates)


@dataclass(frozen=True, slots=True)
class PoolCount:
    """A pool, the rule that found its toolkit image, and its number of nodes."""

    pool: Pool
    link: str
    nodes: int


@dataclass(frozen=True, slots=True)
class NodeCounts:
    """Node counts of a Driver by place and by last reported state.

    `unavailable` is counted against `allowed`.
    """

    phase: Phase
    places: Mapping[Place, int]
    states: Mapping[str, int]
    pools: Sequence[PoolCount]
    builds: Mapping[BuildProgress, int]
    unavailable: int
    allowed: int
