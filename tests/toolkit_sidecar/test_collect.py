"""Which of the files that a build left behind are taken, when there are several to choose from."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from nodeside.protocol.build_records import FailureKind
from nodeside.system import process
from nodeside.toolkit_sidecar.collect import collect_modules, find_modules
from nodeside.toolkit_sidecar.failure import BuildFailed
from nodeside.toolkit_sidecar.recipe import Product, Recipe
from tests.toolkit_sidecar.faketoolkit import LONG


def module(path: Path, name: str, *, mtime: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF\0name=%s\0" % name.encode())
    os.utime(path, (mtime, mtime))
    return path


def proceed() -> None:
    """Report neither a full disk nor a passed deadline."""


def announcing(tree: Path, *products: Product) -> Recipe:
    return Recipe((), products=products, directory=tree, strip=False)


def test_a_wanted_module_that_lies_twice_in_the_tree_is_taken_once(tmp_path: Path) -> None:
    tree = tmp_path / "build"
    module(tree / "main.ko", "main")
    newest = module(tree / "a/extra.ko", "extra", mtime=2)
    module(tree / "b/extra.ko", "extra")
    recipe = announcing(tree, Product(Path("main.ko"), "main", False))
    found = collect_modules(recipe, [tree], tmp_path, ("main", "extra"), proceed)
    assert [item.file for item in found.modules] == ["modules/main.ko", "modules/extra.ko"]
    assert f"the build produced extra.ko more than once; using {newest}" in found.notes


def test_a_wanted_module_that_is_announced_under_another_name_is_taken_once(
    tmp_path: Path,
) -> None:
    tree = tmp_path / "build"
    module(tree / "core.ko", "straw")
    module(tree / "old/straw.ko", "straw")
    recipe = announcing(tree, Product(Path("core.ko"), "straw", False))
    (found,) = collect_modules(recipe, [tree], tmp_path, ("straw",), proceed).modules
    assert (found.file, found.built_as) == ("modules/straw.ko", "core")


def test_two_modules_that_dkms_conf_gives_one_name_are_a_fault_of_the_source(
    tmp_path: Path,
) -> None:
    tree = tmp_path / "build"
    module(tree / "main.ko", "main")
    module(tree / "extra.ko", "extra")
    two = [Product(Path(f"{name}.ko"), "x", False) for name in ("main", "extra")]
    with pytest.raises(
        BuildFailed, match=r"gives two modules the name x: main.ko and extra.ko"
    ) as e:
        collect_modules(announcing(tree, *two), [tree], tmp_path, (), proceed)
    assert e.value.kind is FailureKind.BAD_SOURCE


def test_a_module_that_dkms_conf_announces_twice_is_taken_once(tmp_path: Path) -> None:
    tree = tmp_path / "build"
    module(tree / "main.ko", "main")
    product = Product(Path("main.ko"), "main", False)
    found = collect_modules(announcing(tree, product, product), [tree], tmp_path, (), proceed)
    assert [item.name for item in found.modules] == ["main"]


@pytest.mark.slow
def test_modules_are_found_in_a_tree_too_deep_for_recursion(tmp_path: Path) -> None:
    deep = tmp_path / "deep"
    code = "import os\nfor _ in range({}): os.mkdir('d'); os.chdir('d')\nopen('straw.ko', 'w')"
    module(deep / "b.ko", "b")
    module(deep / "e/a.ko", "a")
    try:
        process.run(["python3", "-c", code.format(1100)], cwd=deep, timeout=LONG)
        names = [path.name for path in find_modules([deep])]
        assert names == ["b.ko", "straw.ko", "a.ko"]
        process.run(["python3", "-c", code.format(4000)], cwd=deep / "e", timeout=LONG)
        assert [path.name for path in find_modules([deep])] == names, "its path is too long"
    finally:  # pytest itself cannot remove such a tree
        process.run(["rm", "-rf", deep], timeout=LONG)


def test_links_are_neither_followed_nor_taken(tmp_path: Path) -> None:
    tree, elsewhere = tmp_path / "tree", tmp_path / "elsewhere"
    real = module(elsewhere / "straw.ko", "straw")
    tree.mkdir()
    (tree / "hay.ko").symlink_to(real)
    (tree / "away").symlink_to(elsewhere)
    assert list(find_modules([tree])) == []
    assert list(find_modules([elsewhere])) == [real]


def test_a_file_full_of_names_has_none_and_takes_no_memory(tmp_path: Path) -> None:
    file = tmp_path / "build" / "straw.ko"
    file.parent.mkdir()
    file.write_bytes(b"".join(b"\0name=%060d\0" % number for number in range(200_000)))

    tracemalloc.start()
    (found,) = collect_modules(
        announcing(file.parent), [file.parent], tmp_path, (), proceed
    ).modules
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert found.name == "straw"
    assert peak < 8 << 20


def test_the_disk_and_the_deadline_are_checked_while_modules_are_copied(tmp_path: Path) -> None:
    tree = tmp_path / "build"
    for name in ("a", "b", "c"):
        os.truncate(module(tree / f"{name}.ko", name), 16 << 20)  # sparse, so it takes no space

    def end_at_8_mib() -> None:
        if sum(copy.stat().st_size for copy in (tmp_path / "modules").iterdir()) > 8 << 20:
            raise BuildFailed(FailureKind.DISK_FULL, "no space left")

    with pytest.raises(BuildFailed, match="no space left"):
        collect_modules(announcing(tree), [tree], tmp_path, (), end_at_8_mib)
    assert sum(copy.stat().st_size for copy in (tmp_path / "modules").iterdir()) < 16 << 20
