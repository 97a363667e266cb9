"""A relay in front of the API server that a test can cut, close and open again.

It forwards bytes, so TLS is end to end. Refused means what it means when the server is gone.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.controlplane.components import LOOPBACK

_PIECE = 1 << 16  # bytes
_CONNECT = 5.0  # seconds


@dataclass
class Relay:
    """Use as a context manager; `url` is what a client is given instead of `target`."""

    target: str
    _open: list[socket.socket] = field(default_factory=list)
    _listener: socket.socket | None = None
    _port: int = 0

    def __enter__(self) -> Relay:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"https://{LOOPBACK}:{self._port}"

    def open(self) -> None:
        """Accept connections, on the same port as before."""
        listener = socket.create_server((LOOPBACK, self._port), reuse_port=False)
        self._port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def close(self) -> None:
        """The server is gone: connections end, new ones are refused."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()
        self.cut()

    def cut(self) -> None:
        """All connections break; new ones are accepted."""
        cut, self._open[:] = list(self._open), []
        for end in cut:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self, listener: socket.socket) -> None:
        there = urlsplit(self.target)
        while True:
            try:
                near, _ = listener.accept()
                far = socket.create_connection((there.hostname or "", there.port or 443), _CONNECT)
            except OSError:
                return
            far.settimeout(None)
            self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(_PIECE):
            sink.sendall(piece)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
