"""What the source and the headers tell about an error."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from nodeside.protocol.build_records import FailureKind
from nodeside.protocol.bundle_key import BuildKind
from nodeside.toolkit_sidecar import advice
from nodeside.toolkit_sidecar.advice import advise_on_error
from nodeside.toolkit_sidecar.headers import Headers, read_headers
from nodeside.toolkit_sidecar.recipe import Workplace
from tests.toolkit_sidecar.faketoolkit import CONFIG, KERNEL, FakeToolkit

NO_HEADER = "edu.c:3:10: fatal error: {}: No such file or directory"


def ask(toolkit: FakeToolkit, line: str, *, release: str = "", kind: str = "kbuild") -> str:
    """The advice for an error line of a build of the toolkit's source."""
    headers = read_headers(toolkit.root / f"usr/src/linux-headers-{KERNEL.release}")
    headers = Headers(
        headers.directory, release or headers.release, headers.version, headers.config
    )
    request = toolkit.request(kind=BuildKind(kind), command=("make",))
    place = Workplace(request, toolkit.shared.out_dir(request.id), headers, 1)
    return advise_on_error(line, place, toolkit.source)


def kernel_header(toolkit: FakeToolkit, path: str, text: str) -> None:
    toolkit.write(f"usr/src/linux-headers-{KERNEL.release}/include/{path}", text)


@pytest.mark.parametrize(
    "rule",
    [
        "generated.h:\n\techo > $@\n",
        "$(obj)/generated.h: $(src)/gen.sh\n\tsh $< > $@\n",
        "table.c generated.h: spec\n\tmk spec\n",
    ],
)
def test_a_header_that_a_rule_of_the_source_makes_is_not_missing_in_it(
    toolkit: FakeToolkit, rule: str
) -> None:
    toolkit.vendor("drv/Makefile", f"obj-m := edu.o\n{rule}")

    advice = ask(toolkit, NO_HEADER.format("generated.h"))
    assert advice.startswith("a rule in drv/Makefile makes generated.h, which kbuild by itself")
    assert "build.kind: command and build.command: [make]" in advice
    advice = ask(toolkit, NO_HEADER.format("generated.h"), kind="command")
    assert "it did not run: make that target first" in advice


@pytest.mark.parametrize(
    "text", ["H := generated.h:1\n", "# generated.h: by hand\n", "\techo generated.h: none\n"]
)
def test_other_lines_of_a_makefile_are_no_rule(toolkit: FakeToolkit, text: str) -> None:
    toolkit.vendor("Makefile", text)

    assert ask(toolkit, NO_HEADER.format("generated.h")) == ""


def test_flags_that_a_new_kernel_ignores_are_named(toolkit: FakeToolkit) -> None:
    toolkit.vendor("inc/edu_api.h", "")
    toolkit.vendor("Makefile", "obj-m := edu.o\nEXTRA_CFLAGS := -I$(src)/inc\n")
    line = NO_HEADER.format("edu_api.h")

    assert "kbuild ignores EXTRA_CFLAGS since Linux 6.15" in ask(toolkit, line, release="6.15.4")
    assert "add -I$(src)/inc to ccflags-y" in ask(toolkit, line, release="6.14.9-1-amd64")


def test_a_header_that_is_nowhere_is_left_to_others(toolkit: FakeToolkit) -> None:
    assert ask(toolkit, NO_HEADER.format("zmq.h")) == ""
    assert ask(toolkit, NO_HEADER.format("../common/x.h")) == ""


@pytest.mark.parametrize(
    "error",
    [
        "implicit declaration of function 'wmi_ask' [-Werror=implicit-function-declaration]",
        "call to undeclared function 'wmi_ask'; ISO C99 and later do not support",
        "'wmi_ask' undeclared (first use in this function); did you mean 'ask'?",
        "'struct acpi' has no member named 'wmi_ask'",
        "unknown type name 'wmi_ask'",
    ],
)
@pytest.mark.parametrize(
    "condition",
    [
        "#ifdef CONFIG_ACPI_WMI",
        "#if IS_ENABLED(CONFIG_ACPI_WMI)",
        "#if defined(CONFIG_ACPI_WMI) || defined(CONFIG_ACPI_WMI_MODULE)",
        "# if defined(CONFIG_I2C) && defined(CONFIG_ACPI_WMI)",
    ],
)
def test_a_name_that_needs_an_option_that_is_off_is_told_with_it(
    toolkit: FakeToolkit, error: str, condition: str
) -> None:
    toolkit.headers(config=CONFIG + "# CONFIG_ACPI_WMI is not set\n")
    kernel_header(
        toolkit,
        "linux/acpi.h",
        f"#ifndef _ACPI_H\n#define _ACPI_H\n/*\n * wmi_ask asks\n */\n{condition}\n"
        "int wmi_ask(int guid);\n#endif\n#endif\n",
    )

    assert ask(toolkit, f"edu.c:4:9: error: {error}").startswith(
        "the kernel declares wmi_ask only with CONFIG_ACPI_WMI (linux/acpi.h), which is off in "
    )
    toolkit.headers(config=CONFIG + "CONFIG_ACPI_WMI=m\n")
    assert ask(toolkit, f"edu.c:4:9: error: {error}") == ""


@pytest.mark.parametrize(
    "text",
    [
        "int wmi_ask(void);\n",
        "#ifdef CONFIG_A\nint wmi_ask(void);\n#else\nstatic inline int wmi_ask(void) { }\n#endif\n",
        "#ifdef CONFIG_A\n#endif\nint wmi_ask(void);\n",
        "#if defined(CONFIG_A) || defined(CONFIG_B)\nint wmi_ask(void);\n#endif\n",
        "#if !defined(CONFIG_A)\nint wmi_ask(void);\n#endif\n",
        "#endif\n#else\n#ifdef\n",
    ],
)
def test_a_name_that_needs_no_option_is_left_to_others(toolkit: FakeToolkit, text: str) -> None:
    kernel_header(toolkit, "linux/acpi.h", text)

    line = "edu.c:4:9: error: implicit declaration of function 'wmi_ask'"
    assert ask(toolkit, line) == ""


def steps_of(toolkit: FakeToolkit, depth: int) -> int:
    """The lines that an advice runs, of a name that is used `depth` times, that deep."""
    opened = "".join(f"#ifdef CONFIG_N{index}\n" for index in range(depth))
    uses = "int wmi_ask(void);\n" * depth
    kernel_header(toolkit, "linux/deep.h", f"{opened}{uses}{'#endif' * depth}\n")
    steps = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal steps
        steps += event == "line"
        return count if frame.f_code.co_filename == advice.__file__ else None

    before = sys.gettrace()
    sys.settrace(count)
    try:
        said = ask(toolkit, "edu.c:4:9: error: implicit declaration of function 'wmi_ask'")
    finally:
        sys.settrace(before)
    assert "only with CONFIG_N0 and CONFIG_N1 and CONFIG_N2 and CONFIG_N3 and others (" in said
    return steps


def test_an_advice_costs_what_the_header_is_long_however_deep_it_is(toolkit: FakeToolkit) -> None:
    few, many = steps_of(toolkit, 100), steps_of(toolkit, 400)
    assert many < 5 * few, "four times as many lines"


def test_one_use_without_a_condition_is_enough(toolkit: FakeToolkit) -> None:
    text = "#ifdef CONFIG_A\nint wmi_ask(void);\n#endif\nint wmi_ask(void);\n"
    kernel_header(toolkit, "linux/acpi.h", text)

    assert ask(toolkit, "edu.c:4:9: error: implicit declaration of function 'wmi_ask'") == ""


def test_headers_that_two_flavours_share_are_read(toolkit: FakeToolkit, tmp_path: Path) -> None:
    common = tmp_path / "common"
    (common / "include/linux").mkdir(parents=True)
    (common / "include/linux/acpi.h").write_text("#ifdef CONFIG_WMI\nint wmi_ask(void);\n#endif\n")
    base = f"usr/src/linux-headers-{KERNEL.release}"
    toolkit.write(f"{base}/Makefile", f"include {common}/Makefile\n")

    line = "edu.c:4:9: error: implicit declaration of function 'wmi_ask'"
    assert "only with CONFIG_WMI (linux/acpi.h)" in ask(toolkit, line)


@pytest.mark.parametrize("limit", ["_FILES", "_SECONDS"])
def test_of_a_tree_that_is_too_large_nothing_is_said(
    toolkit: FakeToolkit, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"nodeside.toolkit_sidecar.advice.{limit}", 0)
    toolkit.vendor("Makefile", "generated.h:\n\techo > $@\n")

    assert ask(toolkit, NO_HEADER.format("generated.h")) == ""


def test_links_and_long_lines_of_a_source_do_no_harm(toolkit: FakeToolkit) -> None:
    toolkit.vendor("Makefile", "generated.h " * 60_000 + ": x=\n")
    (toolkit.source / "loop").symlink_to(toolkit.source)
    (toolkit.source / "sub.mk").symlink_to("/dev/zero")

    assert "build.kind: command" in ask(toolkit, NO_HEADER.format("generated.h"))


def test_the_advice_reaches_the_answer(toolkit: FakeToolkit) -> None:
    toolkit.vendor("Makefile", "obj-m := straw.o\ngenerated.h:\n\techo > $@\n")
    line = NO_HEADER.format("generated.h")
    toolkit.vendor("vendor.sh", f"echo '{line}'\nexit 2\n")

    result = toolkit.answer(toolkit.request())

    assert result.failure is FailureKind.COMPILE
    assert result.first_error == line
    assert result.hint.startswith("a rule in Makefile makes generated.h")


def test_a_name_of_any_bytes_loses_no_answer(toolkit: FakeToolkit) -> None:
    toolkit.vendor("\udcff\x1b[2J/foo.h", "")
    toolkit.vendor("vendor.sh", f"echo '{NO_HEADER.format('foo.h')}'; exit 2\n")
    result = toolkit.answer(toolkit.request())
    assert result.failure is FailureKind.COMPILE
    assert r"\udcff\x1b[2J/foo.h is in the source" in result.hint
