"""Temporary directories."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeside.system import process
from nodeside.system.scratch import remove_abandoned, scratch_directory


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def age(directory: Path) -> None:
    os.utime(directory, (0, 0))


def test_a_directory_ends_with_its_block(parent: Path) -> None:
    with scratch_directory("test") as directory:
        (directory / "file").touch()
        assert directory.parent == parent

    assert list(parent.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next(parent: Path) -> None:
    abandoned = parent / "nodeside-scratch-test-abandoned"
    abandoned.mkdir()
    (abandoned / ".in-use").touch()
    age(abandoned)

    with scratch_directory("test"):
        assert not abandoned.exists()


def test_a_pipe_that_another_user_planted_holds_nobody_up(parent: Path) -> None:
    planted = parent / "nodeside-scratch-test-planted"
    planted.mkdir()
    os.mkfifo(planted / ".in-use")
    age(planted)

    remove_abandoned(parent)

    assert not planted.exists()


def deep(directory: Path) -> None:
    """Nest directories deeper than Python can recurse."""
    here = os.open(directory, os.O_RDONLY)
    for _ in range(2000):
        os.mkdir("a", dir_fd=here)
        below = os.open("a", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


@pytest.mark.slow
def test_a_deep_tree_is_removed_whoever_made_it(parent: Path) -> None:
    planted = parent / "nodeside-scratch-test-planted"
    planted.mkdir()
    deep(planted)
    age(planted)

    with scratch_directory("test") as directory:
        assert not planted.exists()
        deep(directory)

    assert list(parent.iterdir()) == []


def test_a_directory_in_use_is_left_alone(parent: Path) -> None:
    with scratch_directory("test") as directory:
        age(directory)
        remove_abandoned(parent)
        assert directory.exists()


def test_a_directory_that_is_just_being_made_is_left_alone(parent: Path) -> None:
    young = parent / "nodeside-scratch-test-young"
    young.mkdir()

    remove_abandoned(parent)

    assert young.exists()


def test_a_removal_that_was_interrupted_is_continued(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock goes last, in whatever order the names come."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def lock_first(of: Callable[..., list[str]]) -> Callable[..., list[str]]:
        return lambda *where: sorted(of(*where))

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", lock_first(os.listdir))
        patch.setattr(shutil, "rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt), scratch_directory("test") as directory:
            (directory / "tree").mkdir()
    assert (directory / ".in-use").exists()
    age(directory)

    remove_abandoned(parent)

    assert list(parent.iterdir()) == []


def test_what_lost_its_lock_long_ago_is_abandoned(parent: Path) -> None:
    old = parent / "nodeside-scratch-test-old"
    (old / "tree").mkdir(parents=True)
    age(old)

    remove_abandoned(parent)

    assert not old.exists()


def test_a_link_that_another_user_planted_is_not_followed(parent: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").touch()
    age(victim)
    (parent / "nodeside-scratch-test-planted").symlink_to(victim)

    remove_abandoned(parent)

    assert (victim / "file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_no_other_user_gets_into_a_directory() -> None:
    """In the real temporary directory, which everybody may enter."""
    with scratch_directory("test") as directory:
        (directory / "file").touch()
        (directory / "open").mkdir(mode=0o777)
        (directory / "open").chmod(0o777)
        for attempt in (f"ls {directory}", f"cat {directory}/file", f"touch {directory}/open/x"):
            argv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c"]
            done = process.run([*argv, attempt], timeout=60, check=False)
            assert "Permission denied" in done.errors, attempt
