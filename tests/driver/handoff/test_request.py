"""The driver's half of the hand-off: which attempt is asked for, joined, withdrawn.

The other half is played by hand: records and files appear in the shared directory as a sidecar, or
vendor code that runs as its user, would leave them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeside.driver.bundle.manifest import BundleError
from nodeside.driver.handoff import request
from nodeside.driver.handoff.request import (
    ToolkitBuildFailed,
    note_refusal,
    refuse_repetition,
    request_build,
    sole_builder,
    withdraw_request,
)
from nodeside.errors import Locked
from nodeside.protocol.build_records import FailureKind
from nodeside.protocol.shared_directory import SharedDir
from nodeside.system.files import UntrustedFile
from tests.driver.fakes.handoff import BOOT, failed, succeeded, wish


@pytest.fixture
def shared(tmp_path: Path) -> SharedDir:
    found = SharedDir(tmp_path / "shared")
    found.create()
    return found


def test_the_first_attempt_is_number_one(shared: SharedDir) -> None:
    asked = request_build(shared, wish())
    assert asked.id == "abababababab-1"
    assert shared.read_request(asked.id) == asked


def test_a_restarted_driver_joins_the_attempt_that_runs(shared: SharedDir) -> None:
    first = request_build(shared, wish())
    assert request_build(shared, wish()) == first
    assert shared.request_ids() == (first.id,)


def test_an_attempt_that_succeeded_meanwhile_is_joined_too(shared: SharedDir) -> None:
    first = request_build(shared, wish())
    shared.publish_result(succeeded(first))
    assert request_build(shared, wish()).id == first.id


def test_a_failed_attempt_is_tried_again_under_the_next_number(shared: SharedDir) -> None:
    first = request_build(shared, wish())
    shared.publish_result(failed(first))
    second = request_build(shared, wish())
    assert second.id == "abababababab-2"
    assert shared.request_ids() == (second.id,), "what the first left behind may be removed now"


def test_an_attempt_of_another_boot_does_not_count_and_is_withdrawn(shared: SharedDir) -> None:
    old = request_build(shared, wish(boot_id="boot-before"))
    new = request_build(shared, wish())
    assert new.id == "abababababab-2"
    assert new.boot_id == BOOT
    assert shared.read_request(old.id) is None


def test_the_request_for_another_bundle_is_withdrawn(shared: SharedDir) -> None:
    other = request_build(shared, wish(key="cd" * 32))
    request_build(shared, wish())
    assert shared.read_request(other.id) is None


def test_an_id_whose_answer_is_still_there_is_not_used_again(shared: SharedDir) -> None:
    """The sidecar removes the answer to a withdrawn request a moment later."""
    first = request_build(shared, wish())
    shared.publish_result(succeeded(first))
    withdraw_request(shared, first.id)
    assert request_build(shared, wish()).id == "abababababab-2"
    withdraw_request(shared, first.id)
    shared.result_path(first.id).unlink()
    shared.out_dir("abababababab-7").mkdir()
    withdraw_request(shared, "abababababab-2")
    assert request_build(shared, wish()).id == "abababababab-8"


def test_the_highest_number_that_vendor_code_can_plant_ends_nothing(shared: SharedDir) -> None:
    first = request_build(shared, wish())
    shared.publish_result(failed(first))
    shared.out_dir("abababababab-999999").mkdir()
    second = request_build(shared, wish())
    assert second.id == "abababababab-2"
    assert shared.request_ids() == (second.id,), "the sidecar sees it"


@pytest.mark.parametrize("place", ["results", "out"])
def test_names_without_end_are_not_all_read(
    place: str, shared: SharedDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "_NAMES_LIMIT", 10)
    for number in range(10):
        (shared.root / place / f"planted{number}").touch()
    withdraw_request(shared, request_build(shared, wish()).id)
    (shared.root / place / "planted10").touch()

    with pytest.raises(UntrustedFile, match=rf"{place} has more than 10 entries") as caught:
        request_build(shared, wish())
    assert "check what the build runs" in caught.value.hint


def test_a_request_of_another_nodeside_is_no_obstacle(shared: SharedDir) -> None:
    shared.request_path("abababababab-1").write_text('{"boot_id": "boot-now"}')
    assert request_build(shared, wish()).id == "abababababab-2"


def test_what_failed_for_good_is_not_repeated_when_nothing_has_changed(shared: SharedDir) -> None:
    first = request_build(shared, wish())
    refuse_repetition(shared, wish())  # it still runs
    shared.publish_result(failed(first, FailureKind.DISK_FULL))
    refuse_repetition(shared, wish())  # a disk may have been emptied
    shared.publish_result(failed(first))
    with pytest.raises(ToolkitBuildFailed, match="it failed"):
        refuse_repetition(shared, wish())
    refuse_repetition(shared, wish(boot_id="the-next-boot"))
    refuse_repetition(shared, wish(key="cd" * 32))


def test_two_processes_do_not_withdraw_each_others_requests(shared: SharedDir) -> None:
    with (
        sole_builder(shared),
        pytest.raises(Locked, match=f"another process is already running a build in {shared.root}"),
        sole_builder(shared),
    ):
        pytest.fail("there were two")
    with sole_builder(shared):
        mode = (shared.root / "driver.lock").stat().st_mode
    assert mode & 0o077 == 0, "vendor code cannot hold it"


def test_a_refusal_is_found_again_however_long_a_name_the_build_delivered(
    shared: SharedDir,
) -> None:
    note_refusal(shared, wish(), BundleError(f"the module's own name is {'x' * (4 << 20)}"))

    with pytest.raises(BundleError, match="the module's own name is xxx"):
        refuse_repetition(shared, wish())
