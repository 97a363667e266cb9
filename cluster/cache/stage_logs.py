"""Polls the logs of stage pods for the lines that stages wait for.

This runs in its own thread, since a kubelet may be slow. Plans request logs, and the results go
into the next plan. At most 1 MiB of a log is read at once, and only the start of a line is matched.
Only the result of the match is kept.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from cluster.kube.client import Api
from cluster.kube.errors import ApiError
from cluster.model.log_pattern import PatternRefused, compile_pattern
from cluster.model.names import stage_label
from cluster.model.snapshot import Snapshot
from cluster.model.stage_order import stages_of
from cluster.model.stages import LogMatch, LogWanted
from nodeside import log
from nodeside.system.clock import backoff

_SIZE = 1 << 20  # bytes of a log in one answer
_TAIL = 2000  # lines; from the second read on, new lines are at the end
_LINE = 4096  # characters of a line that are matched
_DEADLINE = 15.0  # seconds for one answer
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds between two reads of a log
_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class _LogCase:
    """A polled log. `since` and `due` are monotonic times; `looks` is the number of reads."""

    wanted: LogWanted
    since: float
    due: float
    looks: int = 0
    match: LogMatch = field(default_factory=LogMatch)


class StageLogs:
    """A poller of logs: `poll_logs` sets them, `get_matches` returns the results.

    `wake` is called when a result changes.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        wake: Callable[[], None],
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._wake = wake
        self._now = now
        self._changed = threading.Condition()
        self._cases: dict[str, _LogCase] = {}
        self._stopping = False
        self._thread: threading.Thread | None = None

    def poll_logs(self, wanted: Iterable[LogWanted]) -> None:
        """Poll these logs and no others from now on. Existing results of them are kept."""
        with self._changed:
            now, old = self._now(), self._cases
            self._cases = {
                each.uid: old[each.uid]
                if each.uid in old and old[each.uid].wanted == each
                else _LogCase(each, since=now, due=now)
                for each in wanted
            }
            if self._cases and self._thread is None and not self._stopping:
                self._thread = threading.Thread(
                    target=self._poll_until_stopped, name="stage-logs", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def get_matches(self) -> Mapping[str, LogMatch]:
        """Return the results by pod uid."""
        with self._changed:
            return {uid: case.match for uid, case in self._cases.items()}

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def _poll_until_stopped(self) -> None:
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="stage-log") as workers:
            while due := self._await_due():
                if any(list(workers.map(self.look_at, due))):
                    self._wake()

    def _await_due(self) -> list[_LogCase]:
        """Wait for logs that are due and return them; an empty list means stop."""
        with self._changed:
            while not self._stopping:
                open_ = [case for case in self._cases.values() if not case.match.matched]
                now = self._now()
                if due := [case for case in open_ if case.due <= now]:
                    return due
                next_ = min((case.due for case in open_), default=None)
                self._changed.wait(None if next_ is None else next_ - now)
            return []

    def look_at(self, case: _LogCase) -> bool:
        """Read a log once. Return whether the result changed."""
        try:
            matched, trouble = self._read_until_match(case), ""
        except (ApiError, PatternRefused) as error:
            matched, trouble = False, str(error)
        except Exception as exc:  # a bug of ours: report and retry
            traceback.print_exc()
            matched, trouble = False, f"a bug in nodeside, please report it: {exc!r}"
        now = self._now()
        late = not matched and now - case.since >= case.wanted.seconds
        pause = backoff(case.looks + 1, _FIRST_PAUSE, _LONGEST_PAUSE)
        match = LogMatch(matched, late, trouble)
        log.detail("looked at a log", pod=case.wanted.pod, matched=matched, trouble=trouble)
        with self._changed:
            if case.wanted.uid in self._cases:
                due = min(now + pause, max(now, case.since + case.wanted.seconds))
                due = now + pause if late else due
                self._cases[case.wanted.uid] = replace(
                    case, looks=case.looks + 1, due=due, match=match
                )
        return match != case.match

    def _read_until_match(self, case: _LogCase) -> bool:
        wanted, matches = case.wanted, compile_pattern(case.wanted.pattern)
        text = self._api.read_log(
            wanted.pod,
            namespace=self._namespace,
            container=wanted.container,
            limit=_SIZE,
            tail=_TAIL if case.looks else None,
            deadline=_DEADLINE,
        )
        return any(matches(line[:_LINE]) for line in text.splitlines())


def logs_to_read(snapshot: Snapshot) -> Iterator[LogWanted]:
    """Yield the logs that stages wait for: of ready pods whose node lacks the stage's label."""
    waits = {
        (each.name, stage.name): stage.wait_for
        for each in snapshot.drivers.values()
        for stage in (stages_of(each.driver.spec) if each.driver and not each.deleting else ())
        if stage.wait_for is not None and stage.wait_for.log
    }
    for pod in snapshot.stages.pods.values() if snapshot.stages and waits else ():
        wait = waits.get((pod.driver, pod.stage))
        if wait is None or pod.deleting or pod.job or not pod.ready:
            continue
        node = snapshot.nodes.get(pod.node)
        if pod.daemonset and node and stage_label(pod.driver, pod.stage) in node.labels:
            continue
        container = wait.container or pod.container
        yield LogWanted(pod.uid, pod.name, container, wait.log, wait.timeout_seconds)
