"""A directory of made files: it appears whole or not at all, whatever kills the maker."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.install import directory as module
from cluster.install.directory import NotOurs, write_directory, write_file
from nodeside import __version__
from nodeside.errors import SystemRefused, UsageError

FILES = {"main.yaml": "a: 1\n", "below/other.yaml": "b: 2\n"}


def write(place: Path, files: Mapping[str, str] = FILES, **more: Any) -> None:
    write_directory(place, files, main="main.yaml", **more)


def listing(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}


def test_a_directory_appears_with_all_its_files_and_says_who_made_it(tmp_path: Path) -> None:
    write(tmp_path / "new" / "chart")
    assert listing(tmp_path) == {"new/chart/main.yaml", "new/chart/below/other.yaml"}
    text = (tmp_path / "new/chart/main.yaml").read_text()
    assert text == f"# Made by nodeside-cluster {__version__}: to change it, make it again.\na: 1\n"


def test_a_directory_of_ours_is_replaced_as_a_whole(tmp_path: Path) -> None:
    write(tmp_path / "chart")
    write(tmp_path / "chart", {"main.yaml": "a: 2\n"}, names={*FILES})
    assert listing(tmp_path) == {"chart/main.yaml"}
    assert (tmp_path / "chart/main.yaml").read_text().endswith("a: 2\n")


def test_an_empty_directory_may_be_used(tmp_path: Path) -> None:
    (tmp_path / "chart").mkdir()
    write(tmp_path / "chart")
    assert listing(tmp_path / "chart") == {*FILES}


def test_a_directory_of_somebody_else_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "main.yaml").write_text("mine\n")
    with pytest.raises(NotOurs, match=r"was not made by nodeside-cluster: main\.yaml has no mark"):
        write(tmp_path)
    assert (tmp_path / "main.yaml").read_text() == "mine\n"
    assert listing(tmp_path) == {"main.yaml"}


def test_a_file_that_somebody_added_is_not_lost(tmp_path: Path) -> None:
    write(tmp_path / "chart")
    (tmp_path / "chart" / "below" / "mine.yaml").write_text("mine\n")
    with pytest.raises(NotOurs, match=r"does not write: below/mine\.yaml") as caught:
        write(tmp_path / "chart")
    assert "move them elsewhere" in caught.value.hint
    assert "below/mine.yaml" in listing(tmp_path / "chart")


def test_a_file_or_a_link_is_no_directory_to_write_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(NotOurs, match=f"{name} exists and is not a directory"):
            write(tmp_path / name)


def test_what_cannot_be_written_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "chart")

    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_write_synced", full)
    with pytest.raises(SystemRefused, match=r"chart cannot be written: .*No space left"):
        write(tmp_path / "chart", {"main.yaml": "a: 2\n"}, names={*FILES})
    assert listing(tmp_path) == {"chart/main.yaml", "chart/below/other.yaml"}
    assert leftovers(tmp_path) == []


# --- killed calls -----------------------------------------------------------------------------


@contextmanager
def another_call(place: Path, at: str, then: Callable[[], None], count: int = 1) -> Iterator[int]:
    """A process that makes a directory at `place`, and does `then` before it calls `at`."""
    child = os.fork()
    if child == 0:
        real, calls = getattr(os, at), iter(range(1, 100))

        def hooked(*arguments: Any, **more: Any) -> Any:
            if next(calls) == count:
                then()
            return real(*arguments, **more)

        setattr(os, at, hooked)
        try:
            write(place)
        finally:
            os._exit(0)
    try:
        yield child
    finally:
        os.waitpid(child, 0)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leftovers(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.iterdir() if path.name.startswith(".tmp-"))


def test_what_a_killed_call_left_goes_with_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with another_call(tmp_path / "chart", "fsync", die):
        pass
    [left] = leftovers(tmp_path)
    assert left.startswith(".tmp-chart-")
    assert not (tmp_path / "chart").exists()

    write(tmp_path / "chart")
    assert leftovers(tmp_path) == [left], "it may be at work"

    monkeypatch.setattr(module, "_ABANDONED", -1.0)
    write(tmp_path / "chart")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chart"]
    assert listing(tmp_path / "chart") == {*FILES}


def test_a_call_that_is_killed_between_two_renames_loses_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "chart")
    monkeypatch.setattr(module, "_ABANDONED", -1.0)
    with another_call(tmp_path / "chart", "rename", die, count=2):
        pass
    [left] = leftovers(tmp_path)
    assert listing(tmp_path / left) == {
        f"{which}/{name}" for which in ("new", "old") for name in FILES
    }

    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_write_synced", full)
    with pytest.raises(SystemRefused):
        write(tmp_path / "chart")
    assert leftovers(tmp_path) == [left], "it has the only whole copy"
    monkeypatch.undo()
    monkeypatch.setattr(module, "_ABANDONED", -1.0)

    write(tmp_path / "chart")
    assert leftovers(tmp_path) == []


def test_two_calls_at_once_leave_a_whole_directory(tmp_path: Path) -> None:
    begun, go_on = os.pipe(), os.pipe()

    def wait() -> None:
        os.write(begun[1], b"x")
        os.read(go_on[0], 1)

    with another_call(tmp_path / "chart", "fsync", wait):
        os.read(begun[0], 1)
        write(tmp_path / "chart", {"main.yaml": "mine\n"}, names={*FILES})
        assert len(leftovers(tmp_path)) == 1
        os.write(go_on[1], b"x")

    assert listing(tmp_path / "chart") == {*FILES}
    assert leftovers(tmp_path) == []
    for fd in (*begun, *go_on):
        os.close(fd)


def test_what_is_not_ours_stays_whatever_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".tmp-chart-00000001").mkdir()
    (tmp_path / ".tmp-chart-00000001" / "thesis.txt").write_text("mine")
    (tmp_path / "elsewhere" / "new").mkdir(parents=True)
    (tmp_path / ".tmp-chart-00000002").symlink_to(tmp_path / "elsewhere")
    (tmp_path / ".tmp-chart-00000003").write_text("a file")
    (tmp_path / ".tmp-other-00000004" / "new").mkdir(parents=True)
    (tmp_path / ".tmp-chart-00000005").mkdir()
    (tmp_path / ".tmp-chart-two-00000006" / "new").mkdir(parents=True)
    monkeypatch.setattr(module, "_ABANDONED", -1.0)
    before = leftovers(tmp_path)

    write(tmp_path / "chart")

    assert leftovers(tmp_path) == before
    assert (tmp_path / "elsewhere" / "new").is_dir()


def test_a_file_takes_the_place_of_a_link_and_of_no_directory(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "page.html").symlink_to("mine")

    write_file(tmp_path / "page.html", "page")
    with pytest.raises(NotOurs, match=f"{tmp_path} exists and is not a file"):
        write_file(tmp_path, "page")

    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "page.html").read_text() == "page"


def test_a_pipe_stays_a_pipe_and_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    end = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)

    write_file(tmp_path / "pipe", "page")

    assert os.read(end, 100) == b"page"
    assert (tmp_path / "pipe").is_fifo()
    os.close(end)


@pytest.mark.parametrize("place", ["/proc/self/fd", "/proc/thread-self/fd", "/dev/fd"])
def test_what_a_descriptor_leads_to_is_written_to(place: str) -> None:
    reader, writer = os.pipe()

    write_file(Path(place, str(writer)), "page")
    write_file(Path("/dev/null"), "page")

    assert os.read(reader, 100) == b"page"
    assert Path("/dev/null").is_char_device()
    with pytest.raises(SystemRefused, match="No such file or directory: /dev/fd/99999"):
        write_file(Path("/dev/fd/99999"), "page")
    os.close(reader)
    os.close(writer)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory away")
def test_root_writes_as_the_owner_of_the_directory(tmp_path: Path) -> None:
    """Else who owns it could put a link in the place of what root writes to next."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for path in (theirs, ours):
        path.mkdir()
    os.chown(theirs, 12345, 12345)

    write(theirs / "new" / "chart")
    write_file(theirs / "page.html", "page")
    assert {path.stat().st_uid for path in theirs.rglob("*")} == {12345}

    (theirs / "link").symlink_to(ours)
    with pytest.raises(UsageError, match=r"through .*theirs, which is of user 12345"):
        write(theirs / "link" / "chart")
    with pytest.raises(UsageError, match=r"through .*theirs, which is of user 12345"):
        write_file(theirs / "link" / "page.html", "page")
    assert not list(ours.iterdir())
