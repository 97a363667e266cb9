"""Does one round of work in a shared directory: answers the open requests and cleans up.

`supervisor` runs it in a separate process whenever the requests have changed.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from nodeside import log
from nodeside.errors import ExitCode, NodesideError
from nodeside.protocol.build_records import (
    PROTOCOL,
    BuildRequest,
    BuildResult,
    FailureKind,
    SidecarRecord,
)
from nodeside.protocol.records import MalformedRecord, read_untrusted
from nodeside.protocol.shared_directory import SharedDir
from nodeside.system.files import UntrustedFile, publish_bytes
from nodeside.system.host import Host
from nodeside.toolkit_sidecar import builder
from nodeside.toolkit_sidecar.buildlog import LOG_LIMIT
from nodeside.toolkit_sidecar.descendants import (
    claim_container,
    die_with_parent,
    kill_marked,
    kill_others,
)
from nodeside.toolkit_sidecar.failure import BuildFailed, Withdrawn
from nodeside.toolkit_sidecar.headers import header_places, installed_releases
from nodeside.toolkit_sidecar.supervisor import MORE, SURVIVED, Life
from nodeside.toolkit_sidecar.tree import remove_tree

Echo = Callable[[str, Sequence[str]], None]
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 16.0  # seconds between attempts to publish a result
_LARGEST = 2 * LOG_LIMIT  # bytes; the sidecar writes no larger file into the shared directory


@dataclass
class Sidecar:
    """The worker for one round in one shared directory. `echo` shows a build's lines."""

    shared: SharedDir
    host: Host
    echo: Echo
    sleep: Callable[[float], object] = time.sleep
    _life: Life = field(init=False)
    _results: list[BuildResult] = field(default_factory=list)

    def answer_requests(self, life: Life) -> int:
        """Answer every open request and return the exit code of the last result.

        If the previous worker died, this one answers only one request, and returns MORE if others
        are open: so the deaths that the supervisor counts belong to one build. If processes of an
        earlier build cannot be killed, it returns SURVIVED and begins no other build, since they
        could forge its result. A worker that builds could open (`life.closed` is false) answers
        nothing, and leaves the requests to the next.
        """
        self._life = life
        die_with_parent(life.keeper)
        claim_container(life.keeper)
        boot_id = self.host.boot_id
        if life.died:
            log.warning("the worker process died", how=life.died)
        if life.first:
            self._publish_startup(boot_id)
        if not self._end_earlier_builds():
            return SURVIVED
        self._remove_leftovers()
        while life.closed and (request := self._next_request(boot_id)):
            self._answer_request(request, boot_id)
            if not self._end_earlier_builds():
                return SURVIVED
            self._remove_leftovers()
            if life.deaths and self._next_request(boot_id):
                return MORE
        last = self._results[-1].failure if self._results else None
        return last.exit_code if last else ExitCode.OK

    def _publish_startup(self, boot_id: str) -> None:
        """Publish the symbol list and this sidecar's record.

        A failure is only logged: even with a full disk, requests are to be answered.
        """
        try:
            self._publish_symbols()
            self._publish_self(boot_id)
        except NodesideError as error:
            log.warning("cannot publish the sidecar's record", why=str(error))

    def _end_earlier_builds(self) -> bool:
        """Kill the processes that an earlier build left running. Return whether all are dead."""
        others = kill_others(self._life.keeper)
        killed = others.killed + kill_marked(f"{self.shared.out}/")
        if killed:
            log.warning("killed processes of an earlier sidecar's build", count=killed)
        return not others.left

    def _publish_symbols(self) -> None:
        """Publish the symbol list of the running kernel for the driver, which has no headers.

        A driver that needs no build may need this list. It is published before the sidecar's own
        record, so whoever reads the record finds the list.
        """
        release = self.host.kernel.release
        self._make_room(self.shared.symvers_path(release))
        for directory in header_places(self.host.root, release):
            with suppress(OSError):
                publish_bytes(
                    self.shared.symvers_path(release), (directory / "Module.symvers").read_bytes()
                )
                return

    def _publish_self(self, boot_id: str) -> None:
        record = SidecarRecord(
            pid=os.getppid(),
            boot_id=boot_id,
            started_at=time.time(),
            toolkit_kernel=",".join(installed_releases(self.host.root)),
        )
        self._make_room(self.shared.results / "sidecar.json")
        self.shared.publish_sidecar(record)
        log.fact("toolkit sidecar is there", shared=self.shared.root, kernels=record.toolkit_kernel)

    def _remove_leftovers(self) -> None:
        """Remove everything but the records, and the results and outputs of current requests.

        A build may have left anything under any name, and nobody else would remove that.
        """
        requests = self.shared.request_ids()
        records = {self.shared.lock, self.shared.symvers_path(self.host.kernel.release)}
        records |= {self.shared.results / name for name in ("sidecar.json", "kernels.json")}
        records |= {self.shared.result_path(name) for name in requests}
        outputs = {self.shared.out_dir(name) for name in requests}
        for entry in os.scandir(self.shared.results):
            if (path := Path(entry.path)) not in records or not _is_small_file(path):
                self._remove_leftover(path)
        for entry in os.scandir(self.shared.out):
            if (path := Path(entry.path)) not in outputs:
                self._remove_leftover(path)

    def _remove_leftover(self, path: Path) -> None:
        try:
            remove_tree(path)
            log.detail("removed a leftover", path=path)
        except NodesideError as error:
            log.warning("cannot remove a leftover", path=path, why=str(error))

    def _next_request(self, boot_id: str) -> str:
        """Return the oldest request of this boot that has no result; "" if there is none."""
        waiting: list[tuple[float, str]] = []
        for name in self.shared.request_ids():
            with suppress(FileNotFoundError):
                since = self.shared.request_path(name).stat().st_mtime
                if self._is_open(name, boot_id):
                    waiting.append((since, name))
        return min(waiting)[1] if waiting else ""

    def _is_open(self, id: str, boot_id: str) -> bool:
        if any(result.request == id for result in self._results):
            return False
        try:
            record = read_untrusted(self.shared.request_path(id))
        except UntrustedFile as error:
            log.warning("cannot read a request", request=id, why=str(error))
            return False
        if record is None or record.get("boot_id") != boot_id:
            return False
        try:
            return self.shared.read_result(id, boot_id) is None
        except (UntrustedFile, MalformedRecord):
            return True

    def _answer_request(self, id: str, boot_id: str) -> None:
        """Build one request and publish the result, whether it succeeded or failed."""
        log.fact("build begins", request=id)
        try:
            result = self._build_request(id, boot_id)
        except Withdrawn:
            log.fact("build stopped: the request was withdrawn", request=id)
            return
        if result is not None:
            self._publish_result(result)
            log.fact(
                "build ended",
                request=id,
                result=result.failure.value if result.failure else "succeeded",
                because=result.message,
                seconds=round(sum(result.seconds.values()), 2),
            )

    def _build_request(self, id: str, boot_id: str) -> BuildResult | None:
        try:
            request = self._read_request(id)
        except NodesideError as error:
            failed = BuildFailed(
                FailureKind.PROTOCOL,
                f"this sidecar does not understand the request: {error}",
                hint="driver and toolkit.pyz come from one driver image; restart the pod",
            )
            return builder.refusal_result(id, boot_id, failed)
        if request is None:
            return None
        return builder.answer_request(
            request,
            self.shared,
            root=self.host.root,
            echo=lambda lines: self.echo(id, lines),
            deaths=self._life.deaths,
            first=self._life.first and not self._life.died,
        )

    def _read_request(self, id: str) -> BuildRequest | None:
        record = read_untrusted(self.shared.request_path(id))
        if record is None:
            return None
        version = record.get("protocol", 1)
        if not isinstance(version, int) or version > PROTOCOL:
            raise MalformedRecord(f"it has protocol {version}, ours is {PROTOCOL}")
        request = self.shared.read_request(id)
        if request is not None and request.id != id:
            raise MalformedRecord(f"the file of request {id} holds request {request.id!r}")
        return request

    def _make_room(self, path: Path) -> None:
        """Remove what a build may have put in a record's place, such as a directory."""
        if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
            self._remove_leftover(path)

    def _publish_result(self, result: BuildResult) -> None:
        """Publish a result. If the disk is full, remove the build's files except its log.

        The next attempt would remove them too, but may be minutes away. If publishing still fails,
        retry until it succeeds or the request is gone: another build would end the same way.
        """
        self._results = [*self._results[-100:], result]
        full = result.failure is FailureKind.DISK_FULL
        if full:
            self._remove_output(result.request)
        if self._try_publish(result) is None:
            return
        if not full:
            self._remove_output(result.request)
        pause = _FIRST_PAUSE
        while error := self._try_publish(result):
            if pause == _FIRST_PAUSE:
                log.warning(
                    "cannot publish the result; retrying until it succeeds",
                    request=result.request,
                    result=result.failure.value if result.failure else "succeeded",
                    why=str(error),
                    hint=error.hint,
                )
            self.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            if not self.shared.request_path(result.request).exists():
                return
            self._remove_leftovers()

    def _remove_output(self, id: str) -> None:
        with suppress(OSError):
            for entry in os.scandir(self.shared.out_dir(id)):
                path = Path(entry.path)
                if path != self.shared.build_log(id) or not _is_small_file(path):
                    self._remove_leftover(path)

    def _try_publish(self, result: BuildResult) -> NodesideError | None:
        """Publish a result; return the error if that fails, or None."""
        try:
            self._make_room(self.shared.result_path(result.request))
            self.shared.publish_result(result)
        except NodesideError as error:
            return error
        return None


def _is_small_file(path: Path) -> bool:
    """Return whether a path may be the sidecar's own file, not what a build put in its place."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST
