"""Wait until there is a reason to look again at a ready or failed driver.

`Wakeups.wait` runs in the main thread, between two attempts. It sleeps in one select(2) and returns
the first reason: a kernel uevent about our modules or a PCI device, a changed input file, the end
of a service, SIGTERM or SIGINT, the slow poll, or the caller's timeout.

If uevents are not available, the poll becomes faster.

A signal never interrupts work between two waits. `stopping` holds the signal that arrived, and
`on_signal` is called from the handler for callers that must react at once.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from nodeside.protocol.module_names import kernel_name
from nodeside.system.clock import Clock
from nodeside.system.uevents import Uevent, Uevents, open_uevents
from nodeside.text.shortlist import shortlist
from nodeside.values import frozen

POLL = 300.0  # seconds between looks if uevents work: a safety net for missed changes
POLL_WITHOUT_UEVENTS = 30.0
INPUT_INTERVAL = 5.0  # seconds between two polls of the input files: one stat(2) each
URGENT_INPUT_INTERVAL = 0.5  # seconds, if another driver may wait for us to read one

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_MODULE_ACTIONS = ("add", "remove")
_PCI_ACTIONS = ("add", "remove", "bind", "unbind")


class Why(Enum):
    """The reasons to look again, most urgent first."""

    STOP = "stop"
    INPUT = "input"
    NOT_READY = "not ready any more"
    SERVICE = "service"
    UEVENT = "uevent"
    POLL = "poll"
    TIMEOUT = "timeout"


@frozen
class Reason:
    """A reason to look again. `detail` is for the log: the signal, the file, or the events."""

    why: Why
    detail: str = ""


def concerns(event: Uevent, modules: frozenset[str]) -> bool:
    """Return whether an event concerns one of our modules, or is a change of any PCI device."""
    if event.subsystem == "module":
        return event.action in _MODULE_ACTIONS and kernel_name(event.name) in modules
    return event.subsystem == "pci" and event.action in _PCI_ACTIONS


class Wakeups:
    """A watch on uevents, input files and stop signals.

    Use it as a context manager in the main thread, and create it before the first look. It wakes if
    one of `modules` is loaded or unloaded, or one of `inputs` is replaced. `inputs` are files and
    directories (driver.yaml, a ConfigMap's directory); they need not exist. `often` are files by
    which another driver may ask this one to leave; it waits meanwhile, so they are polled more
    often. `ended` is called after each wakeup, and returns whether a service has ended.
    """

    def __init__(
        self,
        modules: Iterable[str],
        inputs: Iterable[Path] = (),
        often: Iterable[Path] = (),
        *,
        poll: float = POLL,
        uevents: Callable[[], Uevents | None] | None = None,
        on_signal: Callable[[signal.Signals], None] = lambda _: None,
        ended: Callable[[], bool] = lambda: False,
        clock: Clock | None = None,
    ) -> None:
        self._modules = frozenset(kernel_name(name) for name in modules)
        often = tuple(often)
        self._inputs = {path: _file_identity(path) for path in (*inputs, *often)}
        self._every = URGENT_INPUT_INTERVAL if often else INPUT_INTERVAL
        self._poll = poll
        self._open_uevents = uevents or partial(open_uevents, "module", "pci")
        self._on_signal = on_signal
        self._ended = ended
        self._clock = clock or Clock()
        self._uevents: Uevents | None = None
        self._handlers: dict[signal.Signals, Any] = {}
        self._wakeup = (-1, -1)
        self._previous_wakeup = -1
        self._looked_at = self._clock.now()
        self.stopping: signal.Signals | None = None

    def __enter__(self) -> Wakeups:
        self._uevents = self._open_uevents()
        if self._uevents is None:
            self._poll = min(self._poll, POLL_WITHOUT_UEVENTS)
        self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._previous_wakeup = signal.set_wakeup_fd(self._wakeup[1], warn_on_full_buffer=False)
        for number in _STOP_SIGNALS:
            self._handlers[number] = signal.signal(number, self._note_signal)
        # With any handler, the signal is written to the wakeup descriptor.
        self._handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_wakeup)
        for fd in self._wakeup:
            os.close(fd)
        if self._uevents is not None:
            self._uevents.close()

    def set_targets(
        self, modules: Iterable[str], inputs: Iterable[Path], often: Iterable[Path] = ()
    ) -> None:
        """Replace the watched modules and inputs, for instance after an input has changed."""
        often = tuple(often)
        self._modules = frozenset(kernel_name(name) for name in modules)
        known = self._inputs
        self._inputs = {path: known.get(path, _file_identity(path)) for path in (*inputs, *often)}
        self._every = URGENT_INPUT_INTERVAL if often else INPUT_INTERVAL

    def discard_events(self) -> None:
        """Discard the events so far. Call it right before a look, which sees their effects."""
        for _ in self._read_uevents():
            pass

    def wait_for_reason(
        self, timeout: float | None = None, *, calm: float = 0.0, ready: Path | None = None
    ) -> Reason:
        """Sleep until there is a reason to look again; `timeout` seconds at most.

        Uevents are deferred for the first `calm` seconds, but not dropped: the last look may have
        caused some of them, and not others. `ready` is the ready file: whoever removes it, such as
        an unload by hand that then fails, may leave a driver that works.
        """
        started = self._clock.now()
        until = None if timeout is None else started + timeout
        was_ready = ready is not None and ready.exists()
        while True:
            reason = self._find_reason(started + calm, until)
            if reason is None and was_ready and ready is not None and not ready.exists():
                reason = Reason(Why.NOT_READY)
            if reason is not None:
                self._looked_at = self._clock.now()
                return reason
            self._await_events(started + calm, until)

    def _find_reason(self, calm_until: float, until: float | None) -> Reason | None:
        if self.stopping is not None:
            return Reason(Why.STOP, self.stopping.name)
        changed = self._changed_input()
        if changed is not None:
            return Reason(Why.INPUT, str(changed))
        if self._ended():
            return Reason(Why.SERVICE)
        now = self._clock.now()
        has_time = until is None or now < until
        if has_time and now >= calm_until:  # only after the timeout is a failed build repeated
            events = [
                str(event) for event in self._read_uevents() if concerns(event, self._modules)
            ]
            if events:
                return Reason(Why.UEVENT, shortlist(events, 3))
        if now >= self._looked_at + self._poll:
            return Reason(Why.POLL)
        return None if has_time else Reason(Why.TIMEOUT)

    def _await_events(self, calm_until: float, until: float | None) -> None:
        now = self._clock.now()
        ends = [self._looked_at + self._poll]
        if until is not None:
            ends.append(until)
        if self._inputs:
            ends.append(now + self._every)
        fds = [self._wakeup[0]]
        if self._uevents and now >= calm_until:
            fds.append(self._uevents.fileno())
        elif self._uevents:
            ends.append(calm_until)
        readable, _, _ = select.select(fds, [], [], max(0.0, min(ends) - now))
        if self._wakeup[0] in readable:
            with suppress(BlockingIOError):
                os.read(self._wakeup[0], 4096)

    def _read_uevents(self) -> Iterator[Uevent]:
        return iter(()) if self._uevents is None else self._uevents.read()

    def _changed_input(self) -> Path | None:
        for path, before in self._inputs.items():
            now = _file_identity(path)
            if now != before:
                self._inputs[path] = now
                return path
        return None

    def _note_signal(self, number: int, _frame: FrameType | None) -> None:
        """Record the first signal. A second Ctrl-C interrupts at once."""
        if self.stopping is signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.stopping = signal.Signals(number)
        self._on_signal(self.stopping)


def _file_identity(path: Path) -> tuple[int, ...] | None:
    """Return what changes when a file is rewritten or replaced, or a ConfigMap's `..data` swapped.

    None if the file does not exist.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
