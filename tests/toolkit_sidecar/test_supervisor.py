"""The process that waits names the same places as the protocol, and costs little."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeside.errors import ExitCode, SystemRefused
from nodeside.protocol.shared_directory import SharedDir
from nodeside.system import process
from nodeside.toolkit_sidecar import supervisor
from nodeside.toolkit_sidecar.supervisor import SURVIVED, Life, Supervisor
from tests.toolkit_sidecar.faketoolkit import BOOT_ID, KERNEL, LONG, FakeToolkit, until
from tests.tries import sampled

# What runs in a finaliser is where Python cannot pass an exception on.
_LOST = """\
import signal
from nodeside.toolkit_sidecar.supervisor import Stopped, stop_on_signals

class Object:
    def __del__(self):
        {}

stop_on_signals()
Object()
print(Stopped.by)
"""


def test_it_names_the_places_of_the_protocol(tmp_path: Path) -> None:
    shared, keeper = SharedDir(tmp_path), Supervisor(tmp_path, lambda *_: ExitCode.OK)
    assert keeper.requests == shared.requests
    assert keeper.results == shared.results
    assert keeper.out == shared.out
    assert keeper.lock == shared.lock


def test_waiting_imports_nothing_that_only_a_build_needs() -> None:
    code = "import nodeside.toolkit_sidecar.cli, sys; print(*sys.modules, sep='\\n')"
    loaded = set(process.run([sys.executable, "-I", "-c", code], timeout=LONG).output.split())
    heavy = {"ctypes", "dataclasses", "hashlib", "logging", "subprocess", "nodeside.protocol"}
    assert not heavy & loaded


def test_a_stop_that_python_loses_is_remembered_and_prints_no_traceback() -> None:
    said = process.run(
        [sys.executable, "-c", _LOST.format("signal.raise_signal(15)")], timeout=LONG
    )
    assert (said.output, said.errors) == ("SIGTERM\n", "")


def test_another_exception_that_python_loses_is_told() -> None:
    said = process.run([sys.executable, "-c", _LOST.format("0 / 0")], timeout=LONG)
    assert "ZeroDivisionError" in said.errors


def test_the_driver_sees_that_a_sidecar_lives(toolkit: FakeToolkit) -> None:
    assert not toolkit.shared.sidecar_lives()
    with toolkit.sidecar() as sidecar:
        sidecar.result(toolkit.request())
        assert toolkit.shared.sidecar_lives()


@pytest.mark.slow
def test_a_second_sidecar_is_refused_while_the_first_lives(toolkit: FakeToolkit) -> None:
    with toolkit.sidecar() as first:
        first.result(toolkit.request())
        with toolkit.sidecar() as second:
            assert second.child.wait(LONG) == ExitCode.LOCKED
            assert f"another toolkit sidecar works on {toolkit.shared.root}" in second.output


def test_a_request_that_comes_and_goes_while_a_worker_runs_gets_another_worker(
    tmp_path: Path,
) -> None:
    shared, lives = SharedDir(tmp_path / "shared"), tmp_path / "lives"
    shared.create()

    def work(_: object) -> int:
        with lives.open("a") as file:
            file.write("I")
        if lives.stat().st_size == 1:
            request = shared.request_path("000000000000-1")
            request.touch()
            request.unlink()
            # Times of files may be as coarse as the kernel's ticks.
            os.utime(request.parent, ns=(1, request.parent.stat().st_mtime_ns + 1))
            return ExitCode.BUILD_FAILED
        return ExitCode.OK

    assert Supervisor(shared.root, work).run(once=True) == ExitCode.BUILD_FAILED
    assert lives.read_text() == "II"


def test_a_request_that_comes_after_the_fork_is_left_to_a_worker_that_builds_cannot_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that waits for the sidecar's record asks at once: the first worker is at work."""
    shared, said = SharedDir(tmp_path / "shared"), tmp_path / "said"
    shared.create()

    def say(word: str) -> None:
        with said.open("a") as file:
            file.write(f"{word} ")

    def work(life: Life) -> int:
        say("closed" if life.closed else "open")
        if life.first:
            shared.request_path("000000000000-1").touch()
        return ExitCode.OK

    monkeypatch.setattr(supervisor, "_prepare_for_vendor_code", lambda: say("closes"))
    Supervisor(shared.root, work).run(once=True)
    assert said.read_text().split() == ["open", "closes", "closed"]


@pytest.mark.parametrize(
    "plant",
    sampled(
        [
            lambda path: path.mkdir(),
            lambda path: path.symlink_to("/dev/zero"),
            os.mkfifo,
            lambda path: path.touch(mode=0),
        ],
        4,
    ),
)
def test_what_a_build_plants_in_the_place_of_the_lock_keeps_no_sidecar_away(
    toolkit: FakeToolkit, plant: Callable[[Path], None]
) -> None:
    plant(toolkit.shared.lock)
    with toolkit.sidecar() as sidecar:
        assert sidecar.result(toolkit.request()).succeeded
        assert toolkit.shared.sidecar_lives()
    assert list(toolkit.shared.results.glob(".tmp-*")) == []


@pytest.mark.slow
def test_a_build_that_replaces_the_lock_does_not_hide_the_sidecar_for_long(
    toolkit: FakeToolkit,
) -> None:
    toolkit.vendor(
        "vendor.sh", f"rm {toolkit.shared.lock}; touch {toolkit.shared.lock}; ko straw\n"
    )
    with toolkit.sidecar() as sidecar:
        sidecar.result(toolkit.request())
        until(toolkit.shared.sidecar_lives, "the lock to be held again")


def test_a_directory_in_the_place_of_its_records_does_not_keep_a_sidecar_unknown(
    toolkit: FakeToolkit,
) -> None:
    for path in (
        toolkit.shared.results / "sidecar.json",
        toolkit.shared.symvers_path(KERNEL.release),
    ):
        (path / "deep").mkdir(parents=True)
    with toolkit.sidecar() as sidecar:
        sidecar.result(toolkit.request())
        assert toolkit.shared.read_sidecar(BOOT_ID) is not None
        assert toolkit.shared.symvers_path(KERNEL.release).is_file()


@pytest.mark.slow
def test_a_worker_that_a_realtime_signal_kills_is_replaced(toolkit: FakeToolkit) -> None:
    """Some of them have no name in Python."""
    once = "[ -e ../../../again ] || { touch ../../../again; kill -40 $PPID; sleep 9; }\n"
    toolkit.vendor("vendor.sh", f"{once}ko straw\n")
    with toolkit.sidecar() as sidecar:
        result = sidecar.result(toolkit.request())
        assert "killed by signal 40" in sidecar.output
    assert result.succeeded


def test_a_directory_that_is_not_shared_is_named(toolkit: FakeToolkit) -> None:
    toolkit.shared.requests.rmdir()
    with toolkit.sidecar() as sidecar:
        assert sidecar.child.wait(LONG) == ExitCode.SYSTEM
        assert "is not a shared directory: requests/ is missing" in sidecar.output


def test_after_a_build_whose_processes_do_not_die_no_other_one_begins(tmp_path: Path) -> None:
    for name in ("requests", "results", "out"):
        (tmp_path / name).mkdir()
    with pytest.raises(SystemRefused, match="processes of a build do not die"):
        Supervisor(tmp_path, lambda _: SURVIVED).run()
