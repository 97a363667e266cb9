"""`nodeside try` as a new user types it."""

from __future__ import annotations

import io
import os
import platform
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from nodeside.driver.handoff.request import ToolkitBuildFailed
from nodeside.errors import NodesideError
from nodeside.protocol.build_records import BuildResult, FailureKind
from nodeside.protocol.bundle_key import BuildKind, BuildSettings
from nodeside.trial import emulation
from nodeside.trial import init as init_command
from nodeside.trial.cache import default_directory
from nodeside.trial.cli import _split_commands, trial
from nodeside.trial.errors import TrialError
from nodeside.trial.machine.qemu import device_models
from nodeside.trial.progress import Progress
from nodeside.trial.target.draft import Draft, Failure


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NODESIDE_TRIAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path / "cache"


def fails(*words: str) -> NodesideError:
    outcome = CliRunner().invoke(trial, words)
    assert isinstance(outcome.exception, NodesideError), outcome.output
    return outcome.exception


@pytest.mark.usefixtures("cache")
def test_without_a_target_an_example_is_named() -> None:
    outcome = CliRunner().invoke(trial, [])

    assert outcome.exit_code == 2
    assert "name a driver to try, such as examples/edu" in outcome.output


@pytest.mark.usefixtures("cache")
def test_keep_without_a_terminal_is_refused_before_any_work() -> None:
    error = fails("examples/edu", "--keep")

    assert str(error) == "--keep opens a shell and needs a terminal"
    assert "--command" in error.hint


def test_the_cache_is_removed_on_demand(cache: Path) -> None:
    cache.mkdir()
    (cache / "lock").touch()
    (cache / "kernels").mkdir()

    outcome = CliRunner().invoke(trial, ["--clean-cache"])

    assert outcome.output == f"removed {cache}\n"
    assert [path.name for path in cache.iterdir()] == ["lock"]


@pytest.mark.usefixtures("cache")
def test_another_architecture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")

    assert "needs an amd64 host, this one is aarch64" in str(fails("examples/edu"))


@pytest.mark.usefixtures("cache")
def test_an_architecture_that_no_machine_has_is_refused_with_those_there_are() -> None:
    error = fails("examples/edu", "--arch", "riscv64")

    assert str(error) == "no architecture named 'riscv64' can be tried"
    assert error.hint == "expected one of amd64, arm64"


@pytest.mark.usefixtures("cache")
def test_a_missing_qemu_is_said_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulation, "runs_here", lambda _: True)
    monkeypatch.setenv("PATH", str(tmp_path))

    error = fails("examples/edu", "--arch", "arm64")

    assert str(error) == "qemu-system-aarch64 is missing"
    assert error.hint == "apt-get install qemu-system-arm"


def test_without_root_and_sudo_it_is_said(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(cache))

    error = fails("examples/edu")

    assert isinstance(error, TrialError)
    assert "can only be made by root" in str(error)


def test_help_stands_alone() -> None:
    text = CliRunner().invoke(trial, ["--help"]).output

    for word in ("TARGET is a directory", "--reboot-into", "--build-on", "NODESIDE_MIRROR"):
        assert word in text


def test_a_device_is_known_by_its_model() -> None:
    assert device_models(["edu,dma_mask=0xff", "pvpanic"]) == ("edu", "pvpanic")


@pytest.mark.parametrize(
    ("line", "argv"),
    [
        ("cat /dev/edu0 'a b'", ("cat", "/dev/edu0", "a b")),
        ("cat /proc/modules | wc -l", ("sh", "-c", "cat /proc/modules | wc -l")),
        ("echo $HOME", ("sh", "-c", "echo $HOME")),
        ("sh -c 'exit 3; true'", ("sh", "-c", "sh -c 'exit 3; true'")),
    ],
)
def test_a_command_with_what_only_a_shell_understands_goes_to_one(
    line: str, argv: tuple[str, ...]
) -> None:
    assert _split_commands(click.Context(trial), trial.params[0], [line]) == [argv]


@pytest.mark.usefixtures("cache")
def test_a_shell_in_one_of_several_machines_is_refused() -> None:
    outcome = CliRunner().invoke(trial, ["examples/edu", "--keep", "-k", "amd64", "-k", "6.12"])

    assert outcome.exit_code == 2
    assert "name one --kernel" in outcome.output


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("command", "said"), [("'", "No closing quotation"), ("", "got nothing"), ("''", "got nothing")]
)
def test_a_command_that_is_no_command_is_refused_before_any_work(command: str, said: str) -> None:
    outcome = CliRunner().invoke(trial, ["examples/edu", "--command", command])

    assert outcome.exit_code == 2
    assert "'--command'" in outcome.output
    assert said in outcome.output


def test_a_relative_cache_is_below_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NODESIDE_TRIAL_CACHE", "cache")

    assert default_directory() == tmp_path / "cache"  # apt would look for it below /


def test_a_terminal_that_wants_no_color_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")

    Progress(terminal).print_line("host    |", "CC [M] edu.o")

    assert terminal.getvalue() == "host    | CC [M] edu.o\n"


@pytest.mark.parametrize(
    ("hint", "option"),
    [
        ("install flex in the toolkit image (package flex on Debian)", "--toolkit-package flex"),
        (
            "no libaio.h: install its development package in the toolkit image",
            "--toolkit-package PACKAGE",
        ),
        ("the kernel exports this symbol to GPL modules only (MODULE_LICENSE)", ""),
        ("", ""),
    ],
)
def test_init_names_the_option_for_what_the_toolkit_lacks(
    monkeypatch: pytest.MonkeyPatch, hint: str, option: str
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise ToolkitBuildFailed(
            BuildResult("1-1", "boot", False, failure=FailureKind.COMPILE, hint=hint)
        )

    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("nodeside.trial.privilege.become_root", lambda: None)
    monkeypatch.setattr(init_command, "_write_files", fail)

    plain, chosen = (
        CliRunner().invoke(init_command.init, ["a board", *options])
        for options in ((), ("--kernel", "6.12-amd64", "--toolkit-package", "g++"))
    )

    assert isinstance(plain.exception, ToolkitBuildFailed)
    said = f"; here: nodeside init 'a board' {option}" if option else ""
    assert plain.exception.hint == hint + said
    assert isinstance(chosen.exception, ToolkitBuildFailed)
    as_before = "nodeside init 'a board' --kernel 6.12-amd64 --toolkit-package g++"
    assert chosen.exception.hint == hint + (f"; here: {as_before} {option}" if option else "")


@pytest.mark.parametrize(
    ("kernel", "packages", "options"),
    [
        ("cloud-amd64", (), ""),
        ("amd64", (), " --kernel amd64"),
        (
            "cloud-amd64",
            ("libaio-dev", "flex"),
            " --toolkit-package libaio-dev --toolkit-package flex",
        ),
    ],
)
def test_the_trial_after_init_builds_as_init_did(
    monkeypatch: pytest.MonkeyPatch, kernel: str, packages: tuple[str, ...], options: str
) -> None:
    """A trial without them ends with exit code 10, after an init that went well."""
    draft = Draft("board", "1.0", BuildSettings(kind=BuildKind.KBUILD, modules=("board",)))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("nodeside.trial.privilege.become_root", lambda: None)
    monkeypatch.setattr(init_command, "_write_files", lambda *_, **__: (Path("board"), draft))
    given = [word for package in packages for word in ("--toolkit-package", package)]

    outcome = CliRunner().invoke(init_command.init, ["board", "--kernel", kernel, *given])

    line = " ".join(outcome.output.partition("\nnext ")[2].split())
    assert line == f"nodeside try board{options}"


def test_the_repeat_of_a_failed_init_keeps_what_it_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = BuildSettings(kind=BuildKind.KBUILD, modules=("board",))
    error = NodesideError("libaio.h: No such file", hint="(package libaio-dev on Debian)")
    draft = Draft("board", "1.0", settings, problem="no", failures=(Failure(settings, error),))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("nodeside.trial.privilege.become_root", lambda: None)
    monkeypatch.setattr(init_command, "_write_files", lambda *_, **__: (Path("board"), draft))
    given = ["--kernel", "amd64", "--toolkit-package", "flex"]

    outcome = CliRunner().invoke(init_command.init, ["board", *given])

    line = " ".join(outcome.output.partition("\nagain ")[2].partition("\nnext ")[0].split())
    assert line == (
        "nodeside init board --force --kernel amd64 --toolkit-package flex "
        "--toolkit-package libaio-dev"
    )
