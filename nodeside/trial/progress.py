"""Progress of a trial on stderr: one line per step, with the seconds since the start.

A step that prints nothing for long would look like a hang, so every step that takes seconds is
announced before it begins. On a terminal a step that fetches or unpacks shows how much there is.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from nodeside.log import escape_controls

_KEPT = 20_000  # lines
_LONGEST = 2000  # characters of a line that is kept
_LOOK = 0.5  # seconds between two looks at a size
_RATE_OVER = 6  # looks
_ERASE_LINE = "\r\x1b[K"


@dataclass
class Progress:
    """The progress output. `quiet` drops it, for tests and `--output json` scripts.

    `kept` has the last lines, for a report.
    """

    stream: TextIO = field(default_factory=lambda: sys.stderr)
    quiet: bool = False
    started: float = field(default_factory=time.monotonic)
    kept: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _muted: bool = False
    _writing: threading.Lock = field(default_factory=threading.Lock)
    _erase: str = ""  # what removes the line that shows a size

    @property
    def color(self) -> bool:
        return self.stream.isatty() and not os.environ.get("NO_COLOR")

    def print_step(self, text: str) -> None:
        """Print one step, with the seconds since the trial began."""
        self._write_line(f"[{time.monotonic() - self.started:6.1f} s]", escape_controls(text))

    def print_line(self, prefix: str, text: str) -> None:
        """Print one line of a container's or a kernel's output, prefixed with its origin.

        It may hold any character, such as an escape sequence that writes the clipboard.
        """
        self._write_line(prefix, escape_controls(text))

    @contextmanager
    def mute(self) -> Iterator[None]:
        """Show nothing in the block, while the terminal is somebody else's. All lines are kept."""
        self._muted = True
        try:
            yield
        finally:
            self._muted = False

    @contextmanager
    def show_growth(self, directory: Path) -> Iterator[None]:
        """On a terminal, show by how much a directory has grown in the block, and how fast.

        The line is erased at the end of the block. A block of less than a second shows none.
        """
        if self.quiet or not self.stream.isatty():
            yield
            return
        ended = threading.Event()
        arguments = (directory, _size_on_disk(directory), ended)
        watching = threading.Thread(target=self._show_size, args=arguments, daemon=True)
        watching.start()
        try:
            yield
        finally:
            ended.set()
            watching.join()
            with self._writing:
                self._show_transient("")

    def _show_size(self, directory: Path, before: int, ended: threading.Event) -> None:
        looks = deque([(time.monotonic(), 0)], maxlen=_RATE_OVER)
        while not ended.wait(_LOOK):
            grown = max(0, _size_on_disk(directory) - before)
            now, (then, had) = time.monotonic(), looks[0]
            looks.append((now, grown))
            if len(looks) <= 2:  # in the first second
                continue
            rate = max(0, grown - had) / (now - then)
            with self._writing:
                self._show_transient(f"           {grown / 1e6:.1f} MB, {rate / 1e6:.1f} MB/s")

    def _show_transient(self, text: str) -> None:
        """Show a line that the next one replaces."""
        self.stream.write(f"{self._erase}{self._dim_text(text) if text else ''}")
        self.stream.flush()
        self._erase = _ERASE_LINE if text else ""

    def _dim_text(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self.color else text

    def _write_line(self, prefix: str, text: str) -> None:
        self.kept.append(f"{prefix} {text}"[:_LONGEST])
        if not (self.quiet or self._muted):
            with self._writing:
                self._show_transient("")
                self.stream.write(f"{self._dim_text(prefix)} {text}\n")
                self.stream.flush()


def _size_on_disk(directory: Path) -> int:
    """Return the bytes on disk below a directory, whose files may come and go meanwhile."""
    total = 0
    for place, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
    return total
