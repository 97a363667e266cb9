"""Tell the node and the cluster how a driver is, without ever being in the way of the driver.

The run loop calls `Announcer.state(status)` with every state it observes. What concerns the node
happens at once: the ready file, and the ready marker on stderr. What concerns the cluster is left
to one background thread, which sends only the newest state: a label PATCH, a NodeDriver apply,
and an Event when the driver became ready or failed. It retries; no error reaches the caller.

What keeps it quiet (a first rollout to 5,000 nodes is 15,000 requests, and then none):

- A passing state (waiting, building, loading, unloading) is sent only if it lasts `Pace.settle`
  seconds; a driver that loads from a bundle says `ready` and nothing before. Only where the cluster
  believes `ready` is it told at once that this is over.
- A state that was superseded before it was sent is not sent.
- The same news is not sent twice. How long stages took, and that modules were found loaded, is no
  news of a driver that is ready already, and supersedes none: the load itself makes the run loop
  look again at once. How the driver came up holds for the life of the process. No heartbeat.
- The node's uid, for the owner reference, comes with the answer to the label PATCH, and is asked
  for only where that is refused.

A container that restarts beside a good module clears nothing: `waiting` as the first state is
ignored while this boot's ready file stands, and the next state is an observed one.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from types import TracebackType
from typing import Any, TextIO

from nodeside import log
from nodeside.clock import Clock
from nodeside.contract import NodeDriverStatus, Rung, State, ready_marker
from nodeside.driver import announcement
from nodeside.driver.announcement import occasion
from nodeside.driver.kubernetes import Api
from nodeside.driver.readyfile import ReadyRecord, clear_ready, read_ready, write_ready
from nodeside.errors import NodesideError
from nodeside.host import Host
from nodeside.refusals import KubernetesError

_GOODBYE = 1.0  # seconds for the thread to end; it may be in the middle of a request


@dataclass(frozen=True)
class Pace:
    """When to send and when to try again, in seconds.

    `settle`: a passing state younger than this is not worth a request. `first_retry` doubles up to
    `longest_retry`. `refused_retry`: after an answer that only an administrator can change, such as
    a missing RBAC rule; slow, so that the node heals by itself once it is there.
    """

    settle: float = 10.0
    first_retry: float = 1.0
    longest_retry: float = 60.0
    refused_retry: float = 300.0


class Part(Enum):
    """What can be told, in this order: the label's answer has the uid that the others name."""

    LABEL = "label"
    NODE_DRIVER = "NodeDriver"
    EVENT = "Event"


def same_news(old: NodeDriverStatus | None, new: NodeDriverStatus) -> bool:
    """Whether the cluster needs to hear of `new` after `old`."""
    return old is not None and replace(new, source=old.source, stages=old.stages) == old


@dataclass
class Delivery:
    """What the cluster was told, what it is to be told, and when. Used by one thread only.

    `step` makes at most one request, so that a newer state never waits for an older one.
    """

    api: Api
    pace: Pace = field(default_factory=Pace)
    clock: Clock = field(default_factory=Clock)
    wall: Callable[[], float] = time.time
    jitter: Callable[[], float] = random.random  # 0 to 1

    def __post_init__(self) -> None:
        self._wanted: NodeDriverStatus | None = None
        self._told: dict[Part, NodeDriverStatus] = {}
        self._node_uid = ""
        self._event: Mapping[str, Any] = {}  # begun; its name makes a repetition harmless
        self._news_since: float | None = None
        self._not_before = 0.0
        self._failures = 0
        self._refused_until: dict[Part, float] = {}
        self._complaint = ""

    def want(self, status: NodeDriverStatus, *, known: bool = False) -> None:
        """Make this the state to tell. `known`: an Event told of it in an earlier life."""
        if same_news(self._wanted, status):
            return
        self._wanted, self._event = status, {}
        self._refused_until.clear()
        if known:
            self._told[Part.EVENT] = status
        if not self._open_parts():
            self._news_since = None
        elif self._news_since is None:
            self._news_since = self.clock.now()

    def due(self, *, hurry: bool = False) -> float | None:
        """Seconds until `step` has something to do; None: all is told."""
        if not self._open_parts():
            return None
        now, part = self.clock.now(), self._next_part()
        if part is None:
            return min(self._refused_until[part] for part in self._open_parts()) - now
        return max(0.0, self._not_before - now, 0.0 if hurry else self._settled_at() - now)

    def settled(self) -> bool:
        """Whether there is nothing left that trying again soon could change."""
        return self._next_part() is None

    def step(self) -> None:
        """Tell the next part of the newest state."""
        part = self._next_part()
        if part is None or self._wanted is None:
            return
        status = self._wanted
        try:
            self._tell(part, status)
        except KubernetesError as error:
            self._put_off(part, error)
            return
        except Exception as exc:  # a bug of ours: shown, and no reason to announce nothing more
            traceback.print_exc()
            self._put_off(part, KubernetesError(f"a bug in nodeside, please report it: {exc!r}"))
            return
        self._told[part] = status
        self._refused_until.pop(part, None)
        self._failures = 0
        if part is Part.LABEL and status.state not in announcement.NOTABLE:
            self._told.pop(Part.EVENT, None)  # what follows is news again
        if not self._open_parts():
            self._complete(status)

    def _open_parts(self) -> list[Part]:
        return [part for part in Part if self._is_open(part)]

    def _next_part(self) -> Part | None:
        now = self.clock.now()
        for part in self._open_parts():
            if self._refused_until.get(part, now) <= now:
                return part
        return None

    def _is_open(self, part: Part) -> bool:
        """Whether this part does not yet say what is wanted."""
        wanted, told = self._wanted, self._told.get(part)
        if wanted is None:
            return False
        match part:
            case Part.LABEL:
                return told is None or told.state is not wanted.state
            case Part.NODE_DRIVER:
                return not same_news(told, wanted)
            case Part.EVENT:
                notable = wanted.state in announcement.NOTABLE
                return notable and (told is None or occasion(told) != occasion(wanted))

    def _settled_at(self) -> float:
        """When the wanted state is old enough to be told."""
        told = (self._told.get(Part.LABEL), self._told.get(Part.NODE_DRIVER))
        believed_ready = any(part is not None and part.state is State.READY for part in told)
        if believed_ready or (self._wanted and self._wanted.state in announcement.NOTABLE):
            return 0.0
        return (self._news_since or 0.0) + self.pace.settle

    def _tell(self, part: Part, status: NodeDriverStatus) -> None:
        match part:
            case Part.LABEL:
                labels = announcement.labels(status)
                self._node_uid = self.api.patch_node_labels(status.node, labels) or self._node_uid
            case Part.NODE_DRIVER:
                uid = self._known_uid(status.node)
                self.api.apply_node_driver(announcement.node_driver(status, node_uid=uid))
            case Part.EVENT:
                if not self._event:
                    self._event = announcement.event(
                        status, node_uid=self._node_uid, now=self.wall()
                    )
                self.api.create_event(self._event)

    def _known_uid(self, node: str) -> str:
        """The node's uid, asked for where its label may not be set; "" if that is refused too.

        Where owner references are checked, as on OpenShift, an owner cannot be added later on:
        that takes the right to delete the object, which no driver pod has.
        """
        if not self._node_uid:
            try:
                self._node_uid = self.api.get_node(node)
            except KubernetesError as error:
                if error.retryable:
                    raise
                log.detail(f"the owner of the NodeDriver is not known: {error}")
        return self._node_uid

    def _put_off(self, part: Part, error: KubernetesError) -> None:
        """Say once what is wrong, and decide when to try again."""
        now, spread = self.clock.now(), 0.5 + self.jitter() / 2
        if error.retryable:
            wait = min(self.pace.first_retry * 2**self._failures, self.pace.longest_retry)
            wait = max(wait * spread, (error.retry_after or 0.0) * (1 + self.jitter() / 4))
            self._failures = min(self._failures + 1, 30)
            self._not_before = now + wait
        else:
            wait = self.pace.refused_retry * spread
            self._refused_until[part] = now + wait
        say = log.detail if str(error) == self._complaint else log.warning
        self._complaint = str(error)
        say(f"not announced: {error}", hint=error.hint, again_in=f"{wait:.1f}s")

    def _complete(self, status: NodeDriverStatus) -> None:
        self._news_since, self._complaint = None, ""
        log.fact("announced", driver=status.driver, node=status.node, state=status.state.value)


class Announcer:
    """Use as a context manager around the run loop; leaving it flushes for `grace` seconds.

    `state` and `flush` may be called from any one thread. The background thread starts with the
    first state and takes no signals: SIGIO of a `Notice`, SIGTERM and the like stay with others.
    """

    def __init__(
        self,
        host: Host,
        delivery: Delivery,
        *,
        grace: float = 5.0,
        marker_to: TextIO | None = None,
    ) -> None:
        self._host = host
        self._delivery = delivery
        self._grace = grace
        self._marker_to = marker_to
        self._newest: NodeDriverStatus | None = None
        self._came_up: NodeDriverStatus | None = None
        self._marked = ""
        self._changed = threading.Condition()
        self._mail: tuple[NodeDriverStatus, bool] | None = None
        self._hurry = False
        self._closing = False
        self._at_rest = True
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Announcer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.flush(self._grace)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_GOODBYE)

    def state(self, status: NodeDriverStatus) -> None:
        """This is how the driver is now. Returns within milliseconds, and never raises."""
        known = self._known_ready(status)
        if self._newest is None and status.state is State.WAITING and known:
            return
        status = self._as_it_came_up(status)
        self._on_the_node(status)
        if same_news(self._newest, status):
            return
        self._newest = status
        with self._changed:
            self._mail = (status, known and status.state is State.READY)
            self._at_rest = False
            self._changed.notify_all()
        if self._thread is None:
            self._thread = _start(self._work)

    def flush(self, timeout: float) -> bool:
        """Tell now what is not told yet; whether that was done within `timeout` seconds.

        What the cluster refuses for good counts as done: waiting longer would not help.
        """
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: self._at_rest, timeout)
            self._hurry = False
        return done

    def _as_it_came_up(self, status: NodeDriverStatus) -> NodeDriverStatus:
        """A look that finds the modules loaded does not know how this process loaded them."""
        before = self._came_up
        if status.state is State.READY:
            if before and before.key == status.key and status.source is Rung.LOADED:
                status = replace(status, source=before.source)
            self._came_up = status
        return status

    def _known_ready(self, status: NodeDriverStatus) -> bool:
        """Whether this boot's ready file stood before this process said anything.

        For WAITING any version counts: an upgrade has not touched the old module yet.
        """
        if self._newest is not None:
            return False
        ready = read_ready(self._host, status.driver, status.boot_id)
        if ready is None:
            return False
        return status.state is not State.READY or ready.version == status.version

    def _on_the_node(self, status: NodeDriverStatus) -> None:
        """Ready file, then marker: who saw the marker finds the file."""
        try:
            if status.state is State.READY:
                write_ready(self._host, _ready_record(status))
            else:
                clear_ready(self._host, status.driver)
        except NodesideError as error:
            log.warning(f"the ready file is not up to date: {error}", hint=error.hint)
            return
        self._mark(status)

    def _mark(self, status: NodeDriverStatus) -> None:
        """Write the marker once per becoming ready: a line of its own in every log format."""
        if status.state is not State.READY:
            self._marked = ""
            return
        if self._marked == status.version:
            return
        self._marked = status.version
        source = status.source or Rung.LOADED
        line = ready_marker(status.driver, status.version, status.kernel, source, status.modules)
        with suppress(OSError, ValueError):  # a closed stderr is no reason to fail a driver
            to = self._marker_to or sys.stderr
            to.write(f"{line}\n")
            to.flush()

    def _work(self) -> None:
        while self._rest():
            self._delivery.step()

    def _rest(self) -> bool:
        """Wait until there is something to tell; False at the end."""
        with self._changed:
            while not self._closing:
                if self._mail is not None:
                    (status, known), self._mail = self._mail, None
                    self._delivery.want(status, known=known)
                self._at_rest = self._delivery.settled()
                wait = self._delivery.due(hurry=self._hurry)
                if wait is not None and wait <= 0:
                    return True
                self._changed.notify_all()
                self._delivery.api.close()
                self._changed.wait(wait)
        return False


def _ready_record(status: NodeDriverStatus) -> ReadyRecord:
    return ReadyRecord(
        driver=status.driver,
        version=status.version,
        kernel=status.kernel,
        boot_id=status.boot_id,
        source=status.source or Rung.LOADED,
        modules=status.modules,
        since=time.time(),
    )


def _start(work: Callable[[], None]) -> threading.Thread:
    """A daemon thread that inherits a mask of all signals blocked."""
    thread = threading.Thread(target=work, name="announce", daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return thread
