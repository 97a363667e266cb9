"""The host's end of the connection to the machine's agent (protocol: `guest/agent.py`).

One thread reads the connection and passes every event to the call or process it belongs to. When
the machine is gone, every wait ends with MachineLost.

The driver under trial may own the machine, so events are data from a stranger: an odd one ends the
connection as if the machine were gone.
"""

from __future__ import annotations

import base64
import json
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from nodeside.errors import DeadlinePassed
from nodeside.trial.errors import MachineLost, TrialError

OnData = Callable[[str, bytes], None]  # the stream (output, errors, data), and its bytes

_LINE_BYTES = 1 << 20  # of one event; the agent sends pieces of 64 KiB
_UNREAD = 100  # events of a conversation; the agent sends three
_STREAMS = ("output", "errors", "data")
# Each event of the agent, and the field that it has, if any.
_EVENTS: dict[str, tuple[str, type] | None] = {
    "hello": ("boot_id", str),
    "started": None,
    "done": None,
    "failed": ("message", str),
    "exit": ("code", int),
    **dict.fromkeys(_STREAMS, ("data", str)),
}


@dataclass
class Conversation:
    """All events from the agent about one id."""

    id: int
    events: queue.SimpleQueue[dict[str, Any]] = field(default_factory=queue.SimpleQueue)
    on_data: OnData | None = None


class MachineLink:
    """The connection. `why_lost` returns the text to add to an error when the machine is gone."""

    def __init__(self, connection: socket.socket, why_lost: Callable[[], str]) -> None:
        self._socket = connection
        self._why_lost = why_lost
        self._lock = threading.Lock()
        self._conversations: dict[int, Conversation] = {0: Conversation(0)}
        self._last = 0
        self._lost = False
        self._odd = ""  # what was wrong with an event, if that ended the connection
        self._reader = threading.Thread(target=self._read_events, name="link", daemon=True)
        self._reader.start()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._reader.join(timeout=5)

    def await_hello(self, timeout: float) -> dict[str, Any]:
        """Return the agent's first event: the machine has booted."""
        return self.next_event(self._conversations[0], timeout, "the agent in the machine")

    def send_request(
        self, op: str, *, on_data: OnData | None = None, **fields: object
    ) -> Conversation:
        """Send a request under a new id. `on_data` gets output as it comes, on another thread."""
        with self._lock:
            self._last += 1
            talk = Conversation(self._last, on_data=on_data)
            self._conversations[talk.id] = talk
        if self._lost:
            talk.events.put({"event": "lost"})
        self.send_about(op, talk, **fields)
        return talk

    def adopt_conversation(self, id: int, *, on_data: OnData | None = None) -> Conversation:
        """Continue a conversation that another connection began. New ids come after its id."""
        talk = Conversation(id, on_data=on_data)
        with self._lock:
            self._last = max(self._last, id)
            self._conversations[id] = talk
        return talk

    def send_about(self, op: str, about: Conversation, **fields: object) -> None:
        """Send a request about an existing id."""
        line = (json.dumps({"op": op, "id": about.id, **fields}) + "\n").encode()
        try:
            with self._lock:
                self._socket.sendall(line)
        except OSError as exc:
            raise MachineLost(f"the machine is gone{self._reason_in_words()}") from exc

    def next_event(self, talk: Conversation, timeout: float, what: str) -> dict[str, Any]:
        """Return a conversation's next event. Raises DeadlinePassed, MachineLost, TrialError."""
        try:
            event = talk.events.get(timeout=max(0.0, timeout))
        except queue.Empty:
            raise DeadlinePassed(f"timed out after {timeout:g} s: {what}") from None
        if event["event"] == "lost":
            talk.events.put(event)  # so that the next call gets it too
            raise MachineLost(
                f"the machine ended before this was done: {what}{self._reason_in_words()}"
            )
        if event["event"] == "failed":
            raise TrialError(f"the agent in the machine: {event['message']} (for: {what})")
        return event

    def await_event(
        self, talk: Conversation, kind: str, timeout: float, what: str
    ) -> dict[str, Any]:
        """Return the first event of this kind; others are dropped."""
        deadline = time.monotonic() + timeout
        while True:
            event = self.next_event(talk, deadline - time.monotonic(), what)
            if event["event"] == kind:
                return event

    def drop_conversation(self, talk: Conversation) -> None:
        with self._lock:
            self._conversations.pop(talk.id, None)

    def _reason_in_words(self) -> str:
        """Return why the machine is gone, to be appended to an error."""
        odd = f"; its agent sent {self._odd}, so the connection was closed" if self._odd else ""
        return f"{odd}{self._why_lost()}"

    def _read_events(self) -> None:
        try:
            with self._socket.makefile("rb") as lines:
                while line := lines.readline(_LINE_BYTES):
                    if line.endswith(b"\n"):  # otherwise the machine died in the middle of it
                        self._deliver_event(_parse_event(line))
                    elif len(line) == _LINE_BYTES:
                        raise _OddEvent("an endless line")
        except _OddEvent as odd:
            self._odd = str(odd)
        except OSError:
            pass
        finally:
            self._announce_loss()

    def _announce_loss(self) -> None:
        """Tell every call that the machine is gone, and the machine that nobody listens."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._lost = True
            talks = list(self._conversations.values())
        for talk in talks:
            talk.events.put({"event": "lost"})

    def _deliver_event(self, event: dict[str, Any]) -> None:
        talk = self._conversations.get(event.get("id", 0))
        if talk is None:
            return
        if event["event"] not in _STREAMS:
            if talk.events.qsize() >= _UNREAD:
                raise _OddEvent("more events than were asked for")
            talk.events.put(event)
        elif talk.on_data is not None:
            try:
                data = base64.b64decode(event["data"])
            except ValueError:
                raise _OddEvent("data that is not base64") from None
            talk.on_data(event["event"], data)


class _OddEvent(Exception):
    """An event that the agent does not send."""


def _parse_event(line: bytes) -> dict[str, Any]:
    """Parse and check one event. Raises _OddEvent."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        raise _OddEvent("a line that is not JSON") from None
    kind = event.get("event") if isinstance(event, dict) else None
    if not isinstance(kind, str) or kind not in _EVENTS:
        raise _OddEvent("an unknown event")
    if type(event.get("id", 0)) is not int:
        raise _OddEvent("an event without an id")
    required = _EVENTS[kind]
    if required is not None and type(event.get(required[0])) is not required[1]:
        raise _OddEvent(f"{kind} without {required[0]}")
    if kind == "exit" and not -signal.NSIG <= event["code"] <= 255:
        raise _OddEvent("an impossible exit code")
    return dict(event)
