"""The ready file, loaded.json and the lock, on a real file system and between real processes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory

import pytest

from nodeside.driver.node.loaded_record import LoadedModule, LoadedRecord
from nodeside.driver.node.node_lock import node_lock_path
from nodeside.driver.node.run_directory import (
    clear_loaded,
    former_loaded_path,
    hold_lock,
    loaded_path,
    read_loaded,
    write_loaded,
)
from nodeside.errors import ExitCode, Locked, SystemRefused
from nodeside.protocol.node_status import Rung
from nodeside.protocol.ready_file import (
    ReadyRecord,
    clear_ready,
    is_ready,
    read_ready,
    ready_path,
    write_ready,
)
from nodeside.protocol.records import read_untrusted
from nodeside.system import process
from nodeside.system.clock import Clock
from nodeside.system.files import LeasedFile
from nodeside.system.host import Host
from tests import TOP

READY = ReadyRecord(
    "edu", "1.0", "6.1.0-47-amd64", "boot-1", Rung.BUILT, ("edu",), 100.0, {"build": 41.5}
)
LOADED = LoadedRecord(
    "edu", "1.0", "k" * 64, "boot-1", Rung.BUILT, (LoadedModule("edu", "ab12", {"debug": "1"}),)
)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_ready_file_is_json_that_a_consumer_can_read(host: Host) -> None:
    assert write_ready(host, READY)

    path = host.root / "run" / "nodeside" / "edu" / "ready"
    assert json.loads(path.read_text()) == {
        "boot_id": "boot-1",
        "driver": "edu",
        "kernel": "6.1.0-47-amd64",
        "modules": ["edu"],
        "services": {},
        "since": 100.0,
        "source": "built",
        "stages": {"build": 41.5},
        "version": "1.0",
    }
    assert path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in path.parent.iterdir()] == ["ready"]


def test_ready_file_that_says_the_same_is_left_alone(host: Host) -> None:
    write_ready(host, READY)
    before = ready_path(host, "edu").stat()

    found_again = ReadyRecord(
        "edu", "1.0", "6.1.0-47-amd64", "boot-1", Rung.LOADED, ("edu",), 200.0
    )
    assert not write_ready(host, found_again)

    assert ready_path(host, "edu").stat().st_ino == before.st_ino
    assert read_ready(host, "edu", "boot-1") == READY


def test_ready_file_of_another_version_is_replaced(host: Host) -> None:
    write_ready(host, READY)
    newer = ReadyRecord("edu", "2.0", "6.1.0-47-amd64", "boot-1", Rung.CACHED, ("edu",), 300.0)

    assert write_ready(host, newer)

    assert read_ready(host, "edu", "boot-1") == newer


def test_ready_file_is_taken_away(host: Host) -> None:
    write_ready(host, READY)

    assert clear_ready(host, "edu")
    assert not clear_ready(host, "edu")
    assert read_ready(host, "edu", "boot-1") is None


def test_records_of_another_boot_are_void(host: Host) -> None:
    write_ready(host, READY)
    write_loaded(host, LOADED)

    assert read_ready(host, "edu", "boot-2") is None
    assert read_loaded(host, "edu", "boot-2") is None


def test_loaded_record_comes_back_as_it_was_written(host: Host) -> None:
    assert read_loaded(host, "edu", "boot-1") is None

    write_loaded(host, LOADED)

    assert read_loaded(host, "edu", "boot-1") == LOADED
    assert clear_loaded(host, "edu")
    assert read_loaded(host, "edu", "boot-1") is None
    assert not clear_loaded(host, "edu")


def test_loaded_record_of_an_older_version_is_read_and_moves_where_no_consumer_looks(
    host: Host,
) -> None:
    write_loaded(host, LOADED)
    former = former_loaded_path(host, "edu")
    former.parent.mkdir(parents=True, exist_ok=True)
    loaded_path(host, "edu").rename(former)

    assert read_loaded(host, "edu", "boot-1") == LOADED
    write_loaded(host, LOADED)

    assert not former.exists()
    assert not loaded_path(host, "edu").is_relative_to(host.run)
    assert read_loaded(host, "edu", "boot-1") == LOADED


def test_what_an_older_version_wrote_later_counts(host: Host) -> None:
    write_loaded(host, LOADED)
    kept = loaded_path(host, "edu").read_text()
    write_loaded(host, replace(LOADED, version="0.9"))
    former_loaded_path(host, "edu").parent.mkdir(parents=True, exist_ok=True)
    former_loaded_path(host, "edu").write_text(kept)

    assert read_loaded(host, "edu", "boot-1") == LOADED
    assert clear_loaded(host, "edu")
    assert read_loaded(host, "edu", "boot-1") is None


LEASING = """
import fcntl, os, signal, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
signal.signal(signal.SIGIO, lambda *_: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK))
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lease_of_a_reader_makes_a_ready_driver_not_unready(host: Host) -> None:
    write_ready(host, READY)
    argv = [sys.executable, "-c", LEASING, str(ready_path(host, "edu"))]
    with Popen(argv, stdin=PIPE, stdout=PIPE, text=True) as neighbour:
        assert neighbour.stdin
        assert neighbour.stdout
        assert neighbour.stdout.readline() == "held\n"

        assert read_ready(host, "edu", "boot-1") == READY

        neighbour.stdin.close()


# Takes the lease again as soon as it had to give it up.
LEASING_AGAIN = """
import fcntl, os, signal, sys
from contextlib import suppress
readable, writable = os.pipe()
os.set_blocking(writable, False)
signal.signal(signal.SIGIO, lambda *_: None)
signal.set_wakeup_fd(writable)
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
while os.read(readable, 64):
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    while True:
        with suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            break
"""


def test_a_lease_that_is_taken_again_and_again_makes_no_ready_driver_unready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with TemporaryDirectory(dir="/dev/shm") as place:  # a tmpfs, as a host's /run
        host = Host(Path(place))
        write_ready(host, READY)
        argv = [sys.executable, "-c", LEASING_AGAIN, str(ready_path(host, "edu"))]
        with Popen(argv, stdout=PIPE, text=True) as neighbour:
            assert neighbour.stdout
            assert neighbour.stdout.readline() == "held\n"
            with pytest.raises(LeasedFile):
                read_untrusted(ready_path(host, "edu"))

            assert is_ready(host, "edu", "boot-1")
            monkeypatch.setattr("nodeside.protocol.ready_file.read_ready", pytest.fail)
            assert is_ready(host, "edu", "boot-1"), "it is read once, not once more for its content"

            neighbour.kill()
        assert not is_ready(host, "edu", "boot-2")
        clear_ready(host, "edu")
        assert not is_ready(host, "edu", "boot-1")


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"boot_id": "boot-1"}', '{"boot_id": "boot-1", "driver": 3}']
)
def test_damaged_record_counts_as_absent(host: Host, content: str) -> None:
    loaded_path(host, "edu").parent.mkdir(parents=True)
    loaded_path(host, "edu").write_text(content)

    assert read_loaded(host, "edu", "boot-1") is None


def test_record_is_not_read_through_a_link(host: Host, tmp_path: Path) -> None:
    write_ready(host, READY)
    path = ready_path(host, "edu")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")

    assert read_ready(host, "edu", "boot-1") is None


def test_directory_that_cannot_be_made_is_an_expected_error(host: Host) -> None:
    (host.root / "run").write_text("")

    with pytest.raises(SystemRefused, match="Not a directory"):
        write_ready(host, READY)


# --- the lock ------------------------------------------------------------------------------------

HOLD = """
import sys
from pathlib import Path
from nodeside.driver.node.run_directory import hold_lock
from nodeside.system.host import Host
with hold_lock(Host(Path(sys.argv[1])), "edu", timeout=0):
    print("held", flush=True)
    sys.stdin.read()
"""


class FakeClock:
    """Every sleep passes at once, and is counted."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sleeps: list[float] = []

    def clock(self) -> Clock:
        return Clock(now=lambda: self.now, sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


@contextmanager
def another_process(host: Host) -> Iterator[int]:
    """A process that holds the lock, until it is killed."""
    stdin, keep = os.pipe()
    answer, stdout = os.pipe()
    child = process.start(
        [sys.executable, "-c", HOLD, str(host.root)],
        stdin=stdin,
        stdout=stdout,
        env={"PYTHONPATH": str(TOP)},
    )
    os.close(stdin)
    os.close(stdout)
    try:
        with open(answer) as said:
            assert said.readline() == "held\n"
        yield child.pid
    finally:
        process.kill_group(child.pid)
        child.wait(10)
        os.close(keep)


def test_lock_is_held_by_one_process_and_names_it(host: Host) -> None:
    with another_process(host) as pid:
        with pytest.raises(Locked) as info, hold_lock(host, "edu", timeout=0):
            pass

        assert f"another process is working on driver edu on this node: pid {pid} (" in str(
            info.value
        )
        assert os.uname().nodename in str(info.value)
        assert info.value.hint.endswith(f"fuser -v {node_lock_path(host, 'edu')}")
        assert info.value.exit_code is ExitCode.LOCKED
        assert info.value.retryable


def test_refused_process_does_not_disturb_who_holds_the_lock(host: Host) -> None:
    with another_process(host) as pid:
        for _ in range(2):
            with pytest.raises(Locked, match=f"pid {pid}"), hold_lock(host, "edu", timeout=0):
                pass


def test_lock_of_a_killed_process_is_free(host: Host) -> None:
    with another_process(host):
        pass

    with hold_lock(host, "edu", timeout=0):
        holder = json.loads(node_lock_path(host, "edu").read_text())

    assert holder["pid"] == os.getpid()


def test_lock_is_waited_for_until_the_deadline(host: Host) -> None:
    time = FakeClock()
    with (
        another_process(host),
        pytest.raises(Locked, match="; waited 2 s"),
        hold_lock(host, "edu", timeout=2, clock=time.clock()),
    ):
        pass

    assert sum(time.sleeps) == pytest.approx(2)
    assert max(time.sleeps) <= 0.05


def test_lock_that_becomes_free_while_waiting_is_taken(host: Host) -> None:
    with another_process(host) as pid:
        clock = Clock(now=lambda: 0.0, sleep=lambda _: _kill(pid))
        with hold_lock(host, "edu", timeout=60, clock=clock):
            pass


def test_released_lock_names_nobody(host: Host) -> None:
    with hold_lock(host, "edu", timeout=0):
        pass

    assert node_lock_path(host, "edu").read_text() == ""
    with hold_lock(host, "edu", timeout=0):
        pass


def test_locks_of_two_drivers_are_two_locks(host: Host) -> None:
    with hold_lock(host, "edu", timeout=0), hold_lock(host, "vpoll", timeout=0):
        pass


def test_holder_that_is_half_written_is_unknown(host: Host) -> None:
    with another_process(host):
        node_lock_path(host, "edu").write_text('{"pid": 1')
        with pytest.raises(Locked, match="holder unknown"), hold_lock(host, "edu", timeout=0):
            pass


def test_link_in_place_of_the_lock_is_refused(host: Host, tmp_path: Path) -> None:
    node_lock_path(host, "edu").parent.mkdir(parents=True)
    node_lock_path(host, "edu").symlink_to(tmp_path / "victim")

    with pytest.raises(SystemRefused), hold_lock(host, "edu", timeout=0):
        pass

    assert not (tmp_path / "victim").exists()


def _kill(pid: int) -> None:
    """End the process and wait until its lock is gone: it stays a zombie for its parent."""
    process.kill_group(pid)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
