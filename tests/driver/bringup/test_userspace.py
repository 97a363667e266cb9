"""Files of the driver image through the life of a driver: which version is current, and when."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from nodeside.driver.bringup.bringup import bring_up
from nodeside.driver.bringup.earlier_attempts import EarlierAttempts
from nodeside.driver.bringup.validate import ValidationFailed
from nodeside.driver.userspace.tree import Tree, UserspaceRefused
from nodeside.errors import ExitCode
from tests.driver.fakes.kernel import write
from tests.driver.fakes.node import FakeNode


class Files:
    """The files of a node's driver, which are those of this directory in its image."""

    def __init__(self, node: FakeNode, directory: Path) -> None:
        self.node, self.directory = node, directory
        write(directory / "lib/libedu.so", "library 1\n")
        node.spec["userspace"] = {"paths": [str(directory)]}

    @property
    def current(self) -> str:
        """The content of the library that a container gets now, "" for none."""
        below = self.node.host.userspace / "straw/current"
        path = below / str(self.directory).lstrip("/") / "lib/libedu.so"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


@pytest.fixture
def files(node: FakeNode, tmp_path: Path) -> Files:
    return Files(node, tmp_path / "opt")


def test_they_are_current_once_the_driver_works(node: FakeNode, files: Files) -> None:
    node.fill()
    assert files.current == "library 1\n"

    write(files.directory / "lib/libedu.so", "library 2\n")
    node.upgrade(validate={"devices": ["/dev/straw0"], "timeoutSeconds": 1})
    node.put_bundle(node.task())
    with pytest.raises(ValidationFailed):
        node.bring_up(node.task())
    assert files.current == "library 1\n", "the new version does not work"

    node.write_driver(validate={"timeoutSeconds": 1})
    node.bring_up(node.task())
    assert files.current == "library 2\n"


def test_what_cannot_be_copied_is_said_before_anything_is_touched(
    node: FakeNode, files: Files
) -> None:
    (files.directory / "out").symlink_to("/etc/passwd")
    task = node.task()
    node.put_bundle(task)
    with pytest.raises(UserspaceRefused, match="which is not in userspace"):
        node.bring_up(task)
    assert node.loaded == ()
    done = node.run("load")
    assert done.code == ExitCode.REFUSED


def test_a_process_reads_them_once(
    node: FakeNode, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Tree] = []
    digest = Tree.digest

    def counted(tree: Tree) -> str:
        read.append(tree)
        return digest(tree)

    monkeypatch.setattr(Tree, "digest", counted)
    task, attempts = node.task(), EarlierAttempts()
    node.put_bundle(task)
    for _ in range(3):
        bring_up(replace(node.attempt(task), earlier=attempts))
    assert len(read) == 1

    shutil.rmtree(node.host.userspace)  # by somebody
    bring_up(replace(node.attempt(task), earlier=attempts))
    assert files.current == "library 1\n"


def test_they_go_with_the_driver(node: FakeNode, files: Files) -> None:
    node.fill()
    assert node.run("unload").code == 0
    assert files.current == ""
    assert not (node.host.userspace / "straw").exists()
