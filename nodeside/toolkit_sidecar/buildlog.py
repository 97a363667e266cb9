"""The log of one build: a file that grows with the output, its tail, and its first error.

Bytes go to `out/<id>/build.log`, and lines to the sidecar's own output, as soon as they arrive. The
file is cut at a size limit. If a write to it fails, as on a full disk, the build goes on.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from nodeside.system.files import disk_errors
from nodeside.toolkit_sidecar.firsterror import ErrorScanner
from nodeside.toolkit_sidecar.remedies import NO_SPACE

LOG_LIMIT = 64 << 20  # bytes of a build.log; a kernel-sized driver with V=1 stays below 20 MiB
_TAIL = 60  # lines
_LINE = 1000  # characters of a line in the tail
_LONGEST = 64 << 10  # bytes; a longer line is cut into pieces

_CONTROL = dict.fromkeys((*range(9), *range(10, 32), 127), "?")

Echo = Callable[[Sequence[str]], None]


class BuildLog:
    """A build's log, used as a context manager. `echo` receives each chunk's complete lines.

    The file has the output unchanged. In the lines that are echoed and kept in the tail, paths in
    the build directory become relative to the source, where a person looks for the files.
    """

    def __init__(self, path: Path, echo: Echo, *, limit: int = LOG_LIMIT) -> None:
        self.path = path
        out = re.escape(str(path.parent))  # matched at the beginning of a word, not in PWD=...
        self._source = re.compile(rf"(?<![^\s'\"([:]){out}/(?:build|dkms/[^/\s]+/[^/\s]+/build)/")
        self.reported_full = False  # whether some line reported a full disk
        self.first_error = ErrorScanner()
        self._echo = echo
        self._limit = limit
        self._written = 0
        self._open_line = b""
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self._fd = -1
        self._log_refused = False  # whether the disk was too full for the log itself
        self._started = time.monotonic()

    def __enter__(self) -> BuildLog:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with disk_errors(self.path):
            self._fd = os.open(self.path, flags, 0o644)
        return self

    def __exit__(self, *_: object) -> None:
        self.end_line()
        os.close(self._fd)

    def say(self, line: str) -> None:
        """Write a line by the sidecar itself, marked with `# `."""
        self.end_line()
        self.add_output(f"# {line}\n".encode(errors="replace"))

    def add_output(self, data: bytes) -> None:
        """Add output of the build, as read from the pipe."""
        self._write_within_limit(data)
        *complete, self._open_line = (self._open_line + data).split(b"\n")
        if len(self._open_line) > _LONGEST:
            complete.append(self._open_line)
            self._open_line = b""
        lines = [self._remember_line(raw) for raw in complete]
        if lines:
            self._echo(lines)

    def end_line(self) -> None:
        """End a line that the build left open."""
        if self._open_line:
            self.add_output(b"\n")

    @property
    def out_of_space(self) -> bool:
        """Return whether the disk is full: a log write failed, or the build's first error says so.

        The words for a full disk after another error, or in a warning before it, prove nothing.
        """
        error = self.first_error.error
        believed = self.reported_full and (not error or NO_SPACE.search(error) is not None)
        return self._log_refused or believed

    def tail(self) -> tuple[str, ...]:
        """Return the last lines, each cut to a length that fits a record."""
        return tuple(self._tail)

    def build_lines(self) -> tuple[str, ...]:
        """Return the lines of the tail that the build wrote, without the sidecar's."""
        return tuple(line for line in self._tail if line and not line.startswith("# "))

    def _remember_line(self, raw: bytes) -> str:
        line = raw.decode(errors="replace").rstrip("\r").translate(_CONTROL)[:_LINE]
        if not line.startswith("# "):  # a line of the build, not of the sidecar
            line = self._source.sub("", line)
            self.first_error.scan_line(line)
            if not self.reported_full and NO_SPACE.search(line):
                self.reported_full = True
        self._tail.append(line)
        return line

    def _write_within_limit(self, data: bytes) -> None:
        if self._written >= self._limit:
            return
        room = self._limit - self._written
        if len(data) > room:
            data = data[:room] + f"\n# cut here: the log reached {self._limit} bytes\n".encode()
        self._written += len(data)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as exc:
            self._written = self._limit
            self._log_refused |= exc.errno in (errno.ENOSPC, errno.EDQUOT)
