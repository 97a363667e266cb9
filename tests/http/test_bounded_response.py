"""Endless lines and chunks without a size, whatever HTTP library is above."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

import pytest

from nodeside.http.bounded_response import LINE_LIMIT, BoundedResponse

HEAD = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def response() -> Iterator[BoundedResponse]:
    """An answer whose first chunk has a size with too many digits."""
    server, client = socket.socketpair()
    with server, client:
        client.settimeout(10)
        server.setblocking(False)
        server.send(HEAD + b"1" * (LINE_LIMIT + 1))
        response = BoundedResponse(client)
        response.begin()
        yield response
        response.close()


def test_a_line_without_end_is_refused(response: BoundedResponse) -> None:
    with pytest.raises(http.client.LineTooLong):
        response.fp.readline()


def test_nothing_is_read_without_a_size(response: BoundedResponse) -> None:
    with pytest.raises(http.client.HTTPException, match="valid size"):
        response.fp.read()
    assert response.fp.read(3) == b"111"


def test_no_cookie_is_kept(response: BoundedResponse) -> None:
    assert response.getheader("Set-Cookie") is None
    assert response.getheader("Transfer-Encoding") == "chunked"
