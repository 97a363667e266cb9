"""Keeps the objects of one kind up to date in memory.

A reflector lists once, then watches from there. A watch that ends resumes at its last resource
version. After a 410 it lists again, and the old objects stay until the new list is complete. They
also stay while the API server is unreachable; `health` reports how long nothing was received. If
the API server comes back with older data, as after a restore of etcd, it lists again too. A change
to the part of an object that we keep wakes the controller; a heartbeat does not.

Each reflector has its own thread, which only reads.
"""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import ne
from typing import Any, Generic, Protocol, TypeVar

from cluster.kube.client import Api, Event, Watch
from cluster.kube.errors import ApiError, Gone, NotFound
from cluster.kube.resources import Resource
from nodeside import log
from nodeside.system.clock import backoff

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds between tries
_ABSENT = 60.0  # seconds until the next try for a kind that the API server does not serve
_CROWD = 256  # maximum number of objects kept per crowd
_SHORT = 1.0  # seconds; a watch that ends sooner is followed by a pause to avoid spinning


class Named(Protocol):
    """The interface of a trimmed object."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


@dataclass(frozen=True, slots=True)
class WatchHealth:
    """The state of a reflector.

    `silent` is the number of seconds since the last answer; `trouble` is the error message, empty
    if there is none. `refusal` is an error that retrying does not fix. `watches` counts the
    watches started. `about` names the objects if a kind is watched more than once. If
    `optional`, nothing else waits for this reflector. `cut_off`: the API server was down, and what
    it has now has not been compared with what we have.
    """

    kind: str
    synced: bool
    silent: float
    trouble: str = ""
    watches: int = 0
    refusal: ApiError | None = None
    about: str = ""
    optional: bool = False
    cut_off: bool = False

    @property
    def name(self) -> str:
        """The display name: `Node`, `Pod (build pods)`."""
        return f"{self.kind} ({self.about})" if self.about else self.kind


@dataclass(frozen=True, slots=True)
class Selection(Generic[T]):
    """The objects of a kind to watch, and the parts of them to keep.

    `optional`: the API server may not serve this kind, which means there are no objects. Such
    kinds are often served by another server, which may be down on its own.
    `left_out` returns the name of an object for which `trim` returned None: it is not ours, or no
    longer ours.
    `about` is the display name of these objects if the kind is watched more than once.
    `is_news` returns whether a change wakes the controller; the change is stored either way.
    `crowd` returns a key that many objects may share, such as the node that writes them; at most
    `_CROWD` objects are kept per key.
    """

    resource: Resource
    trim: Callable[[Mapping[str, Any]], T | None]
    namespace: str = ""
    selector: str = ""
    fields: str = ""
    optional: bool = False
    left_out: Callable[[Mapping[str, Any]], str] | None = None
    about: str = ""
    is_news: Callable[[T, T], bool] = ne
    crowd: Callable[[T], str] | None = None

    @property
    def filters(self) -> dict[str, Any]:
        return {"namespace": self.namespace, "selector": self.selector, "fields": self.fields}

    def list_once(self, api: Api) -> dict[str, T] | None:
        """Return the objects as they are now; None if the API server does not serve the kind.

        Raises ApiError, and NotFound unless the kind is optional.
        """
        try:
            page = api.list(self.resource, self.trim, **self.filters)
        except NotFound:
            if not self.optional:
                raise
            return None
        return {item.name: item for item in page.items}


class _Crowds(Generic[T]):
    """Object counts by crowd: objects beyond the limit of a crowd are ignored."""

    def __init__(self, of: Callable[[T], str] | None) -> None:
        self._of = of
        self._sizes: Counter[str] = Counter()

    def admits(self, item: T) -> bool:
        """Return whether the crowd has room for this object, and count it if so."""
        if self._of is None:
            return True
        crowd = self._of(item)
        if self._sizes[crowd] >= _CROWD:
            log.detail(f"ignored, too many objects: {item.name}", of=crowd, limit=_CROWD)
            return False
        self._sizes[crowd] += 1
        return True

    def release(self, item: T) -> None:
        if self._of is not None:
            self._sizes[self._of(item)] -= 1


class Reflector(Generic[T]):
    """A list and watch of one selection. Start it, read `objects`, stop it."""

    def __init__(
        self,
        api: Api,
        selection: Selection[T],
        wake: Callable[[], None],
        *,
        now: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._api = api
        self._selection = selection
        self._wake = wake
        self._now = now
        self._jitter = jitter
        self._changed = threading.Condition()
        self._objects: dict[str, T] = {}
        self._crowds: _Crowds[T] = _Crowds(selection.crowd)
        self._snapshot: Mapping[str, T] | None = None
        self._version = ""  # where the watch resumes; empty: list again
        self._seen = 0
        self._synced = self._absent = False
        self._cut_off = False  # no watch could be opened; the API server may come back changed
        self._answered_at = now()
        self._trouble = ""
        self._refusal: ApiError | None = None
        self._failures = self._watches = 0
        self._expired = 0  # fresh lists in a row from which no watch could start
        self._watch: Watch | None = None
        self._anew = False
        self._listed = float("-inf")  # start time of the last complete list
        self._needed = float("-inf")  # a list that started earlier is too old
        self._stopping = threading.Event()
        self._poked = threading.Event()
        self._thread = threading.Thread(
            target=self._reflect_until_stopped,
            name=f"watch-{selection.resource.plural}",
            daemon=True,
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Request the end of the thread; `join` waits for it."""
        self._stopping.set()
        self._interrupt_watch()

    def retry_now(self) -> None:
        """Make the thread retry now instead of waiting out the pause."""
        self._poked.set()

    def list_anew(self) -> None:
        """List again because `trim` selects other objects from now on; unsynced until then."""
        with self._changed:
            self._anew, self._synced = True, False
        self._interrupt_watch()

    def renew_list(self, since: float) -> None:
        """List again unless a list started after `since`; the current objects stay until then.

        A watch on a dead connection is silent for minutes before that is noticed.
        """
        with self._changed:
            if self._listed >= since:
                return
            self._needed = max(self._needed, since)
        self._interrupt_watch()

    def _interrupt_watch(self) -> None:
        self._poked.set()
        if (watch := self._watch) is not None:
            watch.close()

    def join(self, timeout: float) -> None:
        if self._thread.is_alive():
            self._thread.join(timeout)

    def objects(self) -> Mapping[str, T] | None:
        """Return a snapshot by name; None if the API server does not serve this kind."""
        with self._changed:
            if self._absent:
                return None
            if self._snapshot is None:
                self._snapshot = dict(self._objects)
            return self._snapshot

    def health(self) -> WatchHealth:
        with self._changed:
            return WatchHealth(
                kind=self._selection.resource.kind,
                synced=self._synced,
                silent=self._now() - self._answered_at,
                trouble=self._trouble,
                watches=self._watches,
                refusal=self._refusal,
                about=self._selection.about,
                optional=self._selection.optional,
                cut_off=self._cut_off,
            )

    def wait_synced(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for a complete list; return whether there is one."""
        with self._changed:
            return self._changed.wait_for(lambda: self._synced, timeout)

    def wait_current(self, timeout: float) -> bool:
        """Wait until the last request succeeded and no list is due; return whether that is so."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._synced and not self._trouble and not self._is_old, timeout
            )

    def wait_tried(self, timeout: float) -> bool:
        """Wait until it is current or its last request failed; return whether that is so."""
        with self._changed:
            return self._changed.wait_for(
                lambda: bool(self._trouble) or (self._synced and not self._is_old), timeout
            )

    def wait_seen(self, resource_version: str, timeout: float) -> bool:
        """Wait until our own write with this version has arrived; return whether it has."""
        version = _version_number(resource_version)
        with self._changed:
            return self._changed.wait_for(lambda: self._seen >= version, timeout)

    def wait_gone(self, name: str, uid: str, timeout: float) -> bool:
        """Wait until the object is gone, is being deleted or has another uid; return whether so."""

        def is_gone() -> bool:
            current: Any = self._objects.get(name)
            if current is None or getattr(current, "deleting", False):
                return True
            return bool(uid) and getattr(current, "uid", uid) != uid

        with self._changed:
            return self._changed.wait_for(is_gone, timeout)

    # --- the thread ------------------------------------------------------------------------------

    def _reflect_until_stopped(self) -> None:
        while not self._stopping.is_set():
            try:
                pause = self._list_and_watch()
            except ApiError as error:
                pause = self._note_failure(error)
            except Exception as exc:  # a bug of ours in trimming: report and retry
                traceback.print_exc()
                pause = self._note_failure(
                    ApiError(f"a bug in nodeside, please report it: {exc!r}")
                )
            self._poked.wait(pause)
            if not self._stopping.is_set():
                self._poked.clear()

    def _list_and_watch(self) -> float:
        """List if needed and watch once to the end. Return the seconds until the next call."""
        if self._anew or self._is_old:
            self._version, self._anew = "", False
        if fresh := not self._version:
            self._list_objects()
        began = self._now()
        try:
            self._follow_watch()
        except Gone as error:
            self._version = ""
            log.detail(
                "the resource version has expired: listing again",
                kind=self._selection.resource.kind,
            )
            if fresh and self._now() - began <= _SHORT:  # so another list may not help either
                self._expired += 1
                self._failures = self._expired - 1  # the list has reset it
                return self._note_failure(error)
        self._expired = 0
        lasted = self._now() - began
        return 0.0 if lasted > _SHORT else _FIRST_PAUSE * (0.5 + self._jitter() / 2)

    @property
    def _is_old(self) -> bool:
        return self._listed < self._needed

    def _list_objects(self) -> None:
        began = self._now()
        selection, crowds = self._selection, _Crowds(self._selection.crowd)

        def keep(document: Mapping[str, Any]) -> T | None:
            item = self._trim_object(document)
            return item if item is not None and crowds.admits(item) else None

        try:
            page = self._api.list(selection.resource, keep, **selection.filters)
        except NotFound:
            if not selection.optional:
                raise
            self._note_not_served(began)
            return
        objects = {item.name: item for item in page.items}
        with self._changed:
            self._absent, changed = False, objects != self._objects or not self._synced
            self._objects, self._snapshot, self._synced = objects, None, not self._anew
            self._crowds, self._listed = crowds, began
            self._version, self._cut_off = page.resource_version, False
            self._note_answer(page.resource_version)
        if changed:
            self._wake()

    def _note_not_served(self, began: float) -> None:
        """Record that the kind is not served. It may be later: an operator may be installed."""
        with self._changed:
            first = not self._absent
            self._absent, self._synced, self._listed = True, not self._anew, began
            self._cut_off = False
            self._objects, self._snapshot = {}, None
            self._note_answer("")
        if first:
            self._wake()

    def _follow_watch(self) -> None:
        if self._absent:
            self._poked.wait(_ABSENT * (0.5 + self._jitter() / 2))
            return
        self._watches += 1
        self._watch = self._open_watch()
        opened = self._now()
        with self._changed:
            self._note_answer("")  # the next event may be a minute away
        try:
            # `stop`, `list_anew` or `renew_list` may have been called before the watch existed.
            if self._stopping.is_set() or self._anew or self._is_old:
                self._watch.close()
            for event in self._watch:
                self._apply_event(event)
                self._failures = 0
        except NotFound:
            self._version = ""
            raise
        except Exception:
            if self._failures and self._now() - opened <= _SHORT:
                self._version = ""  # if it is an event that stops us, a list gets past it
            raise
        finally:
            self._watch = None
            if self._now() - opened > _SHORT:
                self._failures = 0

    def _open_watch(self) -> Watch:
        """Return a watch from where the last one ended. Raises Gone if etcd was restored.

        The API server accepts a watch from a version that it has not reached, and is silent until
        then. A restore stops it, so it is enough to look after a watch could not be opened.
        """
        try:
            watch = self._api.watch(
                self._selection.resource, self._version, **self._selection.filters
            )
        except ApiError as error:
            self._cut_off |= error.concerns_all
            raise
        if self._cut_off:
            try:
                self._check_not_restored()
            except BaseException:
                watch.close()
                raise
        return watch

    def _check_not_restored(self) -> None:
        """Raise Gone if the API server is behind what we have seen."""
        latest = self._api.latest_resource_version(
            self._selection.resource, **self._selection.filters
        )
        if 0 < _version_number(latest) < _version_number(self._version):
            words = "the API server has older data than before, as after a restore: listing again"
            log.warning(words, kind=self._selection.resource.kind, seen=self._version, now=latest)
            with self._changed:
                self._seen = 0
            raise Gone(f"{self._version} is not reached yet, after {latest}")
        self._cut_off = False

    def _apply_event(self, event: Event) -> None:
        version = str(event.object.get("metadata", {}).get("resourceVersion", ""))
        item = None if event.kind == "BOOKMARK" else self._trim_object(event.object)
        changed = False
        with self._changed:
            if item is not None:
                changed = self._put_object(item, deleted=event.kind == "DELETED")
            elif self._selection.left_out is not None and event.kind != "BOOKMARK":
                changed = self._drop_object(self._selection.left_out(event.object))
            self._version = version or self._version
            self._note_answer(version)
        if changed:
            self._wake()

    def _put_object(self, item: T, *, deleted: bool) -> bool:
        """Store or remove an object. Return whether the change wakes the controller."""
        if deleted:
            return self._drop_object(item.name)
        before = self._objects.get(item.name)
        if before is None and not self._crowds.admits(item):
            return False
        self._objects[item.name] = item
        self._snapshot = None
        return before is None or self._selection.is_news(before, item)

    def _drop_object(self, name: str) -> bool:
        gone = self._objects.pop(name, None)
        if gone is not None:
            self._crowds.release(gone)
        self._snapshot = None
        return gone is not None

    def _trim_object(self, document: Mapping[str, Any]) -> T | None:
        """Return the part of an object that we keep. An unreadable object affects no others."""
        try:
            return self._selection.trim(document)
        except Exception as exc:
            name = document.get("metadata", {}).get("name", "")
            traceback.print_exc()
            log.warning(f"cannot read {self._selection.resource.kind} {name}: {exc!r}")
            return None

    def _note_answer(self, version: str) -> None:
        """Record an answer of the API server. The caller holds the lock."""
        self._seen = max(self._seen, _version_number(version))
        self._answered_at = self._now()
        if self._trouble:
            log.fact("the API server answers again", kind=self._selection.resource.kind)
        if self._refusal is not None:
            self._wake()  # the refusal was reported; now it is cleared
        self._trouble, self._refusal = "", None
        self._changed.notify_all()

    def _note_failure(self, error: ApiError) -> float:
        """Log a new error once. Return the seconds until the next try."""
        with self._changed:
            new, self._trouble = str(error) != self._trouble, str(error)
            self._refusal = None if error.retryable else error
            self._failures += 1
            self._changed.notify_all()
            pause = backoff(self._failures, _FIRST_PAUSE, _LONGEST_PAUSE)
        say = log.warning if new else log.detail
        say(f"not up to date: {error}", kind=self._selection.resource.kind, hint=error.hint)
        if new and self._refusal is not None:
            self._wake()  # the refusal has to be reported
        return max(pause * (0.5 + self._jitter() / 2), error.retry_after or 0.0)


def _version_number(resource_version: str) -> int:
    """Return the version as a number, 0 if it is not one. Versions are comparable numbers.

    https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
    """
    return int(resource_version) if resource_version.isdecimal() else 0
