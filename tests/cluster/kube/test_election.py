"""The lease: who may lead, for how long, and that two never work at the same time."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from cluster.kube.election import Election, Leadership, LeaseTimings, LostLead
from cluster.kube.errors import Conflict, NotFound, Unreachable
from tests.patience import patience

LONG = patience(30.0)  # seconds: a deadline that only a broken test meets
QUICK = LeaseTimings(lease=1.0, work=0.6, renew=0.1, request=0.2, retry=0.05)


@dataclass
class FakeLeases:
    """One Lease with the conflict rules of the API server; `gone` answers nobody."""

    gone: bool = False
    lease: dict[str, Any] | None = None
    writes: list[str] = field(default_factory=list)
    _versions: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, *_: object, **__: object) -> dict[str, Any]:
        self._answer()
        if self.lease is None:
            raise NotFound("no lease", status=404)
        return self.lease

    def create(self, document: dict[str, Any], **_: object) -> dict[str, Any]:
        with self._lock:
            self._answer()
            if self.lease is not None:
                raise Conflict("there already", status=409)
            return self._keep(document)

    def replace(self, document: dict[str, Any], **_: object) -> dict[str, Any]:
        with self._lock:
            self._answer()
            current = (self.lease or {"metadata": {}})["metadata"].get("resourceVersion")
            if document["metadata"]["resourceVersion"] != current:
                raise Conflict("changed meanwhile", status=409)
            return self._keep(document)

    def watch(self, *_: object, **__: object) -> Any:
        self._answer()
        return FakeWatch(threading.Event())

    def _answer(self) -> None:
        if self.gone:
            raise Unreachable("no answer")

    def _keep(self, document: dict[str, Any]) -> dict[str, Any]:
        metadata = document["metadata"] | {"resourceVersion": str(next(self._versions))}
        self.lease = {**document, "metadata": metadata}
        self.writes.append(document["spec"]["holderIdentity"])
        return self.lease


@dataclass
class FakeWatch:
    """Says nothing and ends when it is closed: a lost event is no harm."""

    closed: threading.Event

    def __iter__(self) -> Iterator[Any]:
        self.closed.wait(LONG)
        return iter(())

    def close(self) -> None:
        self.closed.set()


@dataclass
class Replica:
    """An election in a thread of its own whose work notes when it begins and ends."""

    leases: FakeLeases
    name: str
    notes: list[tuple[str, str]]
    stopping: threading.Event = field(default_factory=threading.Event)
    leading: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.election = Election(
            self.leases,  # type: ignore[arg-type]
            namespace="x",
            name="lease",
            identity=self.name,
            stopping=self.stopping,
            pace=QUICK,
        )
        self.thread = threading.Thread(target=self.election.campaign, args=(self._work,))

    def _work(self, leadership: Leadership) -> None:
        self.notes.append((self.name, "begins"))
        self.leading.set()
        with suppress(LostLead):
            while not self.stopping.is_set():
                leadership.seconds_left()
                self.stopping.wait(0.01)
        self.leading.clear()
        self.notes.append((self.name, "ends"))


@contextmanager
def running(*replicas: Replica) -> Iterator[None]:
    for replica in replicas:
        replica.thread.start()
    try:
        yield
    finally:
        for replica in replicas:
            replica.stopping.set()
        for replica in replicas:
            replica.thread.join(LONG)
            assert not replica.thread.is_alive()


def until(holds: Callable[[], bool]) -> None:
    pause = threading.Event()
    assert any(holds() or pause.wait(0.01) for _ in range(int(LONG / 0.01)))


def test_a_shorter_lease_keeps_the_proportions_that_make_it_safe() -> None:
    assert LeaseTimings.scaled_to(15) == LeaseTimings()
    short = LeaseTimings.scaled_to(3)
    assert short.work + short.request + short.retry <= short.lease
    assert short.renew + short.request + short.retry < short.work


def test_who_stops_gives_the_lease_back_and_the_next_one_leads() -> None:
    leases, notes = FakeLeases(), list[tuple[str, str]]()
    first, second = Replica(leases, "a", notes), Replica(leases, "b", notes)
    with running(first):
        until(first.leading.is_set)
        with running(second):
            first.stopping.set()
            first.thread.join(LONG)
            assert leases.writes[-1] in ("", "b")
            until(second.leading.is_set)

    assert notes == [("a", "begins"), ("a", "ends"), ("b", "begins"), ("b", "ends")]


def test_leader_stops_before_its_lease_expires() -> None:
    mine, notes = FakeLeases(), list[tuple[str, str]]()
    cut_off = FakeLeases()
    first = Replica(mine, "a", notes)
    with running(first):
        until(first.leading.is_set)
        # From here on `a` talks to nobody, and `b` sees the lease as `a` left it.
        cut_off.lease, mine.gone = mine.lease, True
        second = Replica(cut_off, "b", notes)
        with running(second):
            until(second.leading.is_set)
            assert notes == [("a", "begins"), ("a", "ends"), ("b", "begins")]


def test_a_lease_of_somebody_silent_is_taken_only_after_its_whole_time_on_our_own_clock() -> None:
    leases, now = FakeLeases(), [1000.0]
    leases.create({"metadata": {}, "spec": {"holderIdentity": "dead", "leaseDurationSeconds": 15}})
    election = Election(
        leases,  # type: ignore[arg-type]
        namespace="x",
        name="lease",
        identity="b",
        stopping=threading.Event(),
        now=lambda: now[0],
    )
    election._read_lease()
    now[0] += 14.9
    election._read_lease()
    assert not election._seen.is_free("b", now[0])
    now[0] += 0.2
    assert election._seen.is_free("b", now[0])


def candidate(leases: FakeLeases, now: list[float], identity: str = "b") -> Election:
    return Election(
        leases,  # type: ignore[arg-type]
        namespace="x",
        name="lease",
        identity=identity,
        stopping=threading.Event(),
        now=lambda: now[0],
    )


def test_a_lease_that_is_deleted_is_its_holders_until_its_time_is_over() -> None:
    leases, now = FakeLeases(), [1000.0]
    first, second = candidate(leases, now, "a"), candidate(leases, now, "b")
    first._read_lease()
    first._take_lease()
    second._read_lease()
    leases.lease = None  # kubectl delete lease

    now[0] += 14.9
    second._read_lease()
    assert not second._seen.is_free("b", now[0])
    now[0] += 0.2
    second._read_lease()
    assert second._seen.is_free("b", now[0])
    assert second._take_lease()


def test_who_finds_its_lease_deleted_makes_it_again_unless_somebody_was_faster() -> None:
    leases, now = FakeLeases(), [1000.0]
    first, other = candidate(leases, now, "a"), candidate(leases, now, "c")
    first._read_lease()
    first._take_lease()
    leases.lease = None
    for _ in range(2):
        first._renew_once()
    assert leases.lease is not None
    assert first.leadership.leads

    leases.lease = None
    other._read_lease()  # which never saw it, and cannot know
    other._take_lease()
    first._renew_once()
    assert not first.leadership.leads


@pytest.mark.parametrize(
    ("holder", "alone_since"), [("dead", 1010.0), ("", 1000.0), ("b", 1000.0), (None, 1000.0)]
)
def test_from_when_on_nobody_else_can_have_acted(holder: str | None, alone_since: float) -> None:
    leases, now = FakeLeases(), [1000.0]
    if holder is not None:
        spec = {"holderIdentity": holder, "leaseDurationSeconds": 15}
        leases.create({"metadata": {}, "spec": spec})
    election = candidate(leases, now)
    election.look_first()
    now[0] += 20.0
    election._read_lease()
    election._take_lease()

    assert election.leadership.alone_since == alone_since


def test_a_restarted_container_of_the_same_pod_need_not_wait_for_itself() -> None:
    leases, notes = FakeLeases(), list[tuple[str, str]]()
    leases.create({"metadata": {}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 900}})
    again = Replica(leases, "a", notes)
    with running(again):
        until(again.leading.is_set)


def test_of_two_that_begin_at_once_one_leads() -> None:
    leases, notes = FakeLeases(), list[tuple[str, str]]()
    replicas = [Replica(leases, name, notes) for name in "abcd"]
    with running(*replicas):
        until(lambda: any(r.leading.is_set() for r in replicas))
        assert sum(r.leading.is_set() for r in replicas) == 1
    for (name, word), (other, then) in itertools.pairwise(notes):
        assert word != "begins" or (other, then) == (name, "ends")


def test_no_request_starts_after_lost_lease() -> None:
    leadership = Leadership(now=lambda: 0.0)
    with pytest.raises(LostLead):
        leadership.seconds_left()
    leadership.begin(10.0)
    assert leadership.seconds_left() == 10.0
    leadership.end()
    leadership.extend(99.0)  # a renewal that was under way
    with pytest.raises(LostLead):
        leadership.seconds_left()
    assert not leadership.leads


def test_work_that_waits_for_news_is_woken_when_the_time_runs_out() -> None:
    leases, woken, stopping = FakeLeases(), threading.Event(), threading.Event()

    def work(_: Leadership) -> None:
        leases.gone = True
        assert woken.wait(LONG)
        stopping.set()

    election = Election(
        leases,  # type: ignore[arg-type]
        namespace="x",
        name="lease",
        identity="a",
        stopping=stopping,
        pace=QUICK,
        on_end=woken.set,
    )
    election.campaign(work)
