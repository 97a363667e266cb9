"""Sources that are configured first, built as docs/configured-sources.md says, and as init does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from nodeside.driver.handoff.source import build_settings
from nodeside.spec.document import read_text
from nodeside.spec.model import Driver
from nodeside.trial.debian.kernels import AvailableKernel
from nodeside.trial.progress import Progress
from nodeside.trial.target.draft import draft_of
from nodeside.trial.workshop import Workshop

pytestmark = pytest.mark.toolkit

PAGE = (Path(__file__).parents[2] / "docs" / "configured-sources.md").read_text()
BOARD = """\
#include <linux/module.h>
#include "version.h"
static int __init start(void) { return 0; }
static void __exit stop(void) {}
module_init(start);
module_exit(stop);
MODULE_VERSION(BOARD_VERSION);
MODULE_LICENSE("GPL");
"""
TREES = {
    "board-configure": {
        "configure": """\
#!/bin/sh
# --with-kernel=DIR  the kernel's headers
for word; do case $word in --with-kernel=*) kernel=${word#*=} ;; esac; done
[ -f "$kernel/Makefile" ] || { echo "configure: error: no headers in $kernel" >&2; exit 1; }
sed "s|@KERNEL@|$kernel|" Makefile.in >Makefile
sed "s|@NAME@|board|" kmod/Kbuild.in >kmod/Kbuild
echo '#define BOARD_VERSION "3.1"' >kmod/version.h
""",
        "Makefile.in": "all:\n\t$(MAKE) -C @KERNEL@ M=$(CURDIR)/kmod modules\n",
        "kmod/Kbuild.in": "obj-m := @NAME@.o\n",
        "kmod/board.c": BOARD,
    },
    "board-cmake": {
        "CMakeLists.txt": """\
cmake_minimum_required(VERSION 3.18)
project(board NONE)
set(BOARD_VERSION "3.1")
set(KERNEL_DIR "" CACHE PATH "the kernel's headers")
if(NOT KERNEL_DIR)
  execute_process(COMMAND uname -r OUTPUT_VARIABLE kernel OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(KERNEL_DIR /lib/modules/${kernel}/build)
endif()
configure_file(src/version.h.in ${CMAKE_SOURCE_DIR}/src/version.h)
add_custom_target(module ALL COMMAND make -C ${KERNEL_DIR} M=${CMAKE_SOURCE_DIR}/src modules)
""",
        "src/version.h.in": '#define BOARD_VERSION "@BOARD_VERSION@"\n',
        "src/Kbuild": "obj-m := board.o\n",
        "src/board.c": BOARD,
    },
    "board-version": {
        "Makefile": "obj-m := board.o\n\nversion.h:\n\tsh version.sh >$@\n",
        "version.sh": 'echo "#define BOARD_VERSION \\"${BOARD_VERSION:-$(git describe)}\\""\n',
        "board.c": BOARD,
    },
}


def drivers() -> list[Driver]:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    return [read_text(block) for block in blocks]


def make_tree(directory: Path, name: str) -> Path:
    for path, text in TREES[name].items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)
        (directory / path).chmod(0o755 if path == "configure" else 0o644)
    return directory


@pytest.fixture(scope="module")
def workshop() -> Iterator[Workshop]:
    with Workshop(Progress(quiet=True), toolkit_packages=["cmake"]) as made:
        yield made


@pytest.fixture(scope="module")
def kernel(workshop: Workshop) -> AvailableKernel:
    return workshop.resolve("cloud-amd64")


@pytest.mark.parametrize("driver", drivers(), ids=lambda driver: driver.name)
def test_each_driver_of_the_page_builds(
    tmp_path: Path, workshop: Workshop, kernel: AvailableKernel, driver: Driver
) -> None:
    tree = make_tree(tmp_path / "source", driver.name)

    (module,) = workshop.build(kernel, tree, build_settings(driver.spec, tree))

    assert [module.name] == [each.name for each in driver.spec.modules]
    assert module.version == driver.spec.version


@pytest.mark.parametrize("name", ["board-configure", "board-cmake"])
def test_init_finds_the_steps(
    tmp_path: Path, workshop: Workshop, kernel: AvailableKernel, name: str
) -> None:
    tree = make_tree(tmp_path / "source", name)
    build, evaluate = partial(workshop.build, kernel), partial(workshop.evaluate, kernel)

    draft = draft_of(tree, tree, evaluate, build)

    assert (draft.modules, draft.version) == (("board",), "3.1")
    assert "configured first" in draft.guesses["build"]


def test_the_page_has_one_driver_for_each_tree() -> None:
    assert [driver.name for driver in drivers()] == [*TREES]
