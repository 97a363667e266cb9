"""Streams the build's output line by line while the build runs.

Vendor code writes the file, and may write anything. A line is charged for what it takes in a
container's log, where an empty one has a hundred bytes: the log is on the node's disk.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from nodeside.log import escape_controls

_READ_ONLY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK = 1 << 12  # bytes of the build log read at once
_LONGEST = 1 << 18  # bytes; a longer line is passed on in pieces
_FRAME = 120  # bytes of a line in a JSON log besides its text
_TOTAL = 160 << 20  # bytes passed on; room for a build.log cut at 64 MiB, in lines of 80 bytes
_AT_ONCE = 1 << 20  # bytes passed on between two looks for the result, 12,000 empty lines


class LogFollower:
    """A reader that passes on the lines of a growing file written by another process."""

    def __init__(self, path: Path, on_line: Callable[[str], None]) -> None:
        self.path = path
        self.on_line = on_line
        self.identity: tuple[int, int] | None = None
        self.offset = 0
        self.left = _TOTAL
        self.rest = b""

    def follow(self, *, to_end: bool = False) -> bool:
        """Pass on what was written since the last call, or the first MiB or so of it.

        Returns whether there is more to pass on. `to_end`: also pass on a last line without an end.
        """
        with suppress(OSError):
            fd = os.open(self.path, _READ_ONLY)
            try:
                return self._read_new(fd, to_end)
            finally:
                os.close(fd)
        return False

    def _read_new(self, fd: int, to_end: bool) -> bool:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or self.left < 0:
            return False
        if self.identity != (status.st_dev, status.st_ino) or status.st_size < self.offset:
            # A restarted sidecar starts a new log.
            self.identity = (status.st_dev, status.st_ino)
            self.offset, self.rest = 0, b""
        # The writer may be faster than we are, and never stop.
        enough = max(0, self.left - _AT_ONCE)
        while self.left >= enough:
            data = os.pread(fd, _CHUNK, self.offset)
            if not data:
                break
            self.offset += len(data)
            *lines, self.rest = (self.rest + data).split(b"\n")
            if len(self.rest) > _LONGEST:
                lines, self.rest = [*lines, self.rest], b""
            self._pass_on(lines)
        more = self.left >= 0 and self.offset < status.st_size
        if to_end and self.rest and not more:
            self._pass_on([self.rest])
            self.rest = b""
        return more

    def _pass_on(self, lines: list[bytes]) -> None:
        for line in lines:
            if self.left < 0:
                return
            text = escape_controls(line.decode(errors="replace"))
            self.left -= len(json.dumps(text)) + _FRAME
            if self.left < 0:
                text = f"[log truncated: only the first {_TOTAL >> 20} MiB are shown]"
            self.on_line(text)
