"""What a dkms.conf means for a kernel: the rules of dkms(8), and a real tree end to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeside.protocol.build_records import FailureKind
from nodeside.protocol.bundle_key import BuildKind
from nodeside.toolkit_sidecar.dkms import DkmsPlan, make_plan, pad_version
from nodeside.toolkit_sidecar.dkms_conf import Values
from nodeside.toolkit_sidecar.failure import BuildFailed
from nodeside.toolkit_sidecar.headers import Headers
from tests.toolkit_sidecar.faketoolkit import KERNEL, FakeToolkit

HEADERS = Headers(Path("/headers"), KERNEL.release, KERNEL.version, {"CONFIG_I2C": "m"})


def plan(**variables: str | dict[int, str]) -> DkmsPlan:
    """The plan for the given variables; names and a module are there unless given."""
    default = {"PACKAGE_NAME": "straw", "PACKAGE_VERSION": "1.0", "BUILT_MODULE_NAME": "straw"}
    values = {**default, **variables}
    return make_plan(
        Values({k: {0: v} if isinstance(v, str) else v for k, v in values.items()}), KERNEL, HEADERS
    )


def excluded(**variables: str | dict[int, str]) -> str:
    with pytest.raises(BuildFailed) as caught:
        plan(**variables)
    assert caught.value.kind is FailureKind.EXCLUDED
    return str(caught.value)


def test_the_last_make_whose_pattern_fits_is_taken() -> None:
    makes = {0: "make all", 1: "make new", 2: "make newer"}
    matched = {"MAKE_MATCH:matches": {1: "yes"}}
    assert plan(MAKE=makes).make == "make all"
    assert plan(MAKE=makes, MAKE_MATCH={1: "^6", 2: "^9"}, **matched).make == "make new"
    assert plan(MAKE=makes, MAKE_MATCH={0: "^5"}).make == ""


def test_patches_without_a_pattern_are_for_every_kernel() -> None:
    patches = {0: "all.patch", 1: "old.patch", 2: "six.patch"}
    matches = {"PATCH_MATCH:matches": {2: "yes"}}
    chosen = plan(PATCH=patches, PATCH_MATCH={1: "^5", 2: "^6"}, **matches).patches
    assert chosen == ("all.patch", "six.patch")


def test_a_single_module_is_named_after_its_package() -> None:
    (product,) = plan(BUILT_MODULE_NAME={}, DEST_MODULE_LOCATION="/extra").products
    assert (str(product.file), product.installed_as, product.strip) == ("straw.ko", "straw", True)


def test_modules_have_places_names_and_strip_of_their_own() -> None:
    products = plan(
        BUILT_MODULE_NAME={0: "a", 3: "b"},
        BUILT_MODULE_LOCATION={0: "src/", 3: "src/b"},
        DEST_MODULE_NAME={3: "bee"},
        STRIP={0: "no", 3: "yes"},
    ).products
    assert [(str(p.file), p.installed_as, p.strip) for p in products] == [
        ("src/a.ko", "a", False),
        ("src/b/b.ko", "bee", True),
    ]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PACKAGE_NAME": ""}, "PACKAGE_NAME must be a plain name, got ''"),
        ({"PACKAGE_NAME": "../../etc"}, "PACKAGE_NAME must be a plain name, got '../../etc'"),
        ({"PACKAGE_VERSION": ".."}, "PACKAGE_VERSION must be a plain name, got '..'"),
        ({"BUILT_MODULE_NAME": "straw.ko"}, "must be a module's name without .ko"),
        ({"BUILT_MODULE_NAME": "../straw"}, "must be a module's name without .ko"),
        ({"DEST_MODULE_NAME": "a b"}, "DEST_MODULE_NAME[0] must be a module's name"),
        ({"BUILT_MODULE_LOCATION": "../x"}, "BUILT_MODULE_LOCATION[0] leads out of the source"),
        ({"BUILT_MODULE_LOCATION": "/x"}, "BUILT_MODULE_LOCATION[0] leads out of the source"),
        ({"BUILT_MODULE_NAME": {}}, "it announces no module"),
    ],
)
def test_what_dkms_would_not_take_is_refused(
    variables: dict[str, str | dict[int, str]], message: str
) -> None:
    with pytest.raises(BuildFailed) as caught:
        plan(**variables)
    assert caught.value.kind is FailureKind.BAD_SOURCE
    assert message in str(caught.value)


def test_exclusive_rules_say_which_of_them_excludes() -> None:
    assert excluded(BUILD_EXCLUSIVE_KERNEL="^5") == (
        f"straw 1.0 is not made for this kernel: BUILD_EXCLUSIVE_KERNEL '^5' does not match "
        f"{KERNEL.release}"
    )
    assert "BUILD_EXCLUSIVE_ARCH 'arm' does not match x86_64" in excluded(
        BUILD_EXCLUSIVE_ARCH="arm"
    )
    assert "BUILD_EXCLUSIVE_KERNEL_MIN is 6.5" in excluded(BUILD_EXCLUSIVE_KERNEL_MIN="6.5")
    assert "BUILD_EXCLUSIVE_KERNEL_MAX is 5.19" in excluded(BUILD_EXCLUSIVE_KERNEL_MAX="5.19")
    missing = excluded(BUILD_EXCLUSIVE_CONFIG="CONFIG_I2C CONFIG_HWMON")
    assert "has CONFIG_HWMON, which is not enabled in this kernel" in missing
    assert "has !CONFIG_I2C, which is enabled" in excluded(BUILD_EXCLUSIVE_CONFIG="!CONFIG_I2C")


@pytest.mark.parametrize("version", ["6.1", "6.0.19", "5.15.0-100", "6.1.0-9"])
def test_a_kernel_that_includes_the_driver_is_excluded(version: str) -> None:
    with pytest.raises(BuildFailed) as caught:
        plan(OBSOLETE_BY=version)
    assert caught.value.kind is FailureKind.EXCLUDED
    assert f"OBSOLETE_BY is {version}: {KERNEL.release} includes the driver" in str(caught.value)
    assert caught.value.hint.startswith("use the kernel's own module")


@pytest.mark.parametrize("version", ["6.1.0-10", "6.2", "6.12", "10.0"])
def test_a_kernel_before_the_one_that_includes_the_driver_is_not(version: str) -> None:
    assert plan(OBSOLETE_BY=version).notes == ()


def test_a_highest_kernel_is_taken_before_the_one_that_includes_the_driver() -> None:
    plan(OBSOLETE_BY="5.4", BUILD_EXCLUSIVE_KERNEL_MAX="6.12")


def test_rules_that_fit_exclude_nothing() -> None:
    plan(
        BUILD_EXCLUSIVE_KERNEL_MIN="5.10",
        BUILD_EXCLUSIVE_KERNEL_MAX="6.12",
        BUILD_EXCLUSIVE_CONFIG="CONFIG_I2C !CONFIG_HWMON",
    )


def test_a_rule_of_one_module_leaves_out_that_one() -> None:
    rules = plan(BUILT_MODULE_NAME={0: "a", 1: "b"}, BUILD_EXCLUSIVE_KERNEL_MIN={1: "9.0"})
    assert [product.installed_as for product in rules.products] == ["a"]
    assert rules.notes[0].startswith("dkms.conf leaves out b: BUILD_EXCLUSIVE_KERNEL_MIN is 9.0")


def test_what_is_ignored_is_said() -> None:
    notes = plan(AUTOINSTALL="yes", POST_INSTALL="x.sh", CLEAN="make clean").notes
    assert notes == (
        "dkms.conf: ignored, since nothing is installed: AUTOINSTALL, POST_INSTALL",
        "dkms.conf: CLEAN ignored, since every build has a fresh copy",
    )


def test_the_packages_that_must_be_there_first_are_plain_names() -> None:
    written = {0: "spl", 1: "", 3: "Hay_2 spl", 4: "../x $(y)"}
    assert plan(BUILD_DEPENDS=written).needs == ("spl", "Hay_2")
    many = {index: f"p{index}" for index in range(1000)}
    assert len(plan(BUILD_DEPENDS=many).needs) == 16


def test_versions_compare_as_numbers() -> None:
    assert (
        pad_version("6.1.0-9") < pad_version("6.1.0-10") < pad_version("6.12") < pad_version("10.0")
    )


CONF = """
PACKAGE_NAME="straw"
PACKAGE_VERSION="1.0"
BUILT_MODULE_NAME[0]="straw"
BUILT_MODULE_NAME[1]="hay"
BUILT_MODULE_LOCATION[1]="deep/"
DEST_MODULE_NAME[1]="hay-new"
DEST_MODULE_LOCATION[0]="/extra"
DEST_MODULE_LOCATION[1]="/extra"
PRE_BUILD="before.sh $kernelver"
POST_BUILD="after.sh"
MAKE="make M=${dkms_tree}/${PACKAGE_NAME}/${PACKAGE_VERSION}/build V=1 && echo 'in the end'"
AUTOINSTALL="yes"
"""


def tree(toolkit: FakeToolkit) -> None:
    toolkit.vendor("dkms.conf", CONF)
    toolkit.vendor("before.sh", '#!/bin/sh\necho "before $1 in $PWD"\n', 0o755)
    toolkit.vendor("after.sh", "#!/bin/sh\nls modules; echo after\n")
    toolkit.vendor("vendor.sh", 'echo "make $*, CC=$CC"; ko straw; cd deep; ko hay\n')
    toolkit.vendor("deep/hay.c", "")


def test_a_dkms_tree_builds_unmodified(toolkit: FakeToolkit) -> None:
    tree(toolkit)
    request = toolkit.request(kind=BuildKind.DKMS, modules=("straw",))
    result = toolkit.answer(request)
    assert result.succeeded, result.message
    assert [(m.name, m.file, m.built_as) for m in result.modules] == [
        ("straw", "modules/straw.ko", ""),
        ("hay", "modules/hay-new.ko", "hay"),
    ]
    place = toolkit.shared.out_dir(request.id) / "dkms/straw/1.0/build"
    log = "\n".join(result.log_tail)
    assert f"before {KERNEL.release} in {place}" in log
    assert f"KERNELRELEASE={KERNEL.release} M={place} V=1, CC=gcc" in log
    assert "in the end" in log
    assert (toolkit.shared.out_dir(request.id) / "build").resolve() == place
    assert "dkms.conf: the POST_BUILD script after.sh is not executable: not run" in result.notes
    assert "also built, but not in driver.yaml's modules: hay" in result.notes


def test_a_script_before_the_build_that_fails_ends_it(toolkit: FakeToolkit) -> None:
    tree(toolkit)
    toolkit.vendor("before.sh", "#!/bin/sh\necho no such kernel\nexit 3\n", 0o755)
    result = toolkit.answer(toolkit.request(kind=BuildKind.DKMS, modules=("straw",)))
    assert result.failure is FailureKind.COMPILE
    assert result.message == "PRE_BUILD failed: exit code 3"
    assert "no such kernel" in result.log_tail
    assert not any("make " in line and "KERNELRELEASE" in line for line in result.log_tail)


def test_a_script_after_the_build_that_fails_ends_it(toolkit: FakeToolkit) -> None:
    tree(toolkit)
    into = f"../{KERNEL.release}/{KERNEL.architecture}"
    toolkit.vendor("after.sh", f"#!/bin/sh\ncp before.sh {into}/ && echo copied && false\n", 0o755)
    result = toolkit.answer(toolkit.request(kind=BuildKind.DKMS, modules=("straw",)))
    assert result.failure is FailureKind.COMPILE
    assert "copied" in result.log_tail
    assert result.message == "POST_BUILD failed: exit code 1"


@pytest.mark.parametrize("end", ["kill -KILL $$", "exit 137"])
def test_a_script_that_was_killed_fails_the_build(toolkit: FakeToolkit, end: str) -> None:
    tree(toolkit)
    toolkit.vendor("before.sh", f"#!/bin/sh\n{end}\n", 0o755)
    result = toolkit.answer(toolkit.request(kind=BuildKind.DKMS, modules=("straw",)))
    assert not result.succeeded
    assert "PRE_BUILD failed" in result.message
    assert "SIGKILL" in result.message


_SPL = "if another Driver has its modules, add a line to spec in driver.yaml: after: [spl, hay-2]"


def test_what_comes_first_is_told_with_the_line_of_driver_yaml(toolkit: FakeToolkit) -> None:
    tree(toolkit)
    toolkit.vendor("dkms.conf", f"{CONF}BUILD_DEPENDS=(spl Hay_2)\n")
    result = toolkit.answer(toolkit.request(kind=BuildKind.DKMS, modules=("straw",)))
    assert result.succeeded, "another driver is not needed by every build"
    words = f"dkms.conf has BUILD_DEPENDS on spl, Hay_2: {_SPL}"
    assert words in result.notes
    assert f"# {words}" in result.log_tail


def test_a_build_that_fails_without_what_comes_first_is_told_that(toolkit: FakeToolkit) -> None:
    tree(toolkit)
    toolkit.vendor("dkms.conf", f"{CONF}BUILD_DEPENDS=(spl Hay_2)\n")
    error = 'ERROR: modpost: \\"spl_alloc\\" [straw.ko] undefined!'
    toolkit.vendor("vendor.sh", f'echo "{error}"; false\n')
    result = toolkit.answer(toolkit.request(kind=BuildKind.DKMS, modules=("straw",)))
    assert result.hint.startswith(
        f"dkms.conf has BUILD_DEPENDS on spl, Hay_2: {_SPL}; or neither this kernel nor a module"
    )


def test_what_was_built_with_the_symbols_of_others_is_told_no_more(toolkit: FakeToolkit) -> None:
    tree(toolkit)
    toolkit.vendor("dkms.conf", f"{CONF}BUILD_DEPENDS=spl\n")
    symbols = "cd" * 32
    (toolkit.shared.symbols / symbols).write_text("0x1\tspl_alloc\tspl\tEXPORT_SYMBOL\t\n")
    request = toolkit.request(kind=BuildKind.DKMS, modules=("straw",), symbols=symbols)
    result = toolkit.answer(request)
    assert result.succeeded, result.message
    assert not [note for note in result.notes if "BUILD_DEPENDS" in note]


def test_a_directory_that_cannot_be_made_is_no_bug_of_ours(toolkit: FakeToolkit) -> None:
    tree(toolkit)
    toolkit.vendor("dkms.conf", CONF + 'mkdir -p "$dkms_tree/straw/1.0"\n')
    result = toolkit.answer(toolkit.request(kind=BuildKind.DKMS, modules=("straw",)))
    assert not result.succeeded
    assert result.message.startswith("File exists: ")


@pytest.mark.slow
def test_a_wanted_name_that_only_the_file_has_is_explained(toolkit: FakeToolkit) -> None:
    tree(toolkit)
    result = toolkit.answer(toolkit.request(kind=BuildKind.DKMS, modules=("hay-new",)))
    assert result.failure is FailureKind.NO_MODULE
    assert result.message == "the build produced no module named hay-new; it produced: hay, straw"
    assert "renames the file to hay-new.ko, but the kernel knows the module as hay" in result.hint


def test_a_tree_without_dkms_conf_is_named(toolkit: FakeToolkit) -> None:
    result = toolkit.answer(toolkit.request(kind=BuildKind.DKMS))
    assert result.failure is FailureKind.BAD_SOURCE
    assert "there is no dkms.conf" in result.message


def test_an_excluded_kernel_has_an_answer_of_its_own(toolkit: FakeToolkit) -> None:
    toolkit.vendor("dkms.conf", CONF + 'BUILD_EXCLUSIVE_KERNEL="REQUIRES MORE"\n')
    result = toolkit.answer(toolkit.request(kind=BuildKind.DKMS))
    assert result.failure is FailureKind.EXCLUDED
    assert "'REQUIRES MORE' does not match" in result.message


def test_what_a_dkms_conf_prints_is_told_with_the_exclusion(toolkit: FakeToolkit) -> None:
    conf = CONF + 'echo "I2C is missing" >&2\nBUILD_EXCLUSIVE_ARCH="^none$"\n'
    toolkit.vendor("dkms.conf", conf)
    result = toolkit.answer(toolkit.request(kind=BuildKind.DKMS))
    assert result.failure is FailureKind.EXCLUDED
    assert "it printed: I2C is missing" in result.hint
