"""Reasons to look again: real signals, real files, and the real kernel's uevents."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from nodeside.driver.agent.watch import (
    INPUT_INTERVAL,
    POLL_WITHOUT_UEVENTS,
    URGENT_INPUT_INTERVAL,
    Reason,
    Wakeups,
    Why,
    concerns,
)
from nodeside.system.clock import Clock
from nodeside.system.uevents import Uevent, Uevents, open_uevents
from tests.driver.fakes.uevents import Queue

PCI_DEVICES = sorted(Path("/sys/bus/pci/devices").glob("*/uevent"))


def test_module_that_goes_away_is_a_reason_to_look() -> None:
    queue = Queue()
    with Wakeups(["edu-core"], uevents=lambda: queue) as watch:
        queue.put(Uevent("remove", "module", "edu_core"))

        assert watch.wait_for_reason(60) == Reason(Why.UEVENT, "remove module edu_core")
        assert watch.wait_for_reason(0) == Reason(Why.TIMEOUT)
    assert queue.closed


def test_burst_of_events_is_one_reason() -> None:
    queue = Queue()
    with Wakeups(["edu"], uevents=lambda: queue) as watch:
        for number in range(5):
            queue.put(Uevent("add", "pci", f"0000:00:0{number}.0"))

        assert watch.wait_for_reason(60).detail == (
            "add pci 0000:00:00.0, add pci 0000:00:01.0, add pci 0000:00:02.0 and 2 more"
        )


def test_events_before_a_look_can_be_drained() -> None:
    queue = Queue()
    with Wakeups(["edu"], uevents=lambda: queue) as watch:
        queue.put(Uevent("add", "module", "edu"))
        watch.discard_events()

        assert watch.wait_for_reason(0).why is Why.TIMEOUT


@pytest.mark.parametrize(
    ("event", "concerned"),
    [
        (Uevent("add", "module", "edu"), True),
        (Uevent("remove", "module", "edu"), True),
        (Uevent("add", "module", "other"), False),
        (Uevent("change", "module", "edu"), False),
        (Uevent("bind", "pci", "0000:00:04.0"), True),
        (Uevent("unbind", "pci", "0000:00:04.0"), True),
        (Uevent("change", "pci", "0000:00:04.0"), False),
        (Uevent("add", "net", "edu"), False),
    ],
)
def test_only_our_modules_and_pci_devices_concern_us(event: Uevent, concerned: bool) -> None:
    assert concerns(event, frozenset({"edu"})) is concerned


def test_event_that_does_not_concern_us_wakes_nobody() -> None:
    queue = Queue()
    with Wakeups(["edu"], uevents=lambda: queue) as watch:
        queue.put(Uevent("add", "module", "other"))

        assert watch.wait_for_reason(0.01).why is Why.TIMEOUT


@pytest.mark.skipif(
    not PCI_DEVICES or not os.access(PCI_DEVICES[0], os.W_OK),
    reason="no PCI device whose uevent file may be written: needs root on a machine with PCI",
)
def test_uevent_of_the_kernel_arrives() -> None:
    uevents = open_uevents()
    assert uevents is not None, "netlink uevents are not permitted here"
    with Wakeups(["edu"], uevents=lambda: uevents) as watch:
        PCI_DEVICES[0].write_text("add")  # what `udevadm trigger` does

        assert watch.wait_for_reason(10) == Reason(
            Why.UEVENT, f"add pci {PCI_DEVICES[0].parent.name}"
        )


def test_lost_events_are_a_reason_to_look() -> None:
    class Overrun:
        def poll(self, timeout: float) -> None:
            raise OSError(105, "No buffer space available")

    (event,) = Uevents(Overrun()).read()

    assert concerns(event, frozenset())
    assert "lost" in str(event)


def test_without_netlink_the_clock_must_do_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "pyudev", None)  # as where libudev is missing
    monkeypatch.setattr(logging.getLogger("nodeside"), "propagate", True)

    assert open_uevents() is None
    assert "kernel uevents are not available; polling the driver instead" in caplog.text


def test_uevents_wait_until_it_was_calm_and_none_is_lost() -> None:
    queue = Queue()
    now = [0.0]
    with Wakeups(["edu"], uevents=lambda: queue, clock=Clock(now=lambda: now[0])) as watch:
        queue.put(Uevent("remove", "module", "edu"))

        assert watch._find_reason(5.0, None) is None
        now[0] = 5.0
        assert watch._find_reason(5.0, None) == Reason(Why.UEVENT, "remove module edu")


def test_a_wait_for_calm_ends_by_itself_and_uses_no_processor() -> None:
    """The event can be read all the time, so a wait that looked at it would not sleep."""
    queue = Queue()
    looks = [0]

    def now() -> float:
        looks[0] += 1
        return time.monotonic()

    with Wakeups(["edu"], uevents=lambda: queue, clock=Clock(now=now)) as watch:
        queue.put(Uevent("remove", "module", "edu"))

        assert watch.wait_for_reason(60, calm=0.2).why is Why.UEVENT
    assert looks[0] < 100


def test_a_signal_and_an_input_do_not_wait_for_calm(tmp_path: Path) -> None:
    file = tmp_path / "driver.yaml"
    with Wakeups(["edu"], [file], uevents=Queue) as watch:
        file.write_text("new")
        assert watch.wait_for_reason(60, calm=60).why is Why.INPUT
        os.kill(os.getpid(), signal.SIGTERM)
        assert watch.wait_for_reason(60, calm=60).why is Why.STOP


def test_where_patience_ends_too_an_event_does_not_take_its_place() -> None:
    queue = Queue()
    with Wakeups(["edu"], uevents=lambda: queue) as watch:
        queue.put(Uevent("remove", "module", "edu"))

        assert watch.wait_for_reason(0, calm=0).why is Why.TIMEOUT


def test_slow_poll_is_faster_where_there_are_no_uevents() -> None:
    now = 0.0
    with Wakeups([], poll=300, uevents=lambda: None, clock=Clock(now=lambda: now)) as watch:
        now = POLL_WITHOUT_UEVENTS

        assert watch.wait_for_reason(1000).why is Why.POLL


def test_slow_poll_counts_from_the_last_look() -> None:
    now = 0.0
    with Wakeups([], poll=300, uevents=Queue, clock=Clock(now=lambda: now)) as watch:
        now = 299.0
        assert watch.wait_for_reason(0).why is Why.TIMEOUT
        now = 598.0
        assert watch.wait_for_reason(0).why is Why.TIMEOUT
        now = 898.0
        assert watch.wait_for_reason(0).why is Why.POLL


def test_a_ready_file_that_goes_is_a_reason_to_look(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    gone = False

    def ended() -> bool:  # asked in each round of a wait, after its look at the ready file
        if gone:
            ready.unlink()
        return False

    often = [tmp_path / "driver.yaml"]
    with Wakeups([], often=often, uevents=Queue, ended=ended) as watch:
        assert watch.wait_for_reason(0, ready=ready).why is Why.TIMEOUT, "it was not there"
        ready.touch()
        assert watch.wait_for_reason(0, ready=ready).why is Why.TIMEOUT
        gone = True

        assert watch.wait_for_reason(60, ready=ready).why is Why.NOT_READY


def test_rewritten_driver_yaml_is_a_reason_to_look(tmp_path: Path) -> None:
    path = tmp_path / "driver.yaml"
    path.write_text("version: 1")
    with Wakeups([], [path], uevents=Queue) as watch:
        assert watch.wait_for_reason(0).why is Why.TIMEOUT
        path.write_text("version: 2 and more")

        assert watch.wait_for_reason(0) == Reason(Why.INPUT, str(path))
        assert watch.wait_for_reason(0).why is Why.TIMEOUT


def test_what_another_driver_waits_for_is_looked_at_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    file = tmp_path / "ready"

    def select(*_: object) -> tuple[list[int], list[int], list[int]]:
        waits.append(round(float(str(_[3])), 1))
        file.write_text("")
        return [], [], []

    monkeypatch.setattr("select.select", select)
    with Wakeups([], [], [file], uevents=Queue, clock=Clock(now=lambda: 0.0)) as watch:
        assert watch.wait_for_reason() == Reason(Why.INPUT, str(file))
        file.unlink()
        assert watch.wait_for_reason() == Reason(Why.INPUT, str(file))
        watch.set_targets([], [file])
        watch.wait_for_reason()
    assert waits == [URGENT_INPUT_INTERVAL, INPUT_INTERVAL]


def test_swapped_configmap_is_a_reason_to_look(tmp_path: Path) -> None:
    for number in ("1", "2"):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "driver.yaml").write_text("same size")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "driver.yaml").symlink_to("..data/driver.yaml")
    with Wakeups([], [tmp_path / "driver.yaml"], uevents=Queue) as watch:
        (tmp_path / "..new").symlink_to("..2")
        (tmp_path / "..new").rename(tmp_path / "..data")

        assert watch.wait_for_reason(0).why is Why.INPUT


def test_input_that_appears_or_disappears_is_a_reason_to_look(tmp_path: Path) -> None:
    path = tmp_path / "driver.yaml"
    with Wakeups([], [path], uevents=Queue) as watch:
        path.write_text("")
        assert watch.wait_for_reason(0).why is Why.INPUT
        path.unlink()
        assert watch.wait_for_reason(0).why is Why.INPUT


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_before_a_wait_is_not_lost(number: signal.Signals) -> None:
    told: list[signal.Signals] = []
    with Wakeups([], uevents=Queue, on_signal=told.append) as watch:
        os.kill(os.getpid(), number)

        assert watch.stopping is number
        assert watch.wait_for_reason(60) == Reason(Why.STOP, number.name)
    assert told == [number]


def test_signal_during_a_wait_ends_it() -> None:
    class Sender(Queue):
        """Sends the signal when select asks for the descriptor: nothing is looked at after."""

        def fileno(self) -> int:
            os.kill(os.getpid(), signal.SIGTERM)
            return super().fileno()

    with Wakeups([], uevents=Sender) as watch:
        assert watch.wait_for_reason(60) == Reason(Why.STOP, "SIGTERM")


def test_second_control_c_means_now() -> None:
    with Wakeups([], uevents=Queue):
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_handlers_and_descriptors_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    count = psutil.Process().num_fds()

    with Wakeups([], uevents=Queue):
        assert signal.getsignal(signal.SIGTERM) != before[0]

    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert psutil.Process().num_fds() == count
    assert signal.set_wakeup_fd(-1) == -1


def test_monitor_is_closed_with_the_watch() -> None:
    open_uevents()  # the first one loads libudev
    count = psutil.Process().num_fds()

    with Wakeups(["edu"]) as watch:
        assert watch.wait_for_reason(0).why is Why.TIMEOUT

    assert psutil.Process().num_fds() == count
