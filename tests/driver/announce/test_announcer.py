"""What the node and the cluster are told, when, and in how many requests."""

from __future__ import annotations

import io
import logging
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeside import log
from nodeside.driver.announce import documents
from nodeside.driver.announce.announcer import Announcer
from nodeside.driver.announce.api import RecordingClient, StatusClient
from nodeside.driver.announce.delivery import Delivery, Pace
from nodeside.http.status import KubernetesError
from nodeside.protocol.labels import node_driver_name, state_label
from nodeside.protocol.node_status import (
    READY_PATTERN,
    REPORT_ITEMS,
    REPORT_TEXT,
    NodeDriverStatus,
    Rung,
    State,
)
from nodeside.protocol.ready_file import read_ready, ready_path
from nodeside.spec import check_labels, check_node_driver
from nodeside.system.clock import Clock
from nodeside.system.host import Host
from tests.driver.fakes.apiserver import ApiServer, Fault, make_certificates

READY = NodeDriverStatus(
    driver="edu",
    node="n1",
    state=State.READY,
    version="1.0",
    kernel="6.1.0-47-amd64",
    boot_id="boot-1",
    source=Rung.BUILT,
    key="ab" * 32,
    modules=("edu",),
    stages={"build": 12.5, "load": 0.2},
)
LABEL = "PATCH /api/v1/nodes/n1"
NODE_DRIVER = "PATCH /apis/nodeside.io/v1alpha1/nodedrivers/edu.n1"
STATUS = f"{NODE_DRIVER}/status"
EVENT = "POST /apis/events.k8s.io/v1/namespaces/default/events"


def in_state(state: State, **changes: Any) -> NodeDriverStatus:
    return replace(READY, state=state, source=None, modules=(), stages={}, **changes)


FAILED = in_state(
    State.FAILED, reason="BuildFailed", message="edu.c:3: error", hint="make -C /usr/src"
)


class Time:
    """A clock that a test turns by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    @property
    def clock(self) -> Clock:
        return Clock(now=lambda: self.now)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def server(tmp_path: Path, certificates: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path / "serviceaccount", certificates).running() as running:
        yield running


@pytest.fixture
def delivery(server: ApiServer, time: Time) -> Iterator[Delivery]:
    cluster = StatusClient(server.access, connect=2, read=2)
    yield Delivery(
        cluster,
        clock=time.clock,
        wall=lambda: 1763724600.25,
        jitter=lambda: 1.0,
    )
    cluster.close()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "host")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """The log, as text."""
    text = io.StringIO()
    logger = logging.getLogger("nodeside")
    monkeypatch.setattr(logger, "handlers", [])
    log.setup("driver", to=text)
    return text


def tell(delivery: Delivery, *statuses: NodeDriverStatus, hurry: bool = False) -> None:
    """Want these states one after the other, and send what is due for the last."""
    for status in statuses:
        delivery.set_wanted(status)
    send(delivery, hurry=hurry)


def send(delivery: Delivery, *, hurry: bool = False) -> None:
    while delivery.seconds_until_next(hurry=hurry) == 0:
        delivery.send_next()


# --- the documents ---------------------------------------------------------------------------


def test_ready_driver_is_told_in_three_documents(server: ApiServer, delivery: Delivery) -> None:
    tell(delivery, READY)

    label, node_driver, event = server.seen
    assert label.body == {"metadata": {"labels": {"nodeside.io/edu.state": "ready"}}}
    assert node_driver.body == {
        "apiVersion": "nodeside.io/v1alpha1",
        "kind": "NodeDriver",
        "metadata": {
            "name": "edu.n1",
            "labels": {"nodeside.io/driver": "edu", "nodeside.io/state": "ready"},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-of-n1"},
            ],
        },
        "status": {
            "driver": "edu",
            "node": "n1",
            "state": "ready",
            "version": "1.0",
            "kernel": "6.1.0-47-amd64",
            "bootId": "boot-1",
            "source": "built",
            "key": "ab" * 32,
            "modules": ["edu"],
            "stages": {"build": 12.5, "load": 0.2},
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "Ready",
                    "message": "",
                    "lastTransitionTime": "2025-11-21T11:30:00Z",
                }
            ],
        },
    }
    assert event.body == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "edu.n1.6441922478e90", "namespace": "default"},
        "eventTime": "2025-11-21T11:30:00.250000Z",
        "reportingController": "nodeside.io/driver",
        "reportingInstance": "n1",
        "action": "Announce",
        "reason": "DriverReady",
        "type": "Normal",
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-of-n1"},
        "related": {
            "apiVersion": "nodeside.io/v1alpha1",
            "kind": "NodeDriver",
            "name": "edu.n1",
        },
        "note": "driver edu 1.0, kernel 6.1.0-47-amd64: ready (built), modules edu",
    }


def test_failure_is_a_warning_with_reason_message_and_hint(
    server: ApiServer, delivery: Delivery
) -> None:
    tell(delivery, FAILED)

    _, node_driver, event = server.seen
    assert node_driver.body["status"]["reason"] == "BuildFailed"
    assert node_driver.body["status"]["hint"] == "make -C /usr/src"
    assert (event.body["type"], event.body["reason"]) == ("Warning", "BuildFailed")
    assert event.body["note"] == (
        "driver edu 1.0, kernel 6.1.0-47-amd64: failed: edu.c:3: error\nhint: make -C /usr/src"
    )


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("source", [None, *Rung])
def test_every_state_makes_documents_that_an_api_server_accepts(
    state: State, source: Rung | None
) -> None:
    status = replace(FAILED, state=state, source=source, modules=("edu",), stages={"a": 1.0})

    assert check_labels(documents.node_labels(status)) == []
    assert check_node_driver(documents.node_driver_document(status, node_uid="u")) == []


def test_label_and_name_are_those_of_the_protocol() -> None:
    assert documents.node_labels(READY) == {state_label("edu"): State.READY.value}
    assert documents.node_driver_document(READY)["metadata"]["name"] == node_driver_name(
        "edu", "n1"
    )


def test_half_a_character_in_a_message_reaches_the_cluster_as_text() -> None:
    odd = replace(FAILED, message="firmware edu\udce9.bin", hint="rename edu\udce9.bin")

    event = documents.event_document(odd, node_uid="", now=1.5)
    status = documents.node_driver_document(odd)["status"]

    assert "firmware edu\\udce9.bin" in event["note"]
    assert (status["message"], status["hint"]) == (
        "firmware edu\\udce9.bin",
        "rename edu\\udce9.bin",
    )


def test_event_fits_the_limits_of_the_api_server() -> None:
    long = replace(
        FAILED,
        message="\u00e4" * 5000,
        reason="R" * 300,
        node="n" * 63 + "." + "m" * 180,
        modules=tuple(f"m{i}" * 1000 for i in range(100)),
        stages={f"s{i}": 1.0 for i in range(100)},
    )

    event = documents.event_document(long, node_uid="", now=1.5)
    document = documents.node_driver_document(long)

    assert len(event["note"].encode()) <= 1024
    assert event["note"].endswith(" [cut]")
    assert len(event["metadata"]["name"]) <= 253
    assert len(event["reportingInstance"]) <= 128
    assert len(event["reason"]) <= 128
    assert re.fullmatch(r"1970-01-01T00:00:01\.500000Z", event["eventTime"])
    assert "uid" not in event["regarding"]
    assert not check_node_driver(document)
    assert len(document["status"]["message"]) == REPORT_TEXT
    assert len(document["status"]["modules"]) == len(document["status"]["stages"]) == REPORT_ITEMS


def test_event_without_a_reason_is_named_after_the_state() -> None:
    event = documents.event_document(in_state(State.REBOOT_REQUIRED), node_uid="", now=0)

    assert (event["reason"], event["type"]) == ("DriverRebootRequired", "Warning")


def test_owner_whose_uid_is_unknown_is_not_named() -> None:
    assert "ownerReferences" not in documents.node_driver_document(READY)["metadata"]


def test_a_node_driver_is_found_by_its_labels_and_awaited_by_its_condition() -> None:
    ready, failed = (documents.node_driver_document(each, since=1.9) for each in (READY, FAILED))

    assert ready["metadata"]["labels"] == {
        "nodeside.io/driver": "edu",
        "nodeside.io/state": "ready",
    }
    assert ready["status"]["conditions"] == [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Ready",
            "message": "",
            "lastTransitionTime": "1970-01-01T00:00:01Z",
        }
    ]
    [condition] = failed["status"]["conditions"]
    assert condition["status"] == "False"
    assert condition["reason"] == FAILED.reason
    assert condition["message"] == FAILED.message


@pytest.mark.parametrize("reason", ["", "no word", "1st", "Colon:", "R" * 2000])
def test_a_reason_that_no_condition_can_have_is_the_state(reason: str) -> None:
    status = replace(in_state(State.REBOOT_REQUIRED), reason=reason)
    [condition] = documents.node_driver_document(status)["status"]["conditions"]
    assert condition["reason"] == "RebootRequired"


def test_a_condition_says_since_when_also_after_other_news() -> None:
    wall = iter((100.0, 200.0, 300.0))
    cluster = RecordingClient()
    delivery = Delivery(cluster, wall=lambda: next(wall))
    building, loading = in_state(State.BUILDING), in_state(State.LOADING)

    since = [delivery._ready_since(each) for each in (building, loading, READY, READY, FAILED)]

    assert since == [100.0, 100.0, 200.0, 200.0, 300.0]


# --- how many requests -----------------------------------------------------------------------


def test_first_rollout_is_three_requests(server: ApiServer, delivery: Delivery, time: Time) -> None:
    for state in (State.WAITING, State.BUILDING, State.LOADING):
        tell(delivery, in_state(state))
        time.now += 3
    tell(delivery, READY)

    assert server.lines == [LABEL, NODE_DRIVER, EVENT]
    assert delivery.seconds_until_next() is None


def test_first_rollout_with_a_status_subresource_is_four_requests(
    server: ApiServer, delivery: Delivery
) -> None:
    server.status_subresource = True

    tell(delivery, in_state(State.LOADING), READY)

    assert server.lines == [LABEL, NODE_DRIVER, STATUS, EVENT]


def test_ready_driver_that_is_looked_at_again_costs_nothing(
    server: ApiServer, delivery: Delivery
) -> None:
    tell(delivery, READY)
    server.seen.clear()

    for number in range(100):
        tell(delivery, replace(READY, source=Rung.LOADED, stages={"look": number / 7}))

    assert server.lines == []
    assert delivery.seconds_until_next() is None


def test_long_build_is_told_after_a_while(
    server: ApiServer, delivery: Delivery, time: Time
) -> None:
    tell(delivery, in_state(State.WAITING))
    time.now += 4
    tell(delivery, in_state(State.BUILDING))
    assert delivery.seconds_until_next() == 6
    assert server.lines == []
    time.now += 6
    send(delivery)

    assert server.lines == [LABEL, NODE_DRIVER]
    assert server.labels["n1"] == {"nodeside.io/edu.state": "building"}


def test_progress_in_the_message_of_a_build_is_told_now_and_then(
    server: ApiServer, delivery: Delivery, time: Time
) -> None:
    tell(delivery, in_state(State.BUILDING), hurry=True)
    server.seen.clear()
    for percent in range(30):
        tell(delivery, in_state(State.BUILDING, message=f"{percent} %"))
        time.now += 1

    assert server.lines == [NODE_DRIVER] * 2


def test_end_of_readiness_is_told_at_once(server: ApiServer, delivery: Delivery) -> None:
    tell(delivery, READY)
    server.seen.clear()

    tell(delivery, in_state(State.UNLOADING))

    assert server.lines == [LABEL, NODE_DRIVER]
    assert server.labels["n1"] == {"nodeside.io/edu.state": "unloading"}


def test_state_that_was_superseded_is_not_told(server: ApiServer, delivery: Delivery) -> None:
    tell(delivery, READY)
    server.seen.clear()

    tell(delivery, in_state(State.LOADING), READY)

    assert server.lines == []


def test_newer_state_does_not_wait_for_the_rest_of_an_older_one(
    server: ApiServer, delivery: Delivery
) -> None:
    delivery.set_wanted(FAILED)
    delivery.send_next()
    delivery.set_wanted(READY)
    send(delivery)

    assert server.lines == [LABEL, LABEL, NODE_DRIVER, EVENT]
    assert [event["reason"] for event in server.events.values()] == ["DriverReady"]


def test_each_change_between_ready_and_failed_has_its_event(
    server: ApiServer, delivery: Delivery, time: Time
) -> None:
    for status in (READY, FAILED, READY):
        time.now += 60
        delivery.wall = lambda: time.now
        tell(delivery, status)

    assert [event["reason"] for event in server.events.values()] == [
        "DriverReady",
        "BuildFailed",
        "DriverReady",
    ]


def test_same_failure_again_is_no_new_event(
    server: ApiServer, delivery: Delivery, time: Time
) -> None:
    tell(delivery, FAILED)
    for attempt in range(5):
        time.now += 5
        tell(delivery, in_state(State.BUILDING), replace(FAILED, message=f"attempt {attempt}"))

    assert server.lines.count(EVENT) == 1
    assert server.lines.count(LABEL) == 1


def test_failure_after_an_attempt_that_was_told_is_an_event(
    server: ApiServer, delivery: Delivery, time: Time
) -> None:
    tell(delivery, FAILED)
    delivery.wall = lambda: 7.0
    tell(delivery, in_state(State.BUILDING), hurry=True)
    tell(delivery, FAILED)

    assert server.lines.count(EVENT) == 2


# --- trouble ---------------------------------------------------------------------------------


def test_busy_server_is_left_alone_for_as_long_as_it_asks(
    server: ApiServer, delivery: Delivery, time: Time, said: io.StringIO
) -> None:
    server.faults.append(Fault(429, "too many requests", {"Retry-After": "20"}))

    tell(delivery, READY)

    assert (
        delivery.seconds_until_next() == 25
    )  # what was asked for, and up to a quarter so that nodes spread
    time.now += 25
    send(delivery)
    assert server.lines == [LABEL, LABEL, NODE_DRIVER, EVENT]
    assert said.getvalue().count("not announced: ") == 1


def test_retries_back_off_up_to_a_minute(
    server: ApiServer, delivery: Delivery, time: Time, said: io.StringIO
) -> None:
    server.faults += [Fault(503, "shutting down")] * 9
    delivery.set_wanted(READY)
    waits = []
    for _ in range(9):
        delivery.send_next()
        waits.append(delivery.seconds_until_next())
        time.now += waits[-1] or 0

    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    send(delivery)
    assert server.labels["n1"] == {"nodeside.io/edu.state": "ready"}
    assert said.getvalue().count("warning: not announced: ") == 1  # one line for one fact


def test_jitter_spreads_the_nodes(delivery: Delivery, server: ApiServer) -> None:
    server.faults.append(Fault(503))
    delivery.jitter = lambda: 0.0

    tell(delivery, READY)

    assert delivery.seconds_until_next() == 0.5


def test_new_state_does_not_hurry_a_busy_server(server: ApiServer, delivery: Delivery) -> None:
    server.faults.append(Fault(429, "", {"Retry-After": "20"}))
    tell(delivery, READY)

    tell(delivery, FAILED)

    assert delivery.seconds_until_next() == 25
    assert server.lines == [LABEL]


def test_event_whose_answer_was_lost_is_not_made_twice(
    server: ApiServer, delivery: Delivery, time: Time
) -> None:
    delivery.set_wanted(READY)
    delivery.send_next()
    delivery.send_next()
    server.before_answer = lambda: server.events.update(
        {server.seen[-1].body["metadata"]["name"]: {}}
    )
    server.faults.append(Fault(reset=True))
    delivery.send_next()
    assert server.lines == [LABEL, NODE_DRIVER, EVENT]
    delivery.wall = lambda: 99.0
    time.now += 60
    send(delivery)

    assert server.lines == [LABEL, NODE_DRIVER, EVENT, EVENT]
    assert len(server.events) == 1
    assert delivery.seconds_until_next() is None


def test_forbidden_label_does_not_keep_the_rest_from_being_told(
    server: ApiServer, delivery: Delivery, time: Time, said: io.StringIO
) -> None:
    server.faults.append(Fault(403, "forbidden"))

    tell(delivery, READY)

    assert server.lines == [LABEL, "GET /api/v1/nodes/n1", NODE_DRIVER, EVENT]
    assert delivery.is_settled()
    assert delivery.seconds_until_next() == 300
    [owner] = server.node_drivers["edu.n1"]["metadata"]["ownerReferences"]
    assert owner["uid"] == "uid-of-n1"
    assert 'verbs: [\\"get\\", \\"patch\\"]' in said.getvalue()
    time.now += 300
    send(delivery)  # the rule was added meanwhile
    assert server.labels["n1"] == {"nodeside.io/edu.state": "ready"}
    assert delivery.seconds_until_next() is None


def test_where_even_the_uid_is_refused_the_node_driver_has_no_owner(
    server: ApiServer, delivery: Delivery
) -> None:
    server.faults += [Fault(403), Fault(403)]

    tell(delivery, READY)

    assert "ownerReferences" not in server.node_drivers["edu.n1"]["metadata"]


def test_a_node_driver_waits_for_its_owner_while_the_server_is_down(
    server: ApiServer, delivery: Delivery
) -> None:
    server.faults += [Fault(403), Fault(503)]

    delivery.set_wanted(READY)
    delivery.send_next()
    delivery.send_next()

    assert server.node_drivers == {}


def test_missing_crd_does_not_keep_the_event_from_being_told(
    server: ApiServer, delivery: Delivery
) -> None:
    delivery.set_wanted(READY)
    delivery.send_next()
    server.faults.append(Fault(404))
    send(delivery)

    assert server.lines == [LABEL, NODE_DRIVER, EVENT]


def test_what_is_still_refused_waits_also_where_the_rest_is_allowed_now(time: Time) -> None:
    class Rules(RecordingClient):
        labels_allowed = False

        def patch_node_labels(self, node: str, labels: Mapping[str, str]) -> str:
            if not self.labels_allowed:
                raise KubernetesError("may not patch nodes", status=403)
            return "uid-of-n1"

        def apply_node_driver(self, document: Mapping[str, Any]) -> None:
            time.now += 10
            raise KubernetesError("may not patch nodedrivers", status=403)

    rules = Rules()
    delivery = Delivery(rules, clock=time.clock, jitter=lambda: 1.0)
    tell(delivery, READY)
    rules.labels_allowed = True
    time.now += delivery.seconds_until_next() or 0

    delivery.send_next()

    assert delivery.is_settled()
    assert delivery.seconds_until_next() == 10


def test_bug_of_ours_is_shown_and_ends_nothing(
    time: Time, capsys: pytest.CaptureFixture[str], said: io.StringIO
) -> None:
    class Broken(RecordingClient):
        def patch_node_labels(self, node: str, labels: Mapping[str, str]) -> str:
            raise ZeroDivisionError

    delivery = Delivery(Broken(), clock=time.clock)
    tell(delivery, READY)

    assert "ZeroDivisionError" in capsys.readouterr().err
    assert "a bug in nodeside, please report it" in said.getvalue()
    assert [call.resource for call in delivery.api.would_write] == ["nodedrivers", "events"]  # type: ignore[attr-defined]


# --- the node ----------------------------------------------------------------------------------


class Kept(Delivery):
    """What would be told, without a thread's timing: a test asks after `flush`."""

    def __init__(self) -> None:
        super().__init__(RecordingClient(), pace=Pace(settle=0))

    @property
    def words(self) -> list[str]:
        assert isinstance(self.api, RecordingClient)
        return [call.in_words() for call in self.api.would_write]

    @property
    def states(self) -> list[str]:
        assert isinstance(self.api, RecordingClient)
        bodies = [call.body or {} for call in self.api.would_write if call.resource == "nodes"]
        return [str(body["metadata"]["labels"]["nodeside.io/edu.state"]) for body in bodies]


def test_ready_file_stands_exactly_while_the_driver_is_ready(host: Host) -> None:
    for state in State:
        with Announcer(host, Kept(), marker_to=io.StringIO()) as announcer:
            announcer.report_state(READY)
            assert ready_path(host, "edu").exists()
            announcer.report_state(in_state(state) if state is not State.READY else READY)
            assert ready_path(host, "edu").exists() is (state is State.READY)


def test_what_no_thread_could_send_is_sent_after_the_next_look(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    delivery = Kept()
    with Announcer(host, delivery, marker_to=io.StringIO()) as announcer:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refused)
            announcer.report_state(READY)
        announcer.report_state(READY)

    assert delivery.states == ["ready"]


def test_marker_is_one_line_per_becoming_ready(host: Host) -> None:
    marker = io.StringIO()
    with Announcer(host, Kept(), marker_to=marker) as announcer:
        announcer.report_state(in_state(State.LOADING))
        announcer.report_state(READY)
        announcer.report_state(replace(READY, source=Rung.LOADED))
        assert len(marker.getvalue().splitlines()) == 1
        announcer.report_state(in_state(State.LOADING))
        announcer.report_state(READY)

    line, again = marker.getvalue().splitlines()
    assert line == again
    assert line == (
        "NODESIDE_READY driver=edu version=1.0 kernel=6.1.0-47-amd64 source=built modules=edu"
    )
    assert READY_PATTERN.fullmatch(line)


@pytest.mark.parametrize("format", ["text", "json"])
def test_marker_is_a_line_of_its_own_in_both_log_formats(
    host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, format: Any
) -> None:
    monkeypatch.setattr(logging.getLogger("nodeside"), "handlers", [])
    log.setup("driver", format=format)
    with Announcer(host, Kept()) as announcer:
        announcer.report_state(READY)

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2  # and "announced"
    assert sum(bool(READY_PATTERN.match(line)) for line in lines) == 1


def test_closed_stderr_fails_no_driver(host: Host) -> None:
    closed = io.StringIO()
    closed.close()

    with Announcer(host, Kept(), marker_to=closed) as announcer:
        announcer.report_state(READY)

    assert ready_path(host, "edu").exists()


def test_ready_file_that_cannot_be_written_fails_no_driver(host: Host, said: io.StringIO) -> None:
    host.root.mkdir()
    (host.root / "run").write_text("")
    marker = io.StringIO()
    with Announcer(host, Kept(), marker_to=marker) as announcer:
        announcer.report_state(READY)
        assert "the ready file is not up to date" in said.getvalue()
        assert marker.getvalue() == ""

        (host.root / "run").unlink()
        announcer.report_state(READY)  # the next look

    assert ready_path(host, "edu").exists()
    assert len(marker.getvalue().splitlines()) == 1


def test_restart_beside_a_good_module_clears_nothing(host: Host) -> None:
    with Announcer(host, Kept(), marker_to=io.StringIO()) as first:
        first.report_state(READY)
    before = read_ready(host, "edu", "boot-1")
    delivery = Kept()

    with Announcer(host, delivery, marker_to=io.StringIO()) as second:
        second.report_state(in_state(State.WAITING))
        assert second.flush(5)
        assert delivery.words == []
        assert read_ready(host, "edu", "boot-1") == before
        second.report_state(replace(READY, source=Rung.LOADED))
        assert second.flush(5)

    assert delivery.words == ['patch nodes "n1"', 'patch nodedrivers "edu.n1"']  # no Event
    assert read_ready(host, "edu", "boot-1") == before


def test_restart_with_a_new_version_has_its_event(host: Host) -> None:
    with Announcer(host, Kept(), marker_to=io.StringIO()) as first:
        first.report_state(READY)
    delivery = Kept()

    with Announcer(host, delivery, marker_to=io.StringIO()) as second:
        second.report_state(replace(READY, version="2.0"))

    assert delivery.words[-1].startswith('create events "edu.n1.')


def test_waiting_after_a_reboot_is_told(host: Host) -> None:
    with Announcer(host, Kept(), marker_to=io.StringIO()) as first:
        first.report_state(READY)
    delivery = Kept()

    with Announcer(host, delivery) as second:
        second.report_state(in_state(State.WAITING, boot_id="boot-2"))

    assert delivery.states == ["waiting"]
    assert not ready_path(host, "edu").exists()


def test_waiting_after_an_observed_state_is_told(host: Host) -> None:
    delivery = Kept()
    with Announcer(host, delivery, marker_to=io.StringIO()) as announcer:
        announcer.report_state(READY)
        announcer.flush(5)
        announcer.report_state(in_state(State.WAITING))

    assert delivery.states == ["ready", "waiting"]


# --- the thread ----------------------------------------------------------------------------------


def test_server_that_does_not_answer_holds_nobody_up(server: ApiServer, host: Host) -> None:
    done = threading.Event()
    server.faults.append(Fault(silent_until=done))
    delivery = Delivery(StatusClient(server.access))

    with Announcer(host, delivery, grace=0, marker_to=io.StringIO()) as announcer:
        announcer.report_state(READY)
        assert ready_path(host, "edu").exists()
        assert not announcer.flush(0)
        done.set()


def test_flush_sends_a_passing_state_without_waiting(server: ApiServer, host: Host) -> None:
    delivery = Delivery(StatusClient(server.access), pace=Pace(settle=3600))
    with Announcer(host, delivery) as announcer:
        announcer.report_state(in_state(State.BUILDING))

        assert announcer.flush(30)

    assert server.labels["n1"] == {"nodeside.io/edu.state": "building"}


def test_flush_does_not_wait_for_what_is_forbidden(server: ApiServer, host: Host) -> None:
    server.faults += [Fault(403)] * 4  # the label, the uid, the NodeDriver, the Event
    with Announcer(
        host, Delivery(StatusClient(server.access)), marker_to=io.StringIO()
    ) as announcer:
        announcer.report_state(READY)

        assert announcer.flush(30)

    assert len(server.seen) == 4


def test_flush_with_nothing_to_tell_returns_at_once(host: Host) -> None:
    assert Announcer(host, Kept()).flush(0)


def test_connection_is_closed_between_announcements(server: ApiServer, host: Host) -> None:
    cluster = StatusClient(server.access)
    with Announcer(host, Delivery(cluster), marker_to=io.StringIO()) as announcer:
        announcer.report_state(READY)
        assert announcer.flush(30)

    assert cluster._client._session is None


def test_thread_takes_no_signal_from_the_others(host: Host) -> None:
    """A Notice counts on SIGIO being blocked in every thread: see directory_watch.py."""
    with Announcer(host, Kept(), marker_to=io.StringIO()) as announcer:
        announcer.report_state(READY)
        assert announcer._thread is not None
        status = Path(f"/proc/self/task/{announcer._thread.native_id}/status").read_text()
        (blocked,) = re.findall(r"SigBlk:\t([0-9a-f]+)", status)
        for number in (2, 15, 29):  # SIGINT, SIGTERM, SIGIO
            assert int(blocked, 16) & 1 << (number - 1)


def test_many_states_from_a_busy_loop_end_with_the_newest(server: ApiServer, host: Host) -> None:
    delivery = Delivery(StatusClient(server.access), pace=Pace(settle=0))
    with Announcer(host, delivery, grace=30, marker_to=io.StringIO()) as announcer:
        for _ in range(200):
            announcer.report_state(in_state(State.LOADING))
            announcer.report_state(READY)
        assert announcer.flush(30)

    assert server.labels["n1"] == {"nodeside.io/edu.state": "ready"}
    assert server.node_drivers["edu.n1"]["status"]["state"] == "ready"


class Busy(RecordingClient):
    """Its first answer comes when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answers = threading.Event(), threading.Event()

    def patch_node_labels(self, node: str, labels: Mapping[str, str]) -> str:
        self.asked.set()
        assert self.answers.wait(30)
        return super().patch_node_labels(node, labels)


def test_look_that_the_load_itself_provokes_does_not_overtake_what_it_announces(
    host: Host,
) -> None:
    delivery, busy = Kept(), Busy()
    delivery.api = busy
    with Announcer(host, delivery, marker_to=io.StringIO()) as announcer:
        announcer.report_state(in_state(State.LOADING))
        assert busy.asked.wait(30)
        announcer.report_state(READY)
        announcer.report_state(replace(READY, source=Rung.LOADED, stages={"plan": 0.1}))
        busy.answers.set()
        assert announcer.flush(30)

    told = {call.resource: call.body or {} for call in busy.would_write}
    assert told["nodedrivers"]["status"]["source"] == "built"
    assert told["nodedrivers"]["status"]["stages"] == READY.stages
    assert "ready (built)" in told["events"]["note"]


def test_how_a_driver_came_up_is_still_known_after_a_failure_that_passed(host: Host) -> None:
    delivery = Kept()
    with Announcer(host, delivery, marker_to=io.StringIO()) as announcer:
        for status in (READY, FAILED, replace(READY, source=Rung.LOADED, stages={"look": 0.1})):
            announcer.report_state(status)
            assert announcer.flush(30)

    ready = read_ready(host, READY.driver, READY.boot_id)
    assert ready is not None
    assert (ready.source, ready.stages) == (READY.source, READY.stages)
    assert isinstance(delivery.api, RecordingClient)
    [*_, last] = [call.body for call in delivery.api.would_write if call.resource == "events"]
    assert last is not None
    assert "ready (built)" in last["note"]


def test_errors_of_the_cluster_reach_nobody(host: Host, said: io.StringIO) -> None:
    class Down(RecordingClient):
        def patch_node_labels(self, node: str, labels: Mapping[str, str]) -> str:
            raise KubernetesError("down", retryable=True)

    with Announcer(host, Delivery(Down()), grace=0, marker_to=io.StringIO()) as announcer:
        announcer.report_state(READY)
        assert not announcer.flush(0.2)

    assert ready_path(host, "edu").exists()
    assert "warning: not announced: down" in said.getvalue()
