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


def test_a_kernel_that_includes_the_driver_is_no_failure_to_compile(tmp_path: Path) -> None:
    put(tmp_path, "Makefile", "obj-m := chip.o\n")
    put(tmp_path, "chip.c", CHIP)
    lines = ("PACKAGE_NAME=chip", "PACKAGE_VERSION=1.0", "BUILT_MODULE_NAME=chip")
    put(
        tmp_path,
        "dkms.conf",
        "\n".join((*lines, "DEST_MODULE_LOCATION=/updates", "OBSOLETE_BY=5.4")),
    )

    done = init(at=tmp_path)

    assert done.exit_code == ExitCode.EXCLUDED, done.errors
    assert "OBSOLETE_BY is 5.4" in done.output


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
    assert "kbuild finds modules in linux/a_small (a_small), linux/main (main)" in error["message"]
    assert "nodeside init . --directory linux/main" in error["hint"]
    assert [path.name for path in tmp_path.iterdir()] == ["linux"]
    done = init("--directory", "linux/main", "--output", "json", at=tmp_path)
    assert done.exit_code == 0, done.errors
    said = json.loads(done.output)
    assert said["driver"] == "main"
    assert said["candidates"] == [
        {
            "directory": f"linux/{name}",
            "file": "Makefile",
            "modules": [name],
            "deviceTables": [],
        }
        for name in ("a_small", "main")
    ]
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


def test_a_dkms_conf_below_and_one_that_is_a_template(tmp_path: Path) -> None:
    conf = "PACKAGE_NAME=gadget\nPACKAGE_VERSION={}\nBUILT_MODULE_NAME=gadget\n"
    put(tmp_path, "src/Kbuild", "obj-$(if $(KBUILD_EXTMOD),m,$(CONFIG_GADGET)) := gadget.o\n")
    put(tmp_path, "src/gadget.c", TINY)
    more = "DEST_MODULE_LOCATION=/updates\nBUILD_DEPENDS=(spl)\n"
    put(tmp_path, "src/dkms.conf", conf.format("1.0") + more)

    done = init(".", at=tmp_path)

    assert done.exit_code == 0, done.errors
    build = load(tmp_path / "driver.yaml").spec.build
    assert (build.kind, build.directory) == (BuildKind.DKMS, "src")
    assert "  # after: [spl]\n" in (tmp_path / "driver.yaml").read_text()
    assert "spl, by BUILD_DEPENDS in its dkms.conf\n" in done.output
    assert "below spec: after: [spl]" in done.output
    assert "# dkms.conf has BUILD_DEPENDS on spl: if another Driver has its modules" in done.errors
    (tmp_path / "driver.yaml").unlink()
    put(tmp_path, "src/dkms.conf", conf.format("$(git describe)"))
    done = init(".", "--force", at=tmp_path)
    assert done.exit_code == 0, done.errors
    text = (tmp_path / "driver.yaml").read_text()
    assert "version: 0.1.0 # guess: src/dkms.conf is a template that the vendor's release" in text
    assert "its PACKAGE_VERSION is $(git describe)" in text
    assert "    kind: kbuild # guess: " in text
    done = init(".", "--force", "--version", "4.2", at=tmp_path)
    assert load(tmp_path / "driver.yaml").spec.version == "4.2"


def test_the_error_of_the_vendors_own_make_is_shown_first_and_all_others(tmp_path: Path) -> None:
    put(tmp_path, "drv/foo_main.c", '#include "generated.h"\nMODULE_LICENSE("GPL");\n')
    put(
        tmp_path,
        "drv/Makefile",
        """\
obj-m += foo.o
foo-y := foo_main.o
all: generated.h ../common/shared.c
\t$(MAKE) -C /lib/modules/$(shell uname -r)/build M=$(CURDIR) modules
generated.h:
\techo '#define X 1' > $@
""",
    )

    done = init("drv", "--output", "json", at=tmp_path)

    assert done.exit_code == ExitCode.BUILD_FAILED, done.errors
    said = json.loads(done.output)
    assert "No rule to make target '../common/shared.c'" in said["problem"]
    assert [each["way"] for each in said["failures"]] == ["make", "kbuild in ."]
    assert "generated.h: No such file" in said["failures"][1]["error"]
    assert load(tmp_path / "drv" / "driver.yaml").spec.build.command == ("make",)


def test_what_the_user_says_of_a_build_is_kept_with_what_it_finds(tmp_path: Path) -> None:
    recipe = "$(MAKE) -C /lib/modules/$(shell uname -r)/build M=$(CURDIR) modules"
    flags = "KCPPFLAGS='-DGREETING=$(GREETING)'"
    put(tmp_path, "Makefile", f"obj-m += chip.o\nhelp:\n\t@echo\nboard:\n\t{recipe} {flags}\n")
    put(tmp_path, "chip.c", CHIP)
    put(
        tmp_path,
        "driver.yaml",
        "spec: {build: {kind: command, command: [make, board], environment: {GREETING: '4'}}}\n",
    )

    done = init(".", "--force", at=tmp_path)

    assert done.exit_code == 0, done.errors
    spec = load(tmp_path / "driver.yaml").spec
    assert (spec.build.command, dict(spec.build.environment)) == (
        ("make", "board"),
        {"GREETING": "4"},
    )
    assert (spec.version, [module.name for module in spec.modules]) == ("3.2", ["chip"])
    assert spec.hardware.pci == (PciId(vendor="1d0f", device="f000"),)
    done = init(".", "--force", "--command", "GREETING=5 make -e board; true", at=tmp_path)
    assert done.exit_code == 0, done.errors
    assert load(tmp_path / "driver.yaml").spec.build.command[:2] == ("sh", "-c")


def test_all_is_made_where_the_first_target_builds_nothing(tmp_path: Path) -> None:
    recipe = "$(MAKE) -C /lib/modules/$(shell uname -r)/build M=$(CURDIR) modules"
    put(
        tmp_path,
        "Makefile",
        f"obj-m += chip.o\nhelp:\n\t@echo all\nall:\n\t{recipe} KCPPFLAGS=-DGREETING=1\n",
    )
    put(tmp_path, "chip.c", CHIP)

    done = init(".", at=tmp_path)

    assert done.exit_code == 0, done.errors
    assert load(tmp_path / "driver.yaml").spec.build.command == ("make", "all")
    assert "also tried" in done.output
