"""Exit codes are a promise: numbers, meanings, and one for every error."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import nodeside
from nodeside.errors import Bug, ExitCode, NodesideError, SpecError
from nodeside.failures import show_failure
from nodeside.spec.document import load


def errors(kind: type[NodesideError]) -> Iterator[type[NodesideError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from errors(below)


def every_error() -> list[type[NodesideError]]:
    """The errors of all modules, which are imported for it."""
    for module in pkgutil.walk_packages(nodeside.__path__, "nodeside."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return sorted(set(errors(NodesideError)), key=lambda kind: f"{kind.__module__}.{kind.__name__}")


@pytest.mark.parametrize("code", ExitCode)
def test_every_exit_code_has_a_meaning(code: ExitCode) -> None:
    assert code.meaning
    assert code.meaning == code.meaning.strip().rstrip(".")


def test_an_error_about_a_file_whose_name_is_no_text_can_be_written() -> None:
    error = NodesideError("cannot read edu\udce9.ko", hint="see edu\udce9")

    assert (str(error), error.hint) == ("cannot read edu\\udce9.ko", "see edu\\udce9")


def test_a_message_is_logged_at_every_look_and_so_has_a_limited_length() -> None:
    error = NodesideError("x" * (4 << 20), hint="y" * (4 << 20))

    assert [len(str(error)), len(error.hint)] == [1 << 15, 1 << 15]
    assert str(error).endswith("x [cut]")


def test_the_exit_codes_of_dkms_are_those_its_users_know() -> None:
    assert (ExitCode.BUILD_FAILED, ExitCode.NO_HEADERS, ExitCode.EXCLUDED) == (10, 21, 77)


def test_every_error_has_an_exit_code_of_its_own_and_a_camel_case_reason() -> None:
    for kind in every_error():
        assert isinstance(kind.exit_code, ExitCode), kind
        assert kind.exit_code is not ExitCode.OK, kind
        assert (kind.exit_code is ExitCode.BUG) == (kind is Bug), kind
        assert kind.reason.isalnum(), kind
        assert kind.reason[:1].isupper(), kind


def test_an_error_may_be_retryable_for_once() -> None:
    error = NodesideError("no answer", hint="wait", retryable=True)
    assert (str(error), error.hint, error.retryable) == ("no answer", "wait", True)
    assert not NodesideError("x").retryable


def test_mistakes_in_a_file_stand_where_editors_jump_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "driver.yaml"
    for text, lines in (
        ("kind: Driver\nspec:\n  hardwear: {}\n", [1, 1, 2, 2, 3]),
        ("spec: [\n", [2]),
        ("kind: Driver\n---\nkind: Driver\n", [2]),
    ):
        path.write_text(text)
        with pytest.raises(SpecError) as caught:
            load(path)
        show_failure(caught.value)

        shown = [line for line in capsys.readouterr().err.splitlines() if "hint: " not in line]
        found = [re.fullmatch(rf"{re.escape(str(path))}:(\d+)(:\d+)?: error: .+", s) for s in shown]
        assert [int(each[1]) for each in found if each] == lines[: len(shown)], shown
        assert all(found), shown


def test_a_mistake_without_a_line_is_an_error_of_the_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_failure(SpecError("driver.yaml: is empty"))

    assert capsys.readouterr().err == "error: driver.yaml: is empty\n"
