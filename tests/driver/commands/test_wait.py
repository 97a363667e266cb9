"""Waiting for a driver: what an init container sees of the host's /run/nodeside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nodeside.driver.commands import wait
from nodeside.driver.commands.wait import await_admission, await_ready
from nodeside.errors import DeadlinePassed, ExitCode, UsageError
from nodeside.protocol.labels import ADMITTED_VARIABLE
from nodeside.protocol.node_status import Rung
from nodeside.protocol.ready_file import ReadyRecord, ready_path, write_ready
from nodeside.system.clock import Clock
from nodeside.system.host import Host
from tests.console import nodeside

READY = ReadyRecord("edu", "1.0", "6.1.0-47-amd64", "boot-1", Rung.BUILT, ("edu",), 100.0)


class Ticking:
    """A clock that goes on only while somebody sleeps; `then` happens in the third sleep."""

    def __init__(self, then: object = None) -> None:
        self.time, self.sleeps, self.then = 0.0, 0, then

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.time, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        self.sleeps += 1
        if self.sleeps == 3 and callable(self.then):
            self.then()


def test_a_driver_that_is_ready_is_not_waited_for(tmp_path: Path) -> None:
    write_ready(Host(tmp_path), READY)
    ticking = Ticking()

    assert await_ready(Host(tmp_path), "edu", "boot-1", timeout=9, clock=ticking.clock) == READY
    assert ticking.sleeps == 0


@pytest.mark.parametrize("name", ["", "Edu", "a b", "../edu", "a" * 41])
def test_what_can_be_no_name_is_not_waited_for(tmp_path: Path, name: str) -> None:
    ticking = Ticking()
    with pytest.raises(UsageError, match="is not a driver name: expected a DNS label"):
        await_ready(Host(tmp_path), name, "boot-1", timeout=9, clock=ticking.clock)
    assert ticking.sleeps == 0


def test_the_wait_ends_when_the_ready_file_appears(tmp_path: Path) -> None:
    host = Host(tmp_path)
    ticking = Ticking(then=lambda: write_ready(host, READY))

    assert await_ready(host, "edu", "boot-1", timeout=9, clock=ticking.clock) == READY
    assert ticking.sleeps == 3


def test_a_ready_file_of_another_boot_opens_no_gate(tmp_path: Path) -> None:
    write_ready(Host(tmp_path), READY)

    with pytest.raises(DeadlinePassed) as caught:
        await_ready(Host(tmp_path), "edu", "boot-2", timeout=9, clock=Ticking().clock)

    path = ready_path(Host(tmp_path), "edu")
    assert str(caught.value) == (
        f"driver edu is not ready on this node: {path} is from another boot; waited 9 s"
    )


def test_the_verb_needs_no_driver_yaml_and_says_what_it_missed(tmp_path: Path) -> None:
    done = nodeside("driver", "wait", "edu", "--host-root", str(tmp_path), "--timeout", "0")
    assert done.code == ExitCode.TIMEOUT
    assert "driver edu is not ready on this node" in done.errors
    assert "kubectl get nodedrivers" in done.errors

    boot = Host().boot_id
    write_ready(Host(tmp_path), ReadyRecord("edu", "1.0", "6.1.0", boot, Rung.BUILT, (), 1.0))
    done = nodeside("driver", "wait", "edu", "--host-root", str(tmp_path), "--timeout", "0")
    assert done.code == ExitCode.OK


# --- the stage before ----------------------------------------------------------------------------


def test_a_stage_waits_until_the_one_before_is_ready_in_this_boot(tmp_path: Path) -> None:
    file = tmp_path / "boot"
    file.write_text("boot-1")
    ticking = Ticking(then=lambda: file.write_text("boot-2\n"))

    assert await_admission(file, "boot-2", clock=ticking.clock)
    assert ticking.sleeps == 3


@pytest.mark.parametrize("content", [None, b"", b"boot-1", b"\xff" * 100, b"boot-2" + b"x" * 99])
def test_a_controller_that_says_nothing_holds_no_stage_for_ever(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "boot"
    if content is not None:
        file.write_bytes(content)
    ticking = Ticking()

    assert not await_admission(file, "boot-2", clock=ticking.clock)
    assert ticking.time == 120
    assert "the controller did not say in 120 s" in caplog.text


def test_the_command_waits_for_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boot_id = Host().boot_id
    write_ready(Host(tmp_path), replace(READY, boot_id=boot_id))
    waited: list[tuple[Path, str]] = []
    monkeypatch.setattr(wait, "await_admission", lambda *words: waited.append(words))
    words = ("driver", "wait", "edu", "--host-root", str(tmp_path))

    assert nodeside(*words).code == 0
    assert waited == []
    assert nodeside(*words, env={ADMITTED_VARIABLE: "/at/boot"}).code == 0
    assert waited == [(Path("/at/boot"), boot_id)]
