"""What the kubelet is told, and what a person reads with curl."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack

import pytest
import requests

from cluster.cache.cache import select_kinds
from cluster.kube.reflector import WatchHealth
from cluster.manager.probes import HealthServer, ProbeReport, check_liveness, check_readiness
from cluster.reconcile.timings import Heartbeat
from nodeside.http.server import HttpServer
from tests.patience import patience

LONG = patience(30.0)  # seconds: a deadline that only a broken test meets


def test_ready_means_that_every_kind_was_listed() -> None:
    report = check_readiness(
        [WatchHealth("Node", True, 1.0), WatchHealth("Pod", False, 1.0, "no rule")]
    )

    assert not report.healthy
    assert report.text == "Node: up to date\nPod: not listed yet: no rule\n"


def test_a_short_silence_is_said_and_a_long_one_is_not_ready() -> None:
    short, long = (
        WatchHealth("Node", True, 20.0, "no answer"),
        WatchHealth("Node", True, 600.0, "no answer"),
    )

    assert check_readiness([short]) == ProbeReport(
        True, ("Node: nothing heard for 20 s: no answer",)
    )
    assert not check_readiness([long]).healthy


def test_two_watches_of_one_kind_are_told_apart() -> None:
    kinds = [
        WatchHealth("Pod", True, 600.0, "no answer", about=each) for each in ("driver pods", "x")
    ]

    assert check_readiness(kinds).lines == (
        "Pod (driver pods): nothing heard for 600 s: no answer",
        "Pod (x): nothing heard for 600 s: no answer",
    )


def test_each_kind_that_the_controller_watches_has_a_name_of_its_own() -> None:
    chosen = select_kinds("nodeside").values()
    names = [WatchHealth(each.resource.kind, True, 0.0, about=each.about).name for each in chosen]

    assert len(set(names)) == len(names)
    assert {"Pod (driver pods)", "Pod (build pods)"} <= set(names)


def test_a_quiet_cluster_is_no_silence() -> None:
    assert check_readiness([WatchHealth("Node", True, 9999.0)]).healthy


def test_only_a_round_that_never_ends_asks_for_a_restart() -> None:
    now = [0.0]
    pulse = Heartbeat(now=lambda: now[0])
    assert check_liveness(pulse).healthy
    pulse.begin_round()
    now[0] = 299
    assert check_liveness(pulse).healthy
    now[0] = 301
    assert check_liveness(pulse).text == "stuck: one round has taken 301 s\n"
    pulse.end_round()
    now[0] = 99999
    assert check_liveness(pulse).healthy


def test_it_is_served_over_http() -> None:
    checks = {
        "/healthz": lambda: ProbeReport(True, ("ok",)),
        "/readyz": lambda: ProbeReport(False, ("no",)),
    }
    with HealthServer(0, checks, host="127.0.0.1") as server:
        url = f"http://127.0.0.1:{server.port}"
        answers = [requests.get(url + path, timeout=LONG) for path in ("/healthz", "/readyz", "/x")]

    assert [answer.status_code for answer in answers] == [200, 503, 404]
    assert [answer.text for answer in answers[:2]] == ["ok\n", "no\n"]


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]"])
def test_it_listens_on_whatever_address_the_pod_has(address: str) -> None:
    assert socket.has_dualstack_ipv6(), "this test needs IPv6 on loopback"
    with HealthServer(0, {"/healthz": lambda: ProbeReport(True, ("ok",))}) as server:
        answer = requests.get(f"http://{address}:{server.port}/healthz", timeout=LONG)

    assert answer.text == "ok\n"


def test_a_host_without_ipv6_is_served_over_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with HealthServer(0, {"/healthz": lambda: ProbeReport(True, ("ok",))}) as server:
        answer = requests.get(f"http://127.0.0.1:{server.port}/healthz", timeout=LONG)

    assert answer.text == "ok\n"


WELL = {"/healthz": lambda: ProbeReport(True, ("ok",))}
HOST = "127.0.0.1"


def test_connections_that_say_nothing_end_and_the_kubelet_is_answered() -> None:
    with HealthServer(0, WELL, host=HOST, seconds=0.1) as server, ExitStack() as stack:
        silent = [socket.create_connection((HOST, server.port), LONG) for _ in range(64)]
        for each in silent:
            stack.enter_context(each)
        assert [each.recv(1) for each in silent] == [b""] * 64
        answer = requests.get(f"http://{HOST}:{server.port}/healthz", timeout=LONG)

    assert answer.text == "ok\n"


def test_connections_without_end_keep_the_kubelet_from_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who makes new ones as fast as the old ones end would have the controller restarted."""
    monkeypatch.setattr(HttpServer, "connections", 4)
    with HealthServer(0, WELL, host=HOST, seconds=LONG) as server, ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(socket.create_connection((HOST, server.port), LONG))
        answer = requests.get(f"http://{HOST}:{server.port}/healthz", timeout=LONG)

    assert answer.text == "ok\n"


def test_a_request_that_trickles_ends_after_its_time_in_all() -> None:
    with (
        HealthServer(0, WELL, host=HOST, seconds=0.1) as server,
        socket.create_connection((HOST, server.port), LONG) as slow,
    ):
        slow.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        with pytest.raises(OSError):
            _trickle(slow)


def test_too_many_connections_at_once_are_closed_without_a_word() -> None:
    held, arrived = threading.Event(), threading.Semaphore(0)

    def check() -> ProbeReport:
        arrived.release()
        held.wait(LONG)
        return ProbeReport(True, ("ok",))

    with HealthServer(0, {"/healthz": check}, host=HOST, seconds=LONG) as server:
        address = (HOST, server.port)
        with ExitStack() as stack:
            for _ in range(64):
                asking = stack.enter_context(socket.create_connection(address, LONG))
                asking.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert all(arrived.acquire(timeout=LONG) for _ in range(64))
            with socket.create_connection(address, LONG) as late:
                assert late.recv(1) == b""
            held.set()


def _trickle(slow: socket.socket) -> None:
    pause = threading.Event()
    for _ in range(int(LONG / 0.05)):
        slow.sendall(b"x")
        pause.wait(0.05)
