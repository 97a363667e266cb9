"""The output of a service or a hook: into the log, and its last lines into memory."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import IO, Any

from nodeside import log
from nodeside.log import escape_controls
from nodeside.system.clock import Clock

_LINE = 1000  # characters of a line
_LAST, _UNSEARCHED = 20, 4096  # lines: the last ones, and those not yet searched
_CHUNK = 1 << 16
_RATE, _BURST = 20.0, 400.0  # lines of the log: in a second, at once
_END = 1.0  # seconds to read what a process that has ended has written


class Output:
    """What a program writes. `fields` are those of each line of the log, at a limited rate."""

    def __init__(self, **fields: Any) -> None:
        self._fields = fields
        self._last: deque[str] = deque(maxlen=_LAST)
        self._unsearched: deque[str] = deque(maxlen=_UNSEARCHED)
        self._log_budget, self._refilled_at, self._dropped = _BURST, Clock().now(), 0
        self._reader: threading.Thread | None = None

    def follow_pipe(self, pipe: IO[bytes]) -> None:
        """Read until no process holds the other end."""
        self._reader = threading.Thread(target=self._read_pipe, args=(pipe,), daemon=True)
        self._reader.start()

    def last_lines(self) -> str:
        """Return the last lines, each after a line feed, once a service has ended."""
        if self._reader is not None:
            self._reader.join(_END)
        return "".join(f"\n{line}" for line in list(self._last))

    def take_unsearched(self) -> list[str]:
        """Return the lines since the last call."""
        lines = []
        while self._unsearched:
            lines.append(self._unsearched.popleft())
        return lines

    def _read_pipe(self, pipe: IO[bytes]) -> None:
        line = bytearray()
        with pipe:
            while data := os.read(pipe.fileno(), _CHUNK):
                *whole, rest = data.split(b"\n")
                for each in whole:
                    self.take_line((bytes(line) + each).decode(errors="replace"))
                    line.clear()
                line += rest[: _LINE * 4 - len(line)]
        if line:
            self.take_line(line.decode(errors="replace"))
        if self._dropped:
            self._log_dropped()

    def take_line(self, text: str) -> None:
        """Take a line; only its beginning is kept."""
        text = escape_controls(text[:_LINE])
        self._last.append(text)
        self._unsearched.append(text)
        now = Clock().now()
        self._log_budget = min(_BURST, self._log_budget + (now - self._refilled_at) * _RATE)
        self._refilled_at = now
        if self._log_budget < 1.0:
            self._dropped += 1
            return
        self._log_budget -= 1.0
        if self._dropped:
            self._log_dropped()
        log.fact(text, **self._fields)

    def _log_dropped(self) -> None:
        log.warning("lines of its output are left out", lines=self._dropped, **self._fields)
        self._dropped = 0
