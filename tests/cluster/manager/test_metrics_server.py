"""The HTTPS server of the metrics: real sockets and certificates, a judge that a test plays."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import requests
from requests.adapters import HTTPAdapter

from cluster.manager.metrics_auth import AccessVerdict
from cluster.manager.metrics_server import MetricsServer
from cluster.manager.tls import ServingCertificate, make_self_signed
from nodeside.errors import SystemRefused
from tests.patience import patience

LONG = patience(60.0)  # seconds: a deadline that only a broken test meets
HOST = "127.0.0.1"
Judge = Callable[[str, str], AccessVerdict]


def allow(_header: str, _path: str) -> AccessVerdict:
    return AccessVerdict(HTTPStatus.OK)


@contextmanager
def serving(
    judge: Judge = allow, *, directory: Path | None = None, seconds: float = LONG
) -> Iterator[tuple[MetricsServer, Counter[int]]]:
    answers: Counter[int] = Counter()
    with MetricsServer(
        0,
        serving=ServingCertificate(directory, ["localhost"]),
        judge=judge,
        exposition=lambda accept: (accept or "text/plain", b"nodeside_leader 1\n"),
        answers=answers,
        host=HOST,
        seconds=seconds,
    ) as server:
        yield server, answers


class _AnyCertificate(HTTPAdapter):
    """For a server without a known certificate: `verify=False` alone loads this host's each time"""

    _context = ssl._create_unverified_context()

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, ssl_context=self._context, **options)


def ask(server: MetricsServer, method: str, path: str, **headers: str) -> requests.Response:
    with requests.Session() as session:
        session.mount("https://", _AnyCertificate())
        url = f"https://{HOST}:{server.port}{path}"
        return session.request(method, url, headers=headers, verify=False, timeout=LONG)


def get(server: MetricsServer, path: str = "/metrics", **headers: str) -> requests.Response:
    return ask(server, "GET", path, **headers)


def until_served(server: MetricsServer) -> requests.Response:
    """A client sees its connection's end before the server has room for another one."""
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline:
        with suppress(requests.ConnectionError):
            return get(server)
    raise TimeoutError("no scraper was served")


pytestmark = pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")


def test_who_may_read_gets_the_metrics() -> None:
    seen: list[tuple[str, str]] = []

    def judge(header: str, path: str) -> AccessVerdict:
        seen.append((header, path))
        return AccessVerdict(HTTPStatus.OK)

    with serving(judge) as (server, answers):
        answer = get(server, Authorization="Bearer t", Accept="text/x")

    assert (answer.status_code, answer.text) == (200, "nodeside_leader 1\n")
    assert answer.headers["Content-Type"] == "text/x"
    assert seen == [("Bearer t", "/metrics")]
    assert answers == {200: 1}


@pytest.mark.parametrize("status", [401, 403, 429, 503])
def test_who_may_not_is_told_why_and_nothing_else(status: int) -> None:
    with serving(lambda *_: AccessVerdict(HTTPStatus(status), "because")) as (server, _):
        answer = get(server)

    assert (answer.status_code, answer.text) == (status, "because\n")
    assert answer.headers.get("WWW-Authenticate") == ("Bearer" if status == 401 else None)


def test_there_is_nothing_else_on_that_port() -> None:
    with serving() as (server, _):
        posted = ask(server, "POST", "/metrics")

        assert get(server, "/healthz").status_code == 404
        assert get(server, "/metrics/more").status_code == 404
        assert get(server, "/metrics?name=x").status_code == 200
        assert posted.status_code == 501


def test_plain_http_is_not_answered() -> None:
    with serving() as (server, _), pytest.raises(requests.ConnectionError):
        requests.get(f"http://{HOST}:{server.port}/metrics", timeout=LONG)


def test_connections_that_say_nothing_end_and_the_next_scraper_is_served() -> None:
    with serving(seconds=1.0) as (server, _), ExitStack() as stack:
        silent = [socket.create_connection((HOST, server.port), LONG) for _ in range(8)]
        for each in silent:
            stack.enter_context(each)
        assert [each.recv(1) for each in silent] == [b""] * 8
        assert until_served(server).status_code == 200


def test_slow_strangers_keep_no_scraper_out() -> None:
    with serving(seconds=LONG) as (server, _), ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(socket.create_connection((HOST, server.port), LONG))
        assert get(server).status_code == 200


def test_a_request_that_trickles_ends_after_its_time_in_all() -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with serving(seconds=0.1) as (server, _):
        plain = socket.create_connection((HOST, server.port), LONG)
        with context.wrap_socket(plain) as slow:
            slow.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
            with pytest.raises(OSError):
                _trickle(slow)


def test_too_many_connections_at_once_are_closed_without_a_word() -> None:
    held, arrived = threading.Event(), threading.Semaphore(0)

    def judge(_header: str, _path: str) -> AccessVerdict:
        arrived.release()
        held.wait(LONG)
        return AccessVerdict(HTTPStatus.OK)

    with serving(judge) as (server, answers):
        threads = [threading.Thread(target=get, args=(server,), daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()
        assert all(arrived.acquire(timeout=LONG) for _ in threads)
        with pytest.raises(requests.ConnectionError):
            get(server)
        held.set()
        for thread in threads:
            thread.join(LONG)
        assert until_served(server).status_code == 200
    assert answers == {200: 9}


def test_a_port_that_is_taken_is_named_with_the_option() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemRefused, match=f"cannot listen on port {port} for metrics") as e:
            MetricsServer(
                port,
                serving=ServingCertificate(None, ["localhost"]),
                judge=allow,
                exposition=lambda _: ("", b""),
                answers=Counter(),
                host=HOST,
            )
    assert "--metrics-port" in e.value.hint


# --- the certificate -------------------------------------------------------------------------


def mount(directory: Path, name: str) -> None:
    """A Secret as the kubelet mounts it: files appear by rename."""
    directory.mkdir(exist_ok=True)
    text = make_self_signed([name]).decode()
    for file, part in (("tls.key", "PRIVATE KEY"), ("tls.crt", "CERTIFICATE")):
        start, end = f"-----BEGIN {part}-----", f"-----END {part}-----\n"
        new = directory / f".{file}"
        new.write_text(text[text.index(start) : text.index(end) + len(end)])
        new.rename(directory / file)


def served_with(server: MetricsServer) -> bytes:
    return ssl.get_server_certificate((HOST, server.port), timeout=LONG).encode()


def test_a_certificate_is_taken_from_the_directory_and_again_when_it_changes(
    tmp_path: Path,
) -> None:
    mount(tmp_path, "first")
    with serving(directory=tmp_path) as (server, _):
        assert served_with(server) == (tmp_path / "tls.crt").read_bytes()
        mount(tmp_path, "second")
        assert served_with(server) == (tmp_path / "tls.crt").read_bytes()


def test_without_a_certificate_one_is_made_until_there_is_one(tmp_path: Path) -> None:
    with serving(directory=tmp_path / "absent") as (server, _):
        own = served_with(server)
        assert own == served_with(server)
        mount(tmp_path / "absent", "later")
        assert served_with(server) == (tmp_path / "absent/tls.crt").read_bytes() != own


def test_a_certificate_that_cannot_be_used_is_said_and_the_last_good_one_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mount(tmp_path, "good")
    good = (tmp_path / "tls.crt").read_bytes()
    with serving(directory=tmp_path) as (server, _):
        (tmp_path / "tls.crt").write_text("nonsense")
        assert served_with(server) == good
        assert get(server).status_code == 200
    assert f"cannot serve with the certificate in {tmp_path}" in caplog.text


def test_a_client_that_knows_the_authority_can_verify_us(tmp_path: Path) -> None:
    mount(tmp_path, "localhost")
    context = ssl.create_default_context(cafile=tmp_path / "tls.crt")
    with serving(directory=tmp_path) as (server, _):
        plain = socket.create_connection((HOST, server.port), LONG)
        with context.wrap_socket(plain, server_hostname="localhost") as tls:
            assert tls.version() in ("TLSv1.2", "TLSv1.3")


def _trickle(slow: ssl.SSLSocket) -> None:
    pause = threading.Event()
    for _ in range(int(LONG / 0.05)):
        slow.sendall(b"x")
        pause.wait(0.05)
