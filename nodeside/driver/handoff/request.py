"""The driver's half of the hand-off: ask the toolkit sidecar to build, and read its answer.

The protocol is drawn in `nodeside/shared.py`. Nothing that lies in `out/` or `results/` is trusted,
neither the answer nor the log. How the answer is waited for stands in `result.py`, how the modules
are taken in `artifacts.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count

from nodeside import log
from nodeside.contract import BuildRequest, BuildResult, FailureKind
from nodeside.driver.bundle.manifest import BundleError
from nodeside.errors import Locked, NodesideError
from nodeside.filelock import take_lock
from nodeside.files import UntrustedFile, disk_errors
from nodeside.log import escaped
from nodeside.records import publish, read_untrusted
from nodeside.shared import REQUEST_ID, SharedDir, request_id

_LOCK = "driver.lock"
_ERROR_LENGTH = 300  # characters of the first error that are shown


class ToolkitBuildFailed(NodesideError):
    """The sidecar's answer was no: its kind of failure, message and hint."""

    reason = "BuildFailed"

    def __init__(self, result: BuildResult) -> None:
        self.result = result
        kind = result.failure or FailureKind.INTERNAL
        self.exit_code = kind.exit_code
        self.reason = kind.reason
        self.first_error = _one_line(result.first_error)
        text = "\n".join(escaped(line) for line in _failure_text(result).split("\n"))
        super().__init__(text, hint=escaped(result.hint), retryable=kind.retryable)


class RequestWithdrawn(NodesideError):
    """Another process took our request back: no answer will come."""

    reason = "RequestWithdrawn"
    retryable = True


def request_build(shared: SharedDir, request: BuildRequest) -> BuildRequest:
    """Publish a request, or join the attempt that runs; `request.id` is chosen here.

    A failed attempt is tried again under the next number; an attempt of another boot never
    counts. Every other request is withdrawn: one driver, one build at a time, and the output of an
    attempt that failed stays until the next one begins.
    """
    _forget_refusals(shared)
    for earlier in _attempts(shared, request):
        result = answer_to(shared, earlier.id, request.boot_id)
        if result is None or result.succeeded:
            log.fact("joining the build that was asked for before", request=earlier.id)
            _withdraw_others(shared, keep=earlier.id)
            return earlier
    fresh = replace(request, id=_next_id(shared, request))
    shared.publish_request(fresh)
    _withdraw_others(shared, keep=fresh.id)
    log.fact("asked the toolkit sidecar to build", request=fresh.id, kernel=fresh.kernel.release)
    return fresh


def note_refusal(shared: SharedDir, request: BuildRequest, error: NodesideError) -> None:
    """Leave a note that what this build delivered cannot be used: another would deliver the same.

    A disk that is full takes no note; the build is repeated then.
    """
    note = {"boot_id": request.boot_id, "message": str(error), "hint": error.hint}
    with suppress(NodesideError):
        publish(shared.refusal_path(request.id), note | {"reason": error.reason})


def refuse_repetition(shared: SharedDir, request: BuildRequest) -> None:
    """Raise what came of the same request before, if that was a failure for good.

    That is ToolkitBuildFailed with the toolkit's answer, or BundleError.
    """
    note = read_untrusted(shared.refusal_path(request.id))
    if note is not None and note.get("boot_id") == request.boot_id:
        log.detail("what the same build delivered was refused before", request=request.id)
        refused = BundleError(str(note.get("message")), hint=str(note.get("hint")))
        refused.reason = str(note.get("reason"))
        raise refused
    for earlier in _attempts(shared, request):
        result = answer_to(shared, earlier.id, request.boot_id)
        if result is not None and not result.succeeded:
            failed = ToolkitBuildFailed(result)
            if not failed.retryable:
                log.detail("the same build failed before", request=earlier.id)
                raise failed


@contextmanager
def sole_builder(shared: SharedDir) -> Iterator[None]:
    """Be the only process on the driver's side that asks this sidecar. Raises Locked.

    The pod's own run and a person in its debug shell would withdraw each other's requests.
    """
    shared.create()
    path = shared.root / _LOCK
    with disk_errors(path), open(path, "a", opener=_private) as file:
        if not take_lock(file.fileno()):
            raise Locked(
                f"another process has something built in {shared.root}",
                hint=f"wait for it, or see who it is: fuser -v {path}",
            )
        yield


def withdraw(shared: SharedDir, request: BuildRequest) -> None:
    """Take a request back; the sidecar stops the build and removes what is its own."""
    path = shared.request_path(request.id)
    with disk_errors(path):
        path.unlink(missing_ok=True)


def answer_to(shared: SharedDir, id: str, boot_id: str) -> BuildResult | None:
    """The answer to a request of this boot, or None if there is none that could be one."""
    try:
        return shared.result(id, boot_id)
    except UntrustedFile:
        # A build may plant a link or a directory there; the sidecar puts its answer in its place.
        return None
    except NodesideError as error:
        # Whoever forged it runs as the sidecar's user: it is the build that failed.
        return BuildResult(
            request=id,
            boot_id=boot_id,
            succeeded=False,
            failure=FailureKind.PROTOCOL,
            message=f"the sidecar's answer cannot be used: {error}",
        )


def _attempts(shared: SharedDir, request: BuildRequest) -> Iterator[BuildRequest]:
    """The requests of this boot for the same bundle, oldest attempt first."""
    key = request.id.partition("-")[0]
    for name in shared.request_ids():
        if not name.startswith(f"{key}-"):
            continue
        try:
            found = shared.request(name)
        except NodesideError as problem:  # of another nodeside, before the image was replaced
            log.warning(
                "a request cannot be read and does not count", request=name, problem=problem
            )
            continue
        if found is not None and found.boot_id == request.boot_id:
            yield found


def _next_id(shared: SharedDir, request: BuildRequest) -> str:
    """An id that nothing in the shared directory speaks of, not even an answer left over.

    The next after the highest; a build may plant the highest that there is, and then it is a free
    one: what is beyond it is no id, and no sidecar would look at it.
    """
    key = request.id.partition("-")[0]
    numbers = [0]
    with disk_errors(shared.root):
        for directory in (shared.requests, shared.results, shared.out):
            names = (path.name.removesuffix(".json") for path in directory.iterdir())
            found = (REQUEST_ID.match(name) for name in names)
            numbers += [int(match["attempt"]) for match in found if match and match["key"] == key]
    following = request_id(key, max(numbers) + 1)
    if REQUEST_ID.match(following):
        return following
    taken = set(numbers)
    return request_id(key, next(number for number in count(1) if number not in taken))


def _withdraw_others(shared: SharedDir, keep: str) -> None:
    for name in shared.request_ids():
        if name != keep:
            with disk_errors(shared.requests):
                shared.request_path(name).unlink(missing_ok=True)


def _forget_refusals(shared: SharedDir) -> None:
    with disk_errors(shared.requests):
        for path in shared.requests.glob("*.refused"):
            path.unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    """Nobody else may open the lock, for whoever can open it can hold it."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _failure_text(result: BuildResult) -> str:
    message = result.message or "the build failed without a message"
    if error := _one_line(result.first_error):
        message += f"; first error: {error}"
    if result.command:
        message += f"\nto repeat it, in the toolkit container: {result.command}"
    return message


def _one_line(said: str) -> str:
    """What vendor code may have written, as a part of one line of ours."""
    line = escaped(said.strip())
    return line if len(line) <= _ERROR_LENGTH else f"{line[:_ERROR_LENGTH]}…"
