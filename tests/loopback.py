"""The servers that tests put in the place of real ones, on loopback.

A client that goes away in the middle is no news: tests end clients all the time. Any other
exception of a server is a mistake in the test. It leaves the thread that it was raised in, and
pytest then fails the test (`filterwarnings` in pyproject.toml), where the standard library would
only print it between pytest's dots.
"""

from __future__ import annotations

import errno
import socketserver
import ssl
import sys
from http.server import ThreadingHTTPServer
from typing import Any


class _Strict:
    """`went_away`: what a handler raises when its client has gone."""

    went_away: tuple[type[Exception], ...] = (ConnectionError, ssl.SSLError)
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The standard library calls this where it has caught an exception of a handler."""
        error = sys.exc_info()[1]
        if error is not None and not self._tells_of_a_client(error):
            raise error

    def _tells_of_a_client(self, error: BaseException) -> bool:
        """ENOTCONN, of a shutdown, is no ConnectionError of Python's."""
        not_connected = isinstance(error, OSError) and error.errno == errno.ENOTCONN
        return not_connected or isinstance(error, self.went_away)


class HttpServer(_Strict, ThreadingHTTPServer):
    """HTTP, with one thread for each connection."""


class TcpServer(_Strict, socketserver.ThreadingTCPServer):
    """Any bytes, with one thread for each connection."""


class UnixServer(_Strict, socketserver.ThreadingUnixStreamServer):
    """The same at a path."""
