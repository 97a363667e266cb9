"""Locks that a neighbour cannot hold, and that older versions of nodeside honour and hold."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeside.driver.node.node_lock import Holder, former_lock_path, node_lock, node_lock_path
from nodeside.errors import Locked
from nodeside.system.clock import Clock
from nodeside.system.host import Host


@pytest.fixture
def host(tmp_path: Path) -> Host:
    found = Host(tmp_path)
    with node_lock(found, "edu", "driver edu", timeout=0):
        pass
    return found


@contextmanager
def holding(path: Path, how: int) -> Iterator[int]:
    """Another open file of it, which holds its flock."""
    fd = os.open(path, how)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield fd
    finally:
        os.close(fd)


def neighbour(host: Host) -> Path:
    """What is open to a pod that mounts /run/nodeside read-only."""
    return former_lock_path(host, "edu")


def test_neighbour_who_may_only_read_keeps_nobody_out(host: Host) -> None:
    with (
        holding(neighbour(host), os.O_RDONLY),
        node_lock(host, "edu", "driver edu", timeout=0),
    ):
        pass


def test_neighbour_who_leases_the_file_keeps_nobody_out(host: Host) -> None:
    with holding(neighbour(host), os.O_RDONLY) as fd:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        with node_lock(host, "edu", "driver edu", timeout=0):
            pass


def test_neighbour_does_not_let_an_older_version_in_beside_us(host: Host) -> None:
    with (
        holding(neighbour(host), os.O_RDONLY) as fd,
        node_lock(host, "edu", "driver edu", timeout=0),
    ):
        fcntl.flock(fd, fcntl.LOCK_UN)
        with (
            pytest.raises(BlockingIOError),
            holding(former_lock_path(host, "edu"), os.O_RDWR | os.O_CREAT),
        ):
            pass


def test_older_version_is_waited_for_and_named(host: Host) -> None:
    former = former_lock_path(host, "edu")
    with holding(former, os.O_RDWR):
        inode = former.stat().st_ino
        with (
            pytest.raises(Locked, match="is working on driver edu on this node") as caught,
            node_lock(host, "edu", "driver edu", timeout=0),
        ):
            pass

        assert former.stat().st_ino == inode
    assert caught.value.hint.endswith(f"fuser -v {former}")


def test_older_version_that_ends_while_we_wait_makes_way(host: Host) -> None:
    former = former_lock_path(host, "edu")
    fd = os.open(former, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    clock = Clock(now=lambda: 0.0, sleep=lambda _: os.close(fd))

    with node_lock(host, "edu", "driver edu", timeout=60, clock=clock):
        pass


def test_locks_are_nobody_elses_to_open(host: Host) -> None:
    assert host.locks.stat().st_mode & 0o777 == 0o700
    assert not host.locks.is_relative_to(host.run)
    for path in (node_lock_path(host, "edu"), former_lock_path(host, "edu")):
        assert path.stat().st_mode & 0o777 == 0o600


def test_pod_of_an_older_controller_locks_where_that_locks(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not mount the new directory, and its root file system is read-only."""

    def refuse(path: Path, *_: object, **__: object) -> None:
        if path == host.locks:
            raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)

    with node_lock(host, "edu", "driver edu", timeout=0):
        assert node_lock_path(host, "edu").read_text() == ""
        assert former_lock_path(host, "edu").read_text() != ""
        with pytest.raises(Locked), node_lock(host, "edu", "driver edu", timeout=0):
            pass


@pytest.mark.parametrize("since", [1e300, -1e300, 1e17])
def test_a_holder_with_an_impossible_time_is_named_without_it(since: float) -> None:
    assert Holder(7, "x run", "pod-1", since).in_words() == "pid 7 (x run) in pod-1"
