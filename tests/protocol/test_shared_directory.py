"""The shared directory: a protocol between two processes that may die at any moment."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from nodeside.protocol.build_records import BuildRequest, BuildResult, SidecarRecord
from nodeside.protocol.bundle_key import BuildKind, BuildSettings
from nodeside.protocol.records import MalformedRecord, publish
from nodeside.protocol.shared_directory import SharedDir, request_id
from nodeside.system import process
from nodeside.system.files import UntrustedFile
from nodeside.system.host import Kernel
from tests.sidecar_lock import hold_sidecar_lock

KEY = "0123456789abcdef" * 4
KERNEL = Kernel("6.1.0-40-cloud-amd64", "#1 SMP", "x86_64")


@pytest.fixture
def shared(tmp_path: Path) -> SharedDir:
    found = SharedDir(tmp_path / "shared")
    found.create()
    return found


def request(attempt: int = 1) -> BuildRequest:
    settings = BuildSettings(BuildKind.KBUILD, ("edu",), environment={"A": "b"})
    return BuildRequest(
        request_id(KEY, attempt), "edu", "1.0", KERNEL, "boot-1", "d" * 64, settings, 60.0
    )


def test_the_tree_is_made_with_its_owners_and_may_be_made_again(shared: SharedDir) -> None:
    shared.create()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in shared.root.iterdir()}
    ours = dict.fromkeys(("requests", "source", "symbols"), 0o755)
    assert modes == {**ours, "results": 0o1777, "out": 0o1777}


def test_a_private_tree_is_for_its_owner_only(tmp_path: Path) -> None:
    shared = SharedDir(tmp_path / "shared", private=True)
    shared.create()
    shared.create()

    paths = (shared.root, *shared.root.iterdir())
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o700}


def test_a_request_and_its_result_travel(shared: SharedDir) -> None:
    asked = request()
    shared.publish_request(asked)
    assert shared.read_request(asked.id) == asked
    answer = BuildResult(asked.id, "boot-1", succeeded=True)
    shared.publish_result(answer)
    assert shared.read_result(asked.id, "boot-1") == answer


def test_what_is_not_there_is_none(shared: SharedDir) -> None:
    assert shared.read_request("none") is None
    assert shared.read_result("none", "boot-1") is None
    assert shared.read_sidecar("boot-1") is None


def test_a_result_of_an_earlier_boot_or_of_another_request_is_ignored(shared: SharedDir) -> None:
    shared.publish_result(BuildResult(request().id, "boot-0", succeeded=True))
    assert shared.read_result(request().id, "boot-1") is None
    publish(shared.result_path("x"), {"request": "y", "boot_id": "boot-1", "succeeded": True})
    assert shared.read_result("x", "boot-1") is None


def test_a_sidecar_of_an_earlier_boot_is_ignored(shared: SharedDir) -> None:
    shared.publish_sidecar(SidecarRecord(pid=7, boot_id="boot-1", started_at=1.0))
    assert shared.read_sidecar("boot-2") is None
    found = shared.read_sidecar("boot-1")
    assert found is not None
    assert found.pid == 7


def test_a_forged_result_is_refused_by_name(shared: SharedDir) -> None:
    name = request().id
    publish(shared.result_path(name), {"request": name, "boot_id": "boot-1", "succeeded": "yes"})
    with pytest.raises(MalformedRecord, match=rf"result {name}\.succeeded: expected bool"):
        shared.read_result(name, "boot-1")
    shared.result_path(name).unlink()
    shared.result_path(name).symlink_to("/etc/passwd")
    with pytest.raises(UntrustedFile, match="a symbolic link"):
        shared.read_result(name, "boot-1")


def test_requests_are_listed_by_attempt_and_nothing_else_is(shared: SharedDir) -> None:
    for attempt in (10, 2, 1):
        shared.publish_request(request(attempt))
    for name in (".tmp-1-x.json", "readme.json", "0123456789ab-0.json", "0123456789ab-1"):
        (shared.requests / name).write_text("{}")
    assert shared.request_ids() == tuple(request_id(KEY, attempt) for attempt in (1, 2, 10))


def test_the_sidecars_lock_says_whether_it_lives_and_only_one_holds_it(shared: SharedDir) -> None:
    assert not shared.sidecar_lives()
    with hold_sidecar_lock(shared) as mine:
        assert mine
        assert shared.sidecar_lives()
        assert shared.sidecar_lives(), "asking must not take the lock"
        with hold_sidecar_lock(shared) as second:
            assert not second
        assert shared.sidecar_lives()
    assert not shared.sidecar_lives()


@pytest.mark.slow
def test_asking_whether_a_sidecar_lives_never_keeps_one_from_starting(shared: SharedDir) -> None:
    shared.lock.touch()
    ask = (
        "import sys; from pathlib import Path\n"
        "from nodeside.protocol.shared_directory import SharedDir\n"
        "shared = SharedDir(Path(sys.argv[1])); print('asking', flush=True)\n"
        "while True: shared.sidecar_lives()"
    )
    child = process.start([sys.executable, "-c", ask, str(shared.root)], stdout=-1)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"asking\n"
        for _ in range(2000):
            with hold_sidecar_lock(shared) as mine:
                assert mine
    finally:
        process.kill_group(child.pid)
        child.wait(60)
        child.stdout.close()


def test_the_lock_goes_with_a_killed_process(shared: SharedDir) -> None:
    hold = (
        "import sys; from pathlib import Path\n"
        "from nodeside.protocol.shared_directory import SharedDir\n"
        "from tests.sidecar_lock import hold_sidecar_lock\n"
        "with hold_sidecar_lock(SharedDir(Path(sys.argv[1]))) as mine:\n"
        "    print(mine, flush=True); sys.stdin.read()"
    )
    child = process.start([sys.executable, "-c", hold, str(shared.root)], stdin=-1, stdout=-1)
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        assert child.stdout.readline() == b"True\n"
        assert shared.sidecar_lives()
        process.kill_group(child.pid)
        child.wait(60)
    assert not shared.sidecar_lives()


def test_a_pipe_or_link_in_place_of_the_lock_does_not_hang_the_driver(shared: SharedDir) -> None:
    os.mkfifo(shared.lock)
    with pytest.raises(UntrustedFile, match="expected a regular file"):
        shared.sidecar_lives()
    shared.lock.unlink()
    shared.lock.symlink_to("/dev/zero")
    with pytest.raises(UntrustedFile, match="a symbolic link"):
        shared.sidecar_lives()
