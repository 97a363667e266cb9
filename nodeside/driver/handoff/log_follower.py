"""Streams the build's output line by line while the build runs.

Vendor code writes the file, and may write anything.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from nodeside.log import escaped

_READ_ONLY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK = 1 << 18  # bytes of the build log read at once
_TOTAL = 128 << 20  # bytes passed on in total; the sidecar cuts a log at 64 MiB, and may restart it
_CHUNKS = 64  # chunks read between two checks of the result, and the most read at the end


class LogFollower:
    """A reader that passes on the lines of a growing file written by another process."""

    def __init__(self, path: Path, on_line: Callable[[str], None]) -> None:
        self.path = path
        self.on_line = on_line
        self.identity: tuple[int, int] | None = None
        self.offset = 0
        self.left = _TOTAL
        self.rest = b""

    def follow(self, *, to_end: bool = False) -> None:
        with suppress(OSError):
            fd = os.open(self.path, _READ_ONLY)
            try:
                self._read(fd, to_end)
            finally:
                os.close(fd)

    def _read(self, fd: int, to_end: bool) -> None:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or self.left < 0:
            return
        if self.identity != (status.st_dev, status.st_ino) or status.st_size < self.offset:
            # A restarted sidecar starts a new log.
            self.identity = (status.st_dev, status.st_ino)
            self.offset, self.rest = 0, b""
        for _ in range(_CHUNKS):  # a limit: the writer may be faster than we are, and never stop
            data = os.pread(fd, min(_CHUNK, self.left), self.offset)
            if not data:
                break
            self.offset += len(data)
            self.left -= len(data)
            *lines, self.rest = (self.rest + data).split(b"\n")
            if len(self.rest) > _CHUNK:  # too long for a tool's output: pass it on in pieces
                lines, self.rest = [*lines, self.rest], b""
            for line in lines:
                self.on_line(escaped(line.decode(errors="replace")))
        if to_end and self.rest:
            self.on_line(escaped(self.rest.decode(errors="replace")))
            self.rest = b""
        if self.left == 0:
            self.left = -1
            self.on_line(f"[log truncated: only the first {_TOTAL >> 20} MiB are shown]")
