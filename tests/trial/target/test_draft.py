"""What is known of a source that has no driver.yaml, for trees as vendors have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from nodeside.driver.handoff.request import ToolkitBuildFailed
from nodeside.driver.module.modulefile import ModuleFile
from nodeside.errors import ExitCode, UsageError
from nodeside.protocol.build_records import BuildResult, FailureKind
from nodeside.protocol.bundle_key import BuildKind, BuildSettings
from nodeside.spec import load
from nodeside.spec.yamltext import write_yaml
from nodeside.toolkit_sidecar.dkms_conf import Values
from nodeside.trial import scaffold
from nodeside.trial.errors import TargetError
from nodeside.trial.init import needs_in_words
from nodeside.trial.target import candidates
from nodeside.trial.target.candidates import Candidate, choose_likeliest
from nodeside.trial.target.dkms_tree import EvaluatedConf
from nodeside.trial.target.draft import Draft, draft_of
from nodeside.trial.target.plan import Need, Wishes

Way = tuple[BuildKind, str, tuple[str, ...]]

MAKE: Way = (BuildKind.COMMAND, ".", ("make",))


def kbuild(directory: str = ".") -> Way:
    return (BuildKind.KBUILD, directory, ())


def make(*words: str, at: str = ".") -> Way:
    return (BuildKind.COMMAND, at, ("make", *words))


def dkms(directory: str = ".") -> Way:
    return (BuildKind.DKMS, directory, ())


class Toolkit:
    """A builder in whose hands only some ways succeed; it remembers which were tried.

    Of those that do not, some end well and build `nothing`, and some have a first error.
    """

    def __init__(
        self,
        *ways: Way,
        version: str = "2.1",
        vermagic: str = "",
        names: tuple[str, ...] = ("chip",),
        nothing: tuple[Way, ...] = (),
        errors: Mapping[Way, str] | None = None,
        failure: FailureKind = FailureKind.COMPILE,
    ) -> None:
        self.ways, self.version, self.names = ways, version, names
        self.vermagic = vermagic
        self.nothing, self.errors, self.failure = nothing, errors or {}, failure
        self.tried: list[Way] = []

    def __call__(self, tree: Path, settings: BuildSettings) -> tuple[ModuleFile, ...]:
        way = (settings.kind, settings.directory, settings.command)
        self.tried.append(way)
        if way not in self.ways:
            raise ToolkitBuildFailed(
                BuildResult(
                    "1-1",
                    "boot",
                    succeeded=False,
                    failure=FailureKind.NO_MODULE if way in self.nothing else self.failure,
                    message=f"no {way}",
                    hint=f"hint of {settings.kind.value}",
                    first_error=self.errors.get(way, ""),
                )
            )
        version, vermagic = self.version, self.vermagic
        return tuple(ModuleFile(tree, n, version=version, vermagic=vermagic) for n in self.names)


class Said(EvaluatedConf):
    """The values of a dkms.conf, literally."""

    def __init__(self, **values: str) -> None:
        self.values = Values({name: {0: value} for name, value in values.items()})

    def modules(self) -> tuple[str, ...]:
        return (self.values.first("BUILT_MODULE_NAME"),)


def evaluate_literally(tree: Path) -> EvaluatedConf:
    lines = (tree / "dkms.conf").read_text().splitlines()
    return Said(**dict(line.split("=", 1) for line in lines))


def evaluate_nothing(tree: Path) -> EvaluatedConf:
    raise AssertionError(f"{tree} has no dkms.conf to evaluate")


@pytest.fixture
def draft(tmp_path: Path) -> Callable[..., Draft]:
    """The draft of a tree, for a builder and the name of its directory."""

    def made(toolkit: Toolkit, name: str = "board", **wishes: Any) -> Draft:
        has_conf = any(tmp_path.rglob("dkms.conf"))
        evaluate = evaluate_literally if has_conf else evaluate_nothing
        return draft_of(tmp_path, Path(name), evaluate, toolkit, Wishes(**wishes))

    return made


def directories(found: Draft) -> list[str]:
    return [each.directory for each in found.candidates]


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
    why = "the highest of those with obj-m: kernel, a/deep/down"
    assert found.guesses == {"build": why}
    assert directories(found) == ["kernel", "a/deep/down"]


TABLE = "MODULE_DEVICE_TABLE(pci, ids);\n"


def test_a_list_in_an_included_file_is_the_list(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "kmod/Kbuild", "include $(src)/list.mk\n")
    put(tmp_path, "kmod/list.mk", "obj-m += widget.o helper/\n")
    put(tmp_path, "kmod/helper/Kbuild", "obj-m += shim.o\n")

    found = draft(Toolkit(kbuild("kmod"), names=("shim", "widget")), "src")

    assert (found.name, found.modules) == ("widget", ("widget", "shim"))
    assert directories(found) == ["kmod"]


def test_a_kbuild_that_computes_its_list_is_built_before_what_is_below(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "Kbuild", "include $(src)/$(LIST)\n")
    put(tmp_path, "helper/Kbuild", "obj-m += shim.o\n")

    found = draft(Toolkit(kbuild()))

    assert found.guesses["build"] == "above the other directories with obj-m: ., helper"


def test_two_drivers_without_a_reason_are_left_to_the_user(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "linux/a_small/Makefile", "obj-m += tiny.o\n")
    put(tmp_path, "linux/main/Makefile", "obj-m += big.o\n")
    toolkit = Toolkit(kbuild("linux/a_small"), kbuild("linux/main"))

    with pytest.raises(TargetError) as caught:
        draft(toolkit, "my board")

    assert not toolkit.tried
    assert caught.value.exit_code == ExitCode.USAGE
    assert str(caught.value) == (
        "my board has several drivers, and nothing in it speaks for one of them: kbuild finds "
        "modules in linux/a_small (tiny), linux/main (big)"
    )
    assert caught.value.hint == (
        "say which one is meant: nodeside init 'my board' --directory linux/a_small, or "
        "nodeside init 'my board' --directory linux/main"
    )
    with pytest.raises(TargetError) as for_a_kernel:
        draft(toolkit, "my board", options=("--kernel", "6.12-amd64"))
    assert for_a_kernel.value.hint == (
        "say which one is meant: "
        "nodeside init 'my board' --kernel 6.12-amd64 --directory linux/a_small, or "
        "nodeside init 'my board' --kernel 6.12-amd64 --directory linux/main"
    )
    found = draft(toolkit, directory="./linux/main/")
    assert (found.build.directory, found.guesses) == ("linux/main", {})
    assert directories(found) == ["linux/a_small", "linux/main"]


def test_of_a_tree_of_backports_some_directories_are_named(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    names = [f"d{number:03}" for number in range(12)]
    for name in names:
        put(tmp_path, f"{name}/Makefile", "obj-m += some.o\n")

    with pytest.raises(TargetError) as caught:
        draft(Toolkit())

    some = ", ".join(names[:10])
    with_modules = ", ".join(f"{name} (some)" for name in names[:10])
    assert str(caught.value).endswith(f"kbuild finds modules in {with_modules} and 2 more")
    assert caught.value.hint == (
        "say which one is meant: nodeside init board --directory d000, or "
        "nodeside init board --directory d001, or nodeside init board --directory d002, or another"
    )
    with pytest.raises(UsageError, match=f"these do: {some} and 2 more$"):
        draft(Toolkit(), directory="none")
    put(tmp_path, "d011/d.c", TABLE)
    found = draft(Toolkit(kbuild("d011")))
    assert found.guesses["build"].endswith(f"of those with obj-m: {some} and 2 more")
    assert directories(found) == names


def test_many_directories_are_not_each_compared_with_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 took two seconds, and 800 a minute."""
    made = 0

    class Counted(PurePosixPath):
        def __new__(cls, *args: str) -> Counted:
            nonlocal made
            made += 1
            return super().__new__(cls, *args)

    monkeypatch.setattr(candidates, "Path", Counted)
    every = [Candidate(f"drivers/net/d{number}") for number in range(100)]
    every += [Candidate(f"{each.directory}/deep") for each in every]

    chosen, why = choose_likeliest(tmp_path, every)

    assert chosen is None
    assert why.endswith("drivers/net/d9 and 190 more")
    assert made < 10 * len(every)


def test_blank_lines_of_a_source_are_read_in_a_moment(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    for name in ("a", "b"):
        put(tmp_path, f"{name}/Makefile", f"obj-m += {name}.o\n")
    put(tmp_path, "a/a.c", "\n" * 800_000)
    put(tmp_path, "b/b.c", f"\n\t {TABLE}")

    assert draft(Toolkit(kbuild("b"))).build.directory == "b"


def test_of_two_drivers_the_one_with_a_device_table_is_taken(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    for name in ("a", "b"):
        put(tmp_path, f"{name}/Makefile", f"obj-m += {name}.o\n")
    put(tmp_path, "a/a.c", f"/* not a\n * {TABLE} */\n")
    put(tmp_path, "b/deep/b.c", TABLE)

    found = draft(Toolkit(kbuild("b")))

    assert found.guesses["build"] == "alone has a MODULE_DEVICE_TABLE, of those with obj-m: a, b"
    put(tmp_path, "a/a.c", TABLE)
    with pytest.raises(TargetError, match="several drivers"):
        draft(Toolkit(kbuild("b")))


def test_a_make_of_the_source_decides_between_several_drivers(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "Makefile", "all:\n\t$(MAKE) -C a\n\t$(MAKE) -C b\n")
    for name in ("a", "b"):
        put(tmp_path, f"{name}/Kbuild", f"obj-m += {name}.o\n")

    found = draft(Toolkit(MAKE, names=("a", "b")))

    assert (found.build.command, found.modules) == (("make",), ("a", "b"))
    assert "several directories have obj-m: a, b" in found.guesses["build"]
    with pytest.raises(TargetError, match="several drivers"):
        draft(Toolkit())


def test_a_test_of_a_configure_is_not_the_driver_that_it_makes(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "configure", "#!/bin/sh\n")
    put(tmp_path, "my driver/Makefile.in", "obj-m += @NAME@.o\n")
    put(tmp_path, "my driver/configure/Makefile", "obj-m += probe.o\n")
    script = """./configure && make -C "$NODESIDE_KERNEL_DIR" M="$PWD"/'my driver' modules"""
    toolkit = Toolkit((BuildKind.COMMAND, ".", ("sh", "-c", script)), names=("thing",))

    found = draft(toolkit)

    assert (found.name, found.modules) == ("thing", ("thing",))
    assert "my driver, my driver/configure" in found.guesses["build"]
    with pytest.raises(ToolkitBuildFailed, match="configure"):
        draft(Toolkit())


@pytest.mark.parametrize("directory", ["elsewhere", "..", "/", "a/../.."])
def test_a_directory_that_lists_no_modules_is_refused(
    tmp_path: Path, draft: Callable[..., Draft], directory: str
) -> None:
    put(tmp_path, "a/Kbuild", "obj-m += a.o\n")

    with pytest.raises(UsageError, match=f"--directory {directory}: .* lists modules; these do: a"):
        draft(Toolkit(), directory=directory)


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


def test_the_sources_own_make_is_the_witness_of_a_failure(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "Makefile", "obj-m := chip.o\nall: generated.h ../x.c\n\t$(MAKE) -C $(K)\n")
    toolkit = Toolkit()
    toolkit.errors = {
        kbuild(): "chip.c:1:10: fatal error: generated.h: No such file or directory",
        make(): "make: *** No rule to make target '../x.c', needed by 'all'.  Stop.",
    }

    found = draft(toolkit)

    assert (found.build.kind, found.build.command) == (BuildKind.COMMAND, ("make",))
    assert "No rule to make target '../x.c'" in found.problem
    assert found.failures[0].error.hint == "hint of command"
    assert found.modules == ("chip",)


@pytest.mark.parametrize(
    "error",
    [
        "make: *** No targets.  Stop.",
        "make: *** No rule to make target 'all'.  Stop.",
        "make: *** No rule to make target 'driver'.  Stop.",
    ],
)
def test_a_make_that_builds_nothing_is_no_better_witness(
    tmp_path: Path, draft: Callable[..., Draft], error: str
) -> None:
    put(tmp_path, "Makefile", "obj-m := chip.o\n")
    toolkit = Toolkit()
    toolkit.errors = {
        kbuild(): "chip.c:4:9: error: implicit declaration of function 'old_call'",
        make(): error,
    }

    found = draft(toolkit)

    assert found.build.kind is BuildKind.KBUILD
    assert "old_call" in found.problem
    assert found.failures[0].error.hint == "hint of kbuild"


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


CONF = "PACKAGE_NAME=gadget\nPACKAGE_VERSION={}\nBUILT_MODULE_NAME=gadget\n"


def test_a_dkms_conf_is_found_below(tmp_path: Path, draft: Callable[..., Draft]) -> None:
    put(tmp_path, "src/dkms.conf", CONF.format("1.0"))
    put(tmp_path, "src/Kbuild", "obj-$(if $(KBUILD_EXTMOD),m,$(CONFIG_GADGET)) := gadget.o\n")

    found = draft(Toolkit(dkms("src"), names=("gadget",)))

    assert (found.build.kind, found.build.directory) == (BuildKind.DKMS, "src")
    assert (found.name, found.version, found.modules) == ("gadget", "1.0", ("gadget",))
    assert found.guesses == {"build": "the only directory with a dkms.conf"}


def test_what_a_dkms_conf_needs_of_others_is_in_the_driver_yaml_and_where_its_source_is(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "top/dkms.conf", f"{CONF.format('1.0')}BUILD_DEPENDS=Gad_Core other\n")
    put(tmp_path, "top/Kbuild", "obj-m := gadget.o\n")
    put(tmp_path, "core/dkms.conf", 'PACKAGE_NAME="Gad_Core"\nPACKAGE_VERSION="2"\n')
    put(tmp_path, "core/Kbuild", "obj-m := core.o\n")

    found = draft(Toolkit(dkms("top"), names=("gadget",)), directory="top")

    assert found.needs == (Need("Gad_Core", "gad-core", "core"), Need("other", "other"))
    text = scaffold.make_file_texts(found, ".", "0.1")["driver.yaml"]
    assert "  # BUILD_DEPENDS in dkms.conf: Gad_Core, other. Where other Drivers have\n" in text
    (tmp_path / "driver.yaml").write_text(text.replace("  # after: [", "  after: ["))
    assert load(tmp_path / "driver.yaml").spec.after == ("gad-core", "other")
    rows = list(needs_in_words(Path("a tree"), found, ("--kernel", "amd64")))
    assert rows == [
        (
            "Gad_Core, by BUILD_DEPENDS in its dkms.conf; its source is in 'a tree/core': "
            "nodeside init 'a tree/core' --kernel amd64 makes its Driver"
        ),
        "other, by BUILD_DEPENDS in its dkms.conf",
        (
            "in driver.yaml, where other Drivers have these modules, below spec: "
            "after: [gad-core, other] loads them first, and builds this one with their symbols"
        ),
    ]


def test_a_dkms_conf_without_its_source_beside_it_leaves_the_list_of_another_directory(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "packaging/dkms.conf", CONF.format("1.0"))
    put(tmp_path, "src/Kbuild", "obj-m := gadget.o\n")
    toolkit = Toolkit(kbuild("src"), names=("gadget",))

    found = draft(toolkit)

    assert toolkit.tried == [dkms("packaging"), kbuild("src")]
    assert found.build.directory == "src"
    assert [failure.way.kind for failure in found.failures] == [BuildKind.DKMS]


@pytest.mark.parametrize(
    "version",
    ["", "#MODULE_VERSION#", "@PKGVER@", "__VERSION_STRING", "FULL_VERSION", "1.0-%REL%", "${V}"],
)
def test_a_placeholder_is_no_version(
    tmp_path: Path, draft: Callable[..., Draft], version: str
) -> None:
    put(tmp_path, "dkms.conf", CONF.format(version))
    put(tmp_path, "Makefile", "obj-m := gadget.o\n")
    toolkit = Toolkit(kbuild(), names=("gadget",), version="")

    found = draft(toolkit)

    assert toolkit.tried == [kbuild()]
    assert (found.version, found.modules) == ("0.1.0", ("gadget",))
    said = version or "PACKAGE_VERSION has no value"
    assert (
        "board/dkms.conf is a template that the vendor's release script" in found.guesses["version"]
    )
    assert said in found.guesses["version"]
    given = draft(toolkit, version="4.2")
    assert (given.version, "version" in given.guesses) == ("4.2", False)
    assert draft(Toolkit(kbuild(), version="7.1")).version == "7.1"
    assert draft(Toolkit(kbuild(), version="@V@")).version == "0.1.0"


@pytest.mark.parametrize("version", ["1.0", "2.0-rc1", "20210101", "git", "R8168.1", "v2"])
def test_a_version_is_no_placeholder(
    tmp_path: Path, draft: Callable[..., Draft], version: str
) -> None:
    put(tmp_path, "dkms.conf", CONF.format(version))

    assert draft(Toolkit(dkms())).version == version


@pytest.mark.parametrize(
    ("version", "is_guess"),
    [
        ("6", True),  # ccflags-y += -DVERSION=$(VERSION), which the vendor's make sets
        ("6.1.0-56-amd64", True),  # MODULE_VERSION(UTS_RELEASE)
        ("6.1.0", True),
        ("6.1.", False),
        ("60", False),
        ("6.10", False),
        ("1.0", False),
    ],
)
def test_a_version_that_is_the_kernels_is_a_guess(
    tmp_path: Path, draft: Callable[..., Draft], version: str, is_guess: bool
) -> None:
    put(tmp_path, "Kbuild", "obj-m := chip.o\nccflags-y := -DVERSION=$(VERSION)\n")
    toolkit = Toolkit(kbuild(), version=version, vermagic="6.1.0-56-amd64 SMP preempt mod_unload ")

    found = draft(toolkit)

    assert found.version == version
    said = found.guesses.get("version", "")
    assert ("the kernel's release, 6.1.0-56-amd64" in said) is is_guess
    assert "version" not in draft(toolkit, version="4.2").guesses


def test_a_template_alone_is_said_to_be_one(tmp_path: Path, draft: Callable[..., Draft]) -> None:
    put(tmp_path, "dkms.conf", "PACKAGE_NAME=@NAME@\nPACKAGE_VERSION=1\nBUILT_MODULE_NAME=@NAME@\n")

    with pytest.raises(TargetError, match="fills in: its PACKAGE_NAME is @NAME@; and nothing else"):
        draft(Toolkit())


def test_modules_that_are_placeholders_are_not_written(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "Kbuild", "obj-m := __NAME__.o\n")

    with pytest.raises(ToolkitBuildFailed):
        draft(Toolkit())


def test_a_version_that_no_driver_can_have_is_refused(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    with pytest.raises(UsageError, match=r"--version 1/2: expected") as caught:
        draft(Toolkit(), version="1/2")

    assert caught.value.hint == "--version 1.2"


@pytest.mark.parametrize(
    "name", ["conf", "config", "conftest-1", "compat", "tests", "examples", "tools"]
)
def test_no_test_and_no_tool_is_the_driver_by_itself(
    tmp_path: Path, draft: Callable[..., Draft], name: str
) -> None:
    put(tmp_path, f"{name}/probe/Kbuild", "obj-m := probe.o\n")
    put(tmp_path, f"{name}/probe/probe.c", TABLE)
    with pytest.raises(TargetError, match="named as tests or tools are") as caught:
        draft(Toolkit(kbuild(f"{name}/probe")))
    assert caught.value.hint == (
        f"say which one is meant: nodeside init board --directory {name}/probe"
    )

    put(tmp_path, "zz/deep/Kbuild", "obj-m := chip.o\n")
    found = draft(Toolkit(kbuild("zz/deep")))

    assert directories(found) == ["zz/deep", f"{name}/probe"]


def test_a_source_named_like_one_of_its_drivers_is_that_driver(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "a/helper/Kbuild", "obj-m := helper.o\n")
    put(tmp_path, "b/core/Kbuild", "obj-m := big-chip.o\n")

    found = draft(Toolkit(kbuild("b/core")), "Big_Chip-driver-1.2.3")

    assert found.guesses["build"].startswith("alone is named like the source")


def test_the_makefile_above_says_which_is_the_driver(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "Makefile", "all:\n\t$(MAKE) -C $(KDIR) M=$(PWD)/b/main NAME=lib modules\n")
    put(tmp_path, "a/more/Kbuild", "obj-m := more.o\n")
    put(tmp_path, "b/main/Kbuild", "obj-m := main.o\n")

    found = draft(Toolkit(kbuild("b/main")))

    assert found.guesses["build"] == (
        "alone is in the Makefile above, of those with obj-m: a/more, b/main"
    )


def test_a_library_without_a_name_is_no_driver(tmp_path: Path, draft: Callable[..., Draft]) -> None:
    put(tmp_path, "Makefile", "all:\n\tmake -C lib NAME=x\n\tmake -C main\n")
    put(tmp_path, "lib/Kbuild", "obj-m := $(NAME).o\n")
    put(tmp_path, "main/Kbuild", "obj-m := main.o\n")

    assert draft(Toolkit(kbuild("main"))).build.directory == "main"


def test_a_list_of_directories_builds_all_of_them(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "Kbuild", "obj-y := a/ b/\n")
    for name in ("a", "b"):
        put(tmp_path, f"{name}/Kbuild", f"obj-m := {name}.o\n")

    found = draft(Toolkit(kbuild(), names=("a", "b")))

    assert (found.modules, directories(found)) == (("a", "b"), ["."])


def test_below_a_list_that_is_computed_nothing_is_taken_in_its_place(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "kmod/Kbuild", "include $(src)/made.mk\n")
    put(tmp_path, "kmod/helper/Kbuild", "obj-m += shim.o\n")
    toolkit = Toolkit(kbuild("kmod/helper"))

    with pytest.raises(ToolkitBuildFailed):
        draft(toolkit)

    assert toolkit.tried == [kbuild("kmod")]
    assert candidates.candidates_of(tmp_path)[0].in_words() == (
        "kmod (its Kbuild computes its list)"
    )


def test_the_error_of_the_vendors_own_make_comes_first(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "drv/Makefile", "obj-m += foo.o\nall: generated.h ../common/shared.c\n\tmake\n")
    errors = {kbuild("drv"): "generated.h: No such file", make(at="drv"): "no ../common/shared.c"}

    found = draft(Toolkit(errors=errors))

    assert [failure.line for failure in found.failures] == [*errors.values()][::-1]
    assert "first error: no ../common/shared.c" in found.problem
    assert (found.build.command, found.build.directory) == (("make",), "drv")
    assert found.modules == ("foo",)


def test_all_errors_are_shown_where_nothing_is_written(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "Makefile", "obj-m += $(NAME).o\nall:\n\tmake\n")
    errors = {kbuild(): "no generated.h", MAKE: "no shared.c"}

    with pytest.raises(ToolkitBuildFailed) as caught:
        draft(Toolkit(errors=errors))

    assert str(caught.value).endswith(
        "first error: no shared.c\nalso tried kbuild in .: no generated.h"
    )


def test_other_targets_are_made_where_the_first_builds_nothing(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "Makefile", "obj-m += pump.o\nhelp:\n\t@echo\nall default: x\nmodules:=\n")
    toolkit = Toolkit(make("all"), nothing=(MAKE,), names=("pump",))

    found = draft(toolkit)

    assert toolkit.tried == [kbuild(), MAKE, make("all")]
    assert found.build.command == ("make", "all")
    put(tmp_path, "Makefile", "help:\n\t@echo\nmodules : x\n")
    put(tmp_path, "src/Makefile", "obj-m := pump.o\n")
    toolkit = Toolkit(make("modules"), nothing=(MAKE,), names=("pump",))
    assert draft(toolkit).build.command == ("make", "modules")


def test_no_other_way_is_tried_where_it_cannot_help(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "Makefile", "obj-m += chip.o\nall:\n\tmake\n")
    toolkit = Toolkit(failure=FailureKind.DISK_FULL)

    assert draft(toolkit).problem

    assert toolkit.tried == [kbuild()]


def test_a_user_says_how_to_build(tmp_path: Path, draft: Callable[..., Draft]) -> None:
    put(tmp_path, "Makefile", "obj-m += chip.o\n")
    put(tmp_path, "drv/x")
    toolkit = Toolkit(make("driver"), make("driver", at="drv"))

    found = draft(toolkit, command=("make", "driver"))

    assert (found.build.command, found.modules) == (("make", "driver"), ("chip",))
    assert not found.guesses
    assert draft(toolkit, command=("make", "driver"), directory="drv").build.directory == "drv"
    with pytest.raises(UsageError, match="no such directory"):
        draft(toolkit, command=("make", "driver"), directory="../drv")


@pytest.mark.parametrize(
    ("files", "script"),
    [
        (("configure",), "./configure && make"),
        (("configure", "CMakeLists.txt"), "./configure && make"),
        (("autogen.sh", "configure.ac"), "./autogen.sh && ./configure && make"),
        (("bootstrap",), "./bootstrap && ./configure && make"),
        (("configure.ac",), "autoreconf -fi && ./configure && make"),
        (
            ("CMakeLists.txt",),
            'cmake -S . -B cmake-build && cmake --build cmake-build -j "$NODESIDE_JOBS"',
        ),
    ],
)
def test_a_source_is_configured_as_its_readme_says(
    tmp_path: Path, draft: Callable[..., Draft], files: tuple[str, ...], script: str
) -> None:
    for name in files:
        put(tmp_path, name)

    found = draft(Toolkit((BuildKind.COMMAND, ".", ("sh", "-c", script))))

    assert found.build.command[-1] == script


def test_a_configure_is_told_where_the_headers_are(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "configure", "  --with-linux=DIR  the headers\n  --with-linux-obj=DIR\n")
    put(tmp_path, "kmod/Kbuild.in", "obj-m += @NAME@.o\n")
    script = (
        './configure --with-linux="$NODESIDE_KERNEL_DIR" --with-linux-obj="$NODESIDE_KERNEL_DIR" '
        '&& make -C "$NODESIDE_KERNEL_DIR" M="$PWD"/kmod modules'
    )

    assert draft(Toolkit((BuildKind.COMMAND, ".", ("sh", "-c", script)))).modules == ("chip",)


def test_a_make_between_the_top_and_the_list_is_tried_too(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "linux/driver/src/Makefile", "obj-m := chip.o\nall:\n\t$(error not here)\n")
    put(tmp_path, "linux/driver/Makefile", "driver:\n\t$(MAKE) -C src TOP=1\n")
    toolkit = Toolkit(make(at="linux/driver"))

    found = draft(toolkit)

    assert toolkit.tried == [kbuild("linux/driver/src"), make(at="linux/driver")]
    assert found.build.directory == "linux/driver"


def test_a_driver_that_is_configured_in_its_own_directory_is_one_of_several(
    tmp_path: Path, draft: Callable[..., Draft]
) -> None:
    put(tmp_path, "linux/ena/Makefile", "obj-m := ena.o\n")
    put(tmp_path, "linux/ena/ena.c", TABLE)
    put(tmp_path, "linux/efa/CMakeLists.txt")
    put(tmp_path, "linux/efa/conf/Makefile", "obj-m := conftest.o\n")
    put(tmp_path, "linux/efa/src/CMakeLists.txt")
    put(tmp_path, "linux/efa/src/Kbuild.in", "obj-m := efa.o\n")
    put(tmp_path, "linux/efa/src/efa.c", TABLE)
    script = 'cmake -S . -B cmake-build && cmake --build cmake-build -j "$NODESIDE_JOBS"'
    toolkit = Toolkit((BuildKind.COMMAND, "linux/efa", ("sh", "-c", script)))

    with pytest.raises(TargetError, match=r"linux/efa/src \(pci\)"):
        draft(toolkit)

    assert draft(toolkit, directory="linux/efa/src").build.directory == "linux/efa"
