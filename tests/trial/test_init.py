"""`nodeside init` from the command line, with sources as vendors have them and the real toolkit."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from nodeside.errors import ExitCode
from nodeside.protocol.bundle_key import BuildKind
from nodeside.spec import load
from nodeside.spec.pci import PciId
from nodeside.system import process
from nodeside.system.process import Completed
from nodeside.trial.scaffold import FILES
from tests.patience import patience

pytestmark = pytest.mark.toolkit

SECONDS = patience(1800.0)
EDU = Path(__file__).parents[2] / "examples" / "edu" / "src"
SOMEBODY = 12345

CHIP = """\
#include <linux/module.h>
#include <linux/pci.h>

static int debug = GREETING;
module_param(debug, int, 0444);
MODULE_PARM_DESC(debug, "how much it says");
static const struct pci_device_id ids[] = { { PCI_DEVICE(0x1d0f, 0xf000) }, {} };
MODULE_DEVICE_TABLE(pci, ids);
MODULE_FIRMWARE("chip/a.bin");
static int __init chip_init(void) { return 0; }
static void __exit chip_exit(void) {}
module_init(chip_init);
module_exit(chip_exit);
MODULE_VERSION("3.2");
MODULE_LICENSE("GPL");
"""
TINY = """\
#include <linux/module.h>
static int __init start(void) { return 0; }
static void __exit stop(void) {}
module_init(start);
module_exit(stop);
MODULE_LICENSE("GPL");
"""


def init(*words: str, at: Path) -> Completed:
    code = "from nodeside.__main__ import main; main()"
    argv = [sys.executable, "-P", "-c", code, "init", *words]
    env = {"PYTHONPATH": str(Path(__file__).parents[2])}
    return process.run(argv, timeout=SECONDS, check=False, cwd=at, env=env)


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_a_source_with_a_makefile_of_its_own(tmp_path: Path) -> None:
    """kbuild alone cannot build it: the flags are in the Makefile above."""
    tree = tmp_path / "board"
    put(tree, "Makefile", 'all:\n\t$(MAKE) -C src FLAGS="-DGREETING=42"\n')
    put(tree, "src/Kbuild", "obj-m := chip.o\nccflags-y := $(FLAGS)\n")
    put(
        tree,
        "src/Makefile",
        "all:\n\t$(MAKE) -C /lib/modules/$(shell uname -r)/build M=$(CURDIR) modules\n",
    )
    put(tree, "src/chip.c", CHIP)
    os.chown(tree, SOMEBODY, SOMEBODY)

    done = init("board", "--output", "json", at=tmp_path)

    assert done.exit_code == 0, done.errors
    said = json.loads(done.output)
    assert (said["driver"], said["version"], said["modules"]) == ("chip", "3.2", ["chip"])
    assert list(said["guesses"]) == ["build"]
    driver = load(tree / "driver.yaml")
    assert (driver.spec.build.kind, driver.spec.build.command) == (BuildKind.COMMAND, ("make",))
    assert driver.spec.hardware.pci == (PciId(vendor="1d0f", device="f000"),)
    text = (tree / "driver.yaml").read_text()
    assert '#   debug: "" # int: how much it says' in text
    assert "chip/a.bin" in text
    assert {(tree / name).stat().st_uid for name in FILES} == {SOMEBODY}
    assert not list(tree.rglob("*.ko")), "the source itself is not built in"


def test_nothing_is_written_over_unless_it_is_wished(tmp_path: Path) -> None:
    tree = tmp_path / "edu"
    shutil.copytree(EDU, tree)
    (tree / "driver.yaml").write_text("mine\n")

    refused = init("edu", at=tmp_path)
    assert refused.exit_code == ExitCode.USAGE
    assert "edu has driver.yaml already, and nothing was written" in refused.errors
    assert (tree / "driver.yaml").read_text() == "mine\n"
    assert not (tree / "Containerfile").exists()

    done = init("--force", at=tree)
    assert done.exit_code == 0, done.errors
    assert "nodeside try ." in done.output
    assert load(tree / "driver.yaml").spec.build.kind is BuildKind.DKMS


def test_a_source_that_does_not_compile_says_so_and_is_not_lost(tmp_path: Path) -> None:
    put(tmp_path, "Makefile", "obj-m := chip.o\n")
    put(tmp_path, "chip.c", CHIP)

    done = init(at=tmp_path)

    assert done.exit_code == ExitCode.BUILD_FAILED, done.errors
    assert "GREETING" in done.output
    assert [module.name for module in load(tmp_path / "driver.yaml").spec.modules] == ["chip"]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    put(tmp_path, "Makefile", "obj-m := $(NAME).o\n")

    done = init(at=tmp_path)

    assert done.exit_code == ExitCode.BUILD_FAILED
    assert [path.name for path in tmp_path.iterdir()] == ["Makefile"]


def test_of_two_drivers_the_user_says_which(tmp_path: Path) -> None:
    for name in ("a_small", "main"):
        put(tmp_path, f"linux/{name}/Makefile", f"obj-m += {name}.o\n")
        put(tmp_path, f"linux/{name}/{name}.c", TINY)

    refused = init("--output", "json", at=tmp_path)

    assert refused.exit_code == ExitCode.USAGE
    error = json.loads(refused.output)["error"]
    assert "kbuild finds modules in linux/a_small, linux/main" in error["message"]
    assert "nodeside init . --directory linux/main" in error["hint"]
    assert [path.name for path in tmp_path.iterdir()] == ["linux"]
    done = init("--directory", "linux/main", "--output", "json", at=tmp_path)
    assert done.exit_code == 0, done.errors
    said = json.loads(done.output)
    assert (said["driver"], said["candidates"]) == ("main", ["linux/a_small", "linux/main"])
    assert load(tmp_path / "driver.yaml").spec.build.directory == "linux/main"


def test_what_a_configure_makes_is_the_driver_and_not_what_it_tests(tmp_path: Path) -> None:
    put(tmp_path, "configure", "#!/bin/sh\nsed s/@NAME@/thing/ kmod/Makefile.in >kmod/Makefile\n")
    (tmp_path / "configure").chmod(0o755)
    put(tmp_path, "kmod/Makefile.in", "obj-m += @NAME@.o\n@NAME@-y := main.o\n")
    put(tmp_path, "kmod/main.c", TINY)
    put(tmp_path, "kmod/configure/Makefile", "obj-m += probe.o\n")

    done = init(at=tmp_path)

    assert done.exit_code == 0, done.errors
    assert "a configure makes the Makefile of kmod" in done.output
    assert [module.name for module in load(tmp_path / "driver.yaml").spec.modules] == ["thing"]


def test_a_list_that_is_included_names_the_driver(tmp_path: Path) -> None:
    put(tmp_path, "kmod/Kbuild", "include $(src)/list.mk\n")
    put(tmp_path, "kmod/list.mk", "obj-m += widget.o helper/\n")
    put(tmp_path, "kmod/helper/Kbuild", "obj-m += shim.o\n")
    for name in ("widget", "helper/shim"):
        put(tmp_path, f"kmod/{name}.c", TINY)

    done = init("kmod", at=tmp_path)

    assert done.exit_code == 0, done.errors
    driver = load(tmp_path / "kmod" / "driver.yaml")
    assert driver.name == "widget"
    assert [module.name for module in driver.spec.modules] == ["widget", "shim"]
