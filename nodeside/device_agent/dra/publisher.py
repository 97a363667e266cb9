"""Keeps the ResourceSlices of this node up to date with its devices.

Only differences are written, at most once a second. Others write the slices too: the kubelet
deletes those of the node when it starts, and those of a driver that is away for 30 s
(pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go). So their versions are looked at again and again,
more often after the kubelet has come.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

from nodeside import log
from nodeside.device_agent.dra.api import resource_version
from nodeside.device_agent.dra.slices import Document, SlicePool, Write, plan_writes
from nodeside.http.status import KubernetesError
from nodeside.system.clock import Clock, backoff

_PAUSE = 1.0  # seconds between two rounds that write
_LOOK = 60.0  # seconds between two looks at the versions
_SOON, _SOON_FOR = 5.0, 60.0  # the same while the kubelet may delete them, and for how long
_FIRST, _LONGEST = 1.0, 60.0  # seconds between attempts
_MISSING = 300.0  # the same where there is no such API


class Slices(Protocol):
    """The API server; api.py. Every method raises KubernetesError only."""

    def fetch_node_uid(self, node: str) -> str: ...

    def list_slices(self, driver: str, node: str) -> list[Document]: ...

    def list_versions(self, driver: str, node: str) -> Mapping[str, str]: ...

    def send_write(self, write: Write) -> Document: ...

    def close(self) -> None:
        """Close the connection; the next request opens another."""


class Publication:
    """The slices of a DRA driver on a node; `publish_if_due` does what is due."""

    def __init__(self, cluster: Slices, driver: str, node: str) -> None:
        self._cluster = cluster
        self._driver, self._node = driver, node
        self._devices: Sequence[Document] | None = None  # not looked for yet
        self._stored: dict[str, Document] | None = None  # not known
        self._node_uid = ""
        self._is_current = False
        self._look_at = self._soon_until = self._not_before = 0.0  # monotonic seconds
        self._failures = 0
        self._trouble = ""

    def set_devices(self, devices: Sequence[Document]) -> None:
        """Say what devices there are."""
        self._is_current &= devices == self._devices
        self._devices = devices

    def note_kubelet_answer(self, now: float) -> None:
        """Note that the kubelet may delete slices soon."""
        self._soon_until, self._look_at = now + _SOON_FOR, min(self._look_at, now + _SOON)

    def publish_if_due(self, now: float) -> float:
        """Do what is due; return the seconds until the next call is due, at most.

        Nothing that the API server does raises an exception.
        """
        if self._devices is None:
            return math.inf
        if now < self._not_before:
            return self._not_before - now
        try:
            if now >= self._look_at:
                self._check_versions(now)
            if not self._is_current:
                self._write_slices(self._devices, now)
        except KubernetesError as error:
            self._note_failure(error, now)
        else:
            self._failures, self._trouble = 0, ""
        finally:
            self._cluster.close()
        due = self._look_at if self._is_current else now
        return max(due, self._not_before) - now

    def _check_versions(self, now: float) -> None:
        """Check whether another writer has changed the slices."""
        self._look_at = now + (_SOON if now < self._soon_until else _LOOK)
        if self._stored is None:
            return
        found = self._cluster.list_versions(self._driver, self._node)
        if found != {name: resource_version(each) for name, each in self._stored.items()}:
            self._stored, self._is_current = None, False

    def _write_slices(self, devices: Sequence[Document], now: float) -> None:
        if self._stored is None:
            found = self._cluster.list_slices(self._driver, self._node)
            self._node_uid = self._cluster.fetch_node_uid(
                self._node
            )  # it may be another Node by now
            self._stored = {each["metadata"]["name"]: each for each in found}
        pool = SlicePool(self._driver, self._node, self._node_uid)
        due = plan_writes(pool, list(self._stored.values()), devices)
        for write in due:
            answer = self._cluster.send_write(write)
            if write.verb == "delete":
                self._stored.pop(write.name, None)
            else:
                # Not the answer: a field that an older API server drops would be written again and
                # again.
                self._stored[write.name] = _with_version(write, answer)
        self._is_current = True
        if due:
            self._not_before = now + _PAUSE
            log.fact("ResourceSlices are written", devices=len(devices), written=len(due))

    def _note_failure(self, error: KubernetesError, now: float) -> None:
        self._failures += 1
        self._stored, self._is_current = None, False  # how far it came is not known
        missing = error.status == 404 and "has no resource.k8s.io" in str(error)
        wait = _MISSING if missing else backoff(self._failures, _FIRST, _LONGEST)
        self._not_before = now + max(wait, error.retry_after or 0.0)
        if error.status in (404, 409) and self._failures == 1 and not missing:
            return  # somebody else was faster; it is looked at anew
        if (words := str(error)) != self._trouble:
            self._trouble = words
            log.warning("the devices are not published", why=words, hint=error.hint)


def _with_version(write: Write, answer: Document) -> Document:
    metadata = {**write.document["metadata"], "resourceVersion": resource_version(answer)}
    return {**write.document, "metadata": metadata}


class Publisher:
    """Publishes in a thread: an API server may take long to answer."""

    def __init__(self, publication: Publication, clock: Clock | None = None) -> None:
        self._publication = publication
        self._clock = clock or Clock()
        self._changed = threading.Condition()
        self._devices: Sequence[Document] | None = None
        self._has_kubelet_answered = self._is_closed = False
        self._thread = threading.Thread(target=self._keep_writing, name="publisher", daemon=True)
        self._thread.start()

    def set_devices(self, devices: Sequence[Document]) -> None:
        """Say what devices there are."""
        with self._changed:
            self._devices = devices
            self._changed.notify_all()

    def note_kubelet_answer(self) -> None:
        """Note that the kubelet answered a registration: it started, or found our new socket."""
        with self._changed:
            self._has_kubelet_answered = True
            self._changed.notify_all()

    def close(self) -> None:
        """Start no further write; one that is under way is finished."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _keep_writing(self) -> None:
        wait = math.inf
        while True:
            with self._changed:
                self._changed.wait_for(self._has_news, None if wait == math.inf else wait)
                if self._is_closed:
                    return
                if self._has_kubelet_answered:
                    self._publication.note_kubelet_answer(self._clock.now())
                if self._devices is not None:
                    self._publication.set_devices(self._devices)
                self._devices, self._has_kubelet_answered = None, False
            try:
                wait = self._publication.publish_if_due(self._clock.now())
            except Exception as exc:
                log.traceback(exc)
                wait = _LONGEST

    def _has_news(self) -> bool:
        return self._devices is not None or self._has_kubelet_answered or self._is_closed
