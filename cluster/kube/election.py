"""Leader election: of several replicas, the one that holds a Lease leads.

Safety: a leader may work only for `LeaseTimings.work` seconds after *sending* its last successful
renewal, by its own monotonic clock, and every request it makes ends by then. Another replica may
take the Lease only after `LeaseTimings.lease` seconds without a renewal on *its* monotonic clock,
which started counting later. So the leader's work has stopped before another replica may start.
Wall clocks are not involved: the times in the Lease are only for display. An identity belongs to
one process at a time: it is the pod's name, which a restarted container shares with its dead
predecessor. (A process that is frozen between reading its clock and sending may be late; then only
the API server's conflict checks protect.)

Speed: a leader that stops releases the Lease, and a candidate watches the Lease.

https://kubernetes.io/docs/concepts/architecture/leases/
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from cluster.kube.client import Api
from cluster.kube.errors import ApiError, Conflict, NotFound
from cluster.kube.resources import LEASES
from nodeside import log
from nodeside.protocol.timestamps import rfc3339_micro


@dataclass(frozen=True)
class LeaseTimings:
    """Lease timings in seconds.

    `lease`: the lease duration; `work`: how long the leader may act after a renewal; `renew`: the
    interval between renewals; `request`: the timeout of one request for the Lease; `retry`: the
    pause after a failure.
    """

    lease: float = 15.0
    work: float = 10.0
    renew: float = 3.0
    request: float = 3.0
    retry: float = 1.0

    @staticmethod
    def scaled_to(lease: float) -> LeaseTimings:
        """Return the default timings scaled to a lease duration in seconds."""
        usual = LeaseTimings()
        return LeaseTimings(*(each * lease / usual.lease for each in astuple(usual)))


class LostLead(ApiError):
    """Our lease has run out: another replica may lead by now."""

    reason = "LostLead"


class Leadership:
    """Whether we lead, to be checked before every action. Any thread may check.

    `alone_since` is the time, by our clock, since when no earlier leader can have acted.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._now = now
        self._on_end = on_end
        self._until = float("-inf")
        self.alone_since = float("-inf")
        self._ended = threading.Event()
        self._ended.set()

    def seconds_left(self) -> float:
        """Return the seconds for which we may still act, which also limits each request.

        Raises LostLead if none are left.
        """
        left = self._until - self._now()
        if self._ended.is_set() or left <= 0:
            raise LostLead("we no longer hold the lease")
        return left

    @property
    def leads(self) -> bool:
        return not self._ended.is_set() and self._until > self._now()

    def begin(self, until: float, alone_since: float = float("-inf")) -> None:
        self._until, self.alone_since = until, alone_since
        self._ended.clear()

    def extend(self, until: float) -> None:
        """Extend the time, which has no effect after `end`."""
        self._until = until

    def end(self) -> None:
        """End the leadership: no action may start from now on."""
        self._ended.set()
        self._on_end()

    def wait_end(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the end; return whether it came."""
        return self._ended.wait(timeout)


@dataclass
class _ObservedLease:
    """The Lease as last seen, and when *we* saw it change."""

    version: str = ""
    holder: str = ""
    seconds: float = 0.0
    since: float = float("-inf")
    document: Mapping[str, Any] = field(default_factory=dict)

    def quiet_since(self, identity: str, work: float) -> float:
        """Return since when its holder no longer acts, if it may do so for `work` seconds."""
        return self.since + (0.0 if self.holder in ("", identity) else work)

    def is_free(self, identity: str, now: float) -> bool:
        """Return whether the Lease has no holder, expired, or is held by our own identity."""
        return self.holder in ("", identity) or now >= self.since + self.seconds


class Election:
    """A candidate. Run `campaign` in the main thread; `work` runs in it while we lead."""

    def __init__(
        self,
        api: Api,
        *,
        namespace: str,
        name: str,
        identity: str,
        stopping: threading.Event,
        pace: LeaseTimings | None = None,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._stopping = stopping
        self._pace = pace or LeaseTimings()
        self._now = now
        self._wall = wall
        self._jitter = jitter
        self._seen = _ObservedLease()
        self.leadership = Leadership(now, on_end)

    def look_first(self) -> None:
        """Read the Lease before anything else is read.

        If it is free, everything read afterwards is newer than the last leader's actions.
        """
        with suppress(ApiError):
            self._read_lease()

    def campaign(self, work: Callable[[Leadership], None]) -> None:
        """Lead whenever possible, until `stopping`. `work` must return soon after losing the lead.

        An exception from `work` ends the campaign after the Lease has been released.
        """
        log.fact(
            "waiting to lead", lease=f"{self._namespace}/{self._name}", identity=self._identity
        )
        while not self._stopping.is_set():
            if not self._try_to_lead():
                continue
            log.fact("leading", identity=self._identity)
            renewing = threading.Thread(
                target=self._renew_until_lost, name="renew-lease", daemon=True
            )
            renewing.start()
            try:
                work(self.leadership)
            finally:
                self.leadership.end()
                renewing.join(self._pace.request + self._pace.renew)
                self._release_lease()
                log.fact("no longer leading", identity=self._identity)

    # --- as a candidate ---------------------------------------------------------------------------

    def _try_to_lead(self) -> bool:
        """Read the Lease. If it is free, try to take it; otherwise wait until it may be free."""
        try:
            self._read_lease()
            if self._seen.is_free(self._identity, self._now()):
                return self._take_lease()
            self._await_change()
        except Conflict:
            pass  # another candidate was faster; look again
        except ApiError as error:
            log.warning(f"cannot campaign: {error}", hint=error.hint)
            self._stopping.wait(self._pace.retry * (1 + self._jitter()))
        return False

    def _read_lease(self) -> None:
        """Read the Lease; its expiry counts from when we saw it change."""
        limits: dict[str, Any] = {"deadline": self._pace.request, "patient": False}
        try:
            lease = self._api.get(LEASES, self._name, namespace=self._namespace, **limits)
        except NotFound:
            self._note_absence()
            return
        self._note_lease(lease)

    def _note_absence(self) -> None:
        """Record that the Lease is missing. Its holder, if any, acts until its next renewal."""
        seen = self._seen
        if seen.holder:
            self._seen = replace(seen, version="", document={})
        elif seen.version or seen.since == float("-inf"):
            self._seen = _ObservedLease(since=self._now())

    def _note_lease(self, lease: Mapping[str, Any]) -> None:
        version, spec = lease["metadata"]["resourceVersion"], lease.get("spec") or {}
        if version == self._seen.version:
            return
        self._seen = _ObservedLease(
            version,
            str(spec.get("holderIdentity") or ""),
            float(spec.get("leaseDurationSeconds") or 0),
            self._now(),
            lease,
        )

    def _await_change(self) -> None:
        """Wait until the Lease changes or may have expired, at most one lease duration."""
        left = self._seen.since + self._seen.seconds - self._now()
        seconds = max(0.1, min(left, self._pace.lease))
        watch = self._api.watch(
            LEASES,
            self._seen.version,
            namespace=self._namespace,
            fields=f"metadata.name={self._name}",
            seconds=seconds + 1,
        )
        over = threading.Event()
        threading.Thread(
            target=self._close_when, args=(watch, over, seconds), daemon=True, name="lease-watch"
        ).start()
        try:
            for event in watch:
                if event.kind in ("ADDED", "MODIFIED"):
                    self._note_lease(event.object)
                if event.kind == "DELETED" or self._seen.is_free(self._identity, self._now()):
                    return
        finally:
            over.set()

    def _close_when(self, watch: Any, over: threading.Event, seconds: float) -> None:
        """Close the watch when the Lease may have expired or when we have to stop."""
        ends = self._now() + seconds
        while not self._stopping.is_set() and self._now() < ends:
            if over.wait(0.1):
                break
        watch.close()

    def _take_lease(self) -> bool:
        """Write our identity into a free Lease. Raises Conflict if another replica was faster."""
        sent, quiet = self._now(), self._seen.quiet_since(self._identity, self._pace.work)
        transitions = int((self._seen.document.get("spec") or {}).get("leaseTransitions") or 0)
        self._write_lease(holder=self._identity, transitions=transitions + 1)
        self.leadership.begin(sent + self._pace.work, quiet)
        return True

    # --- as the leader ----------------------------------------------------------------------------

    def _renew_until_lost(self) -> None:
        """Renew the Lease until it is lost or the work ends."""
        try:
            pause = self._pace.renew
            while self.leadership.leads and not self.leadership.wait_end(pause):
                pause = self._renew_once()
        finally:
            self.leadership.end()  # wakes a worker that waits for changes

    def _renew_once(self) -> float:
        """Try once to renew. Return the seconds until the next try."""
        sent = self._now()
        try:
            self._write_lease(holder=self._identity)
            self.leadership.extend(sent + self._pace.work)
            return self._pace.renew
        except Conflict as error:
            if not self._is_still_ours():
                log.warning(f"another replica holds the lease: {error}")
                self.leadership.end()
        except NotFound:  # no one else holds it: the next try creates it again
            log.warning("somebody deleted the lease")
            self._note_absence()
        except ApiError as error:
            log.warning(f"cannot renew the lease: {error}", hint=error.hint)
        return self._pace.retry

    def _is_still_ours(self) -> bool:
        """Check after a conflict: our own write may have succeeded though its answer was lost."""
        with suppress(ApiError):
            self._read_lease()
            return self._seen.holder == self._identity
        return True

    def _release_lease(self) -> None:
        """Release the Lease if it is still ours, so that the next candidate need not wait."""
        try:
            self._read_lease()
            if self._seen.holder == self._identity:
                self._write_lease(holder="", seconds=1.0)
        except ApiError as error:
            log.warning(f"cannot release the lease: {error}", hint=error.hint)

    def _write_lease(self, *, holder: str, seconds: float = 0.0, transitions: int = 0) -> None:
        """Write the Lease. Raises Conflict if it is not at the version that we last saw.

        `transitions` is the new count if the Lease changes hands.
        """
        moment = rfc3339_micro(self._wall())
        spec = dict(self._seen.document.get("spec") or {})
        spec |= {"holderIdentity": holder, "renewTime": moment}
        spec["leaseDurationSeconds"] = int(seconds or self._pace.lease)
        if transitions:
            spec |= {"acquireTime": moment, "leaseTransitions": transitions}
        metadata = {"name": self._name, "namespace": self._namespace}
        document: dict[str, Any] = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": metadata,
            "spec": spec,
        }
        limits: dict[str, Any] = {"deadline": self._pace.request, "patient": False}
        if self._seen.version:
            metadata["resourceVersion"] = self._seen.version
            self._note_lease(self._api.replace(document, **limits))
        else:
            self._note_lease(self._api.create(document, **limits))
