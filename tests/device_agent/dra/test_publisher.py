"""When ResourceSlices are written, against an API server of a few lines."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import pytest

from nodeside.device_agent.dra.publisher import Publication, Publisher
from nodeside.device_agent.dra.slices import Document, Write
from nodeside.http.status import KubernetesError
from tests.device_agent.dra.documents import POOL, carried_out, plain
from tests.patience import patience

LONG = patience(60.0)  # seconds: a deadline that only a broken test meets


class PlayedSlices:
    """The API server's ResourceSlices; errors that are queued meet one request each."""

    def __init__(self) -> None:
        self.stored: list[Document] = []
        self.asked: list[str] = []
        self.errors: list[KubernetesError] = []
        self.written = threading.Condition()

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.errors:
            raise self.errors.pop(0)

    def fetch_node_uid(self, node: str) -> str:
        self._ask("node")
        return f"uid-of-{node}"

    def list_slices(self, driver: str, node: str) -> list[Document]:
        assert (driver, node) == (POOL.driver, POOL.node)
        self._ask("list")
        return list(self.stored)

    def list_versions(self, driver: str, node: str) -> Mapping[str, str]:
        self._ask("versions")
        return {e["metadata"]["name"]: e["metadata"]["resourceVersion"] for e in self.stored}

    def send_write(self, write: Write) -> Document:
        self._ask(write.verb)
        with self.written:
            self.stored = carried_out(self.stored, [write])
            self.written.notify_all()
        return next((e for e in self.stored if e["metadata"]["name"] == write.name), {})

    def close(self) -> None: ...

    @property
    def names(self) -> list[str]:
        return [each["name"] for some in self.stored for each in some["spec"]["devices"]]


@pytest.fixture
def server() -> PlayedSlices:
    return PlayedSlices()


@pytest.fixture
def publication(server: PlayedSlices) -> Publication:
    return Publication(server, POOL.driver, POOL.node)


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(
        "nodeside.log.warning", lambda message, **more: said.append(f"{message}: {more['why']}")
    )
    return said


def test_nothing_is_asked_before_devices_were_looked_for(
    server: PlayedSlices, publication: Publication
) -> None:
    assert publication.publish_if_due(0.0) == float("inf")
    assert server.asked == []


def test_devices_are_written_once(server: PlayedSlices, publication: Publication) -> None:
    publication.set_devices(plain("a", "b"))
    assert publication.publish_if_due(0.0) == 60.0
    publication.set_devices(plain("a", "b"))
    publication.publish_if_due(2.0)

    assert server.names == ["a", "b"]
    assert server.asked == ["list", "node", "create"]


def test_a_change_waits_for_the_second_after_the_last_one(
    server: PlayedSlices, publication: Publication
) -> None:
    publication.set_devices(plain("a"))
    publication.publish_if_due(10.0)
    publication.set_devices(plain("a", "b"))
    assert publication.publish_if_due(10.2) == pytest.approx(0.8)
    assert server.names == ["a"]
    publication.publish_if_due(11.0)
    assert server.names == ["a", "b"]


def test_who_changes_all_the_time_is_written_once_a_second(
    server: PlayedSlices, publication: Publication
) -> None:
    for tick in range(100):
        publication.set_devices(plain(f"d{tick}"))
        publication.publish_if_due(10 + tick / 10)
    assert server.asked.count("update") + server.asked.count("create") <= 10


def test_no_devices_are_no_slices(server: PlayedSlices, publication: Publication) -> None:
    publication.set_devices(plain("a"))
    publication.publish_if_due(0.0)
    publication.set_devices([])
    publication.publish_if_due(5.0)
    assert server.stored == []


def test_what_an_earlier_agent_wrote_is_kept(server: PlayedSlices) -> None:
    for _ in range(2):
        publication = Publication(server, POOL.driver, POOL.node)
        publication.set_devices(plain("a"))
        publication.publish_if_due(0.0)
    assert server.asked.count("create") == 1
    assert "update" not in server.asked


def test_slices_that_the_kubelet_deletes_come_back_soon(
    server: PlayedSlices, publication: Publication
) -> None:
    """It deletes those of the node when it starts, a while after it has found the driver."""
    publication.set_devices(plain("a"))
    publication.publish_if_due(0.0)
    publication.note_kubelet_answer(10.0)
    assert publication.publish_if_due(10.0) == 5.0
    server.stored = []

    publication.publish_if_due(15.0)
    assert server.names == ["a"]
    assert publication.publish_if_due(16.0) == 4.0  # it looks again, until a minute has passed
    assert publication.publish_if_due(75.0) == 60.0


def test_slices_that_somebody_changes_are_put_right(
    server: PlayedSlices, publication: Publication
) -> None:
    publication.set_devices(plain("a"))
    publication.publish_if_due(0.0)
    forged = {**server.stored[0]["spec"], "devices": plain("forged")}
    metadata = {**server.stored[0]["metadata"], "resourceVersion": "7"}
    server.stored = [{**server.stored[0], "metadata": metadata, "spec": forged}]

    publication.publish_if_due(60.0)

    assert server.names == ["a"]


@pytest.mark.parametrize("status", [404, 409])
def test_somebody_who_was_faster_is_no_trouble(
    server: PlayedSlices, publication: Publication, status: int, warnings: list[str]
) -> None:
    publication.set_devices(plain("a"))
    publication.publish_if_due(0.0)
    publication.set_devices(plain("b"))
    server.errors = [KubernetesError("gone", status=status)]
    assert publication.publish_if_due(2.0) == 1.0
    publication.publish_if_due(3.0)

    assert server.names == ["b"]
    assert server.asked[-3:] == ["list", "node", "update"]
    assert warnings == []


@pytest.mark.parametrize("status", [0, 403, 422, 429, 500, 503])
def test_a_trouble_is_said_once_and_tried_ever_more_rarely(
    server: PlayedSlices, publication: Publication, status: int, warnings: list[str]
) -> None:
    publication.set_devices(plain("a"))
    server.errors = [KubernetesError(f"status {status}", status=status) for _ in range(8)]
    now, waits = 0.0, []
    for _ in range(8):
        waits.append(publication.publish_if_due(now))
        now += waits[-1]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert warnings == [f"the devices are not published: status {status}"]

    publication.publish_if_due(now)
    assert server.names == ["a"]


def test_a_server_that_asks_to_wait_is_obeyed(
    server: PlayedSlices, publication: Publication
) -> None:
    publication.set_devices(plain("a"))
    server.errors = [KubernetesError("busy", status=429, retry_after=30.0)]
    assert publication.publish_if_due(0.0) == 30.0
    publication.set_devices(plain("b"))
    assert publication.publish_if_due(10.0) == 20.0
    assert server.asked == ["list"]


def test_a_server_without_the_api_is_said_once_and_asked_every_five_minutes(
    server: PlayedSlices, publication: Publication, warnings: list[str]
) -> None:
    publication.set_devices(plain("a"))
    error = KubernetesError("the API server has no resource.k8s.io/v1: cannot list", status=404)
    server.errors = [error, error]
    assert publication.publish_if_due(0.0) == 300.0
    assert publication.publish_if_due(300.0) == 300.0
    assert len(warnings) == 1


def test_a_pool_that_was_half_written_is_looked_at_anew(
    server: PlayedSlices, publication: Publication, warnings: list[str]
) -> None:
    every = [f"d{number}" for number in range(300)]
    publication.set_devices(plain(*every))
    refuse_the_third(server)
    publication.publish_if_due(0.0)
    assert len(server.stored) == 1

    publication.publish_if_due(1.0)

    assert sorted(server.names) == sorted(every)
    assert len({each["spec"]["pool"]["generation"] for each in server.stored}) == 1


def refuse_the_third(server: PlayedSlices) -> None:
    """The second create fails."""
    real: Callable[[Write], Document] = server.send_write
    count = [0]

    def write(write: Write) -> Document:
        count[0] += 1
        if count[0] == 2:
            raise KubernetesError("busy", status=503)
        return real(write)

    server.send_write = write  # type: ignore[method-assign]


def test_the_thread_publishes_and_ends(server: PlayedSlices) -> None:
    publisher = Publisher(Publication(server, POOL.driver, POOL.node))
    publisher.set_devices(plain("a"))
    with server.written:
        assert server.written.wait_for(lambda: server.names == ["a"], LONG)
    publisher.note_kubelet_answer()
    publisher.close()
    publisher._thread.join(LONG)
    assert not publisher._thread.is_alive()


def test_a_bug_does_not_end_the_thread(
    server: PlayedSlices, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[BaseException] = []
    monkeypatch.setattr("nodeside.log.traceback", seen.append)
    server.errors = [ValueError("a bug")]  # type: ignore[list-item]
    publisher = Publisher(Publication(server, POOL.driver, POOL.node))
    publisher.set_devices(plain("a"))
    with server.written:
        server.written.wait_for(lambda: bool(seen), 0.1)
    publisher.set_devices(plain("b"))
    with server.written:
        assert server.written.wait_for(lambda: server.names == ["b"], LONG)
    publisher.close()
