"""What a fake server does not survive fails the test; a client that goes away does not."""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from nodeside.system import process
from tests.console import LONG
from tests.loopback import HttpServer

ROOT = Path(__file__).parent.parent
_FAULTY = """
import http.client
from http.server import BaseHTTPRequestHandler
import threading
import pytest
from tests.loopback import HttpServer

WHAT = {
    "/one": AssertionError("beyond the script"),
    "/two": FileNotFoundError("no such answer"),
}

class Faulty(BaseHTTPRequestHandler):
    def do_GET(self):
        raise WHAT[self.path]

@pytest.mark.parametrize("path", WHAT)
def test_that_asks(path):
    server = HttpServer(("127.0.0.1", 0), Faulty)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    connection = http.client.HTTPConnection(*server.server_address)
    connection.request("GET", path)
    try:
        connection.getresponse()
    except http.client.RemoteDisconnected:
        pass
    server.shutdown()
    for each in threading.enumerate():
        if each is not threading.current_thread():
            each.join()
    server.server_close()
"""


class Waiting(BaseHTTPRequestHandler):
    """Reads more than was sent."""

    def do_GET(self) -> None:
        self.rfile.read(1)


@contextmanager
def waiting() -> Iterator[tuple[HttpServer, threading.Event]]:
    """A server, and what is set when the thread of a connection has done all that it does."""
    ended = threading.Event()

    class Server(HttpServer):
        def shutdown_request(self, request: Any) -> None:
            super().shutdown_request(request)
            ended.set()

    with Server(("127.0.0.1", 0), Waiting) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server, ended
        server.shutdown()


def test_a_client_that_resets_its_connection_is_no_news(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with (
        waiting() as (server, ended),
        socket.create_connection(("127.0.0.1", server.server_port)) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        assert ended.wait(LONG)

    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.slow
def test_any_other_exception_of_a_server_fails_the_test(tmp_path: Path) -> None:
    test = tmp_path / "test_faulty.py"
    test.write_text(_FAULTY)
    words = ["pytest", "-q", "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]

    done = process.run(
        [sys.executable, "-m", *words, "--rootdir", str(tmp_path), str(test)],
        timeout=LONG,
        cwd=ROOT,
        check=False,
    )

    assert done.exit_code == 1, done.output
    assert "2 failed" in done.output
    assert "AssertionError: beyond the script" in done.output
    assert "FileNotFoundError: no such answer" in done.output
