"""Tell the node and the cluster how a driver is, without ever being in the way of the driver.

The run loop calls `Announcer.state(status)` with every state it observes. What concerns the node
happens at once: the ready file, and the ready marker on stderr. What concerns the cluster is left
to one background thread, which sends only the newest state: a label PATCH, a NodeDriver apply,
and an Event when the driver became ready or failed. It retries; no error reaches the caller.

What keeps it quiet (a first rollout to 5,000 nodes is 15,000 requests, and then none):

- A passing state (waiting, building, loading, unloading) is sent only if it lasts `Pace.settle`
  seconds; a driver that loads from a bundle says `ready` and nothing before. Only where the cluster
  believes `ready` is it told at once that this is over.
- A state that was superseded before it was sent is not sent.
- The same news is not sent twice. How long stages took, and that modules were found loaded, is no
  news of a driver that is ready already, and supersedes none: the load itself makes the run loop
  look again at once. How the driver came up holds for the life of the process. No heartbeat.
- The node's uid, for the owner reference, comes with the answer to the label PATCH, and is asked
  for only where that is refused.

A container that restarts beside a good module clears nothing: `waiting` as the first state is
ignored while this boot's ready file stands, and the next state is an observed one.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import TextIO

from nodeside import log
from nodeside.contract import NodeDriverStatus, Rung, State, ready_marker
from nodeside.driver.announce.api import connect
from nodeside.driver.announce.delivery import Delivery, same_news
from nodeside.driver.node.run_directory import ReadyRecord, clear_ready, read_ready, write_ready
from nodeside.errors import NodesideError
from nodeside.host import Host

_GOODBYE = 1.0  # seconds for the thread to end; it may be in the middle of a request


class Announcer:
    """Use as a context manager around the run loop; leaving it flushes for `grace` seconds.

    `state` and `flush` may be called from any one thread. The background thread starts with the
    first state and takes no signals: SIGIO of a `Notice`, SIGTERM and the like stay with others.
    """

    def __init__(
        self,
        host: Host,
        delivery: Delivery,
        *,
        grace: float = 5.0,
        marker_to: TextIO | None = None,
    ) -> None:
        self._host = host
        self._delivery = delivery
        self._grace = grace
        self._marker_to = marker_to
        self._newest: NodeDriverStatus | None = None
        self._came_up: NodeDriverStatus | None = None
        self._marked = ""
        self._changed = threading.Condition()
        self._mail: tuple[NodeDriverStatus, bool] | None = None
        self._hurry = False
        self._closing = False
        self._at_rest = True
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Announcer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.flush(self._grace)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_GOODBYE)

    def state(self, status: NodeDriverStatus) -> None:
        """This is how the driver is now. Returns within milliseconds, and never raises."""
        known = self._known_ready(status)
        if self._newest is None and status.state is State.WAITING and known:
            return
        status = self._as_it_came_up(status)
        self._on_the_node(status)
        if same_news(self._newest, status):
            return
        self._newest = status
        with self._changed:
            self._mail = (status, known and status.state is State.READY)
            self._at_rest = False
            self._changed.notify_all()
        if self._thread is None:
            self._thread = _start(self._work)

    def flush(self, timeout: float) -> bool:
        """Tell now what is not told yet; whether that was done within `timeout` seconds.

        What the cluster refuses for good counts as done: waiting longer would not help.
        """
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: self._at_rest, timeout)
            self._hurry = False
        return done

    def _as_it_came_up(self, status: NodeDriverStatus) -> NodeDriverStatus:
        """A look that finds the modules loaded does not know how this process loaded them."""
        before = self._came_up
        if status.state is State.READY:
            if before and before.key == status.key and status.source is Rung.LOADED:
                status = replace(status, source=before.source)
            self._came_up = status
        return status

    def _known_ready(self, status: NodeDriverStatus) -> bool:
        """Whether this boot's ready file stood before this process said anything.

        For WAITING any version counts: an upgrade has not touched the old module yet.
        """
        if self._newest is not None:
            return False
        ready = read_ready(self._host, status.driver, status.boot_id)
        if ready is None:
            return False
        return status.state is not State.READY or ready.version == status.version

    def _on_the_node(self, status: NodeDriverStatus) -> None:
        """Ready file, then marker: who saw the marker finds the file."""
        try:
            if status.state is State.READY:
                write_ready(self._host, _ready_record(status))
            else:
                clear_ready(self._host, status.driver)
        except NodesideError as error:
            log.warning(f"the ready file is not up to date: {error}", hint=error.hint)
            return
        self._mark(status)

    def _mark(self, status: NodeDriverStatus) -> None:
        """Write the marker once per becoming ready: a line of its own in every log format."""
        if status.state is not State.READY:
            self._marked = ""
            return
        if self._marked == status.version:
            return
        self._marked = status.version
        source = status.source or Rung.LOADED
        line = ready_marker(status.driver, status.version, status.kernel, source, status.modules)
        with suppress(OSError, ValueError):  # a closed stderr is no reason to fail a driver
            to = self._marker_to or sys.stderr
            to.write(f"{line}\n")
            to.flush()

    def _work(self) -> None:
        while self._rest():
            self._delivery.step()

    def _rest(self) -> bool:
        """Wait until there is something to tell; False at the end."""
        with self._changed:
            while not self._closing:
                if self._mail is not None:
                    (status, known), self._mail = self._mail, None
                    self._delivery.want(status, known=known)
                self._at_rest = self._delivery.settled()
                wait = self._delivery.due(hurry=self._hurry)
                if wait is not None and wait <= 0:
                    return True
                self._changed.notify_all()
                self._delivery.api.close()
                self._changed.wait(wait)
        return False


def announcing(host: Host) -> Announcer:
    """Tells the node, and the cluster if there is one. Use as a context manager."""
    return Announcer(host, Delivery(connect(os.environ)))


def _ready_record(status: NodeDriverStatus) -> ReadyRecord:
    return ReadyRecord(
        driver=status.driver,
        version=status.version,
        kernel=status.kernel,
        boot_id=status.boot_id,
        source=status.source or Rung.LOADED,
        modules=status.modules,
        since=time.time(),
    )


def _start(work: Callable[[], None]) -> threading.Thread:
    """A daemon thread that inherits a mask of all signals blocked."""
    thread = threading.Thread(target=work, name="announce", daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return thread
