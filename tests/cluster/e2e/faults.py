"""A proxy in front of the API server that breaks what goes through it, in one chosen way.

It ends TLS with the control plane's own certificate, so it sees requests and can answer them. What
befalls the n-th request of a kind follows from the seed alone, however the threads run; so the seed
that a failed test prints makes the same trouble again.
"""

from __future__ import annotations

import json
import os
import random
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from http.client import HTTPException, HTTPResponse, HTTPSConnection
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

from tests.controlplane.certificates import Certificates
from tests.controlplane.components import LOOPBACK
from tests.loopback import HttpServer

SEED = "NODESIDE_SEED"  # environment variable: make the same trouble again
_BETWEEN = ("connection", "keep-alive", "transfer-encoding", "content-length", "host")
_PIECE = 1 << 16  # bytes
_SLOWEST = 0.6  # seconds
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset
_RETRY_AFTER = 1  # seconds


class Fault(Enum):
    """One way in which an API server, or the way to it, fails."""

    SLOW = "answers and events that take their time"
    RESET = "connections reset before the request arrives"
    CUT = "answers cut in the middle, after the request had its effect"
    THROTTLED = "429 with Retry-After"
    FAILED = "500 and 503"
    CONFLICT = "409 in answer to writes: somebody else was faster"
    WATCH_ENDED = "watches that end in place of an event"
    WATCH_CUT = "watches cut in the middle of an event"
    GONE = "watches that say 410 Gone, at once or in place of an event"


class What(Enum):
    """What a fault can befall."""

    REQUEST = "request"
    WATCH = "beginning of a watch"
    EVENT = "event of a watch"


_REQUESTS = (What.REQUEST, What.WATCH)
_OF = {
    Fault.SLOW: tuple(What),
    Fault.RESET: _REQUESTS,
    Fault.CUT: (What.REQUEST,),
    Fault.THROTTLED: _REQUESTS,
    Fault.FAILED: _REQUESTS,
    Fault.CONFLICT: (What.REQUEST,),
    Fault.WATCH_ENDED: (What.EVENT,),
    Fault.WATCH_CUT: (What.EVENT,),
    Fault.GONE: (What.WATCH, What.EVENT),
}


@dataclass
class Schedule:
    """What fails: `rate` of the requests of each kind, and of the events of each kind."""

    seed: str
    rate: float
    _counts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fate(self, kind: str) -> random.Random | None:
        """None if the next one of this kind is spared, else what decides on the details."""
        with self._lock:
            self._counts[kind] += 1
            count = self._counts[kind]
        fate = random.Random(f"{self.seed} {kind} {count}")
        return fate if fate.random() < self.rate else None


def new_seed() -> str:
    return os.environ.get(SEED) or str(random.randrange(10**6))


@dataclass
class Faults:
    """Use as a context manager; `url` is what a client is given instead of `target`."""

    target: str
    certificates: Certificates
    seed: str
    done: Counter[Fault] = field(default_factory=Counter)  # how often each was done
    _fault: Fault | None = None
    _schedule: Schedule = field(default_factory=lambda: Schedule("", 0))
    _sockets: set[socket.socket] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Faults:
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        with self._lock:
            left = list(self._sockets)
        for each in left:
            _shut(each)

    @property
    def url(self) -> str:
        return f"https://{LOOPBACK}:{self._server.server_port}"

    @contextmanager
    def of(self, fault: Fault, rate: float) -> Iterator[None]:
        """This fault, and no other, in the block, also in watches that are open already."""
        self._schedule = Schedule(f"{self.seed} {fault.name}", rate)
        self._fault = fault
        try:
            yield
        finally:
            self._fault = None

    @property
    def current(self) -> Fault | None:
        return self._fault

    def fate(self, what: What, plural: str) -> tuple[Fault | None, random.Random]:
        """What befalls it."""
        fault = self._fault
        fate = self._schedule.fate(f"{what} {plural}") if fault and what in _OF[fault] else None
        if fault is None or fate is None:
            return None, random.Random()
        with self._lock:
            self.done[fault] += 1
        return fault, fate

    def opened(self, made: socket.socket) -> None:
        with self._lock:
            self._sockets.add(made)

    def closed(self, made: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(made)


class _Server(HttpServer):
    went_away = (OSError, ValueError)  # its own connections are reset and closed under it
    request_queue_size = 128

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.near = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.near.load_cert_chain(*faults.certificates.server)
        self.far = ssl.create_default_context(cafile=str(faults.certificates.ca))
        super().__init__((LOOPBACK, 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client, with one of our own to the API server."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        self.request = self.server.near.wrap_socket(self.request, server_side=True)
        self.server.faults.opened(self.request)
        self._far: HTTPSConnection | None = None
        super().setup()

    def finish(self) -> None:
        with suppress(OSError, ValueError):
            super().finish()
        self.server.faults.closed(self.request)
        self._hang_up()
        _shut(self.request)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def handle_request(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        where = urlsplit(self.path)
        what = What.WATCH if "watch=true" in where.query else What.REQUEST
        self._plural = f"{self.command} {_plural(where.path)}"
        fault, fate = self._fate(what)
        if fault is Fault.SLOW:
            time.sleep(fate.uniform(0.05, _SLOWEST))
        if fault is Fault.RESET:
            self._reset()
        elif fault is Fault.THROTTLED:
            self._refuse(429, "too many requests", {"Retry-After": str(_RETRY_AFTER)})
        elif fault is Fault.FAILED:
            self._refuse(fate.choice((500, 503)), "the API server is not well")
        elif fault is Fault.CONFLICT:
            self._refuse(409, "the object has been modified; please apply your changes to it")
        elif fault is Fault.GONE:
            self._refuse(410, "too old resource version")
        else:
            self._pass_on(what, body, cut=fault is Fault.CUT)

    def _fate(self, what: What) -> tuple[Fault | None, random.Random]:
        """What is only read conflicts with nobody."""
        faults = self.server.faults
        if self.command == "GET" and faults.current is Fault.CONFLICT:
            return None, random.Random()
        return faults.fate(what, self._plural)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_request  # noqa: N815

    # --- what the API server says -----------------------------------------------------------------

    def _pass_on(self, what: What, body: bytes, *, cut: bool) -> None:
        try:
            answer = self._ask(body)
            if what is What.WATCH and answer.status == 200:
                self._pass_watch(answer)
            else:
                self._pass_whole(answer, answer.read(), cut=cut)
        except (OSError, HTTPException, ValueError):
            self._reset()

    def _ask(self, body: bytes) -> HTTPResponse:
        if self._far is None:
            there = urlsplit(self.server.faults.target)
            self._far = HTTPSConnection(
                there.hostname or "", there.port, context=self.server.far, timeout=None
            )
            self._far.connect()
            self.server.faults.opened(self._far.sock)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _BETWEEN}
        self._far.request(self.command, self.path, body or None, headers)
        return self._far.getresponse()

    def _pass_whole(self, answer: HTTPResponse, body: bytes, *, cut: bool) -> None:
        self._head(answer)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self._reset()

    def _pass_watch(self, answer: HTTPResponse) -> None:
        """Event by event, until the server ends it, or a fault does."""
        self._head(answer)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in _lines(answer):
            fault, fate = self.server.faults.fate(What.EVENT, self._plural)
            if fault is Fault.SLOW:
                time.sleep(fate.uniform(0.05, _SLOWEST))
            elif fault is not None:
                self._end_watch(line, fault)
                return
            self._chunk(line)
        self._chunk(b"")

    def _end_watch(self, line: bytes, fault: Fault) -> None:
        """In place of the line that came next."""
        if fault is Fault.WATCH_CUT:
            self._chunk(line[: len(line) // 2])
            self._reset()
            return
        if fault is Fault.GONE:
            event = {"type": "ERROR", "object": _status(410, "too old resource version")}
            self._chunk(json.dumps(event).encode() + b"\n")
        self._chunk(b"")
        self.close_connection = True
        self._hang_up()

    # --- the wire ---------------------------------------------------------------------------------

    def _head(self, answer: HTTPResponse) -> None:
        self.send_response_only(answer.status, answer.reason)
        for key, value in answer.getheaders():
            if key.lower() not in _BETWEEN:
                self.send_header(key, value)

    def _chunk(self, piece: bytes) -> None:
        self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")

    def _refuse(self, code: int, words: str, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(_status(code, words)).encode()
        self.send_response_only(code)
        for key, value in {**(headers or {}), "Content-Type": "application/json"}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _reset(self) -> None:
        """As when a router forgets the connection."""
        self.close_connection = True
        self._hang_up()
        with suppress(OSError):
            self.wfile.flush()
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            os.close(self.request.detach())

    def _hang_up(self) -> None:
        if self._far is not None:
            if self._far.sock is not None:
                self.server.faults.closed(self._far.sock)
            self._far.close()
            self._far = None


def _lines(answer: HTTPResponse) -> Iterator[bytes]:
    rest = b""
    while piece := answer.read1(_PIECE):
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line + b"\n"


_REASONS = {409: "Conflict", 410: "Expired", 429: "TooManyRequests"}


def _status(code: int, words: str) -> dict[str, object]:
    reason = _REASONS.get(code, "InternalError")
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    return {**status, "message": words, "reason": reason, "code": code}


def _plural(path: str) -> str:
    """What a path is about, without names: `nodes`, `drivers/status`."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if parts[:1] == ["namespaces"] and len(parts) > 2:
        parts = parts[2:]
    return "/".join(parts[:1] + parts[2:3])


def _shut(made: socket.socket) -> None:
    with suppress(OSError):
        made.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        made.close()
