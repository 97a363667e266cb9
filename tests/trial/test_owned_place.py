"""Root writes into a directory of somebody, who is at work in it as well."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeside.errors import NoSpace, SystemRefused, UsageError
from nodeside.system.files import publish_bytes
from nodeside.trial.owned_place import open_place

SOMEBODY = 12345

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A directory of somebody else."""
    path = tmp_path / "theirs"
    path.mkdir()
    os.chown(path, SOMEBODY, SOMEBODY)
    return path


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """A directory of root with a file, which nobody else may change."""
    path = tmp_path / "ours"
    path.mkdir()
    (path / "file").write_text("precious")
    return path


def content(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.iterdir() if path.is_file()}


@as_root
def test_what_is_written_belongs_to_the_owner_of_the_place(theirs: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "chip.c").write_text("int chip;\n")
    (tree / "link").symlink_to("deep/chip.c")
    (tree / "away").symlink_to("/usr/src/elsewhere")

    with open_place(theirs / "new" / "chip") as place:
        assert not place.has_name("driver.yaml")
        place.write_files({"driver.yaml": b"yaml"}, tree)

    chip = theirs / "new" / "chip"
    assert (chip / "driver.yaml").read_text() == "yaml"
    assert (chip / "src" / "link").read_text() == "int chip;\n"
    assert {path.lstat().st_uid for path in (theirs / "new").rglob("*")} == {SOMEBODY}
    assert sorted(path.name for path in chip.iterdir()) == ["driver.yaml", "src"]


@as_root
def test_a_directory_that_is_changed_for_a_link_is_not_followed(theirs: Path, ours: Path) -> None:
    """Between the look and the writing, a build may take minutes."""
    with open_place(theirs) as place:
        theirs.rename(theirs.with_name("elsewhere"))
        theirs.symlink_to(ours)
        place.write_files({"file": b"mine"})

    assert content(ours) == {"file": "precious"}
    assert content(theirs.with_name("elsewhere")) == {"file": "mine"}


@as_root
def test_links_in_the_place_lead_to_nothing_of_root(
    theirs: Path, ours: Path, tmp_path: Path
) -> None:
    (theirs / "file").symlink_to(ours / "file")
    with open_place(theirs) as place:
        place.write_files({"file": b"mine"})
    assert content(ours) == {"file": "precious"}

    (theirs / ".nodeside-unpacked").symlink_to(ours)
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_text("mine")
    with open_place(theirs) as place, pytest.raises(SystemRefused):
        place.write_files({}, tree)
    assert content(ours) == {"file": "precious"}


@as_root
def test_a_place_below_a_link_to_roots_is_not_written_to(theirs: Path, ours: Path) -> None:
    with open_place(theirs / "a" / "b") as place:
        (theirs / "a").symlink_to(ours)
        with pytest.raises(SystemRefused):
            place.write_files({"file": b"mine"})

    assert content(ours) == {"file": "precious"}
    assert not (ours / "b").exists()


@as_root
@pytest.mark.parametrize("tree", [False, True])
def test_what_another_user_makes_in_tmp_while_a_build_runs_is_not_written_to(
    tmp_path: Path, ours: Path, tree: bool
) -> None:
    """`sudo nodeside init PACKAGE --into /tmp/x`, `sudo nodeside try . --report /tmp/ci/report`."""
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    tmp.chmod(0o1777)
    source = tmp_path / "tree"
    source.mkdir()
    (source / "file").write_text("mine")

    with open_place(tmp / "ci" / "report") as place:
        (tmp / "ci").mkdir()
        os.chown(tmp / "ci", SOMEBODY, SOMEBODY)
        (tmp / "ci" / "report").symlink_to(ours)
        with pytest.raises(SystemRefused, match="ci appeared meanwhile, and is a directory of"):
            place.write_files({"file": b"mine"}, source if tree else None)

    assert content(ours) == {"file": "precious"}
    assert [path.name for path in (tmp / "ci").iterdir()] == ["report"]


@as_root
def test_root_writes_in_tmp_if_nobody_interferes(tmp_path: Path) -> None:
    tmp = tmp_path / "tmp"
    for name in ("tmp", "tree"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "chip.c").touch()
    tmp.chmod(0o1777)

    for path in (tmp, tmp / "new" / "deep"):
        with open_place(path) as place:
            place.write_files({"file": b"mine"}, tmp_path / "tree")
        assert (path / "file").read_text() == "mine"
        assert (path / "src" / "chip.c").stat().st_uid == 0


def test_a_source_that_is_there_stays(tmp_path: Path) -> None:
    for name in ("src", "tree"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "chip.c").write_text(name)

    with open_place(tmp_path) as place:
        assert place.has_name("src")
        place.write_files({}, tmp_path / "tree")

    assert (tmp_path / "src" / "chip.c").read_text() == "src"


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with (
            pytest.raises(UsageError, match="is a file: expected a directory"),
            open_place(path),
        ):
            pass


def test_a_link_to_nowhere_is_there(tmp_path: Path) -> None:
    (tmp_path / "trial.yaml").symlink_to("nowhere")

    with open_place(tmp_path) as place:
        assert place.has_name("trial.yaml")
        assert not place.has_name("driver.yaml")


def test_what_cannot_be_written_whole_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next `init` would refuse, since a file is there already."""
    (tmp_path / "old").write_text("old")
    real = publish_bytes

    def full(path: Path, data: bytes) -> None:
        if path.name == "last":
            raise NoSpace("no space left")
        real(path, data)

    monkeypatch.setattr("nodeside.trial.owned_place.publish_bytes", full)
    with open_place(tmp_path) as place, pytest.raises(NoSpace):
        place.write_files({"old": b"new", "first": b"1", "last": b"2"})

    assert sorted(path.name for path in tmp_path.iterdir()) == ["old"]


def test_what_a_killed_one_left_is_not_in_the_source(tmp_path: Path) -> None:
    for name in ("new/.nodeside-unpacked/stale.c", "tree/chip.c"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()

    with open_place(tmp_path / "new") as place:
        place.write_files({}, tmp_path / "tree")

    assert [path.name for path in (tmp_path / "new" / "src").iterdir()] == ["chip.c"]
