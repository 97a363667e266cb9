"""The `nodeside` command itself: help, completion, exit codes, and what starting it costs."""

from __future__ import annotations

import re
import shutil
import signal
import sys
from pathlib import Path

import click
import pytest

from nodeside import __version__
from nodeside.cli import _COMMANDS, exit_on_error
from nodeside.errors import ExitCode, NodesideError
from nodeside.system import process
from tests import TOP, console
from tests.console import nodeside
from tests.tries import sampled


def loaded_by(*argv: str) -> set[str]:
    """The modules that a command has imported at its end."""
    code = (
        "import sys\n"
        f"sys.argv = ['nodeside', *{list(argv)!r}]\n"
        "from nodeside.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(*sys.modules, sep='\\n', file=sys.stderr)\n"
    )
    done = process.run([sys.executable, "-c", code], timeout=console.LONG)
    return set(done.errors.split())


HEAVY = {"requests", "yaml", "psutil", "pyudev", "subprocess", "hashlib", "ctypes", "ssl"}


@pytest.mark.parametrize(
    "argv", sampled([["--help"], ["driver", "--help"], ["driver", "build", "--help"]], 3)
)
def test_help_imports_nothing_heavy(argv: list[str]) -> None:
    assert loaded_by(*argv) & HEAVY == set()


def test_help_names_every_command_and_every_exit_code() -> None:
    done = nodeside("--help")
    assert done.code == 0
    for name in ("driver", "device-agent", "try", "spec", "completion"):
        assert f"\n  {name} " in done.output
    _, _, codes = " ".join(done.output.split()).removesuffix(".").partition("Exit codes: ")
    said = dict(row.split(" ", 1) for row in re.split(r"; (?=\d+ )", codes))
    assert said == {str(code.value): code.meaning for code in ExitCode}


def test_the_help_of_the_group_says_what_each_command_says() -> None:
    for name, (_, _, text) in _COMMANDS.items():
        assert text in " ".join(nodeside(name, "--help").output.split())


def test_short_help_works_everywhere() -> None:
    for argv in (["-h"], ["driver", "-h"], ["driver", "plan", "-h"]):
        assert nodeside(*argv).output.startswith("Usage: nodeside")


def test_the_version_is_printed() -> None:
    assert nodeside("--version").output == f"nodeside, version {__version__}\n"


def test_a_command_that_is_near_is_proposed() -> None:
    assert "No such command 'trry'. Did you mean 'try'?" in nodeside("trry").errors
    assert "Did you mean" not in nodeside("fly").errors


@pytest.mark.parametrize(
    "argv", [["fly"], ["driver", "fly"], ["driver", "plan", "--fly"], ["driver", "plan", "extra"]]
)
def test_a_wrong_command_line_is_2_and_says_where_to_look(argv: list[str]) -> None:
    done = nodeside(*argv)
    assert done.code == ExitCode.USAGE
    assert "Usage: nodeside" in done.errors
    assert "--help" in done.errors
    assert "Traceback" not in done.errors


# --- completion ------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed(shell: str) -> None:
    done = nodeside("completion", shell)
    assert done.code == 0
    assert "_NODESIDE_COMPLETE" in done.output


def complete(*words: str) -> list[str]:
    """What bash would offer for the last of these words."""
    env = {
        "_NODESIDE_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("nodeside", *words)),
        "COMP_CWORD": str(len(words)),
    }
    done = nodeside(env=env)
    return [line.partition(",")[2] for line in done.output.splitlines()]


def test_commands_verbs_and_options_complete() -> None:
    assert complete("dr") == ["driver"]
    assert set(complete("")) == {"driver", "device-agent", "try", "init", "spec", "completion"}
    assert complete("driver", "do") == ["doctor"]
    assert complete("driver", "build", "--ag") == ["--again"]
    assert set(complete("driver", "plan", "--output", "")) == {"table", "json"}


def test_the_completion_script_is_good_bash(tmp_path: Path) -> None:
    script = tmp_path / "completion.bash"
    script.write_text(nodeside("completion", "bash").output)
    process.run(["bash", "-n", script], timeout=console.LONG)


def test_completing_a_command_imports_none() -> None:
    code = (
        "import os, sys\n"
        "os.environ.update(_NODESIDE_COMPLETE='bash_complete', COMP_WORDS='nodeside d',\n"
        "                  COMP_CWORD='1')\n"
        "from nodeside.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(*sys.modules, sep='\\n', file=sys.stderr)\n"
    )
    done = process.run([sys.executable, "-c", code], timeout=console.LONG)
    assert done.output == "plain,driver\nplain,device-agent\n"
    imported = ("nodeside.driver", "nodeside.device_agent")
    assert not {name for name in done.errors.split() if name.startswith(imported)}


# --- failures --------------------------------------------------------------------------------


def test_an_expected_failure_is_one_sentence_a_hint_and_its_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as end, exit_on_error():
        raise NodesideError("the disk is upside down: /mnt", hint="turn it")
    assert end.value.code == ExitCode.SYSTEM
    assert capsys.readouterr().err == "error: the disk is upside down: /mnt\nhint: turn it\n"


def test_ctrl_c_is_130(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end, exit_on_error():
        raise KeyboardInterrupt
    assert end.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_bug_shows_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), exit_on_error():
        raise ZeroDivisionError


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_bug() -> None:
    script = f"{sys.executable} -m nodeside spec json-schema | head -c 10"
    done = process.run(["bash", "-c", script], timeout=console.LONG)
    assert "Traceback" not in done.errors
    assert "Exception ignored" not in done.errors


@pytest.mark.slow
def test_a_reader_who_has_had_enough_is_no_bug() -> None:
    done = printing_to("r, w = os.pipe(); os.close(r); os.dup2(w, 1)")

    assert (done.exit_code, done.errors) == (128 + signal.SIGPIPE, "")


@pytest.mark.slow
def test_a_full_disk_below_the_output_is_told_as_one() -> None:
    done = printing_to("os.dup2(os.open('/dev/full', os.O_WRONLY), 1)")

    assert done.exit_code == ExitCode.NO_SPACE
    assert done.errors == "error: no space left writing the output\n"


def printing_to(output: str) -> process.Completed:
    """A command that prints much, to what the given statements make its output."""
    code = (
        f"import os, sys; {output}\n"
        "sys.argv = ['nodeside', 'spec', 'json-schema']\n"
        "from nodeside.cli import main\n"
        "main()\n"
    )
    return process.run([sys.executable, "-c", code], timeout=console.LONG, check=False)


@pytest.mark.slow
def test_what_an_image_leaves_out_is_not_listed_and_says_so(tmp_path: Path) -> None:
    """`-S`: an installation of this checkout would be looked through for what is missing."""
    shutil.copytree(TOP / "nodeside", tmp_path / "nodeside")
    for part in ("trial", "device_agent"):
        shutil.rmtree(tmp_path / "nodeside" / part)
    packages = Path(click.__file__).parents[1]
    code = (
        f"import sys; sys.path[:0] = {[str(tmp_path), str(packages)]!r}\n"
        "from nodeside.cli import main; main()"
    )

    def run(*argv: str) -> process.Completed:
        words = [sys.executable, "-I", "-S", "-c", code, *argv]
        return process.run(words, check=False, timeout=console.LONG)

    listed = run("--help").output.partition("Commands:")[2].split()
    assert {"driver", "spec", "completion"} <= set(listed)
    assert not {"try", "init", "device-agent"} & set(listed)
    for name in ("try", "init", "device-agent"):
        done = run(name, "--help")
        assert (done.exit_code, done.output) == (ExitCode.USAGE, "")
        assert done.errors.startswith(f"error: nodeside {name} is not part of this image\nhint: it")
    assert run("spec", "--help").exit_code == 0
