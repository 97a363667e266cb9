"""What a Kbuild or Makefile lists for kbuild, as vendors write them, and worse."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from nodeside.errors import SpecError
from nodeside.spec.bare_source import bare_driver
from nodeside.spec.kbuild_list import KbuildList, has_rules, read_kbuild_list
from tests.tries import sampled


def listed(directory: Path, text: str, name: str = "Kbuild") -> KbuildList:
    (directory / name).write_text(text)
    return read_kbuild_list(directory)


@pytest.mark.parametrize(
    "text",
    [
        "obj-m := gadget.o\n",
        "obj-$(CONFIG_GADGET) += gadget.o\n",
        "obj-$(if $(KBUILD_EXTMOD),m,$(CONFIG_GADGET)) := gadget.o\n",
        "obj-$(or $(X),$(if $(Y),m)) := gadget.o # here\n",
        "NAME := gadget\nobj-m := $(NAME).o\n",
        "export OBJ = gadget.o\nobj-m += ${OBJ}\n",
    ],
)
def test_a_list_is_seen_however_its_condition_is_written(tmp_path: Path, text: str) -> None:
    found = listed(tmp_path, text)

    assert found
    assert (found.modules, found.computed) == (("gadget",), "")


@pytest.mark.parametrize(
    "text",
    [
        "obj-m := $(NAME).o\n",
        "NAME := a\nNAME := b\nobj-m := $(NAME).o\n",
        "NAME := a\nNAME += b\nobj-m := $(NAME).o\n",
        "NAME := $(shell ls)\nobj-m := $(NAME).o\n",
    ],
)
def test_a_name_that_only_make_knows_is_not_guessed(tmp_path: Path, text: str) -> None:
    found = listed(tmp_path, text)

    assert found
    assert found.modules == ()


@pytest.mark.parametrize("text", ["obj-y := a/ b/\n", "obj-y += a/\nsubdir-m := b\n"])
def test_directories_of_a_list_are_built_with_it(tmp_path: Path, text: str) -> None:
    found = listed(tmp_path, text)

    assert found
    assert found.directories == ("a", "b")


def test_what_is_built_into_a_kernel_is_no_module(tmp_path: Path) -> None:
    assert not listed(tmp_path, "obj-y := core.o\nsubdir-y :=\n")


@pytest.mark.parametrize(
    "text",
    [
        "include $(src)/$(LIST)\n",
        "include $(src)/made-by-configure.mk\n",
        "$(eval $(call driver,obj-m,chip))\n",
    ],
)
def test_a_kbuild_whose_list_is_not_to_be_seen_computes_it(tmp_path: Path, text: str) -> None:
    assert listed(tmp_path, text).computed == "Kbuild"
    (tmp_path / "Kbuild").unlink()
    assert not listed(tmp_path, text.replace("$(src)/", ""), "Makefile")
    assert listed(tmp_path, f"ifneq ($(KERNELRELEASE),)\n{text}endif\n", "Makefile").computed


@pytest.mark.slow
def test_a_makefile_of_conditions_is_read_in_a_moment(tmp_path: Path) -> None:
    """Each line of a list was judged by every open condition: 246 KiB took 39 s."""
    (tmp_path / "Makefile").write_text("ifdef KERNELRELEASE\n" * 9_000 + "obj-m+=a.o\n" * 18_000)

    driver = bare_driver(tmp_path)

    assert driver is not None
    assert [module.name for module in driver.spec.modules] == ["a"]


@pytest.mark.parametrize(
    "line",
    sampled(
        [
            "obj-$(",
            "obj-m:=$(A)",
            "include a ",
            "include $(src)/",
            "A=a\n",
            "\\\n",
            "obj-m := a/a/",
            "a:",
        ],
        8,
    ),
)
def test_a_long_makefile_is_read_in_a_moment(tmp_path: Path, line: str) -> None:
    text = line * ((1 << 18) // len(line))

    listed(tmp_path, text)
    has_rules(tmp_path, ("Kbuild",))
    listed(tmp_path, f"ifdef X\n{text}")
    with suppress(SpecError):
        bare_driver(tmp_path)
