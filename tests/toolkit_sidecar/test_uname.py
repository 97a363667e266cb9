"""The `uname` of a build answers as coreutils' does, for the kernel of the request."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeside.system import process
from nodeside.system.host import Kernel
from nodeside.toolkit_sidecar.uname import path_with_uname
from tests.toolkit_sidecar.faketoolkit import LONG

OTHER = Kernel("4.18.0-$(date) 'x\"", "#1 SMP it's `that` \\build", "s390x")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return path_with_uname(tmp_path / "bin", OTHER, os.environ["PATH"])


def ask(path: str, *options: str, check: bool = True) -> process.Completed:
    return process.run(
        ["sh", "-c", 'uname "$@"', "sh", *options], timeout=LONG, env={"PATH": path}, check=check
    )


def real(*options: str, check: bool = True) -> process.Completed:
    return process.run(["uname", *options], timeout=LONG, check=check)


@pytest.mark.parametrize("option", ["-r", "--kernel-release", "--release", "-rr"])
def test_the_release_is_the_requested_one(path: str, option: str) -> None:
    assert ask(path, option).output == f"{OTHER.release}\n"


def test_version_and_machine_are_the_requested_kernels(path: str) -> None:
    assert ask(path, "-v").output == f"{OTHER.version}\n"
    assert ask(path, "-m").output == f"{OTHER.architecture}\n"


@pytest.mark.parametrize(
    "options", [(), ("-s",), ("-n",), ("-o",), ("-p",), ("-i",), ("-on",), ("-s", "--nodename")]
)
def test_what_no_kernel_decides_is_this_machines(path: str, options: tuple[str, ...]) -> None:
    assert ask(path, *options).output == real(*options).output


@pytest.mark.parametrize(
    "options",
    [("-a",), ("--all",), ("-rs",), ("-sr",), ("-s", "-m", "-r"), ("-vm",), ("-srvm",), ("-ar",)],
)
def test_fields_stand_where_coreutils_has_them(tmp_path: Path, options: tuple[str, ...]) -> None:
    """For the running kernel there is no difference to the real one."""
    running = os.uname()
    kernel = Kernel(running.release, running.version, running.machine)
    path = path_with_uname(tmp_path / "bin", kernel, os.environ["PATH"])
    assert ask(path, *options).output == real(*options).output


@pytest.mark.parametrize(
    "options", [("-x",), ("release",), ("-r", "-x"), ("",), ("-",), ("--r=1",)]
)
def test_a_mistake_is_the_real_ones_to_tell(path: str, options: tuple[str, ...]) -> None:
    ours, theirs = ask(path, *options, check=False), real(*options, check=False)
    assert (ours.exit_code, ours.output) == (theirs.exit_code, theirs.output)
    assert theirs.exit_code != 0


def test_help_is_the_real_ones(path: str) -> None:
    assert ask(path, "--help").output.startswith("Usage: ")


def test_it_needs_nothing_but_a_shell_and_the_real_uname(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "uname"):
        (tools / name).symlink_to(
            process.run(["sh", "-c", f"command -v {name}"], timeout=LONG).output.strip()
        )
    path = path_with_uname(tmp_path / "bin", OTHER, str(tools))
    assert ask(path, "-sr").output == f"Linux {OTHER.release}\n"
    assert ask(path, "-a").output.startswith("Linux ")
