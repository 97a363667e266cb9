"""What is known of a source that has no driver.yaml, for trees as vendors have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nodeside.contract import BuildKind, BuildResult, BuildSettings, FailureKind
from nodeside.driver.handoff.request import ToolkitBuildFailed
from nodeside.driver.module.modulefile import ModuleFile
from nodeside.spec import load
from nodeside.spec.yamltext import write_yaml
from nodeside.trial.errors import TargetError
from nodeside.trial.target.dkms_tree import Evaluated
from nodeside.trial.target.draft import Draft, draft_of

Way = tuple[BuildKind, str, tuple[str, ...]]

MAKE: Way = (BuildKind.COMMAND, ".", ("make",))


def kbuild(directory: str = ".") -> Way:
    return (BuildKind.KBUILD, directory, ())


class Toolkit:
    """A builder in whose hands only some ways succeed; it remembers which were tried."""

    def __init__(
        self, *ways: Way, version: str = "2.1", names: tuple[str, ...] = ("chip",)
    ) -> None:
        self.ways, self.version, self.names = ways, version, names
        self.tried: list[Way] = []

    def __call__(self, tree: Path, settings: BuildSettings) -> tuple[ModuleFile, ...]:
        way = (settings.kind, settings.directory, settings.command)
        self.tried.append(way)
        if way not in self.ways:
            raise ToolkitBuildFailed(
                BuildResult(
                    "1-1", "boot", succeeded=False, failure=FailureKind.COMPILE, message=f"no {way}"
                )
            )
        return tuple(ModuleFile(tree, name, version=self.version) for name in self.names)


def evaluate_nothing(tree: Path) -> Evaluated:
    raise AssertionError(f"{tree} has no dkms.conf to evaluate")


@pytest.fixture
def draft(tmp_path: Path) -> Callable[..., Draft]:
    """The draft of a tree, for a builder and the name of its directory."""

    def made(toolkit: Toolkit, name: str = "board") -> Draft:
        return draft_of(tmp_path, name, evaluate_nothing, toolkit)

    return made


def put(root: Path, path: str, text: str = "") -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.mark.parametrize(
    "line",
    ["obj-m := chip.o", "obj-m += chip.o", "  obj-$(CONFIG_CHIP) = chip.o", "obj-${CHIP} += x.o"],
)
def test_a_makefile_that_lists_modules_is_a_kbuild_tree(
    tmp_path: Path, draft: Callable[..., Draft], line: str
) -> None:
    put(tmp_path, "Makefile", f"ifneq ($(KERNELRELEASE),)\n{line}\nendif\n")

    found = draft(Toolkit(kbuild()))

    assert (found.build.kind, found.modules) == (BuildKind.KBUILD, ("chip",))
    assert (found.name, found.version) == ("chip", "2.1")
    assert not found.guesses


def test_the_highest_directory_that_lists_modules_is_built(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "a/deep/down/Kbuild", "obj-m := other.o\n")
    put(tmp_path, "kernel/Makefile", "obj-m := chip.o\n")
    put(tmp_path, ".git/Makefile", "obj-m := none.o\n")

    found = draft(Toolkit(kbuild("kernel")))

    assert found.build.directory == "kernel"
    assert found.guesses == {"build": "the first directory with obj-m"}


def test_a_makefile_of_its_own_is_run_where_kbuild_alone_does_not_do(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "Makefile", "all:\n\t$(MAKE) -C src FLAGS=1\n")
    put(tmp_path, "src/Kbuild", "obj-m := chip.o\n")
    toolkit = Toolkit(MAKE)

    found = draft(toolkit)

    assert toolkit.tried == [kbuild("src"), MAKE]
    assert (found.build.kind, found.build.command) == (BuildKind.COMMAND, ("make",))
    assert "build" in found.guesses


def test_several_modules_have_the_name_of_their_directory(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "Kbuild", "obj-m := chip.o chip_net.o\n")
    toolkit = Toolkit(kbuild(), names=("chip", "chip_net"))

    assert draft(toolkit, "Big_Board").name == "big-board"
    assert draft(toolkit, "src").name == "chip"
    assert draft(toolkit, "src").guesses["name"] == "that of the first module"


def test_a_source_that_does_not_compile_has_the_modules_of_its_makefile(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "Makefile", "obj-m := chip-a.o \\\n\tchip_b.o\nobj-m += dir/ $(MORE).o\n")

    found = draft(Toolkit())

    assert found.modules == ("chip_a", "chip_b")
    assert found.problem.startswith("no ")
    assert found.version == "0.1.0"
    assert {"modules", "version"} <= set(found.guesses)


def test_a_source_that_does_not_compile_and_names_no_module_fails_as_its_build(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "Makefile", "obj-m := $(NAME).o\n")

    with pytest.raises(ToolkitBuildFailed, match="kbuild"):
        draft(Toolkit())


def test_a_directory_without_a_module_is_refused_before_anything_is_built(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "README", "obj-m := chip.o\n")
    put(tmp_path, "1/2/3/4/5/Makefile", "obj-m := too-deep.o\n")
    toolkit = Toolkit()

    with pytest.raises(TargetError, match="board has no kernel module to build"):
        draft(toolkit)

    assert not toolkit.tried


def test_a_link_in_the_place_of_a_makefile_is_not_followed(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path.parent, "elsewhere", "obj-m := secret.o\n")
    (tmp_path / "Kbuild").symlink_to("../elsewhere")

    with pytest.raises(TargetError, match="no kernel module"):
        draft(Toolkit())


@pytest.mark.parametrize("way", [kbuild("kernel"), MAKE])
def test_the_document_of_a_draft_is_a_driver(
    tmp_path: Path, draft: Callable[..., Draft], way: Way
) -> None:
    put(tmp_path, "Makefile")
    put(tmp_path, "kernel/Kbuild", "obj-m := chip.o\n")
    found = draft(Toolkit(way))
    document = tmp_path / "driver.yaml"
    document.write_text(write_yaml(found.document(".")))

    build = load(document).spec.build

    assert (build.kind, build.directory, build.command) == way
