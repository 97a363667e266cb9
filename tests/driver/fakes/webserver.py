"""A real HTTP server on loopback that misbehaves as told: stalls, breaks off, refuses, redirects.

Every path has a list of answers, each used once, the last one again and again. No answer sleeps:
those that wait do so for the client to go away or for the server to be closed.
"""

from __future__ import annotations

import re
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Self

from tests.loopback import HttpServer

Answer = Callable[["Handler"], None]


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)


class Handler(BaseHTTPRequestHandler):
    """Answers one request; `web` is the server's script."""

    protocol_version = "HTTP/1.1"
    web: WebServer

    def _any(self) -> None:
        path = self.path.partition("?")[0]
        self.web.requests.append(
            Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()})
        )
        self.web.answer_to(path)(self)

    do_GET = do_HEAD = do_POST = do_PUT = _any  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def reply(
        self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        given = {"Content-Length": str(len(body))} | dict(headers or {})
        for name, value in given.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class WebServer:
    """Use as a context manager. With a certificate and key (PEM files) it speaks TLS."""

    def __init__(self, certificate: tuple[str, str] | None = None) -> None:
        handler = type("Scripted", (Handler,), {"web": self})
        self._server = HttpServer(("127.0.0.1", 0), handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._scheme = "https" if certificate else "http"
        self._answers: dict[str, list[Answer]] = {}
        self._default: Answer = status(404)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.requests: list[Request] = []
        self.closing = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        return f"{self._scheme}://{self.host}"

    def on(self, path: str, *answers: Answer) -> None:
        self._answers[path] = list(answers)

    def otherwise(self, answer: Answer) -> None:
        self._default = answer

    def answer_to(self, path: str) -> Answer:
        answers = self._answers.get(path)
        if not answers:
            return self._default
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def asked(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.path.partition("?")[0] == path]


def status(code: int, body: bytes = b"", **headers: str) -> Answer:
    """A fixed answer; `Retry_After` stands for the header Retry-After."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler: handler.reply(code, body, given)


def file(data: bytes, *, ranges: bool = True, etag: str = '"one"') -> Answer:
    """A file, as a good server gives it; without `ranges`, Range is ignored."""

    def answer(handler: Handler) -> None:
        match = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        valid = handler.headers.get("If-Range", etag) == etag
        if not ranges or not match or not valid:
            handler.reply(200, data, {"ETag": etag})
            return
        start = int(match[1])
        if start >= len(data):
            handler.reply(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        where = f"bytes {start}-{len(data) - 1}/{len(data)}"
        handler.reply(206, data[start:], {"ETag": etag, "Content-Range": where})

    return answer


def broken(data: bytes, after: int, *, etag: str = '"one"') -> Answer:
    """Announces everything, honours Range, and closes the connection after some bytes."""

    def answer(handler: Handler) -> None:
        match = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        start = int(match[1]) if match else 0
        rest = data[start:]
        headers = {"Content-Length": str(len(rest)), "ETag": etag}
        if match:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        handler.reply(206 if match else 200, rest[:after], headers)
        handler.close_connection = True

    return answer


def stalled(data: bytes) -> Answer:
    """Announces more than it sends, and then nothing comes any more."""

    def answer(handler: Handler) -> None:
        handler.reply(200, data, {"Content-Length": str(len(data) + 1)})
        handler.web.closing.wait(60)
        handler.close_connection = True

    return answer


def dripping(handler: Handler) -> None:
    """A byte now and then, so that no read ever times out, and never an end."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    while not handler.web.closing.wait(0.02):
        try:
            handler.wfile.write(b"x")
        except OSError:
            break
    handler.close_connection = True


def silent(handler: Handler) -> None:
    """Takes the request, and never answers."""
    handler.web.closing.wait(60)
    handler.close_connection = True
