"""Progress of a trial on stderr: one line per step, with the seconds since the start.

A step that prints nothing for long would look like a hang, so every step that takes seconds is
announced before it begins.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TextIO

from nodeside.log import escaped

_KEPT = 20_000  # lines
_LONGEST = 2000  # characters of a line that is kept


@dataclass
class Progress:
    """The progress output. `quiet` drops it, for tests and `--output json` scripts.

    `kept` has the last lines, for a report.
    """

    stream: TextIO = field(default_factory=lambda: sys.stderr)
    quiet: bool = False
    started: float = field(default_factory=time.monotonic)
    kept: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))

    @property
    def color(self) -> bool:
        return self.stream.isatty() and not os.environ.get("NO_COLOR")

    def say(self, text: str) -> None:
        """Print one step, with the seconds since the trial began."""
        self._write(f"[{time.monotonic() - self.started:6.1f} s]", escaped(text))

    def line(self, prefix: str, text: str) -> None:
        """Print one line of a container's or a kernel's output, prefixed with its origin.

        It may hold any character, such as an escape sequence that writes the clipboard.
        """
        self._write(prefix, escaped(text))

    def _dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self.color else text

    def _write(self, prefix: str, text: str) -> None:
        self.kept.append(f"{prefix} {text}"[:_LONGEST])
        if not self.quiet:
            self.stream.write(f"{self._dim(prefix)} {text}\n")
            self.stream.flush()
