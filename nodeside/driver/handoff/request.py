"""Requests builds from the toolkit sidecar and reads its answers.

`nodeside/protocol/shared_directory.py` describes the protocol. Nothing in `out/` or `results/` is
trusted, neither the answer nor the log. `result.py` waits for the answer; `artifacts.py` copies the
modules.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

from nodeside import log
from nodeside.driver.bundle.manifest import BundleError
from nodeside.errors import Locked, NodesideError
from nodeside.log import escape_controls
from nodeside.protocol.build_records import BuildRequest, BuildResult, FailureKind
from nodeside.protocol.records import publish, read_untrusted
from nodeside.protocol.shared_directory import REQUEST_ID, SharedDir, request_id
from nodeside.system.file_lock import take_lock
from nodeside.system.files import UntrustedFile, disk_errors

_LOCK = "driver.lock"
_NAMES_LIMIT = 100_000  # entries of a directory; sidecars leave a few
_ERROR_LENGTH = 300  # characters of the first error to show


class ToolkitBuildFailed(NodesideError):
    """A build that the sidecar reports as failed, with its kind of failure, message and hint."""

    reason = "BuildFailed"

    def __init__(self, result: BuildResult) -> None:
        self.result = result
        kind = result.failure or FailureKind.INTERNAL
        self.exit_code = kind.exit_code
        self.reason = kind.reason
        self.first_error = _one_line(result.first_error)
        text = "\n".join(escape_controls(line) for line in _failure_text(result).split("\n"))
        super().__init__(text, hint=escape_controls(result.hint), retryable=kind.retryable)


class RequestWithdrawn(NodesideError):
    """A request that another process withdrew: no answer will come."""

    reason = "RequestWithdrawn"
    retryable = True


def request_build(shared: SharedDir, request: BuildRequest) -> BuildRequest:
    """Publish a request, or join an attempt that runs or has succeeded. Chooses `request.id`.

    A failed attempt is repeated under the next number; attempts of another boot never count. All
    other requests are withdrawn: a driver has one build at a time, and the output of a failed
    attempt stays until the next one begins.
    """
    _forget_refusals(shared)
    for earlier in _list_attempts(shared, request):
        result = read_answer(shared, earlier.id, request.boot_id)
        if result is None or result.succeeded:
            log.fact("joining the build requested earlier", request=earlier.id)
            _withdraw_others(shared, keep=earlier.id)
            return earlier
    fresh = replace(request, id=_next_id(shared, request))
    shared.publish_request(fresh)
    _withdraw_others(shared, keep=fresh.id)
    log.fact("asked the toolkit sidecar to build", request=fresh.id, kernel=fresh.kernel.release)
    return fresh


def note_refusal(shared: SharedDir, request: BuildRequest, error: NodesideError) -> None:
    """Record that this build's output cannot be used: a repetition would deliver the same.

    On a full disk nothing is recorded, and the build is repeated.
    """
    note = {"boot_id": request.boot_id, "message": str(error), "hint": error.hint}
    with suppress(NodesideError):
        publish(shared.refusal_path(request.id), note | {"reason": error.reason})


def refuse_repetition(shared: SharedDir, request: BuildRequest) -> None:
    """Raise the error of an earlier equal request if it failed permanently.

    Raises ToolkitBuildFailed with the toolkit's answer, or BundleError.
    """
    note = read_untrusted(shared.refusal_path(request.id))
    if note is not None and note.get("boot_id") == request.boot_id:
        log.detail("the output of the same build was refused earlier", request=request.id)
        refused = BundleError(str(note.get("message")), hint=str(note.get("hint")))
        refused.reason = str(note.get("reason"))
        raise refused
    for earlier in _list_attempts(shared, request):
        result = read_answer(shared, earlier.id, request.boot_id)
        if result is not None and not result.succeeded:
            failed = ToolkitBuildFailed(result)
            if not failed.retryable:
                log.detail("the same build failed earlier", request=earlier.id)
                raise failed


@contextmanager
def sole_builder(shared: SharedDir) -> Iterator[None]:
    """Hold the lock that admits one process on the driver's side at a time. Raises Locked.

    Without it, the pod's own run and a person in its debug shell would withdraw each other's
    requests.
    """
    shared.create()
    path = shared.root / _LOCK
    with disk_errors(path), open(path, "a", opener=_open_private) as file:
        if not take_lock(file.fileno()):
            raise Locked(
                f"another process is already running a build in {shared.root}",
                hint=f"wait for it, or see who it is: fuser -v {path}",
            )
        yield


def withdraw_request(shared: SharedDir, id: str) -> None:
    """Withdraw a request. The sidecar then stops the build and removes its own files."""
    path = shared.request_path(id)
    with disk_errors(path):
        path.unlink(missing_ok=True)


def read_answer(shared: SharedDir, id: str, boot_id: str) -> BuildResult | None:
    """Return the answer to a request of this boot, or None if there is none yet.

    A forged answer counts as a failed build.
    """
    try:
        return shared.read_result(id, boot_id)
    except UntrustedFile:
        # A build may plant a link or a directory there; the sidecar replaces it with its answer.
        return None
    except NodesideError as error:
        # Only code running as the sidecar's user can forge it, so the build has failed.
        return BuildResult(
            request=id,
            boot_id=boot_id,
            succeeded=False,
            failure=FailureKind.PROTOCOL,
            message=f"the sidecar's answer cannot be used: {error}",
        )


def _list_attempts(shared: SharedDir, request: BuildRequest) -> Iterator[BuildRequest]:
    """Yield the requests of this boot for the same bundle, oldest attempt first."""
    key = request.id.partition("-")[0]
    for name in shared.request_ids():
        if not name.startswith(f"{key}-"):
            continue
        try:
            earlier = shared.read_request(name)
        except NodesideError as problem:  # by another nodeside, before the image was replaced
            log.warning("a request cannot be read and is ignored", request=name, why=problem)
            continue
        if earlier is not None and earlier.boot_id == request.boot_id:
            yield earlier


def _next_id(shared: SharedDir, request: BuildRequest) -> str:
    """Return an id that nothing in the shared directory uses, not even a leftover answer.

    Its number is the highest one plus 1. A build may plant the highest valid number; then the
    lowest free number is used, since a higher one is not a valid id and every sidecar ignores it.
    Raises UntrustedFile if a build has planted very many names.
    """
    key = request.id.partition("-")[0]
    numbers = [0]
    with disk_errors(shared.root):
        for directory in (shared.requests, shared.results, shared.out):
            matches = (
                REQUEST_ID.match(name.removesuffix(".json")) for name in _list_names(directory)
            )
            numbers += [int(match["attempt"]) for match in matches if match and match["key"] == key]
    following = request_id(key, max(numbers) + 1)
    if REQUEST_ID.match(following):
        return following
    taken = set(numbers)
    return request_id(key, next(number for number in count(1) if number not in taken))


def _list_names(directory: Path) -> Iterator[str]:
    """Yield the names of a directory in which a build can create any number of entries."""
    with os.scandir(directory) as entries:
        for number, entry in enumerate(entries):
            if number >= _NAMES_LIMIT:
                raise UntrustedFile(
                    f"{directory} has more than {_NAMES_LIMIT} entries",
                    hint="only the build's own code can have created them: check what the build "
                    "runs, and empty the directory",
                )
            yield entry.name


def _withdraw_others(shared: SharedDir, keep: str) -> None:
    for name in shared.request_ids():
        if name != keep:
            withdraw_request(shared, name)


def _forget_refusals(shared: SharedDir) -> None:
    with disk_errors(shared.requests):
        for path in shared.requests.glob("*.refused"):
            path.unlink(missing_ok=True)


def _open_private(path: str, flags: int) -> int:
    """Open with mode 0600, since any process that can open the lock file can hold the lock."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _failure_text(result: BuildResult) -> str:
    message = result.message or "the build failed without a message"
    if error := _one_line(result.first_error):
        message += f"; first error: {error}"
    if result.command:
        message += f"\nto repeat it, in the toolkit container:\n{result.command}"
    return message


def _one_line(text: str) -> str:
    """Escape and shorten text that vendor code may have written, for use within a line."""
    line = escape_controls(text.strip())
    return line if len(line) <= _ERROR_LENGTH else f"{line[:_ERROR_LENGTH]}…"
