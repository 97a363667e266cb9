"""The digest of a source tree, and its copy in the shared directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeside.driver.handoff.source import (
    build_settings,
    drop_sources,
    provide_source,
    source_digest,
)
from nodeside.errors import SpecError
from nodeside.protocol.bundle_key import BuildKind
from nodeside.protocol.shared_directory import SharedDir
from nodeside.spec.model import DriverSpec, Module


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "src"
    (tree / "sub").mkdir(parents=True)
    (tree / "Makefile").write_text("obj-m := edu.o\n")
    (tree / "sub" / "edu.c").write_text("int x;\n")
    (tree / "configure").write_text("#!/bin/sh\n")
    (tree / "configure").chmod(0o755)
    (tree / "link").symlink_to("sub/edu.c")
    return tree


def test_the_digest_ignores_times_owners_and_descriptions(tree: Path) -> None:
    before = source_digest(tree)
    os.utime(tree / "Makefile", (1, 1))
    (tree / "driver.yaml").write_text("kind: Driver\n")
    (tree / ".git").mkdir()
    (tree / ".git" / "HEAD").write_text("ref\n")
    assert source_digest(tree) == before


@pytest.mark.parametrize("change", ["content", "name", "executable", "link", "nested-yaml"])
def test_the_digest_changes_with_everything_that_a_build_sees(tree: Path, change: str) -> None:
    before = source_digest(tree)
    match change:
        case "content":
            (tree / "sub" / "edu.c").write_text("int y;\n")
        case "name":
            (tree / "sub" / "edu.c").rename(tree / "sub" / "edu2.c")
        case "executable":
            (tree / "configure").chmod(0o644)
        case "link":
            (tree / "link").unlink()
            (tree / "link").symlink_to("Makefile")
        case "nested-yaml":
            (tree / "sub" / "driver.yaml").write_text("x")
    assert source_digest(tree) != before


def test_a_source_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"the source .*/nowhere is not a directory"):
        source_digest(tmp_path / "nowhere")


def test_a_special_file_in_the_source_is_refused(tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    with pytest.raises(SpecError, match="the source has a special file: pipe"):
        source_digest(tree)


def test_the_copy_has_the_digest_of_the_original_and_appears_whole(
    tree: Path, tmp_path: Path
) -> None:
    shared = SharedDir(tmp_path / "shared")
    shared.create()
    digest = source_digest(tree)
    provide_source(tree, shared, digest)
    provide_source(tree, shared, digest)  # again: nothing to do
    assert source_digest(shared.source_path(digest)) == digest
    assert [path.name for path in shared.sources.iterdir()] == [digest]


def test_sources_that_no_request_needs_are_dropped(tree: Path, tmp_path: Path) -> None:
    shared = SharedDir(tmp_path / "shared")
    shared.create()
    (shared.sources / ".tmp-1-half").mkdir()
    provide_source(tree, shared, "one")
    provide_source(tree, shared, "two")
    drop_sources(shared, keep={"two"})
    assert [path.name for path in shared.sources.iterdir()] == ["two"]


def test_a_tree_with_a_dkms_conf_is_a_dkms_tree_unless_said_otherwise(tree: Path) -> None:
    spec = DriverSpec(version="1", modules=(Module(name="my-edu"),))
    assert build_settings(spec, tree).kind is BuildKind.KBUILD
    (tree / "dkms.conf").write_text("PACKAGE_NAME=x\n")
    settings = build_settings(spec, tree)
    assert settings.kind is BuildKind.DKMS
    assert settings.modules == ("my_edu",)


def test_a_copy_that_a_power_cut_tore_is_replaced(tree: Path, tmp_path: Path) -> None:
    shared = SharedDir(tmp_path / "shared")
    shared.create()
    digest = source_digest(tree)
    provide_source(tree, shared, digest)
    (shared.source_path(digest) / "Makefile").write_text("")
    provide_source(tree, shared, digest)
    assert source_digest(shared.source_path(digest)) == digest
