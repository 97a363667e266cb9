"""Services as real processes: their order, their ends, and what is ready."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from nodeside.driver.handoff.result import StoppedWaiting
from nodeside.driver.services import processes
from nodeside.driver.services.services import ServiceFailed, Services, stop_all
from nodeside.errors import ExitCode
from nodeside.protocol.node_status import ServiceStatus
from nodeside.system.clock import Clock
from nodeside.system.host import Host
from tests.console import until
from tests.driver.services.programs import DRIVER, daemon, kept, service, told
from tests.patience import patience

LONG = patience(60.0)  # seconds: a deadline that only a broken test meets


@dataclass
class Hurried:
    """The real time, and what a test has skipped of it. `before_sleep` is called before a look."""

    skipped: float = 0.0
    before_sleep: Callable[[], object] = lambda: None

    def now(self) -> float:
        return time.monotonic() + self.skipped

    def sleep(self, seconds: float) -> None:
        self.before_sleep()
        time.sleep(seconds)


@pytest.fixture
def hurried() -> Hurried:
    return Hurried()


@pytest.fixture
def services(hurried: Hurried) -> Iterator[Services]:
    with kept(Clock(now=hurried.now, sleep=hurried.sleep)) as found:
        yield found


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_they_start_in_order_and_stop_in_reverse(services: Services, tmp_path: Path) -> None:
    wanted = [daemon(tmp_path, "first"), daemon(tmp_path, "second")]
    services.bring_up(DRIVER, wanted)
    assert services.status == (ServiceStatus("first", True), ServiceStatus("second", True))
    services.bring_up(DRIVER, wanted)

    services.stop()

    assert told(tmp_path) == ["first starts", "second starts", "second ends", "first ends"]
    assert [each.message for each in services.status] == ["it does not run"] * 2
    services.start_again()
    assert services.are_ready(wanted)
    services.stop()
    services.stop()
    services.start_again()
    assert not services.are_ready(wanted)


@pytest.mark.slow
def test_one_that_ends_is_said_with_its_last_lines_and_starts_again_later(tmp_path: Path) -> None:
    now, fifo = 1000.0, tmp_path / "fifo"
    os.mkfifo(fifo)
    services = Services(Clock(now=lambda: now))
    wanted = [
        service(f"echo ready; echo no license >&2; read -r word <{fifo}; exit 3", log="ready")
    ]

    def up_and_down() -> None:
        services.bring_up(DRIVER, wanted)
        fifo.write_text("end\n")
        until(services.find_ends)

    up_and_down()
    assert not services.find_ends()

    with pytest.raises(ServiceFailed) as failed:
        services.bring_up(DRIVER, wanted)

    assert str(failed.value) == (
        "service monitor ended after 0.0 s: exit code 3\nready\nno license"
    )
    assert (failed.value.exit_code, failed.value.retryable) == (ExitCode.PROGRAM_FAILED, True)
    [status] = services.status
    assert (status.ready, status.restarts) == (False, 0)
    assert status.message.endswith("no license")
    pauses = []
    for _ in range(12):
        pauses.append(services.next_start())
        now += services.next_start()
        up_and_down()
        with pytest.raises(ServiceFailed):
            services.bring_up(DRIVER, wanted)
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert services.status[0].restarts == 12
    now += services.next_start()
    services.bring_up(DRIVER, wanted)
    now += 600.0
    fifo.write_text("end\n")
    until(services.find_ends)
    assert services.next_start() == 1


def test_a_later_one_that_may_start_waits_for_an_earlier_one_that_may_not(tmp_path: Path) -> None:
    now = 1000.0
    services = Services(Clock(now=lambda: now))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    first = service(f"echo ready; read -r word <{fifo}; exit 3", "first", log="ready")
    second = replace(
        first, name="second", command=(*first.command[:2], "echo ready; exec sleep 60")
    )
    for pause in (1, 2, 4):
        now += services.next_start()
        services.bring_up(DRIVER, [first, second])
        fifo.write_text("end\n")
        until(services.find_ends)
        assert services.next_start() == pause
    [pid] = set(processes.find_running(DRIVER, "second").pids)
    os.kill(pid, signal.SIGKILL)
    until(services.find_ends)
    now += 2.0
    with pytest.raises(ServiceFailed, match="service first"):
        services.bring_up(DRIVER, [first, second])
    assert services.next_start() == 2, "that of the first, although the second may start"
    services.stop()


def test_one_whose_output_cannot_be_read_does_not_stay_behind(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("threading.Thread.start", no_thread)
        with pytest.raises(ServiceFailed, match="cannot read its output: can't start new thread"):
            services.bring_up(DRIVER, [service("exec sleep 60")])
    assert processes.find_running(DRIVER, "monitor").pids == ()


@pytest.mark.slow
def test_none_starts_before_the_one_before_it_is_ready(services: Services, tmp_path: Path) -> None:
    never = service("echo hello; exec sleep 60", "never", start=1, log="ready")

    with pytest.raises(
        ServiceFailed, match="never was not ready within 1 s: no line of its output"
    ):
        services.bring_up(DRIVER, [never, daemon(tmp_path)])

    assert [each.message.splitlines()[-1] for each in services.status] == [
        "hello",
        "it does not run",
    ]
    assert processes.find_running(DRIVER, "never").pids == ()
    assert not (tmp_path / "told").exists()


def test_a_program_that_is_not_there_is_named(services: Services) -> None:
    missing = replace(service("true"), command=("edu-monitor",))
    with pytest.raises(ServiceFailed, match="cannot be started: cannot start edu-monitor"):
        services.bring_up(DRIVER, [missing])


def test_one_without_a_sign_is_ready_if_it_still_runs_after_a_second(services: Services) -> None:
    with pytest.raises(ServiceFailed, match="service brief ended after"):
        services.bring_up(DRIVER, [service("exit 1", "brief")])
    services.bring_up(DRIVER, [service("exec sleep 60")])
    assert services.status == (ServiceStatus("monitor", True),)


@pytest.mark.slow
def test_a_socket_is_ready_once_it_accepts(
    services: Services, hurried: Hurried, tmp_path: Path
) -> None:
    """The service takes the stale socket away once we have looked at that."""
    path, looked = tmp_path / "socket", tmp_path / "looked"
    hurried.before_sleep = looked.touch
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stale.bind(str(path))
    stale.close()
    script = (
        "import os, socket, sys, time\n"
        "while not os.path.exists(sys.argv[2]): time.sleep(0.01)\n"
        "os.unlink(sys.argv[1]); os.unlink(sys.argv[2]); "
        "s = socket.socket(socket.AF_UNIX, socket.{kind}); s.bind(sys.argv[1]); {listen}; "
        "time.sleep(60)"
    )
    for kind, listen in (
        ("SOCK_STREAM", "s.listen()"),
        ("SOCK_SEQPACKET", "s.listen()"),
        ("SOCK_DGRAM", "0"),
    ):
        code = script.format(kind=kind, listen=listen)
        wanted = service("", socket=str(path))
        wanted = replace(wanted, command=("python3", "-c", code, str(path), str(looked)))
        services.bring_up(DRIVER, [wanted])
        assert services.status[0].ready
        services.stop()

    silent = replace(wanted, command=("sleep", "60"), start_timeout_seconds=1)
    with pytest.raises(ServiceFailed, match="socket: nobody listens there"):
        services.bring_up(DRIVER, [silent])


def test_a_file_of_an_earlier_start_does_not_count(services: Services, tmp_path: Path) -> None:
    path = tmp_path / "ready"
    path.touch()
    old = service("exec sleep 60", start=1, file=str(path))
    with pytest.raises(ServiceFailed, match="ready is from before its start"):
        services.bring_up(DRIVER, [old])
    wanted = service(f"echo >{path}; exec sleep 60", start=1, file=str(path))
    services.bring_up(DRIVER, [wanted])
    path.unlink()
    with pytest.raises(ServiceFailed, match="there is no"):
        services.bring_up(DRIVER, [wanted])


@pytest.mark.slow
def test_what_is_wanted_otherwise_is_started_anew(services: Services, tmp_path: Path) -> None:
    services.bring_up(DRIVER, [daemon(tmp_path, "first"), daemon(tmp_path, "second")])
    changed = replace(daemon(tmp_path, "second"), environment={"A": "1"})

    services.bring_up(DRIVER, [changed])

    assert told(tmp_path)[2:] == ["first ends", "second ends", "second starts"]
    assert services.status == (ServiceStatus("second", True),)


@pytest.mark.slow
def test_its_whole_tree_ends_also_what_left_its_group(services: Services, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = (
        "trap '' TERM; "
        f"setsid sh -c 'trap \"\" TERM; echo $$ >>{pids}; while :; do sleep 1; done' & "
        f"(setsid sh -c 'echo $$ >>{pids}; exec sleep 60' &) ; "
        f"echo $$ >>{pids}; env -i sh -c 'echo $$ >>{pids}; while :; do sleep 1; done'"
    )
    wanted = service(script, stop=1)
    services.bring_up(DRIVER, [wanted])
    until(lambda: len(pids.read_text().split()) == 4)

    services.stop()

    assert all(is_gone(int(pid)) for pid in pids.read_text().split())


def test_one_that_goes_into_the_background_has_ended_when_none_of_it_is_left(
    services: Services, hurried: Hurried, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    background = f"setsid sh -c 'echo $$ >{pid}; exec sleep 60' & "
    wanted = replace(service(f"({background}); exit 0", file=str(pid)), forks=True)
    services.bring_up(DRIVER, [wanted])
    assert services.status == (ServiceStatus("monitor", True),)
    assert not services.find_ends()

    os.kill(int(pid.read_text()), signal.SIGKILL)
    until(services.find_ends)
    with pytest.raises(ServiceFailed, match="no process is left with NODESIDE_SERVICE"):
        services.bring_up(DRIVER, [wanted])
    hurried.skipped += services.next_start()
    services.bring_up(DRIVER, [wanted])
    services.stop()
    assert is_gone(int(pid.read_text()))

    failing = replace(wanted, command=("sh", "-c", "exit 3"), name="failing")
    with pytest.raises(ServiceFailed, match=r"failing ended after .*: exit code 3"):
        services.bring_up(DRIVER, [failing])
    staying = replace(wanted, command=("sleep", "60"), name="staying", start_timeout_seconds=1)
    with pytest.raises(ServiceFailed, match="it has not gone into the background"):
        services.bring_up(DRIVER, [staying])


def test_what_one_has_left_behind_ends_before_it_starts_again(
    services: Services, hurried: Hurried, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    wanted = [service(f"setsid sh -c 'echo $$ >{pid}; exec sleep 60' & sleep 1.5; exit 1")]
    services.bring_up(DRIVER, wanted)
    left = int(pid.read_text())
    until(services.find_ends)
    hurried.skipped += services.next_start()

    services.bring_up(DRIVER, wanted)

    assert is_gone(left)
    assert services.status == (ServiceStatus("monitor", True, restarts=1),)


def test_what_a_killed_process_of_ours_has_left_behind_ends_before_it_starts(
    services: Services, tmp_path: Path
) -> None:
    """Outside of a container a SIGKILL leaves them."""
    before = Services()
    before.bring_up(DRIVER, [daemon(tmp_path)])
    [left] = before.pids

    services.bring_up(DRIVER, [daemon(tmp_path)])

    assert told(tmp_path) == ["monitor starts", "monitor ends", "monitor starts"]
    until(before.find_ends)
    assert {left} != set(services.pids)


def test_it_gets_its_own_environment_and_not_ours(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "1")
    path = tmp_path / "environment"
    script = f"env >{path}.new; mv {path}.new {path}; exec sleep 60"
    wanted = replace(service(script, file=str(path)), environment={"A": "b"})
    services.bring_up(DRIVER, [wanted])
    found = dict(line.split("=", 1) for line in path.read_text().splitlines())
    assert "SECRET" not in found
    assert (found["A"], found[processes.VARIABLE]) == ("b", "edu/monitor")


@pytest.mark.slow
def test_a_flood_of_output_is_cut(services: Services, caplog: pytest.LogCaptureFixture) -> None:
    flood = service(
        "yes x | head -n 20000; printf '%0100000d\\n' 1; echo end; exec sleep 60", log="^end$"
    )
    caplog.set_level("INFO", "nodeside")
    services.bring_up(DRIVER, [flood])
    services.stop()
    lines = [record for record in caplog.records if record.message == "x"]
    assert 100 <= len(lines) < 1000
    assert max(len(record.message) for record in caplog.records) <= 1000
    assert "lines of its output are left out" in caplog.text


def test_a_stop_request_ends_the_wait(services: Services) -> None:
    with pytest.raises(StoppedWaiting):
        services.bring_up(DRIVER, [service("exec sleep 60", log="x")], lambda: True)


def test_in_the_namespace_of_the_node_a_process_of_another_user_is_no_service(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services.bring_up(DRIVER, [daemon(tmp_path, "first")])
    monkeypatch.setattr(processes, "_OF_THE_NODE", str(Path("/proc/self/ns/pid").readlink()))
    assert processes.find_running(DRIVER, "first").pids
    with monkeypatch.context() as patched:
        another = os.getuid() + 1
        patched.setattr(os, "getuid", lambda: another)
        assert processes.find_running(DRIVER, "first").pids == ()


def test_another_process_sees_them_and_can_stop_them(services: Services, tmp_path: Path) -> None:
    wanted = [daemon(tmp_path, "first"), daemon(tmp_path, "second")]
    services.bring_up(DRIVER, wanted)
    found = processes.find_running(DRIVER, "first")
    assert found.memory > 0
    [pid] = set(found.pids) & services.pids
    assert processes.is_of_a_service(Host(), pid, DRIVER)
    assert not processes.is_of_a_service(Host(), pid, "ed")
    assert not processes.is_of_a_service(Host(), os.getpid(), DRIVER)
    assert not processes.is_of_a_service(Host(), 1 << 30, DRIVER)

    assert stop_all(DRIVER, wanted) == ["second", "first"]

    assert told(tmp_path)[2:] == ["second ends", "first ends"]
    assert stop_all(DRIVER, wanted) == []
    until(services.find_ends)


def test_a_killed_one_is_said(services: Services) -> None:
    wanted = [service("exec sleep 60")]
    services.bring_up(DRIVER, wanted)
    [pid] = services.pids
    os.kill(pid, signal.SIGKILL)
    until(services.find_ends)
    with pytest.raises(ServiceFailed, match="killed by SIGKILL"):
        services.bring_up(DRIVER, wanted)


def test_what_a_container_may_not_is_explained(services: Services) -> None:
    with pytest.raises(ServiceFailed) as failed:
        services.bring_up(DRIVER, [service("echo /dev/edu0: Operation not permitted; exit 1")])
    assert "privileged: true" in failed.value.hint
