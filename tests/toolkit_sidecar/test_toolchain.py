"""The checks before a compile: each says one fact, or one refusal with a hint."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from nodeside.errors import ExitCode
from nodeside.protocol.build_records import FailureKind
from nodeside.protocol.bundle_key import BuildKind, BuildSettings
from nodeside.system import process
from nodeside.toolkit_sidecar.compiler import (
    Compiler,
    ask_compiler,
    candidate_names,
    compare_compilers,
    find_requested_compiler,
    major_version,
    read_kernel_compiler,
)
from nodeside.toolkit_sidecar.headers import read_headers
from nodeside.toolkit_sidecar.toolchain import Bench, inspect_toolchain
from tests.toolkit_sidecar.faketoolkit import CONFIG, KERNEL, LONG, FakeToolkit

GCC_13 = '#!/bin/bash\ncase $1 in -dumpversion) echo 13 ;; *) echo "gcc (Debian) 13.2.0" ;; esac\n'


def gcc(major: int) -> Compiler:
    return Compiler("gcc", f"gcc {major}", "gcc", major)


def test_compilers_compare_by_family_and_major() -> None:
    assert compare_compilers(gcc(12), gcc(12)) == ""
    assert (
        compare_compilers(gcc(12), gcc(13)) == "gcc 12 compiled the kernel, gcc here is version 13"
    )
    assert compare_compilers(gcc(0), gcc(13)) == ""
    clang = Compiler("clang", "clang 14", "clang", 14)
    assert compare_compilers(clang, gcc(12)) == "clang compiled the kernel, gcc is gcc"


def test_the_kernels_compiler_is_in_its_configuration(toolkit: FakeToolkit) -> None:
    found = read_kernel_compiler(read_headers(toolkit.headers()))
    assert (found.text, found.family, found.major) == (
        "gcc-12 (Debian 12.2.0-14) 12.2.0",
        "gcc",
        12,
    )
    clang = CONFIG + "CONFIG_CC_IS_CLANG=y\nCONFIG_CLANG_VERSION=140006\n"
    assert read_kernel_compiler(read_headers(toolkit.headers(config=clang))).major == 14


# As the configurations of kernels have them: of Debian, Ubuntu, Red Hat, Fedora, SUSE, Amazon Linux
# 2, Alpine, Arch, Android, and of kernels that were compiled on another architecture.
@pytest.mark.parametrize(
    ("text", "family", "major", "names"),
    [
        ("gcc-12 (Debian 12.2.0-14) 12.2.0", "gcc", 12, ["gcc-12"]),
        (
            "x86_64-linux-gnu-gcc-14 (Debian 14.2.0-19) 14.2.0",
            "gcc",
            14,
            ["x86_64-linux-gnu-gcc-14", "gcc-14"],
        ),
        ("gcc (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0", "gcc", 11, ["gcc", "gcc-11"]),
        (
            "x86_64-linux-gnu-gcc-12 (Ubuntu 12.3.0-1ubuntu1~22.04) 12.3.0",
            "gcc",
            12,
            ["x86_64-linux-gnu-gcc-12", "gcc-12"],
        ),
        ("gcc (GCC) 8.5.0 20210514 (Red Hat 8.5.0-20)", "gcc", 8, ["gcc", "gcc-8"]),
        ("gcc (GCC) 11.4.1 20230605 (Red Hat 11.4.1-2)", "gcc", 11, ["gcc", "gcc-11"]),
        ("gcc (GCC) 15.1.1 20250521 (Red Hat 15.1.1-2)", "gcc", 15, ["gcc", "gcc-15"]),
        (
            "gcc (SUSE Linux) 11.2.1 20211124 [revision 7510c23c1ec53aa4a62705f0384079661342ff7b]",
            "gcc",
            11,
            ["gcc", "gcc-11"],
        ),
        ("gcc (SUSE Linux) 7.5.0", "gcc", 7, ["gcc", "gcc-7"]),
        (
            "gcc10-gcc (GCC) 10.5.0 20230707 (Red Hat 10.5.0-1)",
            "gcc",
            10,
            ["gcc10-gcc", "gcc-10"],
        ),
        ("gcc (Alpine 13.2.1_git20231014) 13.2.1 20231014", "gcc", 13, ["gcc", "gcc-13"]),
        ("gcc (GCC) 12.2.1 20230111", "gcc", 12, ["gcc", "gcc-12"]),
        ("gcc (GCC) 8.5.0 20210514 (Anolis 8.5.0-18.0.4)", "gcc", 8, ["gcc", "gcc-8"]),
        (
            "aarch64-linux-gnu-gcc (Linaro GCC 7.5-2019.12) 7.5.0",
            "gcc",
            7,
            ["aarch64-linux-gnu-gcc", "gcc-7"],
        ),
        (
            "aarch64-linux-gnu-gcc (GCC) 10.2.1 20200826 (Red Hat Cross 10.2.1-3)",
            "gcc",
            10,
            ["aarch64-linux-gnu-gcc", "gcc-10"],
        ),
        (
            "aarch64-buildroot-linux-gnu-gcc.br_real (Buildroot 2022.11) 11.3.0",
            "gcc",
            11,
            ["gcc-11"],
        ),
        ("Debian clang version 19.1.7 (3+b1)", "clang", 19, ["clang-19"]),
        ("Debian clang version 12.0.1-3", "clang", 12, ["clang-12"]),
        (
            "clang version 14.0.6 (git://gitmirror/llvm_project f28c006a5895fc0e329fe15fead)",
            "clang",
            14,
            ["clang", "clang-14"],
        ),
        (
            "Android (7284624, based on r416183b) clang version 12.0.5 (https://android)",
            "clang",
            12,
            ["clang-12"],
        ),
        ("", "gcc", 0, []),
        ("/bin/sh -c 12.0", "gcc", 12, ["gcc-12"]),
    ],
)
def test_the_kernels_compiler_is_recognised_in_every_distributions_words(
    toolkit: FakeToolkit, text: str, family: str, major: int, names: list[str]
) -> None:
    for written in (f'"{text}"', text):  # include/config/auto.conf has quotes, or has none
        config = f"CONFIG_CC_VERSION_TEXT={written}\n"
        kernel = read_kernel_compiler(read_headers(toolkit.headers(config=config)))
        assert (kernel.text, kernel.family, kernel.major) == (text, family, major)
        assert candidate_names(kernel) == tuple(names)


@pytest.mark.parametrize("number", ["²", "9" * 5000, "twelve", ""])
def test_a_version_that_is_no_number_is_unknown(toolkit: FakeToolkit, number: str) -> None:
    config = f"CONFIG_CC_IS_GCC=y\nCONFIG_GCC_VERSION={number}\n"
    assert read_kernel_compiler(read_headers(toolkit.headers(config=config))).major == 0


HWE = """\
CONFIG_CC_VERSION_TEXT="x86_64-linux-gnu-gcc-12 (Ubuntu 12.3.0-1ubuntu1~22.04) 12.3.0"
CONFIG_CC_IS_GCC=y
CONFIG_GCC_VERSION=120300
"""
GCC_11 = '#!/bin/sh\necho "gcc (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0"\n'
GCC_12 = '#!/bin/sh\necho "$(basename $0) (Ubuntu 12.3.0-1ubuntu1~22.04) 12.3.0"\n'
SAY = 'echo "make $* MAKEFLAGS=$MAKEFLAGS"; ko straw\n'


def test_a_kernel_gets_the_compiler_that_it_names_where_gcc_is_another(
    toolkit: FakeToolkit,
) -> None:
    toolkit.headers(config=HWE)
    toolkit.tool("gcc", GCC_11)
    toolkit.tool("x86_64-linux-gnu-gcc-12", GCC_12)
    toolkit.vendor("vendor.sh", SAY)
    result = toolkit.answer(toolkit.request())
    assert result.succeeded, result.message
    assert result.toolchain is not None
    assert result.toolchain.compiler.startswith("x86_64-linux-gnu-gcc-12 (Ubuntu")
    assert "CC=x86_64-linux-gnu-gcc-12 modules" in "\n".join(result.log_tail)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [BuildKind.COMMAND, BuildKind.DKMS])
def test_every_make_of_a_build_gets_the_kernels_compiler(
    toolkit: FakeToolkit, kind: BuildKind
) -> None:
    toolkit.headers(config=HWE)
    toolkit.tool("gcc", GCC_11)
    toolkit.tool("x86_64-linux-gnu-gcc-12", GCC_11)
    toolkit.tool("gcc-12", GCC_12)
    toolkit.vendor("vendor.sh", SAY)
    toolkit.vendor(
        "dkms.conf", "PACKAGE_NAME=straw\nPACKAGE_VERSION=1\nBUILT_MODULE_NAME=straw\nMAKE=make\n"
    )
    command = ("make", "all") if kind is BuildKind.COMMAND else ()
    result = toolkit.answer(toolkit.request(kind=kind, command=command))
    assert result.succeeded, result.message
    assert "MAKEFLAGS=CC=gcc-12" in "\n".join(result.log_tail)


@pytest.mark.slow
def test_a_kernel_of_clang_gets_the_clang_of_its_version(toolkit: FakeToolkit) -> None:
    text = "Debian clang version 14.0.6"
    toolkit.headers(
        config=f'CONFIG_CC_VERSION_TEXT="{text}"\nCONFIG_CC_IS_CLANG=y\nCONFIG_CLANG_VERSION=140006\n'
    )
    toolkit.tool("clang", "#!/bin/sh\necho Debian clang version 19.1.7\n")
    toolkit.tool("clang-14", f"#!/bin/sh\necho {text}\n")
    toolkit.vendor("vendor.sh", SAY)
    result = toolkit.answer(toolkit.request())
    assert result.succeeded, result.message
    assert "LLVM=1 CC=clang-14 modules" in "\n".join(result.log_tail)


def test_the_driver_may_choose_its_compiler() -> None:
    from nodeside.protocol.bundle_key import BuildKind

    settings = BuildSettings(BuildKind.KBUILD, (), make_arguments=("V=1", "CC=ccache gcc-11"))
    assert find_requested_compiler(settings) == "ccache gcc-11"


def test_an_endless_version_of_a_compiler_is_clipped(tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\nhead -c 30000000 /dev/zero | tr '\\0' '('\n")
    compiler.chmod(0o755)
    assert len(ask_compiler(str(compiler)).text) == 500


def test_another_major_version_is_refused_with_what_is_there(toolkit: FakeToolkit) -> None:
    toolkit.tool("gcc", GCC_13)
    toolkit.tool("gcc-12", GCC_13)
    toolkit.write("usr/bin/gcc-13", "")
    result = toolkit.answer(toolkit.request())
    assert result.failure is FailureKind.WRONG_COMPILER
    assert result.message.startswith("gcc 12 compiled the kernel, gcc here is version 13")
    assert "(gcc-13)" in result.hint
    assert "install gcc-12 (Debian, Ubuntu) or gcc12 (SUSE, Alpine, Arch)" in result.hint


def test_a_driver_that_asks_for_another_compiler_gets_it_and_a_note(toolkit: FakeToolkit) -> None:
    toolkit.tool("gcc-13", GCC_13)
    result = toolkit.answer(toolkit.request(make_arguments=("CC=gcc-13",)))
    assert result.succeeded, result.message
    assert (
        "gcc 12 compiled the kernel, gcc-13 here is version 13, "
        "but driver.yaml asks for CC=gcc-13" in result.notes
    )


def test_a_compiler_that_the_headers_pin_must_be_there(toolkit: FakeToolkit) -> None:
    (toolkit.headers() / ".kernelvariables").write_text("CC = gcc-12\n")
    toolkit.tool(
        "make", '#!/bin/bash\n[ "$1" = --version ] && echo GNU Make || echo no-such-gcc-12\n'
    )
    result = toolkit.answer(toolkit.request())
    assert result.failure is FailureKind.WRONG_COMPILER
    assert result.message.startswith(
        f"toolkit has no working no-such-gcc-12, which builds modules for {KERNEL.release}"
    )


@pytest.mark.parametrize("tool", ["scripts/basic/fixdep", "scripts/mod/modpost"])
def test_a_kbuild_tool_that_is_missing_is_named(toolkit: FakeToolkit, tool: str) -> None:
    (toolkit.headers() / tool).unlink()
    result = toolkit.answer(toolkit.request())
    assert result.failure is FailureKind.NO_TOOLS
    assert tool in result.message
    assert "install the whole headers package" in result.hint


def test_a_kbuild_tool_of_another_architecture_is_named(toolkit: FakeToolkit) -> None:
    (toolkit.headers() / "tools/objtool/objtool").write_bytes(b"\x7fELF for somebody else")
    result = toolkit.answer(toolkit.request())
    assert result.failure is FailureKind.NO_TOOLS
    assert "is for another architecture" in result.hint


def test_a_kbuild_tool_that_misses_a_library_is_named(toolkit: FakeToolkit) -> None:
    said = "error while loading shared libraries: libelf.so.1: cannot open shared object file"
    tool = toolkit.headers() / "scripts/mod/modpost"
    tool.write_text(f"#!/bin/sh\necho 'modpost: {said}' >&2\nexit 127\n")
    result = toolkit.answer(toolkit.request())
    assert result.failure is FailureKind.NO_TOOLS
    assert "libelf.so.1" in result.message


def check(toolkit: FakeToolkit, *options: str) -> process.Completed:
    argv = [sys.executable, "-m", "nodeside.toolkit_sidecar", "check", "--root", str(toolkit.root)]
    argv += ["--directory", str(toolkit.shared.out), *options]
    return process.run(argv, timeout=LONG, env={"PATH": toolkit.path()}, check=False)


def test_the_check_for_noexec_writes_through_no_link(toolkit: FakeToolkit, tmp_path: Path) -> None:
    precious, place = tmp_path / "precious", tmp_path / "place"
    precious.write_text("precious")
    place.mkdir()
    (place / ".tmp-noexec-probe").symlink_to(precious)

    findings = inspect_toolchain(
        Bench(toolkit.root, KERNEL, BuildSettings(BuildKind.KBUILD, ()), place)
    )

    assert [finding.ok for finding in findings if finding.check == "exec"] == [True]
    assert precious.read_text() == "precious"
    assert list(place.iterdir()) == []


@pytest.mark.slow
def test_check_shows_every_finding(toolkit: FakeToolkit) -> None:
    said = check(toolkit)
    assert said.exit_code == ExitCode.OK, said
    assert f"ok     headers: {toolkit.root}/usr/src/linux-headers-{KERNEL.release}" in said.output
    assert "ok     kbuild tools: fixdep, modpost, objtool run here" in said.output


@pytest.mark.slow
def test_check_of_a_kernel_without_headers_names_those_that_are_there(toolkit: FakeToolkit) -> None:
    said = check(toolkit, "--kernel", "7.0.0", "--output", "json")
    assert said.exit_code == ExitCode.NO_HEADERS
    record = json.loads(said.output)
    finding = {row["check"]: row for row in record["checks"]}["headers"]
    assert finding["said"] == f"toolkit has headers for {KERNEL.release}, the node runs 7.0.0"
    assert finding["kind"] == "no-headers"


def test_help_stands_alone() -> None:
    argv = [sys.executable, "-m", "nodeside.toolkit_sidecar", "--help"]
    said = process.run(argv, timeout=LONG).output
    assert "exit codes:" in said
    assert "answer requests in a shared directory" in said


@pytest.mark.parametrize(
    ("said", "major"),
    [
        ("gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0", 12),
        ("gcc (GCC) 11.4.1 20231218 (Red Hat 11.4.1-3)", 11),
        ("x86_64-linux-gnu-gcc-13 (Ubuntu 13.2.0-23ubuntu4) 13.2.0", 13),
        ("gcc (SUSE Linux) 7.5.0", 7),
        ("Ubuntu clang version 14.0.0-1ubuntu1.1", 14),
        ("clang version 18.1.8 (CentOS 18.1.8-3.el9)", 18),
        ("a compiler of its own kind", 0),
    ],
)
def test_the_major_version_is_what_the_compiler_says_of_itself(said: str, major: int) -> None:
    assert major_version(said) == major


@pytest.mark.parametrize("lost", ["absent", "empty"])
def test_headers_without_symbol_versions_are_refused_where_the_kernel_checks_them(
    toolkit: FakeToolkit, lost: str
) -> None:
    config = CONFIG + "CONFIG_MODVERSIONS=y\n"
    symvers = toolkit.headers(config=config) / "Module.symvers"
    assert toolkit.answer(toolkit.request()).succeeded
    if lost == "absent":
        symvers.unlink()
    else:
        symvers.write_text("")

    result = toolkit.answer(toolkit.request(attempt=2))

    assert result.failure is FailureKind.NO_TOOLS
    assert result.failure.exit_code is ExitCode.TOOLCHAIN
    assert "have no Module.symvers, and 6.1.0-9-cloud-amd64 loads no module" in result.message
    assert result.command == ""  # nothing was compiled


def test_headers_of_a_kernel_that_checks_no_versions_need_no_list(toolkit: FakeToolkit) -> None:
    (toolkit.headers() / "Module.symvers").unlink()

    assert toolkit.answer(toolkit.request()).succeeded
