"""An answer that cannot be published is kept and published later, not built again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeside.errors import NodesideError, NoSpace, SystemRefused
from nodeside.protocol.build_records import BuildResult, FailureKind
from nodeside.protocol.shared_directory import SharedDir
from nodeside.system.host import Host
from nodeside.toolkit_sidecar.builder import refusal_result
from nodeside.toolkit_sidecar.failure import BuildFailed
from nodeside.toolkit_sidecar.sidecar import Sidecar
from tests.toolkit_sidecar.faketoolkit import BOOT_ID, FakeToolkit

ERROR = NoSpace("no space left writing x", hint="free some space: df -h x")


class Disk:
    """What stands in the way of a result, again and again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, errors: list[NodesideError]) -> None:
        self.errors = errors
        self.pauses: list[float] = []
        publish = SharedDir.publish_result

        def publish_result(shared: SharedDir, result: BuildResult) -> None:
            if self.errors:
                raise self.errors.pop()
            publish(shared, result)

        monkeypatch.setattr(SharedDir, "publish_result", publish_result)


@pytest.fixture
def answer(toolkit: FakeToolkit) -> BuildResult:
    request = toolkit.request()
    (toolkit.shared.out_dir(request.id) / "build").mkdir(parents=True)
    return refusal_result(request.id, BOOT_ID, BuildFailed(FailureKind.COMPILE, "make failed"))


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr("nodeside.log.warning", lambda text, **_: said.append(text))
    return said


def sidecar(toolkit: FakeToolkit, disk: Disk) -> Sidecar:
    return Sidecar(toolkit.shared, Host(toolkit.root), lambda *_: None, disk.pauses.append)


@pytest.mark.parametrize("error", [ERROR, SystemRefused("Input/output error: x")])
def test_an_answer_is_kept_while_the_disk_refuses_it_which_is_said_once(
    toolkit: FakeToolkit,
    answer: BuildResult,
    monkeypatch: pytest.MonkeyPatch,
    warnings: list[str],
    error: NodesideError,
) -> None:
    disk = Disk(monkeypatch, [error] * 9)
    sidecar(toolkit, disk)._publish_result(answer)
    assert toolkit.shared.read_result(answer.request, BOOT_ID) == answer
    assert disk.pauses == [0.5, 1, 2, 4, 8, 16, 16, 16]
    assert warnings == ["cannot publish the result; retrying until it succeeds"]


def test_a_full_disk_gets_the_files_of_the_build_and_is_then_asked_at_once(
    toolkit: FakeToolkit,
    answer: BuildResult,
    monkeypatch: pytest.MonkeyPatch,
    warnings: list[str],
) -> None:
    disk = Disk(monkeypatch, [ERROR])
    sidecar(toolkit, disk)._publish_result(answer)
    assert toolkit.shared.read_result(answer.request, BOOT_ID) == answer
    assert not (toolkit.shared.out_dir(answer.request) / "build").exists()
    assert (disk.pauses, warnings) == ([], [])


def test_an_answer_that_nobody_waits_for_any_more_is_given_up(
    toolkit: FakeToolkit, answer: BuildResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, [ERROR] * 1000)
    gone = replace(answer, request="abababababab-9")
    sidecar(toolkit, disk)._publish_result(gone)
    assert disk.pauses == [0.5]


def test_a_directory_in_the_place_of_the_log_is_removed_when_the_disk_is_full(
    toolkit: FakeToolkit, answer: BuildResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = toolkit.shared.build_log(answer.request)
    (log / "directory").mkdir(parents=True)
    full = replace(answer, failure=FailureKind.DISK_FULL)
    sidecar(toolkit, Disk(monkeypatch, []))._publish_result(full)
    assert not log.exists()
