"""gRPC on unix sockets; grpcio is the other end in test_agent.py."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeside.device_agent import connections, messages, rpc
from nodeside.device_agent.rpc import (
    CallFailed,
    Feed,
    PreconditionFailed,
    RpcServer,
    Unary,
    call_method,
)
from tests.console import until
from tests.device_agent.agent_process import kubelet_directory
from tests.patience import patience

LONG = patience(60.0)  # seconds
REQUEST, ANSWER = messages.AllocateRequest, messages.AllocateResponse
METHOD = "/test.Service/Unary"


class Service:
    """A server with a method of each kind; `lists` is what the feed says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.devices = 1
        self.feed = Feed(self.latest, messages.Empty)
        self.held = threading.Event()
        methods: dict[str, Unary | Feed] = {
            "Unary": Unary(self.answer, REQUEST),
            "Refuse": Unary(self.refuse, REQUEST),
            "Break": Unary(lambda _: 1 / 0, REQUEST),
            "Hold": Unary(lambda _: self.held.wait(LONG) and ANSWER(), REQUEST),
            "Feed": self.feed,
        }
        self.server = RpcServer({"test.Service": methods})

    def latest(self) -> Any:
        devices = [messages.Device(ID=f"{number:040}") for number in range(self.devices)]
        return messages.ListAndWatchResponse(devices=devices)

    def answer(self, request: Any) -> Any:
        """One response for each id that is asked for."""
        ids = [id_ for each in request.container_requests for id_ in each.devices_ids]
        return ANSWER(
            container_responses=[messages.ContainerAllocateResponse(envs={"ID": x}) for x in ids]
        )

    def refuse(self, _request: Any) -> Any:
        raise PreconditionFailed("ä device\nis gone" + "!" * 100_000)

    def call(self, *ids: str, method: str = METHOD, **more: Any) -> Any:
        request = REQUEST()
        request.container_requests.add(devices_ids=ids)
        return call_method(self.path, method, request, ANSWER, **{"timeout": LONG} | more)

    def works(self) -> bool:
        return len(self.call("a").container_responses) == 1


@pytest.fixture
def directory() -> Iterator[Path]:
    with kubelet_directory() as path:
        yield path


@pytest.fixture
def service(directory: Path) -> Iterator[Service]:
    service = Service(directory / "a.sock")
    service.server.start(service.path)
    yield service
    service.held.set()
    service.server.stop()
    assert not service.path.exists()


# --- calls


@pytest.mark.slow
def test_an_answer_may_be_as_large_as_the_caller_says(service: Service) -> None:
    ids = [f"{number:0600}" for number in range(5_000)]  # 3 MiB there and back
    with pytest.raises(CallFailed, match=r"the message has \d+ bytes, more than 1048576"):
        service.call(*ids, largest=1 << 20)
    assert len(service.call(*ids, largest=16 << 20).container_responses) == 5_000


def test_a_request_that_is_too_large_is_refused(service: Service) -> None:
    with pytest.raises(CallFailed, match=r"the message has \d+ bytes, more than 4194304"):
        service.call("x" * (5 << 20))
    assert service.works()


def test_a_refusal_has_its_words_which_are_cut(service: Service) -> None:
    with pytest.raises(CallFailed, match=r"^ä device\nis gone!{1000,1010}$"):
        service.call(method="/test.Service/Refuse")


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("/test.Service/Break", "a bug, see the log: ZeroDivisionError"),
        ("/test.Service/None", "there is no method /test.Service/None"),
        ("/other.Service/Unary", "there is no method /other.Service/Unary"),
    ],
)
def test_what_cannot_be_answered_is_said(service: Service, method: str, words: str) -> None:
    with pytest.raises(CallFailed, match=f"^{words}$"):
        service.call(method=method)
    assert service.works()


def test_a_call_has_a_deadline(service: Service) -> None:
    with pytest.raises(CallFailed, match=r"^no answer within 0\.2 s$"):
        service.call(method="/test.Service/Hold", timeout=0.2)
    assert service.works()


def test_too_many_calls_at_once_are_refused_even_if_their_callers_have_gone(
    service: Service,
) -> None:
    def is_full() -> bool:
        """After one caller more, who goes; on a slow machine its call may not have come."""
        with pytest.raises(CallFailed, match="no answer within"):
            service.call(method="/test.Service/Hold", timeout=0.1)
        return len(service.server._calls) >= rpc._AT_ONCE

    until(is_full)
    with pytest.raises(CallFailed, match="more than 16 calls at once"):
        service.call(method="/test.Service/Hold")
    assert service.works(), "the calls of one method leave room for those of another"
    service.held.set()
    until(lambda: not service.server._calls)
    assert service.works()


@pytest.mark.parametrize("kind", ["none", "file", "nobody"])
def test_a_peer_that_is_not_there_is_said(directory: Path, kind: str) -> None:
    path = directory / "none.sock"
    if kind == "file":
        path.touch()
    if kind == "nobody":
        with closing(socket.socket(socket.AF_UNIX)) as left:
            left.bind(str(path))
    with pytest.raises(CallFailed, match=r"^cannot connect: "):
        call_method(path, METHOD, REQUEST(), ANSWER, timeout=LONG)


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 100_000])
def test_a_peer_that_speaks_something_else_is_said(directory: Path, says: bytes) -> None:
    path = directory / "odd.sock"
    with closing(socket.socket(socket.AF_UNIX)) as odd:
        odd.bind(str(path))
        odd.listen()

        def speak() -> None:
            peer, _ = odd.accept()
            with closing(peer), suppress(OSError):
                peer.recv(1)
                peer.sendall(says)

        threading.Thread(target=speak, daemon=True).start()
        with pytest.raises(CallFailed, match=r"^the connection failed: "):
            call_method(path, METHOD, REQUEST(), ANSWER, timeout=LONG)


def test_a_peer_that_says_nothing_is_said(directory: Path) -> None:
    path = directory / "mute.sock"
    with closing(socket.socket(socket.AF_UNIX)) as mute:
        mute.bind(str(path))
        mute.listen()
        with pytest.raises(CallFailed, match=r"^no answer within 0\.2 s$"):
            call_method(path, METHOD, REQUEST(), ANSWER, timeout=0.2)


def test_a_socket_that_cannot_be_made_is_an_error(service: Service, directory: Path) -> None:
    with pytest.raises(OSError):
        RpcServer({}).start(directory / "none" / "a.sock")
    with pytest.raises(OSError):
        RpcServer({}).start(directory / ("x" * 108))
    assert service.works()


# --- hostile peers


class Peer:
    """A client that says in HTTP/2 whatever it likes."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(LONG)
        self.socket.connect(str(path))
        self.h2 = H2Connection(H2Configuration(validate_outbound_headers=False))
        self.h2.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def ask(self, method: str = METHOD, **more: str) -> int:
        """Begin a call."""
        number = self.h2.get_next_available_stream_id()
        headers = {":method": "POST", ":scheme": "http", ":path": method, ":authority": "odd"}
        headers |= {"te": "trailers", "content-type": "application/grpc"} | more
        self.h2.send_headers(number, [(k, v) for k, v in headers.items() if v])
        self.flush()
        return number

    def watch(self) -> None:
        """Ask for the feed."""
        number = self.ask("/test.Service/Feed")
        self.h2.send_data(number, b"\0\0\0\0\0", end_stream=True)
        self.flush()

    def until_closed(self) -> None:
        with suppress(ConnectionError):
            while self.socket.recv(1 << 16):
                pass


Peers = Callable[[], Peer]


@pytest.fixture
def peers(service: Service) -> Iterator[Peers]:
    with ExitStack() as stack:

        def connect() -> Peer:
            peer = Peer(service.path)
            stack.callback(peer.socket.close)
            return peer

        yield connect


def test_connections_that_ask_nothing_make_room(service: Service, peers: Peers) -> None:
    watching = peers()
    watching.watch()
    until(lambda: service.feed.is_watched)
    flood = [peers() for _ in range(4 * connections._CONNECTIONS)]
    flood[0].until_closed()
    assert service.works()
    assert service.feed.is_watched, "it is the one that is used"


def test_calls_without_a_request_end(
    service: Service, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "_PATIENCE", 0.5)
    peer = peers()
    for _ in range(rpc._AT_ONCE):
        peer.ask()
    until(lambda: len(service.server._calls) == rpc._AT_ONCE)
    until(lambda: not service.server._calls)
    assert service.works()


@pytest.mark.slow
def test_a_peer_that_sends_and_does_not_read_is_not_read(service: Service, peers: Peers) -> None:
    """Each ping asks for an answer, which would have to be kept."""
    peer = peers()
    ping = b"\0\0\x08\x06\0\0\0\0\0" + b"x" * 8
    peer.socket.settimeout(2)
    with pytest.raises(TimeoutError):
        peer.socket.sendall(ping * 10_000_000)
    assert service.server._server
    for connection in service.server._server.connections:
        assert connection._transport.get_write_buffer_size() < 1 << 17
    assert service.works()


@pytest.mark.parametrize(
    ("method", "head", "size"),
    [("/test.Service/Feed", b"\0\0\0\0\0", 0), (METHOD, b"\0\0\x10\0\0", 1)],
)
def test_a_flood_of_small_frames_ends_the_connection(
    service: Service, peers: Peers, method: str, head: bytes, size: int
) -> None:
    peer = peers()
    peer.h2.send_data(peer.ask(method), head)
    peer.flush()
    frame = struct.pack(">I", size)[1:] + b"\0\0" + struct.pack(">I", 1) + b"x" * size
    with suppress(ConnectionError):
        peer.socket.sendall(frame * (connections._FRAMES + 1))
    peer.until_closed()
    assert service.works()


def test_a_peer_with_settings_without_end_is_disconnected(service: Service, peers: Peers) -> None:
    peer = peers()
    entries = b"".join(struct.pack(">HI", number, 1) for number in range(100, 2000))
    peer.socket.sendall(struct.pack(">I", len(entries))[1:] + b"\x04\0\0\0\0\0" + entries)
    peer.until_closed()
    assert service.works()


def test_calls_that_are_reset_at_once_do_not_fill_it(service: Service, peers: Peers) -> None:
    peer = peers()
    with suppress(ConnectionError):
        for _ in range(2 * connections._STREAMS):
            number = peer.h2.get_next_available_stream_id()
            headers = {":method": "POST", ":scheme": "http", ":path": METHOD}
            peer.h2.send_headers(number, list(headers.items()))
            peer.h2.reset_stream(number)
        peer.flush()
    peer.until_closed()
    assert service.works()


def test_large_requests_wait_for_each_other(
    service: Service, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "_PATIENCE", 2.0)
    peer = peers()
    for _ in range(4):
        peer.h2.send_data(peer.ask(), b"\0" + struct.pack(">I", 1 << 20))
    peer.flush()
    until(service.server._large.locked)
    assert service.works(), "small ones do not"
    until(lambda: not service.server._calls)
    assert len(service.call(*map(str, range(20_000))).container_responses) == 20_000


@pytest.mark.parametrize(
    "headers",
    [
        {":method": "GET"},
        {":method": ""},
        {":path": ""},
        {"te": ""},
        {"content-type": "text/html"},
        {"grpc-timeout": "soon"},
        {"odd-bin": "%%%"},
        {"grpc-encoding": "gzip"},
        pytest.param({"long": "x" * 60_000}, marks=pytest.mark.slow),
    ],
)
def test_odd_headers_harm_nobody(service: Service, peers: Peers, headers: dict[str, str]) -> None:
    peer = peers()
    peer.ask(**headers)
    with suppress(Exception):
        peer.h2.send_data(1, b"\x01\0\0\0\0", end_stream=True)
        peer.flush()
    assert service.works()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    frames=st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 255), st.integers(0, 5), st.binary()),
        max_size=8,
    ),
    rest=st.binary(max_size=64),
)
def test_frames_of_any_kind_harm_nobody(
    service: Service, frames: list[tuple[int, int, int, bytes]], rest: bytes
) -> None:
    peer = Peer(service.path)
    with closing(peer.socket), suppress(ConnectionError):
        peer.ask("/test.Service/Feed")
        for kind, flags, number, content in frames:
            head = struct.pack(">I", len(content))[1:] + bytes((kind, flags))
            peer.socket.sendall(head + struct.pack(">I", number) + content)
        peer.socket.sendall(rest)
    assert service.works()


# --- feeds


def test_only_the_newest_stream_is_served(service: Service, peers: Peers) -> None:
    old, new = peers(), peers()
    for peer in (old, new):
        peer.watch()
        until(lambda: service.feed.is_watched)
    _until_headers(old, "grpc-status", "0")
    assert service.feed.is_watched


def test_a_stream_that_takes_nothing_ends_with_a_newer_one(service: Service, peers: Peers) -> None:
    service.devices = 10_000  # more than what may be sent without leave
    old, new = peers(), peers()
    old.watch()
    until(lambda: service.feed.is_watched)
    stream = service.feed._stream
    new.watch()
    until(lambda: service.feed._stream is not stream)
    until(lambda: stream is None or stream.done())
    assert service.works()


@pytest.mark.parametrize("how", ["reset", "close"])
def test_the_end_of_a_stream_is_noticed(service: Service, peers: Peers, how: str) -> None:
    peer = peers()
    peer.watch()
    until(lambda: service.feed.is_watched)
    if how == "reset":
        peer.h2.reset_stream(1)
        peer.flush()
    else:
        peer.socket.close()
    until(lambda: not service.feed.is_watched)


def test_a_feed_is_sent_again_from_time_to_time(
    service: Service, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "RESEND", 0.05)
    peer = peers()
    peer.watch()
    got = 0
    while got < 3 * 47:  # bytes of a list
        for event in peer.h2.receive_data(peer.socket.recv(1 << 16)):
            got += len(getattr(event, "data", b"") or b"")


def test_a_server_that_stops_ends_its_streams_and_starts_again(
    service: Service, peers: Peers, directory: Path
) -> None:
    peer = peers()
    peer.watch()
    until(lambda: service.feed.is_watched)
    service.server.stop()
    assert not service.feed.is_watched
    _until_headers(peer, "grpc-status", "0")
    peer.until_closed()
    service.path = directory / "b.sock"
    service.server.start(service.path)
    assert service.works()


@contextmanager
def starved() -> Iterator[None]:
    """The thread of the loop gets no time, as in a process that was stopped."""
    held = threading.Event()
    rpc._event_loop().call_soon_threadsafe(held.wait, LONG)
    try:
        yield
    finally:
        held.set()


def test_a_call_of_a_starved_process_fails(service: Service) -> None:
    with starved(), pytest.raises(CallFailed, match=r"no answer within 0\.1 s"):
        service.call("a", timeout=0.1)
    assert service.works()


def test_a_starved_server_stops_later(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    with starved():
        monkeypatch.setattr(rpc, "_LONGEST", 0.1)
        service.server.stop()
        assert service.path.exists()
    until(lambda: not service.path.exists())


ENDS = """
import sys, threading
from pathlib import Path
from nodeside.device_agent.messages import Empty
from nodeside.device_agent.rpc import CallFailed, RpcServer, Unary, call_method

server = RpcServer({"t.T": {"Hold": Unary(lambda _: threading.Event().wait(), Empty)}})
server.start(Path(sys.argv[1]))
try:
    call_method(Path(sys.argv[1]), "/t.T/Hold", Empty(), Empty, timeout=0.2)
except CallFailed:
    server.stop()
    print("the end")
"""


@pytest.mark.slow
def test_a_call_that_takes_long_does_not_keep_the_process_from_ending(directory: Path) -> None:
    argv = [sys.executable, "-c", ENDS, str(directory / "b.sock")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LONG, check=True)
    assert (done.stdout, done.stderr) == ("the end\n", "")


def _until_headers(peer: Peer, name: str, value: str) -> None:
    while data := peer.socket.recv(1 << 16):
        for event in peer.h2.receive_data(data):
            if (name.encode(), value.encode()) in (getattr(event, "headers", None) or ()):
                return
    pytest.fail(f"there is no {name}")
