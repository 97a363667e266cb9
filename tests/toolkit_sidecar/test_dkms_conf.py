"""A dkms.conf is a bash program: bash evaluates it, and data comes back, whatever it does."""

from __future__ import annotations

import shlex
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeside.protocol.build_records import FailureKind
from nodeside.toolkit_sidecar.buildlog import BuildLog
from nodeside.toolkit_sidecar.confinement import BuildWatch
from nodeside.toolkit_sidecar.dkms_conf import Values, evaluate_conf, parse_dump
from nodeside.toolkit_sidecar.failure import BuildFailed
from tests.tries import sampled, tries

SHELL = {
    "kernelver": "6.1.0-9-cloud-amd64",
    "arch": "x86_64",
    "kernel_source_dir": "/lib/modules/6.1.0-9-cloud-amd64/build",
    "dkms_tree": "/out/dkms",
}
NAMED = "PACKAGE_NAME=straw\nPACKAGE_VERSION=1.0\n"


def read(text: str, directory: Path, *, seconds: float = 30.0) -> Values:
    """What the given dkms.conf says; its own output is in `directory/build.log`."""
    (directory / "dkms.conf").write_text(text, newline="")
    for name in ("build.log", "values"):
        (directory / name).unlink(missing_ok=True)
    with BuildLog(directory / "build.log", lambda _: None) as log:
        return evaluate_conf(
            directory / "dkms.conf",
            dump=directory / "values",
            shell=SHELL,
            env={"LC_ALL": "C"},
            mark=str(directory),
            log=log,
            watch=BuildWatch(seconds=seconds, request=directory, disk=directory, what="dkms.conf"),
        )


def test_arrays_with_holes_and_plain_variables_come_back(tmp_path: Path) -> None:
    values = read('MAKE="make all"\nBUILT_MODULE_NAME[0]=a\nBUILT_MODULE_NAME[7]="b c"\n', tmp_path)
    assert values.first("MAKE") == "make all"
    assert values["BUILT_MODULE_NAME"] == {0: "a", 7: "b c"}
    assert values["PATCH"] == {}


def test_values_may_be_computed_from_the_kernel_and_the_package(tmp_path: Path) -> None:
    text = NAMED + 'MAKE[0]="make -C ${kernel_source_dir} M=${dkms_tree}/$PACKAGE_NAME/build"\n'
    text += "if [ $arch = x86_64 ]; then i=$((1+1)); PATCH[$i]=$module-$module_version.patch; fi\n"
    values = read(text, tmp_path)
    assert values.first("MAKE") == (
        "make -C /lib/modules/6.1.0-9-cloud-amd64/build M=/out/dkms/straw/build"
    )
    assert values["PATCH"] == {2: "straw-1.0.patch"}


def test_single_quoted_values_are_expanded_once_more_as_dkms_does(tmp_path: Path) -> None:
    values = read("MAKE='make KVER=$kernelver'\n", tmp_path)
    assert values.first("MAKE") == "make KVER=6.1.0-9-cloud-amd64"


def test_quotes_in_a_value_survive(tmp_path: Path) -> None:
    text = """MAKE[0]='make CFLAGS="-O2 -g" all'\nMAKE[1]="find -name '*.ko' -exec mv {} . \\;"\n"""
    values = read(text, tmp_path)
    assert values["MAKE"] == {
        0: 'make CFLAGS="-O2 -g" all',
        1: "find -name '*.ko' -exec mv {} . \\;",
    }


def test_quotes_that_dkms_swallows_are_swallowed(tmp_path: Path) -> None:
    """As zfs writes it: in $(...) a backslash before a quote makes the quote part of the word."""
    text = r"""PRE_BUILD="configure $([[ -n \"${CROSS}\" ]] && echo --host=\"${CROSS%-}\") --silent"
"""
    values = read(text, tmp_path)
    assert values.first("PRE_BUILD") == "configure --host= --silent"


def test_quotes_without_white_space_are_lost_as_with_dkms(tmp_path: Path) -> None:
    text = r'''PRE_BUILD="configure $(echo --with-qat=\"${NONE}\") --host=\"\" --with=\"$arch\""'''
    values = read(text + '\nMAKE=\'make V="1" ARCH="$arch"\'\n', tmp_path)
    assert values.first("PRE_BUILD") == "configure --with-qat= --host= --with=x86_64"
    assert values.first("MAKE") == "make V=1 ARCH=x86_64"


def test_lines_and_carriage_returns_in_a_value_are_folded(tmp_path: Path) -> None:
    values = read('MAKE="make \\\n   one\n\ttwo"\nPACKAGE_NAME=straw\r\n', tmp_path)
    assert values.first("MAKE") == "make one two"
    assert values.first("PACKAGE_NAME") == "straw"


def test_patterns_are_matched_by_bash(tmp_path: Path) -> None:
    text = 'MAKE_MATCH[1]="^6\\.[[:digit:]]+"\nMAKE_MATCH[2]="^5"\nBUILD_EXCLUSIVE_ARCH="aarch64"\n'
    values = read(text, tmp_path)
    assert values.matches("MAKE_MATCH", 1)
    assert not values.matches("MAKE_MATCH", 2)
    assert not values.matches("BUILD_EXCLUSIVE_ARCH", 0)


def test_what_it_prints_goes_to_the_log_and_not_into_the_values(tmp_path: Path) -> None:
    values = read("echo PACKAGE_NAME=evil\necho warning >&2\nPACKAGE_NAME=straw\n", tmp_path)
    assert values.first("PACKAGE_NAME") == "straw"
    assert (tmp_path / "build.log").read_text() == "PACKAGE_NAME=evil\nwarning\n"


@pytest.mark.parametrize(
    "ending", sampled(["exit 0", "exit 3", "exec true", "set -e\nfalse", "kill -9 $$"], 5)
)
def test_a_file_that_ends_its_shell_has_no_values(tmp_path: Path, ending: str) -> None:
    with pytest.raises(BuildFailed, match=r"dkms.conf ended the shell that read it") as caught:
        read(f"{NAMED}{ending}\n", tmp_path)
    assert caught.value.kind is FailureKind.BAD_SOURCE


@pytest.mark.parametrize("last", ["true && ls", "true; ls", "false || ls", "{ true; ls; }", "ls"])
def test_a_program_in_the_last_line_does_not_take_the_place_of_the_shell(
    tmp_path: Path, last: str
) -> None:
    assert read(f"MAKE=x\n{last}\n", tmp_path).first("MAKE") == "x"


def test_strict_settings_of_the_file_do_not_hide_its_values(tmp_path: Path) -> None:
    assert read(f"set -eu\n{NAMED}", tmp_path).first("PACKAGE_NAME") == "straw"


@pytest.mark.slow
def test_a_file_that_never_ends_is_ended(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match=r"dkms.conf did not end within 0.5 s") as caught:
        read("while :; do :; done\n", tmp_path, seconds=0.5)
    assert caught.value.kind is FailureKind.TIMEOUT


def test_no_shell_variable_of_dkms_reaches_the_environment(tmp_path: Path) -> None:
    read("env\n", tmp_path)
    assert "kernelver" not in (tmp_path / "build.log").read_text()


def test_a_planted_dump_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(BuildFailed):
        read(f"ln -s {tmp_path}/secret {tmp_path}/values\nexit\n", tmp_path)


def test_a_dump_that_is_not_whole_counts_for_nothing() -> None:
    assert parse_dump(b"MAKE\x000\0make\0nodeside-end\0\0\0") == Values({"MAKE": {0: "make"}})
    assert parse_dump(b"MAKE\x000\0make\0") is None
    assert parse_dump(b"") is None


@given(st.binary())
def test_no_dump_breaks_the_reader(data: bytes) -> None:
    parse_dump(data)
    parse_dump(data + b"\0nodeside-end\0\0\0")


_PLAIN = st.text(
    st.characters(
        codec="utf-8", exclude_characters='\0"\\$`', exclude_categories=("Cc", "Zs", "Zl")
    )
)


@settings(max_examples=tries(30))
@given(st.dictionaries(st.integers(0, 40), _PLAIN, max_size=5))
def test_any_value_comes_back_as_it_was_written(values: dict[int, str]) -> None:
    lines = [f"MAKE[{index}]={shlex.quote(value)}" for index, value in values.items()]
    with tempfile.TemporaryDirectory() as directory:
        there = read("\n".join(lines), Path(directory))["MAKE"]
    assert {index: " ".join(value.split(" ")) for index, value in values.items()} == there


_HOSTILE = st.lists(
    st.sampled_from(
        [
            *(
                "MAKE=",
                "MAKE[3]=",
                "PACKAGE_NAME=",
                "BUILT_MODULE_NAME[1]=",
                "declare -A MAKE",
                "(",
            ),
            *(
                '"',
                "'",
                "$",
                "`",
                "\\",
                "\n",
                "unset IFS",
                "IFS=x",
                "readonly MAKE",
                "set -e",
                "fi",
            ),
            *("exit", "return", "printf() { :; }", "shopt -s extglob", "{", "}", ";", "make", "*"),
            *("$(echo '\"')", "set -f", "_ns_names=x", "trap 'exit 9' EXIT", "exec >&-", "é", "\r"),
        ]
    ),
    max_size=12,
)


@pytest.mark.slow
@settings(max_examples=tries(60))
@given(_HOSTILE)
def test_no_file_does_more_than_fail(pieces: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory, suppress(BuildFailed):
        values = read(" ".join(pieces), Path(directory))
        assert all(isinstance(text, str) for text in values["MAKE"].values())
