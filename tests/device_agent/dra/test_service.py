"""Claims that change while the API server is asked for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nodeside.device_agent import messages
from nodeside.device_agent.dra.names import device_name
from nodeside.device_agent.dra.service import ClaimService
from nodeside.device_agent.dra.site import Site
from nodeside.kube.client import PodAccess
from tests.device_agent.dra.documents import UID, claim, offered, result
from tests.device_agent.node import driver
from tests.device_agent.played_kubelet import LONG

UNITS = {"resource": "example.com/unit", "discover": {"count": 1}, "expose": "dra"}
GIVES = UNITS | {"give": {"environment": {"UNITS": "{ids}"}}}


class Slow:
    """An API server that answers when it is told to."""

    def __init__(self) -> None:
        self.asked, self.answers = threading.Event(), threading.Event()

    def __call__(self, namespace: str, name: str) -> dict[str, Any]:
        self.asked.set()
        assert self.answers.wait(LONG)
        return claim(result(device_name("example.com/unit", "0")))


@pytest.fixture
def server() -> Slow:
    return Slow()


@pytest.fixture
def service(tmp_path: Path, server: Slow) -> ClaimService:
    site = Site(
        "n1",
        PodAccess("http://127.0.0.1", tmp_path),
        *(tmp_path / name for name in ("plugins", "registry", "state", "cdi")),
    )
    service = ClaimService("edu", driver(GIVES).spec.devices, site, server)
    service.open()
    service.offer("example.com/unit", {"0": offered("0")})
    return service


def method(service: ClaimService, name: str) -> Callable[[Any], Any]:
    handler = service.services[f"{messages.DRA_PACKAGE}.DRAPlugin"][name]
    return handler.handler  # type: ignore[union-attr]


def prepare(service: ClaimService) -> str:
    """Return the error, "" if there is none."""
    request = messages.NodePrepareResourcesRequest()
    request.claims.add(uid=UID, namespace="default", name="one")
    return str(method(service, "NodePrepareResources")(request).claims[UID].error)


def unprepare(service: ClaimService) -> str:
    request = messages.NodeUnprepareResourcesRequest()
    request.claims.add(uid=UID, namespace="default", name="one")
    return str(method(service, "NodeUnprepareResources")(request).claims[UID].error)


@contextmanager
def while_asked(service: ClaimService, server: Slow) -> Iterator[list[str]]:
    """Prepare in a thread; the API server answers at the end. Yields what will be the error."""
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(prepare(service)))
    thread.start()
    assert server.asked.wait(LONG)
    try:
        yield said
    finally:
        server.answers.set()
        thread.join(LONG)


def files(root: Path) -> list[str]:
    return [path.name for name in ("state", "cdi") for path in (root / name).rglob("*.json")]


def test_a_claim_that_is_unprepared_while_it_is_asked_for_leaves_nothing(
    service: ClaimService, server: Slow, tmp_path: Path
) -> None:
    """The kubelet has given up, and the pod is gone."""
    with while_asked(service, server) as said:
        assert unprepare(service) == ""
    assert said == ["it was unprepared while the API server was asked for it"]
    assert files(tmp_path) == []
    assert prepare(service) == ""
    assert len(files(tmp_path)) == 2


def test_a_call_that_outlives_the_agent_changes_nothing(
    service: ClaimService, server: Slow, tmp_path: Path
) -> None:
    """Another agent has the lock by then."""
    with while_asked(service, server) as said:
        service.close()
        service.open()
    assert said == ["this agent is about to end"]
    assert files(tmp_path) == []
    assert prepare(service) == ""
    service.close()
    assert unprepare(service) == "this agent is about to end"
    assert len(files(tmp_path)) == 2


def test_a_file_that_could_not_be_written_is_written_later_and_said_once(
    service: ClaimService, server: Slow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory in its place stands for a full disk, which no retry of the kubelet would mend."""
    said: list[str] = []
    monkeypatch.setattr("nodeside.log.warning", lambda text, **more: said.append(text))
    server.answers.set()
    assert prepare(service) == ""
    (file,) = (tmp_path / "cdi").iterdir()
    as_prepared = file.read_bytes()
    file.unlink()
    file.mkdir()

    service.offer("example.com/unit", {"0": offered("0")})
    service.check(1000.0)
    service.check(1100.0)
    file.rmdir()
    service.check(1101.0)  # too early
    assert not file.exists()
    service.check(1200.0)

    assert file.read_bytes() == as_prepared
    assert said == ["cannot write a CDI file"]
