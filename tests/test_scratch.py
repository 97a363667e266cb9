"""Temporary directories."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeside.scratch import remove_abandoned, scratch_directory


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
