"""The trial's cache: everything in it is complete, and made once."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from nodeside.errors import NoSpace, UsageError
from nodeside.system.file_lock import take_lock
from nodeside.trial import cache as trial_cache
from nodeside.trial.cache import TrialCache, remove_cache
from nodeside.trial.errors import TrialError


def write(text: str) -> trial_cache.Maker:
    def fill(directory: Path) -> None:
        (directory / "content").write_text(text)

    return fill


def test_a_thing_is_made_once(tmp_path: Path) -> None:
    with TrialCache(tmp_path / "cache") as cache:
        first = cache.make("kernels", "a", write("first"))
        second = cache.make("kernels", "a", write("second"))

    assert first == second
    assert (first / "content").read_text() == "first"


def test_what_failed_half_way_is_not_there(tmp_path: Path) -> None:
    def fail(directory: Path) -> None:
        (directory / "content").write_text("half")
        raise TrialError("no network")

    with TrialCache(tmp_path / "cache") as cache:
        with pytest.raises(TrialError, match="no network"):
            cache.make("kernels", "a", fail)

        made = cache.make("kernels", "a", write("whole"))

    assert (made / "content").read_text() == "whole"
    assert sorted(path.name for path in made.parent.iterdir()) == [".lock-a", "a"]


def test_what_a_killed_trial_left_is_made_anew(tmp_path: Path) -> None:
    leftover = tmp_path / "cache" / "kernels" / ".tmp-a"
    leftover.mkdir(parents=True)
    (leftover / "content").write_text("half")
    (tmp_path / "cache" / "lock").touch()

    with TrialCache(tmp_path / "cache") as cache:
        made = cache.make("kernels", "a", write("whole"))

    assert not leftover.exists()
    assert (made / "content").read_text() == "whole"


def test_a_full_disk_is_said_before_the_work(tmp_path: Path) -> None:
    with (
        TrialCache(tmp_path / "cache") as cache,
        pytest.raises(NoSpace, match=r"MiB free, kernels/a needs 1000000000 MiB") as caught,
    ):
        cache.make("kernels", "a", write(""), needs_mib=1_000_000_000)

    assert "NODESIDE_TRIAL_CACHE" in caught.value.hint


def test_a_disk_that_fills_up_is_no_bug(tmp_path: Path) -> None:
    def fill(directory: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))

    with TrialCache(tmp_path / "cache") as cache, pytest.raises(NoSpace, match="no space left"):
        cache.make("kernels", "a", fill)


def test_a_cache_in_use_is_not_removed(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    with TrialCache(directory) as cache:
        cache.make("kernels", "a", write(""))
        with pytest.raises(TrialError, match="in use by another `nodeside try`"):
            trial_cache.remove_cache(directory)

    trial_cache.remove_cache(directory)

    assert [path.name for path in directory.iterdir()] == ["lock"]


def test_a_directory_with_files_of_others_is_no_cache_and_keeps_them(tmp_path: Path) -> None:
    precious = tmp_path / "photos" / "a.jpeg"
    precious.parent.mkdir()
    precious.touch()

    with (
        pytest.raises(TrialError, match="cannot be the trial's cache, since it is not") as caught,
        TrialCache(tmp_path),
    ):
        pass

    with pytest.raises(TrialError, match="cannot be the trial's cache"):
        trial_cache.remove_cache(tmp_path)
    assert precious.exists()
    assert caught.value.hint.endswith(f"NODESIDE_TRIAL_CACHE={tmp_path}/nodeside-trial")


def test_who_waits_for_a_removal_then_keeps_others_from_removing(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    with TrialCache(directory):
        waiting = (directory / "lock").stat().st_ino
    trial_cache.remove_cache(directory)

    with TrialCache(directory):
        assert (directory / "lock").stat().st_ino == waiting
        with pytest.raises(TrialError, match="in use by another `nodeside try`"):
            trial_cache.remove_cache(directory)


def test_a_thing_that_another_trial_never_ends_to_make_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_cache, "_MAKING", 0.0)
    with (
        TrialCache(tmp_path / "cache") as cache,
        cache.hold_lock("kernels", "a"),
        pytest.raises(TrialError, match="another trial has been making kernels/a for") as caught,
    ):
        cache.make("kernels", "a", write(""))

    assert caught.value.hint == f"find the process: fuser -v {cache.path('kernels', '.lock-a')}"


def test_a_cache_that_is_being_removed_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_cache, "_REMOVING", 0.0)
    (tmp_path / "lock").touch()
    with open(tmp_path / "lock", "rb") as lock:
        assert take_lock(lock.fileno())
        with pytest.raises(TrialError, match="is still being removed"), TrialCache(tmp_path):
            pass

    with TrialCache(tmp_path) as cache:
        assert cache.directory == tmp_path


def test_an_unusable_cache_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    said = f"the trial's cache: {tmp_path / 'file'} is a file: expected a directory"
    with pytest.raises(UsageError, match=said), TrialCache(tmp_path / "file" / "x"):
        pass


def test_the_environment_says_where_the_cache_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("NODESIDE_TRIAL_CACHE", raising=False)
    assert trial_cache.default_directory() == tmp_path / "nodeside" / "trial"

    monkeypatch.setenv("NODESIDE_TRIAL_CACHE", "/elsewhere")
    assert trial_cache.default_directory() == Path("/elsewhere")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory away")
def test_a_cache_that_another_user_has_made_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`NODESIDE_TRIAL_CACHE=/tmp/cache`: root would write through the links in it."""
    monkeypatch.delenv("SUDO_UID", raising=False)
    theirs = tmp_path / "cache"
    theirs.mkdir()
    (theirs / "lock").touch()
    os.chown(theirs, 12345, 12345)

    for use in (TrialCache(theirs).__enter__, lambda: remove_cache(theirs)):
        with pytest.raises(UsageError, match=r"the trial's cache: .* belongs to user 12345") as no:
            use()
        assert "NODESIDE_TRIAL_CACHE" in no.value.hint
    assert [path.name for path in theirs.iterdir()] == ["lock"]
