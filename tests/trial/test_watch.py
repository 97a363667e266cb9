"""What `nodeside try --watch` takes for a saved change, and what its containers see."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from nodeside.trial.cli import trial
from nodeside.trial.machine.containers import DRIVER, with_image
from nodeside.trial.watch import await_change, read_look


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name in ("driver.yaml", "src/chip.c", ".git/index", "trial.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def pauses(*acts: Callable[[], object]) -> Callable[[float], None]:
    """Pauses in which something happens; there are no more than these."""
    waiting: Iterator[Callable[[], object]] = iter(acts)

    def pause(_seconds: float) -> None:
        next(waiting)()

    return pause


def nothing() -> None:
    pass


def test_a_save_is_a_change_and_what_git_writes_is_none(source: Path) -> None:
    before = read_look(source)
    (source / ".git" / "index").write_text("changed")
    assert read_look(source) == before

    (source / "src" / "chip.c").write_text("int chip;")
    assert read_look(source) != before


def test_a_file_that_comes_or_goes_is_a_change(source: Path) -> None:
    before = read_look(source)
    (source / "src" / "new.c").touch()
    assert read_look(source) != before
    (source / "src" / "new.c").unlink()
    assert read_look(source) == before


def test_links_are_not_followed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (source / "loop").symlink_to(".")
    (source / "away").symlink_to(elsewhere)
    before = read_look(source)
    (elsewhere / "file").touch()
    assert read_look(source) == before


def test_what_an_editor_does_in_several_steps_is_one_change(source: Path) -> None:
    """It writes another file, and then renames it."""
    file, other = source / "src" / "chip.c", source / "src" / "chip.c.new"
    before = read_look(source)

    now = await_change(
        source,
        before,
        pauses(nothing, lambda: other.write_text("new"), lambda: os.replace(other, file), nothing),
    )

    assert now == read_look(source)
    assert str(other) not in now


def test_each_trial_has_the_image_of_its_change() -> None:
    binds = {inside: outside for outside, inside, _ in with_image(DRIVER, "/i/7").binds}

    assert binds["/driver-image"] == "/i/7"
    assert len(binds) == len(DRIVER.binds)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-k", "amd64", "-k", "6.12"), "name one --kernel"),
        (("--keep",), "--watch goes with no --keep"),
        (("--report", "out"), "--watch goes with no --keep"),
        (("--build-on", "node"), "--watch builds on this host"),
    ],
)
def test_what_does_not_go_with_watching_is_refused(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    outcome = CliRunner().invoke(trial, ["examples/edu", "--watch", *words])

    assert outcome.exit_code == 2
    assert said in outcome.output
