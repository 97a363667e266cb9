"""An HTTP response with a limit on every line and every single read.

http.client and urllib3 read until the end of a line, however long the line is, and treat a negative
chunk size as "read everything". With either, an endless response fills the memory. The file below
them is bounded here instead, so it works with either library and any version of them. Cookies are
dropped here: a session would store every cookie that a server sets, and no server used here needs
one.
"""

from __future__ import annotations

import http.client
import io
from typing import Any

LINE_LIMIT = 1 << 16  # bytes; http.client's own limit for a header


class BoundedResponse(http.client.HTTPResponse):
    """An HTTPResponse that reads from a bounded file."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fp = _BoundedFile(self.fp.detach())

    def begin(self) -> None:
        super().begin()
        for name in ("Set-Cookie", "Set-Cookie2"):
            del self.msg[name]


class _BoundedFile(io.BufferedReader):
    def readline(self, size: int | None = -1, /) -> bytes:
        if size is not None and size >= 0:
            return super().readline(size)
        line = super().readline(LINE_LIMIT + 1)
        if len(line) > LINE_LIMIT:
            raise http.client.LineTooLong("line of a chunked answer")
        return line

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            raise http.client.HTTPException("a chunk without a valid size")
        return super().read(size)
