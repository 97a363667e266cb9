"""gRPC on unix sockets: what the kubelet's APIs are served and called by.

Handlers of unary calls run in threads. A process that imported this must not fork.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from nodeside.errors import NodesideError

RESEND = 30.0  # seconds after which a feed is sent again, which repairs what the kubelet forgot
LARGEST = 4 << 20  # bytes of a message that is received; grpc-go takes as much unless told
_THREADS = 8
_AT_ONCE = 16  # calls; more are refused
_GRACE = 1.0  # seconds for calls that are being served when the server stops


class Refused(NodesideError):
    """A handler does not do what was asked for: FAILED_PRECONDITION, with the words."""

    reason = "Refused"


class CallFailed(NodesideError):
    """A call got no answer; the message is the peer's, or says what happened."""

    reason = "CallFailed"


@dataclass(frozen=True)
class Unary:
    """A method: `handler` takes a message of the class `request` and returns the answer.

    It may raise Refused.
    """

    handler: Callable[[Any], Any]
    request: Any


@dataclass(eq=False)
class Feed:
    """A method that streams what `latest` returns: at once, after `changed`, and each 30 s.

    `request` is the class of the message that asks for it. Only the newest stream is served: there
    is one kubelet.
    """

    latest: Callable[[], Any]
    request: Any
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _version: int = 0
    _stream: object = None  # the newest one that has not ended

    @property
    def is_watched(self) -> bool:
        """Whether there is a stream."""
        return self._stream is not None

    def changed(self) -> None:
        """Send it again."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def _serve(self, _request: Any, context: Any) -> Iterator[Any]:
        mine = object()
        with self._changed:
            self._stream = mine
            self._changed.notify_all()  # an older one ends
        try:
            if not context.add_callback(self._wake):
                return  # it has ended already
            while context.is_active() and self._stream is mine:
                version = self._version
                yield self.latest()
                self._wait(context, mine, version)
        finally:
            with self._changed:
                if self._stream is mine:
                    self._stream = None

    def _wait(self, context: Any, mine: object, version: int) -> None:
        def holds() -> bool:
            ended = self._stream is not mine or not context.is_active()
            return ended or self._version != version

        with self._changed:
            self._changed.wait_for(holds, RESEND)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _end(self) -> None:
        self._stream = None
        self._wake()


Services = Mapping[str, Mapping[str, Unary | Feed]]
"""The methods by their names, by the full name of their service."""


class Server:
    """Serves them; nothing listens before `start`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._server: Any = None

    def start(self, path: Path) -> None:
        """Listen on a new socket. Raises OSError if that cannot be made."""
        server = grpc.server(
            ThreadPoolExecutor(_THREADS, thread_name_prefix="rpc"),
            handlers=[
                grpc.method_handlers_generic_handler(
                    service, {name: _handler(method) for name, method in methods.items()}
                )
                for service, methods in self._services.items()
            ],
            maximum_concurrent_rpcs=_AT_ONCE,
        )
        try:
            server.add_insecure_port(f"unix:{path}")
        except RuntimeError as exc:
            raise OSError(f"{path}: {exc}") from exc
        server.start()
        self._server = server

    def stop(self) -> None:
        """End all calls, and listen no longer."""
        for methods in self._services.values():
            for method in methods.values():
                if isinstance(method, Feed):
                    method._end()
        if self._server is not None:
            self._server.stop(_GRACE).wait()
        self._server = None


def _handler(method: Unary | Feed) -> Any:
    if isinstance(method, Feed):
        kind: Any = grpc.unary_stream_rpc_method_handler
        behaviour: Any = method._serve
    else:
        kind, behaviour = grpc.unary_unary_rpc_method_handler, _guarded(method.handler)
    return kind(
        behaviour,
        request_deserializer=method.request.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )


def _guarded(handler: Callable[[Any], Any]) -> Any:
    def answer(request: Any, context: Any) -> Any:
        try:
            return handler(request)
        except Refused as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

    return answer


def call(
    socket: Path,
    method: str,
    request: Any,
    response: Any,
    *,
    timeout: float,
    largest: int = LARGEST,
) -> Any:
    """Call "/package.Service/Method" and return the answer, a message of the class `response`.

    `timeout` is in seconds, `largest` the bytes that an answer may have. Raises CallFailed.
    """
    options = [("grpc.max_receive_message_length", largest)]
    with grpc.insecure_channel(f"unix:{socket}", options) as channel:
        stub: Any = channel.unary_unary(
            method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )
        try:
            return stub(request, timeout=timeout)
        except grpc.RpcError as error:
            raise CallFailed(str(error.details())) from error  # type: ignore[attr-defined]
