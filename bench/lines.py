"""Lines of a pipe, each with the moment it arrived."""

from __future__ import annotations

import os
import select
import time

from nodeside.errors import DeadlinePassed
from nodeside.system import process

_TIMEOUT = 30.0


class Lines:
    """`write` is the end to give to a process."""

    def __init__(self) -> None:
        self._read, self.write = os.pipe()
        self._rest = b""

    def close(self) -> None:
        os.close(self._read)
        os.close(self.write)

    def await_line(self, words: bytes, timeout: float = _TIMEOUT) -> float:
        """The moment at which a line with these words was read."""
        deadline = time.monotonic() + timeout
        seen = b""
        while True:
            now = time.monotonic()
            *whole, self._rest = self._rest.split(b"\n")
            if any(words in line for line in whole):
                return now
            seen += b"\n".join(whole)
            if now >= deadline or not select.select([self._read], [], [], deadline - now)[0]:
                said = process.last_lines_of(seen.decode(errors="replace"))
                raise DeadlinePassed(f"no line with {words.decode()!r} in:\n{said}")
            self._rest += os.read(self._read, 1 << 16)
