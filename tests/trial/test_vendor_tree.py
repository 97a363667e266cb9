"""Root's copy of a directory that a vendor wrote."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from nodeside.trial import vendor_tree
from nodeside.trial.errors import TargetError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    directory = tmp_path / "tree"
    (directory / "src" / "deep").mkdir(parents=True)
    (directory / "src" / "hello.c").write_text("// hello\n")
    return directory


def mode(path: Path) -> int:
    return path.lstat().st_mode & 0o7777


def test_files_directories_links_modes_and_times_are_kept(tree: Path, tmp_path: Path) -> None:
    (tree / "configure").write_text("#!/bin/sh\n")
    (tree / "configure").chmod(0o750)
    (tree / "src" / "deep").chmod(0o500)
    (tree / "link").symlink_to("src")
    (tree / "dangling").symlink_to("/no/such/file")
    os.utime(tree / "configure", (1, 2))
    (tree / ".git").mkdir()

    vendor_tree.copy_tree(tree, tmp_path / "copy", leave_out=(".git",))

    copy = tmp_path / "copy"
    assert sorted(str(p.relative_to(copy)) for p in copy.rglob("*")) == [
        *("configure", "dangling", "link", "src", "src/deep", "src/hello.c")
    ]
    assert (copy / "src" / "hello.c").read_text() == "// hello\n"
    assert (mode(copy / "configure"), mode(copy / "src" / "deep")) == (0o750, 0o500)
    assert (copy / "configure").stat().st_mtime == 2
    assert (copy / "link").readlink() == Path("src")
    assert (copy / "dangling").readlink() == Path("/no/such/file")


def test_a_link_to_a_tree_names_the_tree(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("tree")

    vendor_tree.copy_tree(tmp_path / "link", tmp_path / "copy")

    assert (tmp_path / "copy" / "src" / "hello.c").read_text() == "// hello\n"


def test_the_copy_gives_nobody_rights(tree: Path, tmp_path: Path) -> None:
    (tree / "src" / "hello.c").chmod(0o6777)
    (tree / "src").chmod(0o3777)

    vendor_tree.copy_tree(tree, tmp_path / "copy")

    assert mode(tmp_path / "copy" / "src" / "hello.c") == 0o755
    assert mode(tmp_path / "copy" / "src") == 0o755


def test_pipes_sockets_and_devices_are_refused_by_name(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    special = tree / "src" / "special"
    os.mkfifo(special)
    with pytest.raises(TargetError, match=r"src/special is a named pipe"):
        vendor_tree.copy_tree(tree, tmp_path / "copy")

    special.unlink()
    monkeypatch.chdir(special.parent)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("special")
    with pytest.raises(TargetError, match=r"src/special is a socket"):
        vendor_tree.copy_tree(tree, tmp_path / "copy")

    with pytest.raises(TargetError, match=r"/dev/\S+ is a "):
        vendor_tree.copy_tree(Path("/dev"), tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_tree_that_is_too_large_is_refused_before_it_is_copied(
    tree: Path, tmp_path: Path
) -> None:
    with open(tree / "src" / "large", "wb") as file:
        file.truncate((vendor_tree.LIMIT_MIB << 20) + 1)  # sparse

    with pytest.raises(TargetError, match=r"holds 2049 MiB, the limit is 2048 MiB"):
        vendor_tree.copy_tree(tree, tmp_path / "copy")

    assert not (tmp_path / "copy").exists()


def test_a_tree_that_grows_while_it_is_copied_is_refused_too(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = tree / "src" / "large"
    large.touch()
    monkeypatch.setattr(vendor_tree, "LIMIT_MIB", 1)
    monkeypatch.setattr(
        vendor_tree, "_require_within_limit", lambda *_: large.write_bytes(bytes(2 << 20))
    )

    with pytest.raises(TargetError) as caught:
        vendor_tree.copy_tree(tree, tmp_path / "copy")

    assert str(caught.value) == f"{tree} has grown, and now holds more than 1 MiB"
    assert "beside the source of the driver" in caught.value.hint


def test_a_tree_without_a_bottom_is_refused(tree: Path, tmp_path: Path) -> None:
    (tree / "/".join("d" * 200)).mkdir(parents=True)

    with pytest.raises(TargetError, match="nested more than 100 deep"):
        vendor_tree.copy_tree(tree, tmp_path / "copy")
