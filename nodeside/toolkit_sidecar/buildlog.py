"""The log of one build: a file that grows as the compiler speaks, its end, and its first error.

Bytes go to `out/<id>/build.log` and lines to the sidecar's own output the moment they arrive. The
file is cut at a limit, and a disk that is full never ends a build by itself.
"""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from nodeside.files import disk_errors
from nodeside.toolkit_sidecar.firsterror import FirstError
from nodeside.toolkit_sidecar.remedies import NO_SPACE

LOG_LIMIT = 64 << 20  # bytes of a build.log; a kernel-sized driver with V=1 stays below 20 MiB
_TAIL = 60  # lines
_LINE = 1000  # characters of a line in the tail
_LONGEST = 64 << 10  # bytes; a longer line is cut in pieces

_CONTROL = dict.fromkeys((*range(9), *range(10, 32), 127), "?")

Echo = Callable[[Sequence[str]], None]


class BuildLog:
    """Use as a context manager; `echo` is handed the complete lines of each piece."""

    def __init__(self, path: Path, echo: Echo, *, limit: int = LOG_LIMIT) -> None:
        self.path = path
        self.says_full = False  # the words for a full disk stand somewhere
        self.first_error = FirstError()
        self._echo = echo
        self._limit = limit
        self._written = 0
        self._rest = b""
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self._fd = -1
        self._refused = False  # the disk had no room for the log itself
        self._started = time.monotonic()

    def __enter__(self) -> BuildLog:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with disk_errors(self.path):
            self._fd = os.open(self.path, flags, 0o644)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end_line()
        os.close(self._fd)

    def say(self, line: str) -> None:
        """A line of ours, marked as such."""
        self.end_line()
        self.feed(f"# {line}\n".encode(errors="replace"))

    def feed(self, data: bytes) -> None:
        """What the build wrote, as it came out of the pipe."""
        self._write(data)
        *complete, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST:
            complete.append(self._rest)
            self._rest = b""
        lines = [self._remember(raw) for raw in complete]
        if lines:
            self._echo(lines)

    def end_line(self) -> None:
        """End a line that the build left open."""
        if self._rest:
            self.feed(b"\n")

    @property
    def out_of_space(self) -> bool:
        """Whether the disk is full, by our own experience or by the build's first error.

        Words after another error, or in a warning before one, may be about anything.
        """
        error = self.first_error.error
        said = self.says_full and (not error or NO_SPACE.search(error) is not None)
        return self._refused or said

    def tail(self) -> tuple[str, ...]:
        """The last lines, each cut to a length a record can hold."""
        return tuple(self._tail)

    def said_by_the_build(self) -> tuple[str, ...]:
        """The last lines that are not ours."""
        return tuple(line for line in self._tail if line and not line.startswith("# "))

    def _remember(self, raw: bytes) -> str:
        line = raw.decode(errors="replace").rstrip("\r").translate(_CONTROL)[:_LINE]
        self._tail.append(line)
        if not line.startswith("# "):  # a line of ours
            self.first_error.see(line)
            if not self.says_full and NO_SPACE.search(line):
                self.says_full = True
        return line

    def _write(self, data: bytes) -> None:
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
            self._refused |= exc.errno in (errno.ENOSPC, errno.EDQUOT)
