"""Progress of a trial on stderr: one line per step, with the seconds since the start.

A step that prints nothing for long would look like a hang, so every step that takes seconds is
announced before it begins.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from typing import TextIO

from nodeside.log import escaped


@dataclass
class Progress:
    """The progress output. `quiet` drops it, for tests and `--output json` scripts."""

    stream: TextIO = field(default_factory=lambda: sys.stderr)
    quiet: bool = False
    started: float = field(default_factory=time.monotonic)

    @property
    def color(self) -> bool:
        return self.stream.isatty() and not os.environ.get("NO_COLOR")

    def say(self, text: str) -> None:
        """Print one step, with the seconds since the trial began."""
        if not self.quiet:
            elapsed = time.monotonic() - self.started
            self._write(self._dim(f"[{elapsed:6.1f} s]") + f" {escaped(text)}")

    def line(self, prefix: str, text: str) -> None:
        """Print one line of a container's or a kernel's output, prefixed with its origin.

        It may hold any character, such as an escape sequence that writes the clipboard.
        """
        if not self.quiet:
            self._write(f"{self._dim(prefix)} {escaped(text)}")

    def _dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self.color else text

    def _write(self, text: str) -> None:
        self.stream.write(text + "\n")
        self.stream.flush()
