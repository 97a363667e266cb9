"""SELinux labels on a file system that keeps them, under a kernel that need not enforce any."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from nodeside.system.selinux import FOR_CONTAINERS, FOR_MODULES, label_file, label_tree
from tests.driver.fakes.kernel import write

LABEL = "security.selinux"
BEFORE = b"system_u:object_r:var_lib_t:s0\0"


def set_label(path: Path, label: bytes = BEFORE) -> Path:
    try:
        os.setxattr(path, LABEL, label, follow_symlinks=False)
    except OSError as error:
        pytest.skip(f"no labels on this file system, or for this user: {error}")
    return path


def label_of(path: Path) -> bytes:
    return os.getxattr(path, LABEL, follow_symlinks=False)


def test_only_the_type_of_a_label_is_changed(tmp_path: Path) -> None:
    file = set_label(write(tmp_path / "a.ko", ""))
    for _ in range(2):
        assert label_file(file, FOR_MODULES)
        assert label_of(file) == b"system_u:object_r:modules_object_t:s0\0"
    for label, changed in (
        (b"u:r:t", b"u:r:modules_object_t"),
        (b"u:r:t:s0:c1,c2", b"u:r:modules_object_t:s0:c1,c2"),
    ):
        assert label_file(set_label(file, label), FOR_MODULES)
        assert label_of(file) == changed


def test_a_tree_is_labelled_and_no_link_followed(tmp_path: Path) -> None:
    outside = set_label(write(tmp_path / "outside", ""))
    tree = tmp_path / "tree"
    file = write(tree / "lib/a.so", "")
    (tree / "link").symlink_to(outside)
    paths = (tree, tree / "lib", file, tree / "link")
    for path in paths:
        set_label(path)
    label_tree(tree, FOR_CONTAINERS)
    assert {label_of(path) for path in paths} == {b"system_u:object_r:container_file_t:s0\0"}
    assert label_of(outside) == BEFORE


def test_what_has_no_label_gets_none(tmp_path: Path) -> None:
    file = write(tmp_path / "a.ko", "")
    assert not label_file(file, FOR_MODULES)
    assert not label_file(tmp_path / "absent", FOR_MODULES)
    label_tree(tmp_path, FOR_MODULES)
    assert LABEL not in os.listxattr(file)
    assert not label_file(set_label(file, b"nonsense"), FOR_MODULES)
    assert label_of(file) == b"nonsense"


def test_a_policy_that_denies_it_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(*_: object, **__: object) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    file = set_label(write(tmp_path / "a.ko", ""))
    monkeypatch.setattr(os, "setxattr", deny)
    assert not label_file(file, FOR_MODULES)
    assert label_of(file) == BEFORE
