"""How a command that fails ends: words on stderr, and with `--output json` a document on stdout.

{"error": {"reason": "Compile", "message": "...", "hint": "...", "retryable": false,
           "exitCode": 10}}
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from nodeside.errors import NodesideError, SpecError, make_encodable
from nodeside.log import escape_controls

_F = TypeVar("_F", bound=Callable[..., Any])
_FORMAT = "nodeside.output"  # in the context of a command line; its subcommands share it


def _remember_format(ctx: click.Context, _option: click.Parameter, value: str) -> str:
    ctx.meta[_FORMAT] = value
    return value


def format_option(for_people: str) -> Callable[[_F], _F]:
    """Return the option of a command whose output is for people, or JSON.

    It is eager: what is wrong with the rest of the command line is then said in this format too.
    """
    return click.option(
        "--output",
        "-o",
        type=click.Choice([for_people, "json"]),
        default=for_people,
        show_default=True,
        is_eager=True,
        callback=_remember_format,
        help="Format of the output on stdout.",
    )


output_option = format_option("table")


@contextmanager
def document_of_failure(ctx: click.Context) -> Iterator[None]:
    """Print the document of an expected failure, if JSON is wanted, and raise it again."""
    try:
        yield
    except NodesideError as error:
        if ctx.meta.get(_FORMAT) == "json":
            _print_error(
                reason=error.reason,
                message=str(error),
                hint=error.hint,
                retryable=error.retryable,
                exitCode=int(error.exit_code),
            )
        raise


def show_failure(error: NodesideError) -> None:
    """Print message and hint on stderr. They may quote a guest, a store, a build, an object."""
    color = None if os.environ.get("NO_COLOR") else "red"
    text = _place_errors(error) if isinstance(error, SpecError) else f"error: {error}"
    click.secho(escape_controls(text, keep="\t\n"), fg=color, err=True)
    if error.hint:
        click.echo(escape_controls(f"hint: {error.hint}", keep="\t\n"), err=True)


def _place_errors(error: SpecError) -> str:
    """Return the message in the form of compilers, FILE:LINE: error: …, which editors jump to."""
    if not error.places:
        return f"error: {error}"
    lines = str(error).split("\n")
    places = (*error.places, *[""] * len(lines))
    return "\n".join(
        f"{place}: error:{line.removeprefix(f'{place}:')}" if place else line
        for line, place in zip(lines, places, strict=False)
    )


def show_usage(error: click.ClickException) -> None:
    """Print what is wrong with a command line."""
    ctx = getattr(error, "ctx", None)
    if ctx is not None and ctx.meta.get(_FORMAT) == "json":
        message = make_encodable(error.format_message())
        _print_error(
            reason="Usage", message=message, hint="", retryable=False, exitCode=error.exit_code
        )
    error.show()


def _print_error(**fields: object) -> None:
    click.echo(json.dumps({"error": fields}, indent=2))
