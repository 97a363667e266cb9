"""What a plan says is to be done: values that controller.py carries out, in their order.

An action that failed ends the plan for its driver: a later one may rest on it (a node is labelled
only after the DaemonSet of that label is there, a finalizer goes last). Only on a status rests
nothing but what is told with it, and on what is done to one node what else is done to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

from cluster.kube.managed_fields import Overwrite
from cluster.kube.resources import CONFIG_MAPS, DAEMON_SETS, NODE_DRIVERS, Resource
from cluster.model.lanes import is_node_lane, node_lane_of, status_lane_of, whole_lane_of
from cluster.model.snapshot import Pool, Tag
from cluster.model.stages import Template
from cluster.model.states import Phase, Place, Progress

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of a whole document, field manager nodeside-cluster, forced.

    `over` is what is there already, None if nothing is.
    """

    driver: str
    document: Mapping[str, Any]
    over: Overwrite | None = None

    @property
    def words(self) -> str:
        return f"apply {self.document['kind']} {self.document['metadata']['name']}"


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object whose name says all of what it is for: one that is there already will do.

    `node` is the only one that it is for.
    """

    driver: str
    document: Mapping[str, Any]
    node: str

    @property
    def words(self) -> str:
        return f"create {self.document['kind']} {self.document['metadata']['name']}"


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete one object, if it is still the one with this uid ("" where it does not matter)."""

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
    """Set these labels of a node, if they still are as they were seen; None takes one away."""

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
    """Note on a build Job what came of it: its pods, which said so, go one day."""

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
    """Begin to drain a node: these labels, and no new pods, in one request.

    A node that is cordoned already stays as it is: who did that ends it.
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
    """Take back our own cordon, with these labels; labels alone unless it `opens` the node."""

    driver: str
    node: str
    labels: Mapping[str, str | None]
    opens: bool = True

    @property
    def words(self) -> str:
        return f"uncordon node {self.node}"


@dataclass(frozen=True, slots=True)
class Evict:
    """Ask a pod to leave through the eviction API, if it is still the one with this uid."""

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
    """Replace the status of a Driver (merge patch of its status subresource does, lists are whole).

    The status is complete: what it does not hold is to be removed.
    """

    driver: str
    status: Mapping[str, Any]

    @property
    def words(self) -> str:
        return f"set the status of driver {self.driver}"


@dataclass(frozen=True, slots=True)
class SetFinalizers:
    """Make these the finalizers of a Driver, if it is still the one with this uid.

    And if nobody changed it since: the list is written as a whole, with what others put into it.
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
    """An Event about a Driver. Said once: the plan that says it also changes what caused it.

    `of_status`: what changes is the status, before it; without that it would be said each time.
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
    """The lanes of which each stops this action when something was refused there.

    A refused status stops only what is told of the Driver; what else is refused, the status tells.
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
    """The only node that an action is about, "" if it is about more."""
    match action:
        case LabelNode() | Cordon() | Uncordon() | Evict() | Create():
            return action.node
        case Delete(resource=resource) if resource == NODE_DRIVERS:
            return action.name.partition(".")[2]
        case _:
            return ""


def waits_for_all(action: Action, lanes: Collection[str]) -> bool:
    """Whether something may be taken away from a node that, in one of these `lanes` of trouble,
    could not be given what comes after it."""
    takes = isinstance(action, Delete) and action.resource in (DAEMON_SETS, CONFIG_MAPS)
    return takes and any(
        is_node_lane(lane) and whole_lane_of(lane) == action.driver for lane in tuple(lanes)
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """`again_in`: seconds after which to plan again though nothing changed; None: never.

    `censuses` are the nodes of each Driver, counted: for metrics. `demand`: the pods that have to
    be known to go on; None: none. `tags`: those whose images should be known. `templates`: those of
    stages that should be rendered. `alone`: of one Driver, and it rests on nothing of others.
    """

    actions: tuple[Action, ...] = ()
    again_in: float | None = None
    censuses: Mapping[str, Counts] = field(default_factory=dict)
    demand: Demand | None = None
    tags: frozenset[Tag] = frozenset()
    templates: frozenset[Template] = frozenset()
    alone: bool = False

    def of(self, driver: str) -> tuple[Action, ...]:
        """The actions for one driver, in order: drivers do not wait for each other."""
        return tuple(action for action in self.actions if action.driver == driver)

    def drivers(self) -> Iterator[str]:
        """Whom there is something to do for, in order."""
        return iter(dict.fromkeys(action.driver for action in self.actions))


def together(plans: Sequence[Plan], *more: Action) -> Plan:
    """One plan of several, in their order, and `more` actions behind them."""
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
    """Pods with one of these resources, or all labels of one selector. No `namespaces`: of all."""

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
    """One demand for all of them; None if there is none."""
    asked = [demand for demand in demands if demand is not None]
    return reduce(Demand.__or__, asked) if asked else None


@dataclass(frozen=True, slots=True)
class PoolCount:
    """A pool, the link of the chain that found its toolkit image, and its nodes."""

    pool: Pool
    link: str
    nodes: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Nodes by place and by their own last word. `unavailable` is counted against `allowed`."""

    phase: Phase
    places: Mapping[Place, int]
    states: Mapping[str, int]
    pools: Sequence[PoolCount]
    builds: Mapping[Progress, int]
    unavailable: int
    allowed: int
