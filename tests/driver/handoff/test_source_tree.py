"""What of a directory is a driver's source: what lies beside it changes no key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from nodeside.driver.bundle.cache import Cache
from nodeside.driver.handoff.source import provide_source, source_digest
from nodeside.driver.handoff.source_tree import NotSource, source_files
from nodeside.driver.ladder.task import resolve_task
from nodeside.protocol.bundle_key import STORE_TAG
from nodeside.protocol.shared_directory import SharedDir
from nodeside.system import process
from tests.console import nodeside
from tests.driver.fakes.bundles import TAG
from tests.driver.fakes.node import FakeNode

# Made by the code that came before `source.exclude`: keys of trees in the field must not change.
PINNED = "d5cbd02f9c8641044555449bcaec66b73912bff91f4fc6afd199148db0db6887"
CLEAN = {
    "Makefile": "obj-m := edu.o\nedu-objs := main.o blob.o\n",
    "main.c": "int x;\n",
    "blob.o": "\x7fELF",
    ".blob.o.cmd": "",  # so that kbuild does not complain of the blob
    "Module.symvers": "0x1\tx\tvmlinux\tEXPORT_SYMBOL\t\n",
    "sub/driver.yaml": "not the driver's\n",
    "sub/edu.ko": "stale\n",
    ".gitignore": "*.o\n",
    "modules.order": "edu.ko\n",
}
# What `make M=/mnt modules` of Linux 6.12 leaves besides; 6.1 writes `cmd_` for `savedcmd_`. Of the
# commands, which are long, the words that count.
BUILT = {
    "main.o": "ELF",
    ".main.o.cmd": "savedcmd_/mnt/main.o := gcc-12 -c -o /mnt/main.o /mnt/main.c\n\n"
    "source_/mnt/main.o := /mnt/main.c\n\ndeps_/mnt/main.o := \\\n",
    "edu.o": "ELF",
    ".edu.o.cmd": "savedcmd_/mnt/edu.o := ld -r -o /mnt/edu.o @/mnt/edu.mod  ; ./tools/objtool\n",
    "edu.mod": "/mnt/main.o\n/mnt/blob.o\n",
    ".edu.mod.cmd": "savedcmd_/mnt/edu.mod := printf '%s\\n'   main.o blob.o | awk\n",
    "edu.mod.c": "made by modpost\n",
    "edu.mod.o": "ELF",
    ".edu.mod.o.cmd": "cmd_/mnt/edu.mod.o := gcc-12 -c -o /mnt/edu.mod.o /mnt/edu.mod.c\n\n"
    "source_/mnt/edu.mod.o := /mnt/edu.mod.c\n",
    "edu.ko": "ELF",
    ".edu.ko.cmd": "cmd_/mnt/edu.ko := ld -r -o /mnt/edu.ko /mnt/edu.o /mnt/edu.mod.o;  true\n",
    ".module-common.o": "ELF",
    "..module-common.o.cmd": "savedcmd_/mnt/.module-common.o := gcc-12 -c\n\n"
    "source_/mnt/.module-common.o := /usr/src/linux-headers-6.12-common/scripts/module-common.c\n",
}


def write(tree: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tree


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = write(tmp_path / "tree", CLEAN)
    (tree / "configure").write_text("#!/bin/sh\n")
    (tree / "configure").chmod(0o755)
    (tree / "link").symlink_to("sub/edu.ko")
    return tree


def names(tree: Path, *patterns: str) -> set[str]:
    return {str(relative) for relative, _ in source_files(tree, NotSource(patterns))}


def test_the_digest_of_a_clean_tree_is_what_it_always_was(tree: Path) -> None:
    assert source_digest(tree) == PINNED


@pytest.mark.parametrize(
    "name", ["main.c~", "sub/.main.c.swp", "sub/.main.c.swo", "#main.c#", ".#main.c"]
)
def test_backups_of_editors_are_no_source(tree: Path, name: str) -> None:
    write(tree, {name: "half"})
    assert source_digest(tree) == PINNED


def test_emacs_locks_are_links_to_nowhere_and_no_source(tree: Path) -> None:
    (tree / ".#main.c").symlink_to("somebody@host.123:456")
    assert source_digest(tree) == PINNED


def test_what_kbuild_made_in_the_tree_is_no_source(tree: Path) -> None:
    write(tree, BUILT)
    assert source_digest(tree) == PINNED


def test_an_object_of_which_the_source_is_not_there_is_the_vendors(tree: Path) -> None:
    (tree / "main.c").unlink()
    write(tree, BUILT)
    kept = names(tree)
    assert {"main.o", ".main.o.cmd"} <= kept
    assert "edu.mod.c" not in kept


def test_a_linked_object_is_the_vendors_unless_its_parts_are_there(tree: Path) -> None:
    write(tree, BUILT)
    (tree / "blob.o").unlink()
    assert {"edu.o", ".edu.o.cmd"} <= names(tree)


@pytest.mark.parametrize(
    "text", ["", "\n", "true\n", "cmd_x.o\n", "savedcmd_/a/x.o :=\n", "\0" * 99]
)
def test_notes_that_are_not_kbuilds_say_nothing_of_a_blob(tree: Path, text: str) -> None:
    write(tree, {"x.o": "ELF", ".x.o.cmd": text})
    assert {"x.o", ".x.o.cmd"} <= names(tree)


@pytest.mark.parametrize("part", ["/etc/hostname", "../outside.c", "a" * 5000, "a\0b"])
def test_a_part_outside_of_the_tree_makes_nothing_a_product(tree: Path, part: str) -> None:
    write(tree.parent, {"outside.c": ""})
    notes = f"cmd_{tree}/x.o := gcc -c\n\nsource_{tree}/x.o := "
    write(tree, {"x.o": "ELF", ".x.o.cmd": f"{notes}{part.replace('..', str(tree.parent))}\n"})
    assert {"x.o", ".x.o.cmd"} <= names(tree)


def test_names_alone_make_nothing_a_product(tree: Path) -> None:
    write(tree, {"a.o": "", "a.mod.c": "", "b.ko": "", "deep/Module.symvers": "", ".c.o.cmd": "x"})
    assert {"a.o", "a.mod.c", "b.ko", "deep/Module.symvers", ".c.o.cmd"} <= names(tree)


@pytest.mark.parametrize(
    ("pattern", "gone"),
    [
        ("main.c", {"main.c"}),
        ("*.ko", {"sub/edu.ko"}),
        ("sub", {"sub/edu.ko", "sub/driver.yaml"}),
        ("sub/", {"sub/edu.ko", "sub/driver.yaml"}),
        ("./sub", {"sub/edu.ko", "sub/driver.yaml"}),
        ("sub/*.ko", {"sub/edu.ko"}),
        ("*/edu.ko", {"sub/edu.ko"}),
        ("./edu.ko", set()),
        ("tree/main.c", set()),
        ("MAIN.C", set()),
        ("[lm]*", {"link", "main.c", "modules.order"}),
        ("link", {"link"}),
        (".", set()),
    ],
)
def test_a_pattern_takes_names_at_every_depth_and_paths_from_the_top(
    tree: Path, pattern: str, gone: set[str]
) -> None:
    assert names(tree) - names(tree, pattern) == gone


def test_what_is_excluded_is_neither_in_the_digest_nor_in_the_copy(
    tree: Path, tmp_path: Path
) -> None:
    write(tree, {**BUILT, "notes/today.log": "x", f"dist/{TAG}.tar.gz": "x"})
    without = NotSource(("notes",))
    shared = SharedDir(tmp_path / "shared")
    shared.create()
    assert source_digest(tree, without) == PINNED
    provide_source(tree, shared, PINNED, without)
    provide_source(tree, shared, PINNED, without)  # the copy is taken for whole
    copied = {
        str(path.relative_to(shared.source_path(PINNED)))
        for path in shared.source_path(PINNED).rglob("*")
    }
    assert copied == {*CLEAN, "configure", "link", "sub"}


@pytest.mark.parametrize("pattern", ["*a" * 100 + "b", "[" * 200, "?*" * 100, "[!" + "a-z" * 80])
def test_no_pattern_takes_for_ever(tree: Path, pattern: str) -> None:
    write(tree, {"a" * 250: ""})
    assert "main.c" in names(tree, pattern)


@pytest.mark.parametrize(
    "name",
    [
        f"{TAG}.tar.gz",
        f"dist/{TAG}.tar.gz.sha256",
        f"cache/edu/{TAG}/manifest.json",
        "cache/edu/1.0-6.1.0-9-arm64-aarch64-0123456789ab/modules/edu.ko",
    ],
)
def test_bundles_that_lie_in_the_source_are_none_of_it(tree: Path, name: str) -> None:
    write(tree, {name: "x"})
    assert source_digest(tree) == PINNED


@pytest.mark.parametrize(
    "name", ["fw-rev2-0123456789ab", "x86_64-0123456789ab", "a-b-x86_64-012345"]
)
def test_other_names_with_a_hash_are_source(tree: Path, name: str) -> None:
    assert not STORE_TAG.fullmatch(name)
    write(tree, {f"{name}/edu.bin": "x"})
    assert source_digest(tree) != PINNED


@pytest.mark.parametrize("where", ["source/cache", "source", "source/straw/deep", "."])
def test_a_cache_inside_the_source_changes_no_key_and_its_bundle_is_found(
    tmp_path: Path, where: str
) -> None:
    node = FakeNode(tmp_path, spec={"source": {"path": "."}})
    write(node.image, {"source/straw/straw.c": "int x;\n"})
    before = node.task()
    cache = ("--cache", str(node.image / where))
    there = node.put_bundle(before, cache=Cache(node.image / where))
    assert there.directory.is_relative_to(node.image)
    assert node.task().key == before.key
    done = nodeside(*node.command("publish", *cache, "--to", node.image / "source" / "dist"))
    assert done.code == 0, done.errors
    assert node.task().key == before.key
    assert (node.image / "source/straw/straw.c").exists()


def test_a_cache_that_is_in_use_changes_no_key(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, spec={"source": {"path": "."}})
    node.cache = Cache(node.image)
    before = node.task()
    with node.cache.staging_directory() as staging:
        write(staging, {"bundle/straw.ko": "half"})
        write(node.image, {"straw/.lock": "", "straw/.damaged-x-1/manifest.json": ""})
        assert node.task().key == before.key


def test_a_shared_directory_inside_the_source_changes_no_key(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, spec={"source": {"path": "."}})
    before = node.task()
    node.shared = SharedDir(node.image / "shared")
    node.shared.create()
    write(node.shared.root, {"requests/x.json": "{}", "toolkit.pyz": "PK"})
    assert node.task().key == before.key


def test_what_driver_yaml_excludes_changes_no_key(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    before = node.task(source={"path": "source", "exclude": ["*.log", "doc/draft"]})
    write(node.image / "source", {"x.log": "x", "doc/draft/a": "x"})
    assert node.task().key == before.key
    write(node.image / "source", {"doc/b": "x"})
    assert node.task().key != before.key


@pytest.mark.slow
@pytest.mark.parametrize("link", ["none", "symbolic", "hard", "to it from outside"])
def test_the_key_that_signs_is_no_source_by_whatever_name(tmp_path: Path, link: str) -> None:
    """By default, `source.path` is the directory of driver.yaml, and so that of the key."""
    node = FakeNode(tmp_path)
    signing = {"key": "keys/signing.pem", "certificate": "cert.pem"}
    (node.image / "keys").mkdir()
    key, certificate = node.image / "keys/signing.pem", node.image / "cert.pem"
    make_certificate(key, certificate)
    without = source_digest(node.image, NotSource(ours=(key,)))
    if link == "symbolic":
        (node.image / "source/key").symlink_to("../keys/signing.pem")
    if link == "hard":
        (node.image / "source/key").hardlink_to(key)
    if link == "to it from outside":
        (tmp_path / "key").symlink_to(key)
        signing["key"] = str(tmp_path / "key")
    task = node.task(source={"path": "."}, signing=signing)
    shared = SharedDir(tmp_path / "shared")
    shared.create()

    provide_source(task.source, shared, task.source_digest, task.not_source)

    copied = sorted(path.name for path in shared.source_path(task.source_digest).rglob("*"))
    assert copied == ["Makefile", "cert.pem", "source"]
    assert task.source_digest == without


@pytest.mark.slow
def test_a_new_key_that_signs_makes_no_new_source(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    make_certificate(node.image / "key.pem", node.image / "cert.pem")
    signing = {"key": "key.pem", "certificate": "cert.pem"}
    before = node.task(source={"path": "."}, signing=signing)
    (node.image / "key.pem").unlink()

    assert node.task().source_digest == before.source_digest


def test_passwords_and_the_policy_of_a_cluster_are_no_source(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    node.write_driver(source={"path": "."})
    plain = resolve_task(node.config()).source_digest
    write(node.image, {"auth/config.json": '{"auths": {}}', "policy.json": "{}"})
    assert resolve_task(node.config()).source_digest != plain

    config = replace(
        node.config(),
        credentials_file=node.image / "auth/config.json",
        policy_file=node.image / "policy.json",
    )

    assert resolve_task(config).source_digest == plain


def test_a_file_that_is_missing_hides_no_dangling_link(tree: Path) -> None:
    (tree / "nowhere").symlink_to("missing")

    found = {str(name) for name, _ in source_files(tree, NotSource(ours=(tree / "missing",)))}

    assert "nowhere" in found


def make_certificate(key: Path, certificate: Path) -> None:
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")  # no primes to find
    words = ["openssl", "req", "-x509", *curve, "-nodes", "-subj", "/CN=x"]
    process.run([*words, "-keyout", str(key), "-out", str(certificate)], timeout=60)
