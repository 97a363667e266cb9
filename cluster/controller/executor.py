"""Carry out the actions of a plan.

Each Driver has a lane of its own: its actions are done in their order, and the first that fails
ends the lane, since a later one may rest on it; on a status none does. What is refused of one node
holds up that node, and what would be taken from under it: a webhook or a limit may stand against
one node of thousands. Neighbours of one kind (the labels of 5,000 nodes, the DaemonSets of 20
pools) do not rest on each other and go out in parallel. A round takes a few seconds at most: what
is left over then is planned again, by what is seen then, so that a Driver with many nodes keeps no
other one waiting. Nothing begins, and no request lasts, when the lead is over.
"""

from __future__ import annotations

import hashlib
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, assert_never

from cluster.controller import drain_requests, node_labels
from cluster.controller.failures import Failure, failure_of
from cluster.kube.client import Api
from cluster.kube.election import Leadership, LostLead
from cluster.kube.errors import ApiError, Conflict, NotFound
from cluster.kube.managed_fields import kept_from
from cluster.kube.resources import DRIVERS, JOBS, NODES, Resource, resource_of
from cluster.model.actions import (
    Action,
    AnnotateJob,
    Apply,
    Cordon,
    Create,
    Delete,
    EmitEvent,
    Evict,
    LabelNode,
    Plan,
    SetFinalizers,
    SetStatus,
    Uncordon,
    node_of,
    rests_on,
    waits_for_all,
)
from cluster.model.lanes import is_stage_lane, node_lane_of, status_lane_of
from cluster.model.names import OUTCOME_NOTE
from cluster.model.snapshot import Snapshot
from nodeside import log
from nodeside.contract import API_GROUP, API_VERSION
from nodeside.timestamps import rfc3339_micro

PARALLEL = 16  # requests at once: more than this only queues up in the API server
_LANES = 8  # Drivers at once
_OF_NODES = (LabelNode, Cordon, Uncordon, Evict)
_ROUND = 5.0  # seconds, after which labels and what rests on them are left to the next round
_REQUEST = 10.0  # seconds for one request with its repetitions


@dataclass
class Outcome:
    """What came of a plan.

    `written` is the newest version of each kind that we wrote, `deleted` what was deleted.
    `troubles` concern one lane of a Driver; `outage` concerns all: the API server is gone, or
    overloaded.
    `applied` is what was, with the stamp that it has since (see managed_fields.py).
    `asked` are pods, by uid, that were asked to leave, with the refusal or "".
    `unfinished` are Drivers for whom time ran out. `overtaken`: somebody else was faster somewhere.
    """

    done: int = 0
    applied: list[tuple[Apply, str]] = field(default_factory=list)
    asked: dict[str, str] = field(default_factory=dict)
    written: dict[Resource, str] = field(default_factory=dict)
    deleted: list[Delete] = field(default_factory=list)
    troubles: dict[str, Failure] = field(default_factory=dict)
    unfinished: set[str] = field(default_factory=set)
    overtaken: bool = False
    outage: ApiError | None = None
    lost: LostLead | None = None


class Applier:
    """Use as a context manager: its threads end with it."""

    def __init__(
        self,
        api: Api,
        *,
        instance: str,
        parallel: int = PARALLEL,
        seconds: float = _ROUND,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._seconds = seconds
        self._now = now
        self._instance = instance
        self._wall = wall
        self._requests = ThreadPoolExecutor(parallel, thread_name_prefix="request")
        self._lanes = ThreadPoolExecutor(_LANES, thread_name_prefix="driver")
        self._lock = threading.Lock()
        self._collided: set[str] = set()

    def __enter__(self) -> Applier:
        return self

    def __exit__(self, *_: object) -> None:
        self._lanes.shutdown()
        self._requests.shutdown()

    def carry_out(self, plan: Plan, snapshot: Snapshot, leadership: Leadership) -> Outcome:
        """Everything that can be done; returns when nothing is under way any more."""
        ends = self._now() + self._seconds
        lanes = _Lanes(self, snapshot, leadership, Outcome(), lambda: self._now() >= ends)
        list(self._lanes.map(lambda name: lanes.run(name, plan.of(name)), plan.drivers()))
        return lanes.outcome

    def in_parallel(
        self, do: Callable[[Action], None], actions: Sequence[Action]
    ) -> Iterator[None]:
        return self._requests.map(do, actions)

    def collides_again(self, action: Action) -> bool:
        """Whether something of that name was in the way before, and the look since did not show
        what: then it is not ours."""
        with self._lock:
            again = action.words in self._collided
            if isinstance(action, Create):
                self._collided.add(action.words)
        return again

    def do(self, action: Action, snapshot: Snapshot, seconds: float, outcome: Outcome) -> None:
        """One action, as one request of at most so many seconds. Raises ApiError."""
        limit: dict[str, Any] = {"deadline": min(seconds, _REQUEST)}
        match action:
            case Apply() | Create():
                self._put(action, outcome, limit)
            case LabelNode() | Cordon() | Uncordon():
                self._change_node(action, snapshot, outcome, limit)
            case AnnotateJob():
                self._note_outcome(action, outcome, limit)
            case Evict():
                self._evict(action, outcome, limit)
            case SetStatus():
                self._set_status(action, snapshot, outcome, limit)
            case SetFinalizers():
                self._set_finalizers(action, outcome, limit)
            case Delete():
                self._delete(action, outcome, limit)
            case EmitEvent():
                self._say(action, limit)
            case _:
                assert_never(action)

    def _put(self, action: Apply | Create, outcome: Outcome, limit: Mapping[str, Any]) -> None:
        if isinstance(action, Apply):
            answer = self._apply(action, limit)
            with self._lock:
                outcome.applied.append((action, kept_from(answer).stamp))
        else:
            answer = self._api.create(action.document, **limit)
            with self._lock:
                self._collided.discard(action.words)
        if not is_stage_lane(action.driver):  # those have watches of their own
            self._wrote(outcome, resource_of(action.document), answer)

    def _apply(self, action: Apply, limit: Mapping[str, Any]) -> Mapping[str, Any]:
        """What others own is made ours before: an apply would leave it where it is."""
        if action.over is not None and action.over.regains is not None:
            resource, metadata = resource_of(action.document), action.document["metadata"]
            self._api.merge_patch(
                resource,
                metadata["name"],
                action.over.regains,
                namespace=metadata["namespace"],
                **limit,
            )
        return self._api.apply(action.document, **limit)

    def _set_finalizers(
        self, action: SetFinalizers, outcome: Outcome, limit: Mapping[str, Any]
    ) -> None:
        metadata: dict[str, Any] = {"uid": action.uid, "finalizers": list(action.finalizers)}
        if action.version:
            metadata["resourceVersion"] = action.version
        patch = {"metadata": metadata}
        with suppress(NotFound):
            answer = self._api.merge_patch(DRIVERS, action.driver, patch, **limit)
            self._wrote(outcome, DRIVERS, answer)

    def _note_outcome(
        self, action: AnnotateJob, outcome: Outcome, limit: Mapping[str, Any]
    ) -> None:
        noted = {"uid": action.uid, "annotations": {OUTCOME_NOTE: action.note}}
        patch = {"metadata": noted}
        with suppress(NotFound):
            answer = self._api.merge_patch(
                JOBS, action.name, patch, namespace=action.namespace, **limit
            )
            self._wrote(outcome, JOBS, answer)

    def _change_node(
        self,
        action: LabelNode | Cordon | Uncordon,
        snapshot: Snapshot,
        outcome: Outcome,
        limit: Mapping[str, Any],
    ) -> None:
        with suppress(NotFound):  # a node that is gone needs no label
            node = snapshot.nodes.get(action.node)
            seen = node.labels if node is not None else {}
            if isinstance(action, LabelNode):
                answer = node_labels.label(self._api, action, seen, limit)
            else:
                answer = drain_requests.change(self._api, action, limit, seen)
            self._wrote(outcome, NODES, answer)

    def _evict(self, action: Evict, outcome: Outcome, limit: Mapping[str, Any]) -> None:
        """A refusal is an answer like another: when to ask again is the next plan's business."""
        refusal = drain_requests.evict(self._api, action, limit)
        if refusal:
            log.detail(f"cannot {action.words} yet: {refusal}", driver=action.driver)
        with self._lock:
            outcome.asked[action.uid] = refusal

    def _set_status(
        self, action: SetStatus, snapshot: Snapshot, outcome: Outcome, limit: Mapping[str, Any]
    ) -> None:
        driver = snapshot.drivers.get(action.driver)
        patch = {"status": difference(driver.status if driver else {}, action.status)}
        with suppress(NotFound):  # deleted meanwhile
            answer = self._api.merge_patch(
                DRIVERS, action.driver, patch, subresource="status", **limit
            )
            self._wrote(outcome, DRIVERS, answer)

    def _delete(self, action: Delete, outcome: Outcome, limit: Mapping[str, Any]) -> None:
        with suppress(NotFound, Conflict):  # gone, or already another one of that name
            self._api.delete(
                action.resource, action.name, namespace=action.namespace, uid=action.uid, **limit
            )
        with self._lock:
            outcome.deleted.append(action)

    def _say(self, action: EmitEvent, limit: Mapping[str, Any]) -> None:
        """An Event is worth no retry and no trouble."""
        try:
            self._api.create(event(action, now=self._wall(), instance=self._instance), **limit)
        except LostLead:
            raise
        except ApiError as error:
            log.warning(f"cannot {action.words}: {error}", hint=error.hint)

    def _wrote(self, outcome: Outcome, resource: Resource, answer: Mapping[str, Any]) -> None:
        version = str(answer.get("metadata", {}).get("resourceVersion", ""))
        with self._lock:
            before = outcome.written.get(resource, "0")
            if version.isdecimal() and int(version) > int(before):
                outcome.written[resource] = version


@dataclass
class _Lanes:
    """One plan being carried out."""

    applier: Applier
    snapshot: Snapshot
    leadership: Leadership
    outcome: Outcome
    late: Callable[[], bool]
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, driver: str, actions: Sequence[Action]) -> None:
        """The lane of a Driver."""
        for _, neighbours in groupby(actions, key=_kind):
            self._all(driver, list(neighbours))
            if self._ended(driver):
                return

    def _all(self, driver: str, actions: Sequence[Action]) -> None:
        if len(actions) == 1:
            self._one(driver, actions[0])
        else:
            list(self.applier.in_parallel(lambda action: self._one(driver, action), actions))

    def _one(self, driver: str, action: Action) -> None:
        troubles = self.outcome.troubles
        stopped = any(lane in troubles for lane in rests_on(action))
        stopped = stopped or waits_for_all(action, troubles)
        if self._ended(driver) or stopped or self._left_over(driver, action):
            return
        try:
            self.applier.do(action, self.snapshot, self.leadership.left(), self.outcome)
        except LostLead as lost:
            self.outcome.lost = lost
        except ApiError as error:
            self._failed(driver, action, error)
        except Exception as exc:  # a bug of ours: shown, and no reason to let others down
            traceback.print_exc()
            self._note(driver, action, exc)
        else:
            log.detail(action.words, driver=driver)
            with self._lock:
                self.outcome.done += 1

    def _failed(self, driver: str, action: Action, error: ApiError) -> None:
        """A silent or overloaded API server concerns everybody, a refusal this Driver only, or one
        node of it.

        A conflict is neither: somebody was faster, and the next look sees what he did.
        """
        if isinstance(error, Conflict) and not self.applier.collides_again(action):
            log.detail(f"cannot {action.words}: {error}")
            self.outcome.overtaken = True
        elif error.concerns_all:
            self.outcome.outage = error
        else:
            self._note(driver, action, error)

    def _note(self, driver: str, action: Action, error: Exception) -> None:
        mute, node, lane = isinstance(action, SetStatus), node_of(action), driver
        if mute:
            lane = status_lane_of(driver)
        elif node and isinstance(error, ApiError) and error.concerns_one:
            lane = node_lane_of(driver, node)
        trouble = replace(failure_of(error, action.words), mute=mute)
        with self._lock:
            self.outcome.troubles.setdefault(lane, trouble)

    def _left_over(self, driver: str, action: Action) -> bool:
        """Whether there is no time for it. A status says what was seen, so it is always true."""
        if isinstance(action, SetStatus):
            return False
        if isinstance(action, _OF_NODES) and self.late():
            self.outcome.unfinished.add(driver)
        return driver in self.outcome.unfinished

    def _ended(self, driver: str) -> bool:
        outcome = self.outcome
        return bool(outcome.lost or outcome.outage) or driver in outcome.troubles


def _kind(action: Action) -> tuple[object, ...]:
    """Neighbours of the same kind may go out together."""
    if isinstance(action, Apply):
        return Apply, action.document.get("kind")
    return (type(action),)


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch (RFC 7386) that makes `after` of `before`."""
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            if inner := difference(old, value):
                patch[key] = inner
        elif key not in before or old != value:
            patch[key] = value
    return patch


EVENT_NAMESPACE = "default"  # where the API server wants events about objects without a namespace


_NOTE_LIMIT = 1024  # bytes, of an Event's note; a longer one is refused


def event(say: EmitEvent, *, now: float, instance: str) -> dict[str, Any]:
    """The Event of a `Say`. `now` is the wall clock, `instance` the name of our pod."""
    mark = hashlib.sha256(f"{say.uid}{say.reason}{say.note}{now}".encode()).hexdigest()[:16]
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{say.driver}.{mark}", "namespace": EVENT_NAMESPACE},
        "eventTime": rfc3339_micro(now),
        "reportingController": f"{API_GROUP}/cluster",
        "reportingInstance": instance[:128],
        "action": "Reconcile",
        "reason": say.reason,
        "type": "Warning" if say.warning else "Normal",
        "regarding": {
            "apiVersion": API_VERSION,
            "kind": "Driver",
            "name": say.driver,
            "uid": say.uid,
        },
        "note": say.note.encode()[:_NOTE_LIMIT].decode(errors="ignore"),
    }
