"""The actions of a plan, which the executor carries out in order.

A failed action ends the plan for its driver, since later actions may depend on it (a node is
labelled only after the DaemonSet of that label exists, a finalizer is removed last). There are two
exceptions: only Events about the status depend on a status update, and only actions on the same
node depend on an action on one node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from cluster.kube.managed_fields import Overwrite
from cluster.kube.resources import CONFIG_MAPS, DAEMON_SETS, NODE_DRIVERS, Resource
from cluster.model.lanes import is_node_lane, node_lane_of, status_lane_of, whole_lane_of
from cluster.model.snapshot import Pool, Tag
from cluster.model.stages import Template
from cluster.model.states import Phase, Place, Progress


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of a whole document with force, as field manager nodeside-cluster.

    `over` describes the existing object, None if there is none.
    """

    driver: str
    document: Mapping[str, Any]
    over: Overwrite | None = None

    @property
    def words(self) -> str:
        return f"apply {self.document['kind']} {self.document['metadata']['name']}"


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object whose name identifies its purpose, so an existing one is just as good.

    `node` is the only node it is for.
    """

    driver: str
    document: Mapping[str, Any]
    node: str

    @property
    def words(self) -> str:
        return f"create {self.document['kind']} {self.document['metadata']['name']}"


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete one object if it still has this uid ("": any uid)."""

    driver: str
    resource: Resource
    name: str
    namespace: str = ""
    uid: str = ""

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
class AnnotateJob:
    """Record the outcome of a build on its Job, since the pods that reported it do not last."""

    driver: str
    name: str
    namespace: str
    uid: str
    note: str

    @property
    def words(self) -> str:
        return f"note the outcome of Job {self.name}"


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
class Evict:
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
            return f"take the last finalizer off driver {self.driver}"
        return f"set the finalizers of driver {self.driver}: {', '.join(self.finalizers)}"


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """An Event about a Driver. It is emitted once, since the same plan also changes its cause.

    `of_status`: that change is the preceding status update; if it failed, the Event would repeat.
    """

    driver: str
    uid: str
    warning: bool
    reason: str
    note: str
    of_status: bool = False

    @property
    def words(self) -> str:
        return f"say of driver {self.driver}: {self.reason}"


Action = (
    Apply
    | Create
    | Delete
    | LabelNode
    | Cordon
    | Uncordon
    | Evict
    | AnnotateJob
    | SetStatus
    | SetFinalizers
    | EmitEvent
)


def rests_on(action: Action) -> tuple[str, ...]:
    """Return the lanes in which a failure blocks this action.

    A failed status update blocks only Events about the status; the status reports other failures.
    """
    match action:
        case SetStatus():
            return (status_lane_of(action.driver),)
        case EmitEvent(of_status=True):
            return action.driver, status_lane_of(action.driver)
        case _:
            node = node_of(action)
            lane = action.driver
            return (lane, node_lane_of(lane, node)) if node else (lane,)


def node_of(action: Action) -> str:
    """Return the only node that an action concerns, "" if it is not limited to one node."""
    match action:
        case LabelNode() | Cordon() | Uncordon() | Evict() | Create():
            return action.node
        case Delete(resource=resource) if resource == NODE_DRIVERS:
            return action.name.partition(".")[2]
        case _:
            return ""


def waits_for_all(action: Action, lanes: Collection[str]) -> bool:
    """Return whether a deletion must wait because a node of the driver has a failure in `lanes`.

    That node may still use the object to delete, since it could not be moved to its replacement.
    """
    takes = isinstance(action, Delete) and action.resource in (DAEMON_SETS, CONFIG_MAPS)
    return takes and any(
        is_node_lane(lane) and whole_lane_of(lane) == action.driver for lane in tuple(lanes)
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """A list of actions, and what the next plan needs.

    `again_in`: seconds until the next plan even if nothing changes; None: never. `censuses`: node
    counts of each Driver, for metrics. `demand`: the pods that must be watched to continue; None if
    there are none. `tags`: image stream tags whose image labels are needed. `templates`: stage
    templates to render. `alone`: the plan is for one Driver and depends on nothing of others.
    """

    actions: tuple[Action, ...] = ()
    again_in: float | None = None
    censuses: Mapping[str, Counts] = field(default_factory=dict)
    demand: Demand | None = None
    tags: frozenset[Tag] = frozenset()
    templates: frozenset[Template] = frozenset()
    alone: bool = False

    def of(self, driver: str) -> tuple[Action, ...]:
        """Return the actions for one driver, in order: drivers do not wait for each other."""
        return tuple(action for action in self.actions if action.driver == driver)

    def drivers(self) -> Iterator[str]:
        """Return the drivers that have actions, in order."""
        return iter(dict.fromkeys(action.driver for action in self.actions))


def together(plans: Sequence[Plan], *more: Action) -> Plan:
    """Merge plans in their order, followed by the actions in `more`."""
    actions = [action for plan in plans for action in plan.actions]
    waits = [plan.again_in for plan in plans if plan.again_in is not None]
    censuses = {name: found for plan in plans for name, found in plan.censuses.items()}
    demand = all_of(plan.demand for plan in plans)
    tags = frozenset().union(*(plan.tags for plan in plans))
    templates = frozenset().union(*(plan.templates for plan in plans))
    return Plan((*actions, *more), min(waits, default=None), censuses, demand, tags, templates)


Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Demand:
    """Pods that request one of the resources, or have all labels of one selector.

    Empty `namespaces` means all namespaces.
    """

    resources: frozenset[str]
    selectors: frozenset[Labels]
    namespaces: frozenset[str]

    def __or__(self, other: Demand) -> Demand:
        every = not self.namespaces or not other.namespaces
        return Demand(
            self.resources | other.resources,
            self.selectors | other.selectors,
            frozenset() if every else self.namespaces | other.namespaces,
        )


def all_of(demands: Iterable[Demand | None]) -> Demand | None:
    """Return the union of the demands; None if there is none."""
    asked = [demand for demand in demands if demand is not None]
    return reduce(Demand.__or__, asked) if asked else None


@dataclass(frozen=True, slots=True)
class PoolCount:
    """A pool, the rule that found its toolkit image, and its number of nodes."""

    pool: Pool
    link: str
    nodes: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Node counts of a Driver by place and by last reported state.

    `unavailable` is counted against `allowed`.
    """

    phase: Phase
    places: Mapping[Place, int]
    states: Mapping[str, int]
    pools: Sequence[PoolCount]
    builds: Mapping[Progress, int]
    unavailable: int
    allowed: int
