"""What stands in the API server of one kind, kept up to date in memory.

List once, then watch from there. A watch that ends is resumed where it ended; one that is too old
(410) is begun with a new list, and what was known stays until that list is whole. While the API
server is gone, what was known stays too, and `health` says since when nothing was heard. A change
of what we keep of an object wakes the controller; a heartbeat does not.

Each reflector is a thread of its own that only reads.
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

from cluster.kube.client import Api, Event, Gone, Watch
from cluster.kube.errors import ApiError, NotFound
from cluster.kube.resources import Resource
from nodeside import log
from nodeside.backoff import backoff

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds between tries
_ABSENT = 60.0  # seconds until we ask again for a kind that the API server does not know
_CROWD = 256  # objects of one crowd that are kept
_SHORT = 1.0  # seconds; a watch that ends sooner counts as a failure, or we would spin


class Named(Protocol):
    """What a trimmed object must have."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


@dataclass(frozen=True, slots=True)
class WatchHealth:
    """`silent` is for how many seconds nothing was heard; `trouble` says why, in words.

    `refusal` is set where trying again changes nothing. `watches` is how many were begun. `about`
    says which objects these are, where a kind is watched more than once. One that is `optional`
    holds nothing else up.
    """

    kind: str
    synced: bool
    silent: float
    trouble: str = ""
    watches: int = 0
    refusal: ApiError | None = None
    about: str = ""
    optional: bool = False

    @property
    def name(self) -> str:
        """What people call it: `Node`, `Pod (build pods)`."""
        return f"{self.kind} ({self.about})" if self.about else self.kind


@dataclass(frozen=True, slots=True)
class Selection(Generic[T]):
    """Which objects of a kind, and what is kept of them.

    `optional`: the API server may not know this kind; then there is none of them. Such kinds are
    often served by another server, which may be down for itself.
    `left_out` names an object to which `trim` answered None: it is none of ours, or no longer.
    `about` is what people call these objects, where others of the kind are watched too.
    `is_news`: whether a change, which is kept already, wakes the controller.
    `crowd`: what many objects may have in common, as the node that writes them; of each crowd
    `_CROWD` are kept.
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


class _Crowds(Generic[T]):
    """Counts objects by their crowd: whoever makes more of them than there is use for is not
    listened to any more."""

    def __init__(self, of: Callable[[T], str] | None) -> None:
        self._of = of
        self._sizes: Counter[str] = Counter()

    def admits(self, item: T) -> bool:
        """Whether there is room for one more; then it is counted."""
        if self._of is None:
            return True
        crowd = self._of(item)
        if self._sizes[crowd] >= _CROWD:
            log.detail(f"not kept: {item.name}", of=crowd, kept=_CROWD)
            return False
        self._sizes[crowd] += 1
        return True

    def forget(self, item: T) -> None:
        if self._of is not None:
            self._sizes[self._of(item)] -= 1


class Reflector(Generic[T]):
    """Start it, read `objects`, stop it."""

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
        self._of = selection
        self._wake = wake
        self._now = now
        self._jitter = jitter
        self._changed = threading.Condition()
        self._objects: dict[str, T] = {}
        self._crowds: _Crowds[T] = _Crowds(selection.crowd)
        self._snapshot: Mapping[str, T] | None = None
        self._version = ""  # where the watch goes on; empty: list anew
        self._seen = 0
        self._synced = self._absent = False
        self._heard = now()
        self._trouble = ""
        self._refusal: ApiError | None = None
        self._failures = self._watches = 0
        self._watch: Watch | None = None
        self._anew = False
        self._listed = float("-inf")  # when the last list that was read whole began
        self._wanted = float("-inf")  # no list that began earlier will do
        self._stopping = threading.Event()
        self._poked = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"watch-{selection.resource.plural}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Begin to end; `join` waits for it."""
        self._stopping.set()
        self._poked.set()
        if (watch := self._watch) is not None:
            watch.close()

    def poke(self) -> None:
        """There is reason to believe that trying again now makes sense."""
        self._poked.set()

    def anew(self) -> None:
        """List again, since `trim` keeps other objects from now on; not synced before."""
        with self._changed:
            self._anew, self._synced = True, False
        self._poked.set()
        if (watch := self._watch) is not None:
            watch.close()

    def renew(self, since: float) -> None:
        """List again unless that was begun after `since`; what is known stays until then.

        A watch whose connection is dead says nothing for minutes, and only then is it trouble.
        """
        with self._changed:
            if self._listed >= since:
                return
            self._wanted = max(self._wanted, since)
        self._poked.set()
        if (watch := self._watch) is not None:
            watch.close()

    def join(self, timeout: float) -> None:
        if self._thread.is_alive():
            self._thread.join(timeout)

    def objects(self) -> Mapping[str, T] | None:
        """A snapshot by name; None if the API server does not know this kind."""
        with self._changed:
            if self._absent:
                return None
            if self._snapshot is None:
                self._snapshot = dict(self._objects)
            return self._snapshot

    def health(self) -> WatchHealth:
        with self._changed:
            return WatchHealth(
                kind=self._of.resource.kind,
                synced=self._synced,
                silent=self._now() - self._heard,
                trouble=self._trouble,
                watches=self._watches,
                refusal=self._refusal,
                about=self._of.about,
                optional=self._of.optional,
            )

    def wait_synced(self, timeout: float) -> bool:
        """Whether a whole list was read, within so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._synced, timeout)

    def wait_current(self, timeout: float) -> bool:
        """Whether the API server answered us last, and nothing is to be listed again."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._synced and not self._trouble and not self._is_old, timeout
            )

    def wait_seen(self, resource_version: str, timeout: float) -> bool:
        """Whether a write that was answered with this version has come back to us by now."""
        wanted = _number(resource_version)
        with self._changed:
            return self._changed.wait_for(lambda: self._seen >= wanted, timeout)

    def wait_gone(self, name: str, uid: str, timeout: float) -> bool:
        """Whether the object is no longer there, or is being deleted, or is another one."""

        def gone() -> bool:
            found: Any = self._objects.get(name)
            if found is None or getattr(found, "deleting", False):
                return True
            return bool(uid) and getattr(found, "uid", uid) != uid

        with self._changed:
            return self._changed.wait_for(gone, timeout)

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                pause = self._once()
            except ApiError as error:
                pause = self._failed(error)
            except Exception as exc:  # a bug of ours in trimming: said, and tried again
                traceback.print_exc()
                pause = self._failed(ApiError(f"a bug in nodeside, please report it: {exc!r}"))
            self._poked.wait(pause)
            if not self._stopping.is_set():
                self._poked.clear()

    def _once(self) -> float:
        """List if need be, and one watch to its end; seconds until the next."""
        if self._anew or self._is_old:
            self._version, self._anew = "", False
        if not self._version:
            self._list()
        began = self._now()
        try:
            self._follow()
        except Gone:
            self._version = ""
            log.detail("the watch is too old: listing anew", kind=self._of.resource.kind)
        lasted = self._now() - began
        return 0.0 if lasted > _SHORT else _FIRST_PAUSE * (0.5 + self._jitter() / 2)

    @property
    def _is_old(self) -> bool:
        return self._listed < self._wanted

    def _list(self) -> None:
        began = self._now()
        of, crowds = self._of, _Crowds(self._of.crowd)

        def keep(document: Mapping[str, Any]) -> T | None:
            item = self._keep(document)
            return item if item is not None and crowds.admits(item) else None

        try:
            page = self._api.list(
                of.resource,
                keep,
                namespace=of.namespace,
                selector=of.selector,
                fields=of.fields,
            )
        except NotFound:
            if not of.optional:
                raise
            self._none(began)
            return
        objects = {item.name: item for item in page.items}
        with self._changed:
            self._absent, changed = False, objects != self._objects or not self._synced
            self._objects, self._snapshot, self._synced = objects, None, not self._anew
            self._crowds, self._listed = crowds, began
            self._version = page.resource_version
            self._heard_from(page.resource_version)
        if changed:
            self._wake()

    def _none(self, began: float) -> None:
        """The API server knows no such kind. It may learn it: an operator may be installed."""
        with self._changed:
            first = not self._absent
            self._absent, self._synced, self._listed = True, not self._anew, began
            self._objects, self._snapshot = {}, None
            self._heard_from("")
        if first:
            self._wake()

    def _follow(self) -> None:
        if self._absent:
            self._poked.wait(_ABSENT * (0.5 + self._jitter() / 2))
            return
        of = self._of
        self._watches += 1
        self._watch = self._api.watch(
            of.resource,
            self._version,
            namespace=of.namespace,
            selector=of.selector,
            fields=of.fields,
        )
        with self._changed:
            self._heard_from("")  # the next event may be a minute away
        try:
            # `stop`, `anew` or `renew` may have come before there was a watch.
            if self._stopping.is_set() or self._anew or self._is_old:
                self._watch.close()
            for event in self._watch:
                self._take(event)
        except NotFound:
            self._version = ""
            raise
        finally:
            self._watch = None

    def _take(self, event: Event) -> None:
        version = str(event.object.get("metadata", {}).get("resourceVersion", ""))
        item = None if event.kind == "BOOKMARK" else self._keep(event.object)
        changed = False
        with self._changed:
            if item is not None:
                changed = self._put(item, deleted=event.kind == "DELETED")
            elif self._of.left_out is not None and event.kind != "BOOKMARK":
                changed = self._drop(self._of.left_out(event.object))
            self._version = version or self._version
            self._heard_from(version)
        if changed:
            self._wake()

    def _put(self, item: T, *, deleted: bool) -> bool:
        """Whether this changed anything that matters."""
        if deleted:
            return self._drop(item.name)
        before = self._objects.get(item.name)
        if before is None and not self._crowds.admits(item):
            return False
        self._objects[item.name] = item
        self._snapshot = None
        return before is None or self._of.is_news(before, item)

    def _drop(self, name: str) -> bool:
        gone = self._objects.pop(name, None)
        if gone is not None:
            self._crowds.forget(gone)
        self._snapshot = None
        return gone is not None

    def _keep(self, document: Mapping[str, Any]) -> T | None:
        """What we keep of an object. One that cannot be read hurts only itself."""
        try:
            return self._of.trim(document)
        except Exception as exc:
            name = document.get("metadata", {}).get("name", "")
            traceback.print_exc()
            log.warning(f"cannot read {self._of.resource.kind} {name}: {exc!r}")
            return None

    def _heard_from(self, version: str) -> None:
        """Called with the lock: the API server spoke to us."""
        self._seen = max(self._seen, _number(version))
        self._heard = self._now()
        if self._trouble:
            log.fact("the API server answers again", kind=self._of.resource.kind)
        if self._refusal is not None:
            self._wake()  # somebody said so
        self._trouble, self._refusal, self._failures = "", None, 0
        self._changed.notify_all()

    def _failed(self, error: ApiError) -> float:
        """Say once what is wrong; seconds until the next try."""
        with self._changed:
            new, self._trouble = str(error) != self._trouble, str(error)
            self._refusal = None if error.retryable else error
            self._failures += 1
            pause = backoff(self._failures, _FIRST_PAUSE, _LONGEST_PAUSE)
        say = log.warning if new else log.detail
        say(f"not up to date: {error}", kind=self._of.resource.kind, hint=error.hint)
        if new and self._refusal is not None:
            self._wake()  # somebody says so
        return max(pause * (0.5 + self._jitter() / 2), error.retry_after or 0.0)


def _number(resource_version: str) -> int:
    """Versions are comparable numbers; an answer without one is as old as can be.

    https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
    """
    return int(resource_version) if resource_version.isdecimal() else 0


_LONGEST = 3600.0  # seconds from one look to the next, whatever a plan says


class Wakeup:
    """Something changed: look again. Any thread may say so; one waits."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._changed = threading.Condition()
        self._woken = False

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def wait(self, timeout: float | None) -> bool:
        """Until somebody wakes us, or an hour is over; forgets it, so that what comes from now on
        wakes again. A longer time may be more than the operating system takes."""
        limit = _LONGEST if timeout is None else min(timeout, _LONGEST)
        with self._changed:
            woken = self._changed.wait_for(lambda: self._woken, limit)
            self._woken = False
            return woken
