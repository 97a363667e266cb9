"""Waits for a toolkit sidecar and for its answer, but not if the answer cannot come.

A sidecar lost during the build gets time to come back. The wait ends within seconds if the sidecar
reads another boot id than we do, or if the answer's path holds something that is not an answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

from nodeside import log
from nodeside.driver.handoff.listener import Listener, Patience
from nodeside.driver.handoff.log_follower import LogFollower
from nodeside.driver.handoff.request import (
    RequestWithdrawn,
    ToolkitBuildFailed,
    read_answer,
    withdraw_request,
)
from nodeside.errors import DeadlinePassed, ExitCode, NodesideError
from nodeside.protocol.build_records import BuildRequest, BuildResult, FailureKind
from nodeside.protocol.shared_directory import SharedDir
from nodeside.system.directory_watch import DirectoryWatch
from nodeside.system.files import UntrustedFile

_LOOK = 0.25  # seconds between checks of the sidecar's lock while nothing else happens
_SETTLING = 5.0  # seconds that a new sidecar may take to write its record
_LATE = 2.0  # seconds without a sidecar before it is reported; most start within one
_LOSSES = 6  # sidecar losses in one wait; the sidecar itself gives up a build after five
_UNUSABLE = 30.0  # seconds for the sidecar to replace a file that is not an answer


class StoppedWaiting(NodesideError):
    """A wait that we were asked to stop; the build goes on and can be joined again."""

    exit_code = ExitCode.INTERRUPTED
    reason = "Stopped"
    retryable = True


class SidecarMissing(DeadlinePassed):
    """A toolkit sidecar that never appeared, or was lost."""

    exit_code = ExitCode.TIMEOUT
    reason = "SidecarMissing"


class SidecarElsewhere(NodesideError):
    """A live sidecar that reads another boot id: it ignores all our requests."""

    reason = "BootIdMismatch"
    retryable = True


def await_result(
    shared: SharedDir,
    request: BuildRequest,
    listener: Listener,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> BuildResult:
    """Wait for the answer, passing on the build's output as it appears.

    Raises ToolkitBuildFailed, SidecarMissing, SidecarElsewhere, DeadlinePassed, UntrustedFile,
    StoppedWaiting, RequestWithdrawn.
    """
    with DirectoryWatch([shared.results, shared.out]) as notice:
        result = _ResultWait(shared, request, listener, clock, notice).result()
    if not result.succeeded:
        raise ToolkitBuildFailed(result)
    return result


def await_sidecar(
    shared: SharedDir,
    boot_id: str,
    patience: Patience,
    stopping: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until a sidecar has appeared in this boot; it provides the kernel's symbol list.

    Raises SidecarMissing after `patience.appear` seconds, SidecarElsewhere, StoppedWaiting.
    """
    shared.create()
    started = clock()
    elsewhere = _BootIdCheck(shared, boot_id)
    with DirectoryWatch([shared.results]) as notice:
        while shared.read_sidecar(boot_id) is None:
            if stopping():
                raise StoppedWaiting("stopped while waiting for a toolkit sidecar")
            now = clock()
            if now - started > patience.appear:
                raise _never_appeared_error(shared, patience)
            elsewhere.check(now)
            notice.wait(_LOOK)


class _ResultWait:
    """The state of a wait for one result: the followed log and the observed sidecar."""

    def __init__(
        self,
        shared: SharedDir,
        request: BuildRequest,
        listener: Listener,
        clock: Callable[[], float],
        notice: DirectoryWatch,
    ) -> None:
        self.shared = shared
        self.request = request
        self.patience = listener.patience
        self.listener = listener
        self.clock = clock
        self.started = clock()
        self.appeared = False
        self.losses = 0
        self.lost_since: float | None = None
        self.reported_missing = False
        self.unusable_since: float | None = None
        self.elsewhere = _BootIdCheck(shared, request.boot_id)
        self.log = LogFollower(shared.build_log(request.id), listener.on_build_line)
        self.notice = notice

    def result(self) -> BuildResult:
        watched = False
        while True:
            result = read_answer(self.shared, self.request.id, self.request.boot_id)
            behind = self.log.follow()
            if result is not None:
                while self.log.follow(to_end=True) and not self.listener.stopping():
                    pass
                return result
            out = self.shared.out_dir(self.request.id)
            if not watched and out.is_dir():
                self.notice.add(out)
                watched = True
                continue
            if self.listener.stopping():
                raise StoppedWaiting(f"stopped while build {self.request.id} was running")
            if not self.shared.request_path(self.request.id).exists():
                raise RequestWithdrawn(
                    f"build request {self.request.id} was withdrawn by another process"
                )
            self._check_sidecar()
            self.notice.wait(0.0 if behind else _LOOK)

    def _check_sidecar(self) -> None:
        now = self.clock()
        if self.shared.sidecar_lives():
            if self.lost_since is not None:
                log.fact("the toolkit sidecar is back", request=self.request.id)
            self.appeared, self.lost_since = True, None
            self._report_missing("")
            self.elsewhere.check(now)
            self._check_result_path(now)
            self._check_deadline(now)
            return
        if self.appeared and self.lost_since is None:
            self.lost_since = now
            self._count_loss()
            log.warning("the toolkit sidecar was lost during a build")
            self._report_missing("the toolkit sidecar is gone; waiting for it to come back")
        if self.lost_since is not None and now - self.lost_since > self.patience.come_back:
            raise SidecarMissing(
                f"the toolkit sidecar was lost during build {self.request.id} and did not come "
                f"back within {self.patience.come_back:g} s",
                hint="look at the log of the toolkit container of this pod",
            )
        if not self.appeared and now - self.started > self.patience.appear:
            raise _never_appeared_error(self.shared, self.patience)
        if not self.appeared and now - self.started > _LATE and not self.reported_missing:
            self._report_missing(
                "waiting for the toolkit container; its image may not be pulled yet"
            )

    def _count_loss(self) -> None:
        """Count a loss. Raises ToolkitBuildFailed if the build keeps ending its sidecar.

        The sidecar counts as well, but the build can write to its counter.
        """
        self.losses += 1
        if self.losses < _LOSSES:
            return
        withdraw_request(self.shared, self.request.id)
        raise ToolkitBuildFailed(
            BuildResult(
                self.request.id,
                self.request.boot_id,
                succeeded=False,
                failure=FailureKind.OUT_OF_MEMORY,
                message=f"the toolkit container ended {self.losses} times during build "
                f"{self.request.id}, most likely because the build exceeds its memory limit",
                hint="kubectl describe pod says why it ended; if OOMKilled or exit code 137, raise "
                "build.memoryLimitMib in driver.yaml",
            )
        )

    def _report_missing(self, words: str) -> None:
        """Report once that there is no sidecar, or, with empty `words`, that there is one again."""
        if self.reported_missing != bool(words):
            self.reported_missing = bool(words)
            self.listener.on_sidecar(words)

    def _check_result_path(self, now: float) -> None:
        """Raise UntrustedFile if a file that is not an answer stays at the answer's path.

        When the sidecar answers, it replaces a file planted by the build. It does not replace one
        that a process which outlived the build leaves there afterwards.
        """
        path = self.shared.result_path(self.request.id)
        if not os.path.lexists(path):
            self.unusable_since = None
        elif self.unusable_since is None:
            self.unusable_since = now
        elif now - self.unusable_since > _UNUSABLE:
            raise UntrustedFile(
                f"{path} is not an answer to this build, and the sidecar has not replaced it "
                f"within {_UNUSABLE:g} s",
                hint="only the build's own code can have written it: check what the build runs",
            )

    def _check_deadline(self, now: float) -> None:
        # The sidecar enforces the build's own deadline. This one catches a sidecar that lives but
        # does nothing, so it leaves room for copying and for a build queued before this one.
        limit = self.patience.appear + 2 * self.request.timeout + 60
        if now - self.started > limit:
            raise DeadlinePassed(f"no result for build {self.request.id} after {limit:g} s")


class _BootIdCheck:
    """A detector of a live sidecar that reads another boot id than we do."""

    def __init__(self, shared: SharedDir, boot_id: str) -> None:
        self.shared = shared
        self.boot_id = boot_id
        self.since: float | None = None

    def check(self, now: float) -> None:
        """Raise SidecarElsewhere if the mismatch lasts longer than `_SETTLING` seconds."""
        theirs = self._their_boot()
        if theirs in ("", self.boot_id):
            self.since = None
        elif self.since is None:
            self.since = now
        elif now - self.since > _SETTLING:
            raise SidecarElsewhere(
                f"the toolkit sidecar at {self.shared.root} reads the boot id {theirs}, the driver "
                f"reads {self.boot_id}: the sidecar ignores the driver's requests",
                hint="both must see the node's own kernel: compare /proc/sys/kernel/random/boot_id "
                "in the toolkit container with the one below the driver's --host-root",
            )

    def _their_boot(self) -> str:
        with suppress(NodesideError):
            if self.shared.sidecar_lives():
                return self.shared.read_sidecar_boot()
        return ""


def _never_appeared_error(shared: SharedDir, patience: Patience) -> SidecarMissing:
    return SidecarMissing(
        f"no toolkit sidecar appeared at {shared.root} within {patience.appear:g} s",
        hint="check that the toolkit container runs; without a pod: nodeside driver build --local",
    )
