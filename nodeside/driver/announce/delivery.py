"""Sends a driver's newest state to the cluster: its label, its NodeDriver, its Events.

The rules that decide what is sent, and when, are in `announcer.py`.
"""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from nodeside import log
from nodeside.driver.announce import documents
from nodeside.driver.announce.api import StatusApi
from nodeside.driver.announce.documents import event_occasion
from nodeside.http.status import KubernetesError
from nodeside.protocol.node_status import NodeDriverStatus, State
from nodeside.system.clock import Clock, backoff
from nodeside.values import frozen


@frozen
class Pace:
    """Delays before sending and before retries, in seconds.

    `settle`: a transient state younger than this is not sent. `first_retry` doubles up to
    `longest_retry`. `refused_retry`: the delay after a refusal that only an administrator can fix,
    such as a missing RBAC rule; it is slow, but the node recovers by itself after the fix.
    """

    settle: float = 10.0
    first_retry: float = 1.0
    longest_retry: float = 60.0
    refused_retry: float = 300.0


class AnnouncementPart(Enum):
    """The parts of an announcement, in the order of sending.

    The response to the label PATCH has the node uid that the other parts refer to.
    """

    LABEL = "label"
    NODE_DRIVER = "NodeDriver"
    EVENT = "Event"


def same_news(old: NodeDriverStatus | None, new: NodeDriverStatus) -> bool:
    """Return whether `new` needs no update after `old`: at most source and stages differ."""
    return old is not None and replace(new, source=old.source, stages=old.stages) == old


@dataclass
class Delivery:
    """The state sent to the cluster, the state to send, and the schedule.

    Used by one thread only. `send_next` sends at most one part, so that a newer state never waits
    for an older one.
    """

    api: StatusApi
    pace: Pace = field(default_factory=Pace)
    clock: Clock = field(default_factory=Clock)
    wall: Callable[[], float] = time.time
    jitter: Callable[[], float] = random.random  # 0 to 1

    def __post_init__(self) -> None:
        self._desired: NodeDriverStatus | None = None
        self._sent: dict[AnnouncementPart, NodeDriverStatus] = {}
        self._node_uid = ""
        self._transition: tuple[bool, float] | None = None  # ready or not, and since when
        self._event: Mapping[str, Any] = {}  # in progress; its name makes a retry harmless
        self._news_since: float | None = None
        self._not_before = 0.0
        self._failures = 0
        self._refused_until: dict[AnnouncementPart, float] = {}
        self._complaint = ""

    def set_wanted(self, status: NodeDriverStatus, *, event_sent: bool = False) -> None:
        """Set the state to send.

        `event_sent`: an earlier process already sent the Event for it.
        """
        if same_news(self._desired, status):
            return
        self._desired, self._event = status, {}
        self._refused_until.clear()
        if event_sent:
            self._sent[AnnouncementPart.EVENT] = status
        if not self._open_parts():
            self._news_since = None
        elif self._news_since is None:
            self._news_since = self.clock.now()

    def seconds_until_next(self, *, hurry: bool = False) -> float | None:
        """Return the seconds until `send_next` has something to do; None if everything is sent."""
        if not self._open_parts():
            return None
        now, part = self.clock.now(), self._next_part()
        if part is None:
            return min(self._refused_until[part] for part in self._open_parts()) - now
        return max(0.0, self._not_before - now, 0.0 if hurry else self._settled_at() - now)

    def is_settled(self) -> bool:
        """Return whether nothing is left that an early retry could change."""
        return self._next_part() is None

    def send_next(self) -> None:
        """Send the next part of the newest state."""
        part = self._next_part()
        if part is None or self._desired is None:
            return
        status = self._desired
        try:
            self._send_part(part, status)
        except KubernetesError as error:
            self._put_off(part, error)
            return
        except Exception as exc:  # a bug in nodeside: print it and keep announcing
            traceback.print_exc()
            self._put_off(part, KubernetesError(f"a bug in nodeside, please report it: {exc!r}"))
            return
        self._sent[part] = status
        self._refused_until.pop(part, None)
        self._failures = 0
        if part is AnnouncementPart.LABEL and status.state not in documents.NOTABLE:
            self._sent.pop(AnnouncementPart.EVENT, None)  # the next notable state needs a new Event
        if not self._open_parts():
            self._note_completion(status)

    def _open_parts(self) -> list[AnnouncementPart]:
        return [part for part in AnnouncementPart if self._is_open(part)]

    def _next_part(self) -> AnnouncementPart | None:
        now = self.clock.now()
        for part in self._open_parts():
            if self._refused_until.get(part, now) <= now:
                return part
        return None

    def _is_open(self, part: AnnouncementPart) -> bool:
        """Return whether this part still has to be sent."""
        desired, sent = self._desired, self._sent.get(part)
        if desired is None:
            return False
        match part:
            case AnnouncementPart.LABEL:
                return sent is None or sent.state is not desired.state
            case AnnouncementPart.NODE_DRIVER:
                return not same_news(sent, desired)
            case AnnouncementPart.EVENT:
                notable = desired.state in documents.NOTABLE
                return notable and (sent is None or event_occasion(sent) != event_occasion(desired))

    def _settled_at(self) -> float:
        """Return the time from which the desired state may be sent; 0 means immediately."""
        sent = (
            self._sent.get(AnnouncementPart.LABEL),
            self._sent.get(AnnouncementPart.NODE_DRIVER),
        )
        believed_ready = any(part is not None and part.state is State.READY for part in sent)
        if believed_ready or (self._desired and self._desired.state in documents.NOTABLE):
            return 0.0
        return (self._news_since or 0.0) + self.pace.settle

    def _send_part(self, part: AnnouncementPart, status: NodeDriverStatus) -> None:
        match part:
            case AnnouncementPart.LABEL:
                labels = documents.node_labels(status)
                self._node_uid = self.api.patch_node_labels(status.node, labels) or self._node_uid
            case AnnouncementPart.NODE_DRIVER:
                uid = self._owner_uid(status.node)
                since = self._ready_since(status)
                self.api.apply_node_driver(
                    documents.node_driver_document(status, node_uid=uid, since=since)
                )
            case AnnouncementPart.EVENT:
                if not self._event:
                    self._event = documents.event_document(
                        status, node_uid=self._node_uid, now=self.wall()
                    )
                self.api.create_event(self._event)

    def _ready_since(self, status: NodeDriverStatus) -> float:
        """Return when the driver became ready or ceased to be, as far as this process knows."""
        ready = status.state is State.READY
        if self._transition is None or self._transition[0] is not ready:
            self._transition = ready, self.wall()
        return self._transition[1]

    def _owner_uid(self, node: str) -> str:
        """Return the node's uid, "" if the API server refuses to return the node.

        The node is read only if the response to the label PATCH gave no uid. If owner references
        are checked, as on OpenShift, an owner cannot be added later: that requires permission to
        delete the object, which no driver pod has. Raises KubernetesError if a retry can help.
        """
        if not self._node_uid:
            try:
                self._node_uid = self.api.get_node(node)
            except KubernetesError as error:
                if error.retryable:
                    raise
                log.detail(f"the owner of the NodeDriver is not known: {error}")
        return self._node_uid

    def _put_off(self, part: AnnouncementPart, error: KubernetesError) -> None:
        """Warn once about an error, and schedule the retry."""
        now, spread = self.clock.now(), 0.5 + self.jitter() / 2
        if error.retryable:
            wait = backoff(self._failures + 1, self.pace.first_retry, self.pace.longest_retry)
            wait = max(wait * spread, (error.retry_after or 0.0) * (1 + self.jitter() / 4))
            self._failures = min(self._failures + 1, 30)
            self._not_before = now + wait
        else:
            wait = self.pace.refused_retry * spread
            self._refused_until[part] = now + wait
        write = log.detail if str(error) == self._complaint else log.warning
        self._complaint = str(error)
        write(f"not announced: {error}", hint=error.hint, again_in=f"{wait:.1f}s")

    def _note_completion(self, status: NodeDriverStatus) -> None:
        self._news_since, self._complaint = None, ""
        log.fact("announced", driver=status.driver, node=status.node, state=status.state.value)
