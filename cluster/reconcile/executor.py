"""Carries out the actions of a plan.

The actions of a lane (see model/lanes.py) run in order, and the first failure ends the lane, since
later actions may depend on the failed one. Only what is `of_status` depends on a status. A refusal
that concerns one node stops only the actions on that node, and the deletion of objects it still
needs, because a webhook or a limit may reject one node of thousands. Consecutive actions of one
kind (the labels of 5,000 nodes, the DaemonSets of 20 pools) do not depend on each other and are
sent in parallel. A round takes a few seconds at most. The rest is planned again from a new
snapshot, so a Driver with many nodes does not delay the others. Once the lease is lost, no request
starts or continues.
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

from cluster.kube.client import Api
from cluster.kube.election import Leadership, LostLead
from cluster.kube.errors import ApiError, Conflict, NotFound
from cluster.kube.managed_fields import object_meta_from, replacement_patch
from cluster.kube.merge_patch import make_merge_patch
from cluster.kube.resources import DRIVERS, JOBS, NODES, Resource, resource_of
from cluster.model.actions import (
    Action,
    Annotate,
    Apply,
    Cordon,
    Create,
    Delete,
    EmitEvent,
    EvictPod,
    LabelNode,
    Plan,
    SetFinalizers,
    SetStatus,
    Uncordon,
    depends_on,
    lane_of,
    node_of,
    waits_for_all_nodes,
)
from cluster.model.lanes import STATUS, Lane
from cluster.model.snapshot import Snapshot
from cluster.reconcile import drain_requests, node_labels
from cluster.reconcile.failures import Failure, failure_of
from cluster.reconcile.node_labels import Limit, is_failed_test
from nodeside import log
from nodeside.protocol.labels import API_GROUP, API_VERSION
from nodeside.protocol.timestamps import rfc3339_micro

PARALLEL = 16  # concurrent requests: more would only queue up in the API server
_LANES = 8  # lanes processed concurrently
_OF_NODES = (LabelNode, Cordon, Uncordon, EvictPod, Annotate, Create)
_ROUND = 5.0  # seconds until actions on nodes, and what follows them, are left to the next round
_REQUEST = 10.0  # seconds for one request including its retries


@dataclass
class ExecutionResult:
    """The outcome of a plan.

    `written` is the newest version of each kind that we wrote, `deleted` the deletions.
    `failures` concern one lane of a Driver; `outage` concerns all: the API server is gone or
    overloaded. `applied` are the applied objects with their resulting `last_write` (see
    managed_fields.py). `asked` are the pods of eviction requests by uid, with the refusal or None.
    `unfinished` are lanes that ran out of time. `overtaken`: a write conflicted with another one.
    """

    done: int = 0
    applied: list[tuple[Apply, str]] = field(default_factory=list)
    asked: dict[str, str | None] = field(default_factory=dict)
    written: dict[Resource, str] = field(default_factory=dict)
    deleted: list[Delete] = field(default_factory=list)
    failures: dict[Lane, Failure] = field(default_factory=dict)
    unfinished: set[Lane] = field(default_factory=set)
    overtaken: bool = False
    outage: ApiError | None = None
    lost: LostLead | None = None


class Executor:
    """Executor of plans. Use as a context manager: its threads end with it."""

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
        self._collided: set[tuple[str, str, str]] = set()  # targets of creates

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self._lanes.shutdown()
        self._requests.shutdown()

    def carry_out(self, plan: Plan, snapshot: Snapshot, leadership: Leadership) -> ExecutionResult:
        """Do everything that can be done; returns when nothing is under way any more."""
        ends = self._now() + self._seconds
        execution = _Execution(
            self, snapshot, leadership, ExecutionResult(), lambda: self._now() >= ends
        )
        lanes = plan.actions_by_lane().items()
        list(self._lanes.map(lambda lane: execution.run_lane(*lane), lanes))
        return execution.outcome

    def in_parallel(
        self, do: Callable[[Action], None], actions: Sequence[Action]
    ) -> Iterator[None]:
        return self._requests.map(do, actions)

    def note_collision(self, action: Action) -> bool:
        """Note the conflict of a create. Return whether it conflicts again after a new snapshot.

        Then the existing object of that name is not in our cache, so it is not ours.
        """
        if not isinstance(action, Create):
            return False
        with self._lock:
            again = action.target in self._collided
            self._collided.add(action.target)
        return again

    def carry_out_action(
        self,
        action: Action,
        snapshot: Snapshot,
        left: Callable[[], float],
        outcome: ExecutionResult,
    ) -> None:
        """Carry out one action. Raises ApiError.

        Each of its requests takes at most the seconds that are left just before it.
        """

        def limit() -> Mapping[str, Any]:
            return {"deadline": min(left(), _REQUEST)}

        match action:
            case Apply() | Create():
                self._apply_or_create(action, outcome, limit)
            case LabelNode() | Cordon() | Uncordon():
                self._change_node(action, snapshot, outcome, limit)
            case Annotate():
                self._annotate_object(action, outcome, limit)
            case EvictPod():
                self._evict_pod(action, outcome, limit)
            case SetStatus():
                self._set_status(action, snapshot, outcome, limit)
            case SetFinalizers():
                self._set_finalizers(action, outcome, limit)
            case Delete():
                self._delete_object(action, outcome, limit)
            case EmitEvent():
                self._emit_event(action, limit)
            case _:
                assert_never(action)

    def _apply_or_create(
        self, action: Apply | Create, outcome: ExecutionResult, limit: Limit
    ) -> None:
        if isinstance(action, Apply):
            answer = self._apply_document(action, limit)
            with self._lock:
                outcome.applied.append((action, object_meta_from(answer).last_write))
        else:
            answer = self._api.create(action.document, **limit())
            with self._lock:
                self._collided.discard(action.target)
        # Applied objects of stages have watches of their own.
        if isinstance(action, Create) or not lane_of(action).is_of_stages:
            self._record_version(outcome, resource_of(action.document), answer)

    def _apply_document(self, action: Apply, limit: Limit) -> Mapping[str, Any]:
        """Apply a document. Fields that others added are removed first; apply would leave those."""
        document = action.document
        if action.over is not None and action.over.co_owned:
            # A patch ignores unknown fields: an invalid document must not change anything.
            self._api.apply(document, dry_run=True, **limit())
            self._replace_our_part(document, action.over.uid, limit)
        return self._api.apply(document, **limit())

    def _replace_our_part(self, document: Mapping[str, Any], uid: str, limit: Limit) -> None:
        """Replace the part that is ours. Raises Conflict if the object is gone or made anew."""
        metadata, patch = document["metadata"], replacement_patch(document, uid)
        where = {"namespace": metadata["namespace"], **limit()}
        try:
            self._api.json_patch(resource_of(document), metadata["name"], patch, **where)
        except ApiError as error:
            if isinstance(error, NotFound) or is_failed_test(error):
                raise Conflict(str(error), status=409) from error
            raise

    def _set_finalizers(
        self, action: SetFinalizers, outcome: ExecutionResult, limit: Limit
    ) -> None:
        metadata: dict[str, Any] = {"uid": action.uid, "finalizers": list(action.finalizers)}
        if action.version:
            metadata["resourceVersion"] = action.version
        patch = {"metadata": metadata}
        with suppress(NotFound):
            answer = self._api.merge_patch(DRIVERS, action.driver, patch, **limit())
            self._record_version(outcome, DRIVERS, answer)

    def _annotate_object(self, action: Annotate, outcome: ExecutionResult, limit: Limit) -> None:
        patch = {"metadata": {"uid": action.uid, "annotations": {action.key: action.value}}}
        with suppress(NotFound):
            answer = self._api.merge_patch(
                action.resource, action.name, patch, namespace=action.namespace, **limit()
            )
            if action.resource == JOBS:  # pods of stages have their own watch
                self._record_version(outcome, JOBS, answer)

    def _change_node(
        self,
        action: LabelNode | Cordon | Uncordon,
        snapshot: Snapshot,
        outcome: ExecutionResult,
        limit: Limit,
    ) -> None:
        with suppress(NotFound):  # a deleted node needs no label
            node = snapshot.nodes.get(action.node)
            seen = node.labels if node is not None else {}
            if isinstance(action, LabelNode):
                answer = node_labels.patch_labels(self._api, action, seen, limit)
            else:
                answer = drain_requests.change_cordon(self._api, action, limit, seen)
            self._record_version(outcome, NODES, answer)

    def _evict_pod(self, action: EvictPod, outcome: ExecutionResult, limit: Limit) -> None:
        """Evict a pod. A refusal is a normal answer: the next plan decides when to retry."""
        refusal = drain_requests.evict_pod(self._api, action, limit)
        if refusal is not None:
            log.detail(f"cannot {action.words} yet: {refusal}", driver=action.driver)
        with self._lock:
            outcome.asked[action.uid] = refusal

    def _set_status(
        self, action: SetStatus, snapshot: Snapshot, outcome: ExecutionResult, limit: Limit
    ) -> None:
        driver = snapshot.drivers.get(action.driver)
        patch = {"status": make_merge_patch(driver.status if driver else {}, action.status)}
        with suppress(NotFound):  # deleted in the meantime
            answer = self._api.merge_patch(
                DRIVERS, action.driver, patch, subresource="status", **limit()
            )
            self._record_version(outcome, DRIVERS, answer)

    def _delete_object(self, action: Delete, outcome: ExecutionResult, limit: Limit) -> None:
        with suppress(NotFound, Conflict):  # gone, or already replaced by another of that name
            self._api.delete(
                action.resource, action.name, namespace=action.namespace, uid=action.uid, **limit()
            )
        with self._lock:
            outcome.deleted.append(action)

    def _emit_event(self, action: EmitEvent, limit: Limit) -> None:
        """Emit an Event; a failure is only logged and not retried."""
        try:
            self._api.create(
                event_document(action, now=self._wall(), instance=self._instance), **limit()
            )
        except LostLead:
            raise
        except ApiError as error:
            log.warning(f"cannot {action.words}: {error}", hint=error.hint)

    def _record_version(
        self, outcome: ExecutionResult, resource: Resource, answer: Mapping[str, Any]
    ) -> None:
        version = str(answer.get("metadata", {}).get("resourceVersion", ""))
        with self._lock:
            before = outcome.written.get(resource, "0")
            if version.isdecimal() and int(version) > int(before):
                outcome.written[resource] = version


@dataclass
class _Execution:
    """The execution of one plan."""

    executor: Executor
    snapshot: Snapshot
    leadership: Leadership
    outcome: ExecutionResult
    late: Callable[[], bool]
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run_lane(self, lane: Lane, actions: Sequence[Action]) -> None:
        for _, neighbours in groupby(actions, key=_grouping_key):
            self._do_all(lane, list(neighbours))
            if self._has_ended(lane):
                return

    def _do_all(self, lane: Lane, actions: Sequence[Action]) -> None:
        if len(actions) == 1:
            self._do_one(lane, actions[0])
        else:
            list(self.executor.in_parallel(lambda action: self._do_one(lane, action), actions))

    def _do_one(self, lane: Lane, action: Action) -> None:
        failures = self.outcome.failures
        stopped = any(each in failures for each in depends_on(action))
        stopped = stopped or waits_for_all_nodes(action, failures)
        if self._has_ended(lane) or stopped or self._leave_if_late(lane, action):
            return
        try:
            self.executor.carry_out_action(
                action, self.snapshot, self.leadership.seconds_left, self.outcome
            )
        except LostLead as lost:
            self.outcome.lost = lost
        except ApiError as error:
            self._record_api_error(lane, action, error)
        except Exception as exc:  # a bug of ours: report it and continue with the others
            traceback.print_exc()
            self._record_failure(lane, action, exc)
        else:
            log.detail(action.words, driver=lane)
            with self._lock:
                self.outcome.done += 1

    def _record_api_error(self, lane: Lane, action: Action, error: ApiError) -> None:
        """Record a refused request, or one without an answer.

        A silent or overloaded API server concerns all Drivers; a refusal concerns this Driver or
        one node of it. A conflict is neither: somebody else wrote first, and the next snapshot
        shows the result.
        """
        if isinstance(error, Conflict) and not self.executor.note_collision(action):
            log.detail(f"cannot {action.words}: {error}")
            self.outcome.overtaken = True
        elif error.concerns_all:
            self.outcome.outage = error
        else:
            self._record_failure(lane, action, error)

    def _record_failure(self, lane: Lane, action: Action, error: Exception) -> None:
        mute, node = isinstance(action, SetStatus), node_of(action)
        if mute:
            lane = Lane(action.driver, STATUS)
        elif node and isinstance(error, ApiError) and error.concerns_one:
            lane = lane.on_node(node)
        failure = replace(failure_of(error, action.words), mute=mute)
        with self._lock:
            self.outcome.failures.setdefault(lane, failure)

    def _leave_if_late(self, lane: Lane, action: Action) -> bool:
        """Leave an action to the next round if time has run out, and return whether it is left.

        A status is always written: it reports what was observed, so it stays true.
        """
        if isinstance(action, SetStatus):
            return False
        if isinstance(action, _OF_NODES) and self.late():
            self.outcome.unfinished.add(lane)
        return lane in self.outcome.unfinished

    def _has_ended(self, lane: Lane) -> bool:
        outcome = self.outcome
        return bool(outcome.lost or outcome.outage) or lane in outcome.failures


def _grouping_key(action: Action) -> tuple[object, ...]:
    """Return the grouping key: consecutive actions of the same kind may be sent in parallel."""
    if isinstance(action, Apply):
        return Apply, action.document.get("kind")
    return (type(action),)


EVENT_NAMESPACE = "default"  # required by the API server for Events about cluster-scoped objects


_NOTE_LIMIT = 1024  # bytes of an Event's note; a longer one is refused


def event_document(event: EmitEvent, *, now: float, instance: str) -> dict[str, Any]:
    """Return the document of an Event. `now` is wall clock time, `instance` the name of our pod."""
    mark = hashlib.sha256(f"{event.uid}{event.reason}{event.note}{now}".encode()).hexdigest()[:16]
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{event.driver}.{mark}", "namespace": EVENT_NAMESPACE},
        "eventTime": rfc3339_micro(now),
        "reportingController": f"{API_GROUP}/cluster",
        "reportingInstance": instance[:128],
        "action": "Reconcile",
        "reason": event.reason,
        "type": "Warning" if event.warning else "Normal",
        "regarding": {
            "apiVersion": API_VERSION,
            "kind": "Driver",
            "name": event.driver,
            "uid": event.uid,
        },
        "note": event.note.encode()[:_NOTE_LIMIT].decode(errors="ignore"),
    }
