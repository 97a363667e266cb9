"""`python -m bench`: what breaks is said, the other parts go on, and the run fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner, Result

from bench import __main__ as command
from bench.page import Section
from bench.room import BenchError
from bench.size import Size
from nodeside.errors import ExitCode


def run(monkeypatch: pytest.MonkeyPatch, parts: dict[str, Any], *argv: str) -> Result:
    monkeypatch.setattr(command, "_PARTS", parts)
    only = [word for name in parts for word in ("--only", name)]
    return CliRunner().invoke(command.bench, [*argv, *only])


def works(_: object, size: Size) -> tuple[Section, dict[str, str]]:
    return Section("Works", f"At size {size.value}.", "| a |"), {}


def waits(_: object, __: Size) -> NoReturn:
    raise BenchError("waited for all to speak, but n1 said: no")


def is_wrong(_: object, __: Size) -> NoReturn:
    raise KeyError("kernel")


@pytest.mark.parametrize(
    ("breaks", "words"),
    [
        (waits, "images failed: waited for all to speak, but n1 said: no"),
        (is_wrong, "images failed: 'kernel'"),
    ],
)
def test_a_part_that_breaks_fails_the_run_with_its_message(
    monkeypatch: pytest.MonkeyPatch, breaks: Any, words: str
) -> None:
    done = run(monkeypatch, {"images": breaks, "devices": works}, "--smallest")

    assert done.exit_code == ExitCode.SYSTEM
    assert words in done.output
    assert "## Works" in done.output, "the next part was measured nevertheless"
    assert "not measured: images" in done.output


@pytest.mark.parametrize("flag", ["--quick", "--smallest"])
def test_the_page_is_written_from_a_whole_run_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flag: str
) -> None:
    page = tmp_path / "page.md"
    small = run(monkeypatch, {"images": works}, flag, "--to", str(page))

    assert small.exit_code == 0
    assert f"At size {flag.removeprefix('--')}." in small.output
    assert not page.exists()

    whole = run(monkeypatch, {"images": works}, "--to", str(page))
    assert whole.exit_code == 0
    assert "At size full." in page.read_text()
