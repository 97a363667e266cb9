"""Uevents without a kernel."""

from __future__ import annotations

import os
from collections.abc import Iterator

from nodeside.system.uevents import Uevent, Uevents


class Queue(Uevents):
    """Uevents out of a pipe and a list, for what a test cannot make the kernel say."""

    def __init__(self) -> None:
        self.events: list[Uevent] = []
        self.closed = False
        self._readable, self._writable = os.pipe()

    def fileno(self) -> int:
        return self._readable

    def put(self, event: Uevent) -> None:
        self.events.append(event)
        os.write(self._writable, b"!")

    def read(self) -> Iterator[Uevent]:
        while self.events:
            os.read(self._readable, 1)
            yield self.events.pop(0)

    def close(self) -> None:
        self.closed = True
        os.close(self._readable)
        os.close(self._writable)
