"""What a server's answer is read from: no line of it, and no single read, is without a limit.

http.client and urllib3 look for the end of a line wherever the server puts it, and take a negative
chunk size for "all there is". Both fill the memory with what an endless answer sends. The file
below them is bounded here instead, so that it does not matter which of them reads, in which of
their versions. Cookies go no further than here: a session would keep every one that a server sets,
and no server that is asked needs one.
"""

from __future__ import annotations

import http.client
import io
from typing import Any

LINE_LIMIT = 1 << 16  # bytes; what http.client allows for a header


class BoundedResponse(http.client.HTTPResponse):
    """Reads as its parent does, but from a file that is bounded."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fp = _Bounded(self.fp.detach())

    def begin(self) -> None:
        super().begin()
        for name in ("Set-Cookie", "Set-Cookie2"):
            del self.msg[name]


class _Bounded(io.BufferedReader):
    def readline(self, size: int | None = -1, /) -> bytes:
        if size is not None and size >= 0:
            return super().readline(size)
        line = super().readline(LINE_LIMIT + 1)
        if len(line) > LINE_LIMIT:
            raise http.client.LineTooLong("line of a chunked answer")
        return line

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            raise http.client.HTTPException("a chunk of no sensible size")
        return super().read(size)
