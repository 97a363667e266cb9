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
    chosen_by_driver,
    compare_compilers,
    kernels_compiler,
    major_version,
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
    found = kernels_compiler(read_headers(toolkit.headers()))
    assert (found.text, found.family, found.major) == (
        "gcc-12 (Debian 12.2.0-14) 12.2.0",
        "gcc",
        12,
    )
    clang = CONFIG + "CONFIG_CC_IS_CLANG=y\nCONFIG_CLANG_VERSION=140006\n"
    assert kernels_compiler(read_headers(toolkit.headers(config=clang))).major == 14


def test_the_driver_may_choose_its_compiler() -> None:
    from nodeside.protocol.bundle_key import BuildKind

    settings = BuildSettings(BuildKind.KBUILD, (), make_arguments=("V=1", "CC=ccache gcc-11"))
    assert chosen_by_driver(settings) == "ccache gcc-11"


def test_an_endless_version_of_a_compiler_is_clipped(tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\nhead -c 30000000 /dev/zero | tr '\\0' '('\n")
    compiler.chmod(0o755)
    assert len(ask_compiler(str(compiler)).text) == 500


def test_another_major_version_is_refused_with_what_is_there(toolkit: FakeToolkit) -> None:
    toolkit.tool("gcc", GCC_13)
    toolkit.write("usr/bin/gcc-13", "")
    result = toolkit.answer(toolkit.request())
    assert result.failure is FailureKind.WRONG_COMPILER
    assert result.message.startswith("gcc 12 compiled the kernel, gcc here is version 13")
    assert "(gcc-13)" in result.hint


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
