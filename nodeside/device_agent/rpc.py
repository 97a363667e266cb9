"""gRPC on unix sockets: what the kubelet's APIs are served and called by.

grpclib runs in one thread with an event loop, handlers run in others. Limited here: how many calls
of a method run at once, how large a message is, and how many large ones there are at once.
connections.py limits what is below that.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError, Message
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from nodeside import log
from nodeside.device_agent.connections import SMALL, WORDS, LimitedChannel, LimitedServer
from nodeside.errors import NodesideError
from nodeside.values import frozen

RESEND: Final = 30.0  # seconds after which a feed is sent again, which repairs what was forgotten
LARGEST: Final = 4 << 20  # bytes of a message that is received; grpc-go takes as much unless told
_AT_ONCE = 16  # calls of one method; more of it are refused, those of other methods are not
_PATIENCE = 5.0  # seconds for a request to arrive, and for an answer to be taken
_GRACE = 1.0  # seconds for calls that are being served when the server stops
_LONGEST = 10.0  # seconds for a start or a stop
_HEAD = struct.Struct(">?I")  # of a message: whether it is compressed, and its size


class PreconditionFailed(NodesideError):
    """A handler does not do what was asked for: FAILED_PRECONDITION, with the words."""

    reason = "Refused"


class CallFailed(NodesideError):
    """A call got no answer; the message is the peer's, or says what happened."""

    reason = "CallFailed"


@frozen
class Unary:
    """A method: `handler` takes a message of the class `request` and returns the answer.

    It runs in a thread of its own, and may raise PreconditionFailed.
    """

    handler: Callable[[Any], Any]
    request: Any


@dataclass(eq=False)
class Feed:
    """A method that streams what `latest` returns: at once, after `send_again`, and each 30 s.

    `latest` waits for nothing. `request` is the class of the message that asks for it. Only the
    newest stream is served: there is one kubelet.
    """

    latest: Callable[[], Any]
    request: Any
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _stream: asyncio.Task[Any] | None = None  # the newest one that has not ended

    @property
    def is_watched(self) -> bool:
        """Whether there is a stream."""
        return self._stream is not None

    def send_again(self) -> None:
        """Send what `latest` returns now."""
        _event_loop().call_soon_threadsafe(self._news.set)

    async def serve_stream(self, stream: Any) -> None:
        """Serve a stream until a newer one begins."""
        self.end_stream()
        mine = self._stream = asyncio.current_task()
        try:
            while True:
                self._news.clear()
                await stream.send_message(_handler_result(self.latest))
                with suppress(TimeoutError):
                    async with asyncio.timeout(RESEND):
                        await self._news.wait()
        except asyncio.CancelledError:
            if self._stream is mine:
                raise  # the peer's end
        finally:
            if self._stream is mine:
                self._stream = None

    def end_stream(self) -> None:
        """End the stream that is being served, if any."""
        older, self._stream = self._stream, None
        if older is not None:
            older.cancel()


Services = Mapping[str, Mapping[str, Unary | Feed]]
"""The methods by their names, by the full name of their service."""


class RpcServer:
    """Serves the methods of services; nothing listens before `start`."""

    def __init__(self, services: Services) -> None:
        self._methods = {
            f"/{service}/{name}": method
            for service, methods in services.items()
            for name, method in methods.items()
        }
        self._large = asyncio.Lock()
        self._calls: dict[asyncio.Future[Any], Unary | Feed] = {}
        self._server: LimitedServer | None = None
        self._path = Path()

    def start(self, path: Path) -> None:
        """Listen on a new socket, which no other server ever has. Raises OSError if it cannot."""
        _wait_for(self._start_server(path), _LONGEST)

    def stop(self) -> None:
        """End all calls, listen no longer, and remove the socket."""
        if self._server is not None:
            with suppress(TimeoutError):  # a thread that was starved does it later
                _wait_for(self._stop_server(self._server), _LONGEST)
            self._server = None

    async def _start_server(self, path: Path) -> None:
        server = LimitedServer([self])
        await server.start(path=str(path))
        self._server, self._path = server, path

    async def _stop_server(self, server: LimitedServer) -> None:
        self._path.unlink(missing_ok=True)
        for method in self._methods.values():
            if isinstance(method, Feed):
                method.end_stream()
        await asyncio.sleep(0)  # the streams send their end
        if self._calls:
            await asyncio.wait(self._calls, timeout=_GRACE)
        server.close()
        for connection in list(server.connections):
            connection.close()

    # --- in the loop, called by grpclib

    def __mapping__(self) -> Mapping[str, Handler]:
        return {
            path: Handler(
                partial(self._serve_call, method), _cardinality_of(method), Message, Message
            )
            for path, method in self._methods.items()
        }

    async def _serve_call(self, method: Unary | Feed, stream: Any) -> None:
        if sum(each is method for each in self._calls.values()) >= _AT_ONCE:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, f"more than {_AT_ONCE} calls at once")
        mine: Any = asyncio.current_task()
        self._calls[mine] = method
        try:
            async with _MessageRoom(self._large) as room:
                async with asyncio.timeout(_PATIENCE):
                    request = await _receive_message(stream, method.request, LARGEST, room)
                if request is None:
                    raise GRPCError(Status.INTERNAL, "the request is empty")
                if isinstance(method, Unary):
                    answer = await self._await_answer(method, request)
                    async with asyncio.timeout(_PATIENCE):
                        await stream.send_message(answer)
        except TimeoutError:
            raise GRPCError(Status.DEADLINE_EXCEEDED, f"it took {_PATIENCE:g} s") from None
        finally:
            self._calls.pop(mine, None)
        if isinstance(method, Feed):
            await method.serve_stream(stream)

    async def _await_answer(self, method: Unary, request: Any) -> Any:
        work = asyncio.wrap_future(_start_handler(partial(method.handler, request)))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:  # the thread goes on
            self._calls[work] = method
            work.add_done_callback(lambda done: self._calls.pop(done, None))
            raise


def call_method(
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
    work = _call_async(socket, method, request, response, timeout=timeout, largest=largest)
    try:
        return _wait_for(work, timeout + _GRACE)
    except TimeoutError as error:  # this process was stopped, or starved
        raise CallFailed(f"no answer within {timeout:g} s") from error


_answers = asyncio.Lock()


async def _call_async(
    socket: Path, method: str, request: Any, response: Any, *, timeout: float, largest: int
) -> Any:
    channel = LimitedChannel(path=str(socket))
    kinds = type(request), response
    try:
        async with (
            _MessageRoom(_answers) as room,
            asyncio.timeout(timeout),
            channel.request(method, Cardinality.UNARY_UNARY, *kinds, timeout=timeout) as stream,
        ):
            await stream.send_message(request, end=True)
            await stream.recv_initial_metadata()
            with stream._wrapper:  # which notices that the connection ends
                answer = await _receive_message(stream, response, largest, room)
        if answer is not None:
            return answer
        raise CallFailed("the answer is empty")
    except GRPCError as error:
        raise CallFailed((error.message or error.status.name)[:WORDS]) from error
    except TimeoutError as error:
        raise CallFailed(f"no answer within {timeout:g} s") from error
    except OSError as error:
        raise CallFailed(f"cannot connect: {error.strerror or error}") from error
    except CallFailed:
        raise
    except Exception as error:  # grpclib and h2 raise many kinds, by what a peer sends
        raise CallFailed(f"the connection failed: {error or type(error).__name__}") from error
    finally:
        channel.close()


# --- messages and errors --------------------------------------------------------------------------


class _MessageRoom(AsyncExitStack):
    """The memory of a message. A large message holds `lock`, so there is only one at a time."""

    def __init__(self, lock: asyncio.Lock) -> None:
        super().__init__()
        self._lock = lock

    async def wait_for_room(self, size: int) -> None:
        if size > SMALL:
            await self.enter_async_context(self._lock)


async def _receive_message(stream: Any, kind: Any, largest: int, room: _MessageRoom) -> Any:
    """Return a message, None if there is none. Raises GRPCError.

    grpclib's own function takes any size.
    """
    data = stream._stream
    try:
        head = await data.recv_data(_HEAD.size)
        if not head:
            return None
        compressed, size = _HEAD.unpack(head)
        if compressed:
            raise GRPCError(Status.UNIMPLEMENTED, "the message is compressed")
        if size > largest:
            words = f"the message has {size} bytes, more than {largest}"
            raise GRPCError(Status.RESOURCE_EXHAUSTED, words)
        await room.wait_for_room(size)
        return kind.FromString(await data.recv_data(size))
    except (AssertionError, DecodeError) as exc:  # grpclib asserts that it did not end early
        raise GRPCError(Status.INTERNAL, "the message is malformed") from exc


def _start_handler(handler: Callable[[], Any]) -> Future[Any]:
    """Run a handler in a thread that does not keep the process from ending, as an executor's do."""
    work: Future[Any] = Future()

    def run() -> None:
        try:
            work.set_result(_handler_result(handler))
        except GRPCError as error:
            work.set_exception(error)

    threading.Thread(target=run, name="rpc-call", daemon=True).start()
    return work


def _handler_result(handler: Callable[[], Any]) -> Any:
    """Return what a handler returns. Raises GRPCError."""
    try:
        return handler()
    except PreconditionFailed as error:
        raise GRPCError(Status.FAILED_PRECONDITION, str(error)[:WORDS]) from error
    except Exception as exc:
        log.traceback(exc)
        raise GRPCError(Status.INTERNAL, f"a bug, see the log: {type(exc).__name__}") from exc


def _cardinality_of(method: Unary | Feed) -> Cardinality:
    return Cardinality.UNARY_STREAM if isinstance(method, Feed) else Cardinality.UNARY_UNARY


# --- the thread -----------------------------------------------------------------------------------


_starting = threading.Lock()


def _event_loop() -> asyncio.AbstractEventLoop:
    """Return the loop; its thread starts with the first call."""
    with _starting:
        return _start_loop()


@cache
def _start_loop() -> asyncio.AbstractEventLoop:
    for name in ("asyncio", "grpclib"):  # what peers do; what handlers do, `_handler_result` logs
        logger = logging.getLogger(name)
        logger.handlers[:] = [_Details()]
        logger.propagate = False
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="rpc", daemon=True).start()
    return loop


def _wait_for(work: Coroutine[Any, Any, Any], seconds: float) -> Any:
    """Run a coroutine in the loop and return its result. Raises TimeoutError."""
    return asyncio.run_coroutine_threadsafe(work, _event_loop()).result(seconds)


class _Details(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        log.detail(record.getMessage(), component_part=record.name)
