"""Exit codes are a promise: numbers, meanings, and one for every error."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import nodeside
from nodeside.errors import Bug, ExitCode, NodesideError


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
