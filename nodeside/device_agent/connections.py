"""grpclib's connections, within limits: nothing that a peer sends fills the memory.

What grpclib and h2 do not limit is limited here: connections, frames, settings, calls that are
reset at once, and what is written to a peer that does not read.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpclib.client
import grpclib.server
from google.protobuf.message import Message
from grpclib.config import Configuration
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.protocol import H2Protocol
from h2.events import DataReceived, RemoteSettingsChanged, RequestReceived

SMALL: Final = (1 << 16) - 1  # bytes that a peer may send before they are taken
WORDS: Final = 1024  # characters of an error; peers limit headers
_CONNECTIONS = 8  # of a server; the kubelet needs one
_STREAMS = 128  # of a connection; h2 takes 100 at once
_FRAMES = 4096  # of data, for all calls of a connection under way: 16 MiB take 1024
_SETTINGS = 32  # that a peer may send; HTTP/2 defines fewer
_READ = 1 << 14  # bytes read at a time: h2 takes them all in before a limit is checked
_CLOSES = 1.0  # seconds until all is written
_WINDOWS = Configuration(http2_connection_window_size=SMALL, http2_stream_window_size=SMALL)


class _Connection(H2Protocol):
    """A connection. A peer that fills it is disconnected; one that does not read is not read."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.max_size = _READ  # asyncio's own is sixteen times as much
        self._transport = transport
        self._frames: dict[int, int] = {}  # by the calls that are served
        self.processor.processors |= {
            RequestReceived: self._request_received,
            DataReceived: self._data_received,
            RemoteSettingsChanged: self._settings_changed,
        }

    def pause_writing(self) -> None:
        super().pause_writing()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._transport.resume_reading()

    def _request_received(self, event: Any) -> None:
        """Limit calls: grpclib keeps one that is reset before it begins; h2 counts the others."""
        if len(self.processor.streams) >= _STREAMS:
            self._transport.abort()
        else:
            self.processor.process_request_received(event)

    def _data_received(self, event: Any) -> None:
        """Limit frames: h2 limits only their bytes, and small ones take much more memory."""
        calls = self.processor.streams
        self._frames = {call: count for call, count in self._frames.items() if call in calls}
        self._frames[event.stream_id] = self._frames.get(event.stream_id, 0) + 1
        if sum(self._frames.values()) > _FRAMES:
            self._transport.abort()
        else:
            self.processor.process_data_received(event)

    def _settings_changed(self, event: Any) -> None:
        """Limit settings: a peer may send 65,536 different ones, and h2 keeps them all."""
        if len(self.connection._connection.remote_settings) > _SETTINGS:
            self._transport.abort()
        else:
            self.processor.process_remote_settings_changed(event)

    def close(self) -> None:
        """Close it once all is written, or soon."""
        asyncio.get_running_loop().call_later(_CLOSES, self._transport.abort)
        self._transport.close()


class _AcceptedConnection(_Connection):
    """A connection of a server. If there are too many, the oldest one without calls goes."""

    connections: dict[_AcceptedConnection, None]

    @property
    def is_idle(self) -> bool:
        """Whether no call is being served."""
        handler: Any = self.handler
        return all(task.done() for task in handler._tasks.values())

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.connections[self] = None
        if len(self.connections) > _CONNECTIONS:
            idle = next(each for each in self.connections if each.is_idle)
            del self.connections[idle]
            idle._transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.connections.pop(self, None)
        super().connection_lost(exc)


class LimitedServer(grpclib.server.Server):
    def __init__(self, handlers: Any) -> None:
        super().__init__(handlers, config=_WINDOWS)
        self._mapping = _Methods(self._mapping)
        self.connections: dict[_AcceptedConnection, None] = {}

    def _protocol_factory(self) -> H2Protocol:
        made = super()._protocol_factory()
        accepted = _AcceptedConnection(made.handler, made.config, made.h2_config)
        accepted.connections = self.connections
        return accepted


class _Methods(dict[str, Handler]):
    """The methods by their paths. grpclib's own answer for others is no gRPC to a client in Go."""

    def get(self, path: str, _default: object = None) -> Handler:
        return super().get(path) or Handler(
            _refuse_unknown, Cardinality.UNARY_UNARY, Message, Message
        )


async def _refuse_unknown(stream: Any) -> None:
    raise GRPCError(Status.UNIMPLEMENTED, f"there is no method {stream._method_name}"[:WORDS])


class LimitedChannel(grpclib.client.Channel):
    def __init__(self, path: str) -> None:
        super().__init__(path=path, config=_WINDOWS)

    def _protocol_factory(self) -> H2Protocol:
        made = super()._protocol_factory()
        return _Connection(made.handler, made.config, made.h2_config)
