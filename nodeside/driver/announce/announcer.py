"""Reports the state of a driver to the node and the cluster without ever blocking the driver.

The run loop calls `Announcer.report_state(status)` with every state it observes. The node is
updated immediately: the ready file, and the ready marker on stderr. The cluster is updated by one
background thread, which sends only the newest state: a label PATCH, a NodeDriver apply, and an
Event when the driver became ready or failed. It retries; no error reaches the caller.

These rules limit the requests (a first rollout to 5,000 nodes is 15,000 requests, and then none):

- A transient state (waiting, building, loading, unloading) is sent only if it lasts `Pace.settle`
  seconds; a driver that loads from a bundle reports `ready` and nothing before. The exception: if
  the cluster believes that the driver is `ready`, the end of that state is sent immediately.
- A state that was superseded before it was sent is not sent.
- An unchanged status is not sent again. A status with another source or other stage durations
  counts as unchanged, since the run loop observes again after every load and then finds the modules
  loaded. The rung that brought the driver up is reported for the life of the process. There is no
  heartbeat.
- The node's uid, for the owner reference, comes from the response to the label PATCH. It is
  requested separately only if that PATCH is refused.

A container restart next to a healthy module clears nothing: `waiting` as the first state is ignored
while the ready file of this boot exists, and the next state is an observed one.
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
from typing import TextIO

from nodeside import log
from nodeside.driver.announce.api import connect
from nodeside.driver.announce.delivery import Delivery, same_news
from nodeside.errors import NodesideError
from nodeside.protocol.node_status import NodeDriverStatus, Rung, State, ready_marker
from nodeside.protocol.ready_file import ReadyRecord, clear_ready, read_ready, write_ready
from nodeside.system.host import Host

_GOODBYE = 1.0  # seconds to wait for the thread to end; it may be in the middle of a request


class Announcer:
    """Reporter of driver states. Use as a context manager around the run loop.

    Exit flushes for up to `grace` seconds. `report_state` and `flush` may be called from any one
    thread. The background thread starts with the first state and blocks all signals: SIGIO of a
    `DirectoryWatch`, SIGTERM and others are delivered to other threads.
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

    def __exit__(self, *_: object) -> None:
        self.flush(self._grace)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_GOODBYE)

    def report_state(self, status: NodeDriverStatus) -> None:
        """Report the current state of the driver. Returns within milliseconds and never raises."""
        known_ready = self._was_ready_before(status)
        if self._newest is None and status.state is State.WAITING and known_ready:
            return
        status = self._with_its_origin(status)
        self._update_node(status)
        if not same_news(self._newest, status):
            self._newest = status
            with self._changed:
                self._mail = (status, known_ready and status.state is State.READY)
                self._at_rest = False
                self._changed.notify_all()
        if self._thread is None:  # also if an earlier state found the node out of processes
            self._thread = _start_thread(self._send_updates)

    def flush(self, timeout: float) -> bool:
        """Send pending updates now; return whether that finished within `timeout` seconds.

        A permanent refusal by the cluster counts as finished: waiting longer would not help.
        """
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: self._at_rest, timeout)
            self._hurry = False
        return done

    def _with_its_origin(self, status: NodeDriverStatus) -> NodeDriverStatus:
        """Restore the rung by which this process loaded the modules, and the stages of that.

        An observation that finds them loaded does not know them.
        """
        before = self._came_up
        if status.state is State.READY:
            if before and before.key == status.key and status.source is Rung.LOADED:
                status = replace(status, source=before.source, stages=before.stages)
            self._came_up = status
        return status

    def _was_ready_before(self, status: NodeDriverStatus) -> bool:
        """Return whether this boot's ready file existed before the first report of this process.

        For READY the version must match. For any other state any version counts: at WAITING, an
        upgrade has not touched the old module yet.
        """
        if self._newest is not None:
            return False
        ready = read_ready(self._host, status.driver, status.boot_id)
        if ready is None:
            return False
        return status.state is not State.READY or ready.version == status.version

    def _update_node(self, status: NodeDriverStatus) -> None:
        """Update the ready file, then the marker: the file exists when the marker appears."""
        try:
            if status.state is State.READY:
                write_ready(self._host, _ready_record(status))
            else:
                clear_ready(self._host, status.driver)
        except NodesideError as error:
            log.warning(f"the ready file is not up to date: {error}", hint=error.hint)
            return
        self._write_marker(status)

    def _write_marker(self, status: NodeDriverStatus) -> None:
        """Write the marker once per transition to ready, on its own line in every log format."""
        if status.state is not State.READY:
            self._marked = ""
            return
        if self._marked == status.version:
            return
        self._marked = status.version
        with suppress(OSError, ValueError):  # a closed stderr must not fail a driver
            to = self._marker_to or sys.stderr
            to.write(f"{ready_marker(status)}\n")
            to.flush()

    def _send_updates(self) -> None:
        while self._await_news():
            self._delivery.send_next()

    def _await_news(self) -> bool:
        """Wait until there is something to send; return False on close."""
        with self._changed:
            while not self._closing:
                if self._mail is not None:
                    (status, event_sent), self._mail = self._mail, None
                    self._delivery.set_wanted(status, event_sent=event_sent)
                self._at_rest = self._delivery.is_settled()
                wait = self._delivery.seconds_until_next(hurry=self._hurry)
                if wait is not None and wait <= 0:
                    return True
                self._changed.notify_all()
                self._delivery.api.close()
                self._changed.wait(wait)
        return False


def make_announcer(host: Host) -> Announcer:
    """Return an Announcer for the node, and for the cluster if there is one."""
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
        stages=status.stages,
        services={each.name: each.restarts for each in status.services},
    )


def _start_thread(work: Callable[[], None]) -> threading.Thread | None:
    """Start a daemon thread that inherits a signal mask with all signals blocked.

    Returns None if the process may start no thread now.
    """
    thread = threading.Thread(target=work, name="announce", daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    except RuntimeError as problem:
        log.warning("not announced to the cluster yet", why=problem)
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return thread
