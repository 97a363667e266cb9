"""Waiting for the sidecar and for its answer: what is heard, believed, and waited for how long.

The other half is played by hand: records and files appear in the shared directory as a sidecar, or
vendor code that runs as its user, would leave them.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from nodeside.driver.handoff import result
from nodeside.driver.handoff.listener import Listener, Patience
from nodeside.driver.handoff.request import (
    RequestWithdrawn,
    ToolkitBuildFailed,
    request_build,
    withdraw_request,
)
from nodeside.driver.handoff.result import (
    SidecarElsewhere,
    SidecarMissing,
    StoppedWaiting,
    await_sidecar,
)
from nodeside.errors import DeadlinePassed, ExitCode
from nodeside.protocol.build_records import FailureKind, SidecarRecord
from nodeside.protocol.shared_directory import SharedDir
from nodeside.system.files import UntrustedFile
from tests.driver.fakes.handoff import BOOT, Clock, failed, succeeded, wait, wish
from tests.sidecar_lock import hold_sidecar_lock


@pytest.fixture
def shared(tmp_path: Path) -> SharedDir:
    found = SharedDir(tmp_path / "shared")
    found.create()
    return found


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "_LOOK", 0.0)


def test_a_success_is_the_result(shared: SharedDir) -> None:
    request = request_build(shared, wish())
    shared.publish_result(succeeded(request))
    assert wait(shared, request) == succeeded(request)


def test_a_failure_carries_its_kind_its_first_error_and_the_command(shared: SharedDir) -> None:
    request = request_build(shared, wish())
    error = "straw.c:3:1: error: expected ';'"
    shared.publish_result(
        failed(request, first_error=error, command="cd /shared && make", hint="read the log")
    )
    with pytest.raises(ToolkitBuildFailed) as caught:
        wait(shared, request)
    assert str(caught.value) == (
        "it failed; first error: straw.c:3:1: error: expected ';'\n"
        "to repeat it, in the toolkit container:\n"
        "cd /shared && make"
    )
    assert caught.value.exit_code == ExitCode.BUILD_FAILED
    assert caught.value.reason == "Compile"
    assert caught.value.hint == "read the log"
    assert not caught.value.retryable


@pytest.mark.parametrize("kind", FailureKind)
def test_every_kind_of_failure_has_its_exit_code(shared: SharedDir, kind: FailureKind) -> None:
    request = request_build(shared, wish())
    shared.publish_result(failed(request, kind))
    with pytest.raises(ToolkitBuildFailed) as caught:
        wait(shared, request)
    assert caught.value.exit_code == kind.exit_code
    assert caught.value.retryable == kind.retryable
    assert caught.value.reason.isalpha()


def test_a_build_that_ends_its_sidecar_again_and_again_is_given_up(shared: SharedDir) -> None:
    """Whatever the sidecar counts: the build can write where it does."""
    request = request_build(shared, wish())
    lives = 0
    with ExitStack() as life:

        def come_and_go() -> bool:
            nonlocal lives
            if shared.sidecar_lives():
                life.close()
            else:
                lives += 1
                life.enter_context(hold_sidecar_lock(shared))
            return False

        with pytest.raises(ToolkitBuildFailed, match="ended 6 times during build") as caught:
            wait(shared, request, listener=Listener(stopping=come_and_go))
    assert (lives, caught.value.reason) == (6, "OutOfMemory")
    assert not caught.value.retryable
    assert shared.read_request(request.id) is None, "the next sidecar would begin it again"


def test_what_vendor_code_said_cannot_move_the_cursor_or_start_a_line(shared: SharedDir) -> None:
    request = request_build(shared, wish())
    shared.publish_result(failed(request, message="bad\x1b[2J\rNODESIDE_READY driver=straw"))
    with pytest.raises(ToolkitBuildFailed) as caught:
        wait(shared, request)
    text = str(caught.value)
    assert "\x1b" not in text
    assert "\r" not in text
    assert text == "bad\\x1b[2J\\rNODESIDE_READY driver=straw"


def test_the_first_error_is_one_line_of_bounded_length_whatever_it_is(shared: SharedDir) -> None:
    request = request_build(shared, wish())
    forged = "x.c:1: error: \x1b[2J\nNODESIDE_READY driver=straw " + "y" * 5000
    shared.publish_result(failed(request, first_error=forged))
    with pytest.raises(ToolkitBuildFailed) as caught:
        wait(shared, request)
    text = str(caught.value)
    assert text.startswith("it failed; first error: x.c:1: error: \\x1b[2J\\nNODESIDE_READY")
    assert text.isprintable()
    assert len(text) < 400
    assert text.endswith("y…")


def test_the_answer_of_another_boot_is_ignored(shared: SharedDir) -> None:
    request = request_build(shared, wish())
    shared.publish_result(replace(succeeded(request), boot_id="boot-before"))
    with pytest.raises(SidecarMissing, match=r"no toolkit sidecar appeared at .* within 100 s"):
        wait(shared, request)


def test_an_answer_to_another_request_is_ignored(shared: SharedDir) -> None:
    request = request_build(shared, wish())
    forged = json.dumps({"request": "abababababab-9", "boot_id": BOOT, "succeeded": True})
    shared.result_path(request.id).write_text(forged)
    with pytest.raises(SidecarMissing):
        wait(shared, request)


def test_an_answer_with_a_wrong_type_is_a_failed_build(shared: SharedDir) -> None:
    request = request_build(shared, wish())
    forged = {"request": request.id, "boot_id": BOOT, "succeeded": "yes"}
    shared.result_path(request.id).write_text(json.dumps(forged))
    with pytest.raises(
        ToolkitBuildFailed, match=r"the sidecar's answer cannot be used: .*succeeded"
    ):
        wait(shared, request)


@pytest.mark.parametrize("forged", ["another boot", "another request", "a link"])
def test_what_is_left_in_the_place_of_an_answer_is_not_waited_upon_for_long(
    shared: SharedDir, forged: str
) -> None:
    """A process that outlived its build may replace the answer before we see it."""
    request = request_build(shared, wish(timeout=3600))
    clock = Clock(step=1)
    with hold_sidecar_lock(shared):
        path = shared.result_path(request.id)
        match forged:
            case "another boot":
                shared.publish_result(replace(succeeded(request), boot_id="boot-before"))
            case "another request":
                path.write_text(json.dumps({"request": "abababababab-9", "boot_id": BOOT}))
            case _:
                path.symlink_to("/dev/null")
        with pytest.raises(
            UntrustedFile, match=f"{request.id}.json is not an answer to this build"
        ):
            wait(shared, request, clock=clock)
    assert clock.now < 40


def test_what_was_planted_during_the_build_makes_way_for_the_answer(shared: SharedDir) -> None:
    request = request_build(shared, wish())
    shared.result_path(request.id).symlink_to("/dev/null")

    def answer(look: int) -> None:
        if look == 10:
            shared.publish_result(succeeded(request))

    with hold_sidecar_lock(shared):
        assert wait(shared, request, clock=Clock(then=answer)).succeeded


@pytest.mark.parametrize("plant", ["link", "fifo", "directory", "huge", "no json"])
def test_what_is_planted_instead_of_an_answer_is_not_believed_and_blocks_nothing(
    shared: SharedDir, tmp_path: Path, plant: str
) -> None:
    request = request_build(shared, wish())
    path = shared.result_path(request.id)
    real = tmp_path / "real.json"
    real.write_text(json.dumps({"request": request.id, "boot_id": BOOT, "succeeded": True}))
    match plant:
        case "link":
            path.symlink_to(real)
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "huge":
            path.write_text(" " * (2 << 20))
        case _:
            path.write_text("{")
    with pytest.raises((SidecarMissing, ToolkitBuildFailed)):
        wait(shared, request)


def test_a_sidecar_that_was_never_seen_is_waited_for_as_long_as_an_image_may_take(
    shared: SharedDir,
) -> None:
    clock = Clock(step=1)
    request = request_build(shared, wish())
    with pytest.raises(SidecarMissing) as caught:
        wait(shared, request, clock=clock, patience=Patience(appear=50, come_back=5))
    assert str(caught.value) == (f"no toolkit sidecar appeared at {shared.root} within 50 s")
    assert "nodeside driver build --local" in caught.value.hint
    assert 50 <= clock.now < 55
    assert caught.value.exit_code == ExitCode.TIMEOUT
    assert shared.read_request(request.id) is not None, "whoever comes later may still answer"


def test_a_sidecar_that_was_seen_and_lost_is_noticed_at_once(shared: SharedDir) -> None:
    lost: list[tuple[float, str]] = []
    lock = hold_sidecar_lock(shared)
    assert lock.__enter__()

    def let_go(look: int) -> None:
        if look == 4:
            lock.__exit__(None, None, None)

    clock = Clock(step=1, then=let_go)
    request = request_build(shared, wish())
    listener = Listener(on_sidecar=lambda words: lost.append((clock.now, words)))
    with pytest.raises(
        SidecarMissing, match=r"was lost during build .* did not come back"
    ) as caught:
        wait(shared, request, clock=clock, listener=listener)
    [(since, words)] = lost
    assert since <= 5, "at the very next look"
    assert clock.now - since > 30
    assert words == "the toolkit sidecar is gone; waiting for it to come back"
    assert "toolkit container" in caught.value.hint


def test_a_sidecar_that_comes_back_in_time_is_no_failure(shared: SharedDir) -> None:
    request = request_build(shared, wish())
    lock = hold_sidecar_lock(shared)
    assert lock.__enter__()
    second = hold_sidecar_lock(shared)

    def life(look: int) -> None:
        if look == 3:
            lock.__exit__(None, None, None)
        if look == 20:
            assert second.__enter__()
        if look == 60:
            shared.publish_result(succeeded(request))

    told: list[str] = []
    listener = Listener(on_sidecar=told.append)
    try:
        assert wait(shared, request, clock=Clock(then=life), listener=listener).succeeded
    finally:
        second.__exit__(None, None, None)
    assert told == ["the toolkit sidecar is gone; waiting for it to come back", ""]


def test_a_toolkit_container_that_is_late_is_told_of_until_it_is_there(shared: SharedDir) -> None:
    request = request_build(shared, wish())
    lock = hold_sidecar_lock(shared)

    def life(look: int) -> None:
        if look == 20:
            assert lock.__enter__()
        if look == 40:
            shared.publish_result(succeeded(request))

    told: list[str] = []
    try:
        listener = Listener(on_sidecar=told.append)
        assert wait(shared, request, clock=Clock(then=life), listener=listener).succeeded
    finally:
        lock.__exit__(None, None, None)
    assert told == ["waiting for the toolkit container; its image may not be pulled yet", ""]


def test_a_toolkit_container_that_is_there_is_not_told_of(shared: SharedDir) -> None:
    request = request_build(shared, wish())
    told: list[str] = []

    def life(look: int) -> None:
        if look == 40:
            shared.publish_result(succeeded(request))

    with hold_sidecar_lock(shared):
        wait(shared, request, clock=Clock(then=life), listener=Listener(on_sidecar=told.append))
    assert told == []


def test_a_sidecar_that_lives_and_never_answers_does_not_keep_us_for_ever(
    shared: SharedDir,
) -> None:
    request = request_build(shared, wish(timeout=10))
    with hold_sidecar_lock(shared), pytest.raises(DeadlinePassed, match="no result for build"):
        wait(shared, request, clock=Clock(step=7))


def test_stopping_leaves_the_build_to_be_joined(shared: SharedDir) -> None:
    request = request_build(shared, wish())
    with pytest.raises(StoppedWaiting) as caught:
        wait(shared, request, listener=Listener(stopping=lambda: True))
    assert caught.value.exit_code == ExitCode.INTERRUPTED
    assert shared.read_request(request.id) == request


def test_a_request_that_somebody_else_withdrew_is_not_waited_for(shared: SharedDir) -> None:
    request = request_build(shared, wish())
    withdraw_request(shared, request.id)
    with pytest.raises(RequestWithdrawn, match="withdrawn by another process"):
        wait(shared, request)


def test_waiting_for_a_sidecar_ends_when_it_has_been_there(shared: SharedDir) -> None:
    patience = Patience(appear=20)
    with pytest.raises(SidecarMissing, match=r"no toolkit sidecar appeared at .* within 20 s"):
        await_sidecar(shared, BOOT, patience, clock=Clock())
    with pytest.raises(StoppedWaiting):
        await_sidecar(shared, BOOT, patience, lambda: True, Clock())

    def appear(look: int) -> None:
        if look == 5:
            shared.publish_sidecar(SidecarRecord(1, BOOT, 0.0))

    await_sidecar(shared, BOOT, patience, clock=Clock(then=appear))


# --- a sidecar that sees another boot ----------------------------------------------------------


def test_a_sidecar_that_reads_another_boot_id_is_not_waited_for(shared: SharedDir) -> None:
    shared.publish_sidecar(SidecarRecord(1, "boot-of-a-sandbox", 0.0))
    request = request_build(shared, wish(timeout=3600))
    clock = Clock(step=1)
    with hold_sidecar_lock(shared), pytest.raises(SidecarElsewhere) as caught:
        wait(shared, request, clock=clock)
    assert str(caught.value) == (
        f"the toolkit sidecar at {shared.root} reads the boot id boot-of-a-sandbox, the driver "
        f"reads {BOOT}: the sidecar ignores the driver's requests"
    )
    assert "/proc/sys/kernel/random/boot_id" in caught.value.hint
    assert clock.now < 10


def test_nor_is_it_waited_for_when_only_its_symbols_are_wanted(shared: SharedDir) -> None:
    shared.publish_sidecar(SidecarRecord(1, "boot-of-a-sandbox", 0.0))
    clock = Clock(step=1)
    with hold_sidecar_lock(shared), pytest.raises(SidecarElsewhere):
        await_sidecar(shared, BOOT, Patience(), clock=clock)
    assert clock.now < 10


def test_the_record_of_an_earlier_boot_is_no_such_sidecar(shared: SharedDir) -> None:
    """It stands there until the sidecar of this boot has come and said who it is."""
    shared.publish_sidecar(SidecarRecord(1, "boot-before", 0.0))
    request = request_build(shared, wish())
    lock = hold_sidecar_lock(shared)

    def life(look: int) -> None:
        if look == 20:
            assert lock.__enter__()
        if look == 23:
            shared.publish_sidecar(SidecarRecord(1, BOOT, 0.0))
        if look == 60:
            shared.publish_result(succeeded(request))

    try:
        assert wait(shared, request, clock=Clock(then=life)).succeeded
    finally:
        lock.__exit__(None, None, None)
