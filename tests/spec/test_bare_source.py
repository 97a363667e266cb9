"""The driver of a source that has no driver.yaml, from what its files say without being run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeside.errors import SpecError
from nodeside.protocol.bundle_key import BuildKind
from nodeside.protocol.labels import make_dns_label
from nodeside.spec.bare_source import bare_driver, plain_version


def conf(directory: Path, text: str) -> Path:
    (directory / "dkms.conf").write_text(text)
    return directory


def modules(directory: Path) -> list[str]:
    driver = bare_driver(directory)
    assert driver is not None
    return [module.name for module in driver.spec.modules]


def test_a_dkms_tree_says_everything(tmp_path: Path) -> None:
    driver = bare_driver(
        conf(
            tmp_path,
            """\
# PACKAGE_NAME="old"
PACKAGE_VERSION=1.2.0-1   # of upstream
PACKAGE_NAME="Big_Board"
MAKE[0]="make PACKAGE_NAME=$PACKAGE_NAME -C $kernel_source_dir M=$dkms_tree/build"
if [ -f $kernel_source_dir/.config ]; then . $kernel_source_dir/.config; fi
BUILT_MODULE_NAME[0]="$PACKAGE_NAME"
BUILT_MODULE_NAME[1]='board-net'
BUILT_MODULE_NAME[2]=${PACKAGE_NAME}_usb
DEST_MODULE_NAME[0]="renamed"
DEST_MODULE_LOCATION[0]="/extra"
""",
        )
    )

    assert driver is not None
    assert (driver.name, driver.spec.version) == ("big-board", "1.2.0-1")
    assert driver.spec.build.kind is BuildKind.DKMS
    assert driver.spec.source.path == "."
    assert modules(tmp_path) == ["Big_Board", "board-net", "Big_Board_usb"]


def test_a_module_without_a_name_has_that_of_its_package(tmp_path: Path) -> None:
    assert modules(conf(tmp_path, "PACKAGE_NAME=chip\nPACKAGE_VERSION=1\n")) == ["chip"]


@pytest.mark.parametrize(
    "line",
    [
        "BUILT_MODULE_NAME[$i]=chip",
        '  BUILT_MODULE_NAME[0]="chip"',
        '[ -f x ] && BUILT_MODULE_NAME[0]="chip"',
        "BUILT_MODULE_NAME[0]=$(ls)",
        'BUILT_MODULE_NAME[0]="`ls`"',
        "BUILT_MODULE_NAME[0]=$NAME",
        "BUILT_MODULE_NAME+=(chip)",
        "BUILT_MODULE_NAME=(chip net)",
        "BUILT_MODULE_NAME[0]=chip\nBUILT_MODULE_NAME[0]=other",
        "BUILT_MODULE_NAME[0]=chip; BUILT_MODULE_NAME[1]=net",
        "if grep -q NET $kernel_source_dir/.config; then\nBUILT_MODULE_NAME[0]=net\nfi",
        "names() {\nBUILT_MODULE_NAME[0]=net\n}",
        'CLEAN="make clean"; BUILT_MODULE_NAME[0]="chip"',
        '[ "$a" != " #" ] && BUILT_MODULE_NAME[0]="chip"',
        f'BUILT_MODULE_NAME[0]="{"$PACKAGE_NAME" * 1000}"',
        f"BUILT_MODULE_NAME[0]={'x' * 200}",
    ],
)
def test_what_a_dkms_conf_computes_is_not_guessed(tmp_path: Path, line: str) -> None:
    tree = conf(tmp_path, f"PACKAGE_NAME=board\nPACKAGE_VERSION=1\n{line}\n")

    with pytest.raises(SpecError, match=r"dkms\.conf computes BUILT_MODULE_NAME") as caught:
        bare_driver(tree)

    assert caught.value.hint.startswith(f"nodeside init {tmp_path} ")


def test_blocks_that_name_no_module_are_passed_over(tmp_path: Path) -> None:
    tree = conf(
        tmp_path,
        """\
PACKAGE_NAME=chip
PACKAGE_VERSION=1
if ! grep -q X .config; then BUILD_EXCLUSIVE_KERNEL=none; fi
for each in a b; do
    case $each in a) echo a ;; esac
done
BUILT_MODULE_NAME[0]=chip
""",
    )
    assert modules(tree) == ["chip"]


def test_a_dkms_conf_without_a_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is no file that sets PACKAGE_NAME and PACKAGE_VERSION"):
        bare_driver(conf(tmp_path, "PACKAGE_NAME=chip\n"))


@pytest.mark.parametrize("name", ["Kbuild", "Makefile"])
def test_a_kbuild_tree_has_the_modules_that_it_lists(tmp_path: Path, name: str) -> None:
    tree = tmp_path / "board"
    tree.mkdir()
    (tree / name).write_text(
        "obj-m := old.o\nifneq ($(KERNELRELEASE),)\n"
        "obj-m := net.o \\\n\tchip-core.o # old.o was here\nobj-m += usb.o\nendif\n"
    )

    driver = bare_driver(tree)

    assert driver is not None
    assert (driver.name, driver.spec.version) == ("board", "0.1.0")
    assert driver.spec.build.kind is BuildKind.KBUILD
    assert modules(tree) == ["chip_core", "net", "usb"]


@pytest.mark.parametrize(
    "text",
    [
        "obj-m := $(NAME).o",
        "obj-m := core.o $(MODULES)",
        "obj-$(CONFIG_CHIP) += chip.o",
        "obj-m := sub/",
        "obj-m := sub/chip.o",
        "ifeq ($(CHIP),y)\nobj-m := a.o\nelse\nobj-m := b.o\nendif",
        "ifneq ($(KERNELRELEASE),)\nelse ifeq ($(CHIP),y)\nobj-m := a.o\nendif",
        "ifeq ($(findstring rt,$(KERNELRELEASE)),rt)\nobj-m := a.o\nendif",
        "ifeq ($(KERNELRELEASE),6.1.0)\nobj-m := a.o\nendif",
        "obj-m := chip.o\nobj-m :=",
    ],
)
def test_a_list_that_is_not_the_same_for_every_kernel_is_not_guessed(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "Makefile").write_text(f"{text}\n")

    with pytest.raises(SpecError, match=r"and Makefile \w+") as caught:
        bare_driver(tmp_path)

    assert caught.value.hint.startswith(f"nodeside init {tmp_path} ")


@pytest.mark.parametrize(
    "condition",
    ["ifneq ($(KERNELRELEASE),)", "ifneq  ( ${KERNELRELEASE} , ) # kbuild", "ifdef KERNELRELEASE"],
)
def test_a_makefile_for_kbuild_and_for_a_make_by_hand_is_plain(
    tmp_path: Path, condition: str
) -> None:
    other = "ifeq ($(V),1)\nQ :=\nelse ifeq ($(V),2)\nQ := @\nendif"
    text = f"{other}\n{condition}\nobj-m := a.o\nelse\nall:\n\tmake\nendif\n{other}\n"
    (tmp_path / "Makefile").write_text(text)

    assert modules(tmp_path) == ["a"]


def test_kbuild_reads_the_kbuild_and_no_makefile_beside_it(tmp_path: Path) -> None:
    (tmp_path / "Kbuild").write_text("obj-m := new.o\n")
    (tmp_path / "Makefile").write_text("obj-m := old.o\n")

    assert modules(tmp_path) == ["new"]


def test_anything_else_is_no_source(tmp_path: Path) -> None:
    assert bare_driver(tmp_path) is None
    (tmp_path / "Makefile").write_text("all:\n\tcc chip.c\n")
    assert bare_driver(tmp_path) is None
    assert bare_driver(tmp_path / "none") is None


def test_files_that_are_no_files_are_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "Makefile").symlink_to("/dev/zero")
    assert bare_driver(tmp_path) is None

    os.mkfifo(tmp_path / "dkms.conf")
    with pytest.raises(SpecError, match=r"dkms\.conf is no file"):
        bare_driver(tmp_path)


@pytest.mark.parametrize("line", ["PACKAGE_NAME[ ", '"', "if ", "; ", ") ", "PACKAGE_NAME=x "])
def test_a_long_line_is_read_in_a_moment(tmp_path: Path, line: str) -> None:
    (tmp_path / "dkms.conf").write_text(line * (60_000 // len(line)))

    with pytest.raises(SpecError):
        bare_driver(tmp_path)


@pytest.mark.parametrize(
    ("package", "name"),
    [("vpoll", "vpoll"), ("acpi_call", "acpi-call"), ("DM-Writeboost++", "dm-writeboost")],
)
def test_package_names_become_dns_labels(package: str, name: str) -> None:
    assert make_dns_label(package) == name


@pytest.mark.parametrize(
    ("version", "plain"),
    [
        ("1.2.3", "1.2.3"),
        ("1:2.0/3", "1.2.0.3"),
        ("~rc", "0~rc"),
        ("v" * 60, "v" * 40),
        ("2.0\t", "2.0"),
    ],
)
def test_package_versions_become_versions_of_a_driver(version: str, plain: str) -> None:
    assert plain_version(version) == plain


def test_a_list_that_is_in_another_file_too_is_not_taken_for_whole(tmp_path: Path) -> None:
    (tmp_path / "Kbuild").write_text("obj-m := chip.o\ninclude $(src)/more.mk\n")
    (tmp_path / "more.mk").write_text("include more.mk\nCFLAGS_chip.o := -DX\n")
    driver = bare_driver(tmp_path)
    assert driver is not None
    assert [module.name for module in driver.spec.modules] == ["chip"]

    (tmp_path / "more.mk").write_text("obj-m += chip_net.o\n")
    with pytest.raises(SpecError, match="Kbuild includes another file, which lists modules too"):
        bare_driver(tmp_path)


def test_no_file_outside_of_a_source_is_read_for_its_list(tmp_path: Path) -> None:
    (tmp_path / "outside.mk").write_text("obj-m += secret.o\n")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "up").symlink_to(tmp_path)
    for name in ("../outside.mk", "up/outside.mk", f"{tmp_path}/outside.mk"):
        (tmp_path / "source" / "Makefile").write_text(f"include {name}\n")
        assert bare_driver(tmp_path / "source") is None


def test_a_circle_of_links_is_no_list(tmp_path: Path) -> None:
    (tmp_path / "loop.mk").symlink_to("loop.mk")
    for name in ("Makefile", "Kbuild"):
        (tmp_path / name).write_text("include loop.mk loop.mk/more.mk\n")
        assert bare_driver(tmp_path) is None

    (tmp_path / "Kbuild").write_text("include loop.mk\nobj-m := chip.o\n")
    assert modules(tmp_path) == ["chip"]
