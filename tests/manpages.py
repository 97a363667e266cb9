"""The manual pages in docs/man, made from the same help as `--help` prints.

    python -m tests.manpages

writes them. A test compares what is there with what this makes. See man-pages(7) and groff_man(7).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from cluster.cli.main import root as cluster
from nodeside import __version__
from nodeside.cli import root as nodeside
from nodeside.errors import ExitCode

DIRECTORY = Path(__file__).parents[1] / "docs" / "man"
_MARK = "\b"  # click's mark of a paragraph that keeps its lines


def pages() -> dict[str, str]:
    """Every page, by its file: one for each command of `nodeside`, with its verbs in it."""
    found = {"nodeside.1": _page("nodeside", nodeside, deep=False)}
    context = click.Context(nodeside, info_name="nodeside")
    for name in nodeside.list_commands(context):
        command = nodeside.get_command(context, name)
        assert command is not None
        found[f"nodeside-{name}.1"] = _page(f"nodeside {name}", command, deep=True)
    found["nodeside-cluster.1"] = _page("nodeside-cluster", cluster, deep=True)
    return found


def write() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    made = pages()
    for path in DIRECTORY.glob("*.1"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (DIRECTORY / name).write_text(text)


def _page(program: str, command: click.Command, *, deep: bool) -> str:
    name = program.replace(" ", "-")
    return "\n".join(
        (
            f'.TH {_escaped(name.upper())} 1 "" "nodeside {__version__}"',
            ".SH NAME",
            f"{_escaped(name)} \\- {_escaped(_brief(command))}",
            *_body(program, command),
            *(_verbs(program, command) if deep else _names(command)),
            ".SH EXIT STATUS",
            *_codes(),
            "",
        )
    )


def _brief(command: click.Command) -> str:
    """The first sentence of the help. What click makes of a help depends on its version."""
    first = inspect.cleandoc(command.help or "").split("\n\n")[0]
    return " ".join(first.split()).partition(". ")[0].rstrip(".")


def _context(program: str, command: click.Command) -> click.Context:
    return click.Context(command, info_name=program)


def _body(program: str, command: click.Command, level: str = "SH") -> Iterator[str]:
    if level == "SH":
        yield ".SH SYNOPSIS"
    yield f".B {_escaped(program)}"
    yield _escaped(_usage(command))
    if level == "SH":
        yield ".SH DESCRIPTION"
    yield from _paragraphs(command.help or "")
    if command.epilog and level == "SH" and "Exit codes:" not in command.epilog:
        yield from _paragraphs(command.epilog)
    options = [p for p in command.params if isinstance(p, click.Option)]
    if level == "SH":
        yield ".SH OPTIONS"
    for option in options:
        if not option.hidden:
            text = " ".join((option.help or "").split())
            yield from (".TP", f".B {_escaped(_words(option))}", _escaped(text + _default(option)))


def _usage(command: click.Command) -> str:
    words = ["[OPTIONS]"]
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            name = (parameter.metavar or str(parameter.name).upper()).strip("[]")
            words.append(name if parameter.required else f"[{name}]")
    if isinstance(command, click.Group):
        words.append("COMMAND [ARGS]...")
    return " ".join(words)


def _words(option: click.Option) -> str:
    names = ", ".join(sorted(option.opts, key=len))
    names += "".join(f" / {name}" for name in option.secondary_opts)
    if option.is_flag:
        return names
    if isinstance(option.type, click.Choice):
        return f"{names} [{'|'.join(map(str, option.type.choices))}]"
    return f"{names} {option.metavar or str(option.name).upper()}"


def _default(option: click.Option) -> str:
    if isinstance(option.show_default, str):
        return f" [default: {option.show_default}]"
    if option.show_default and isinstance(option.default, str | int | float):
        return f" [default: {option.default}]"
    return ""


def _verbs(program: str, command: click.Command) -> Iterator[str]:
    """The subcommands of a group, each with its options."""
    if not isinstance(command, click.Group):
        return
    yield ".SH COMMANDS"
    context = _context(program, command)
    for name in command.list_commands(context):
        verb = command.get_command(context, name)
        assert verb is not None
        yield f".SS {_escaped(name)}"
        yield from _body(f"{program} {name}", verb, "SS")


def _names(group: click.Command) -> Iterator[str]:
    assert isinstance(group, click.Group)
    yield ".SH COMMANDS"
    context = _context("nodeside", group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield from (".TP", f".BR nodeside\\-{_escaped(name)} (1)", _escaped(_brief(command)))


def _codes() -> Iterator[str]:
    for code in ExitCode:
        yield from (".TP", f".B {code.value}", _escaped(code.meaning))


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        yield ".PP"
        if paragraph.startswith(_MARK):
            yield ".nf"
            yield from map(_escaped, paragraph.removeprefix(_MARK).strip("\n").split("\n"))
            yield ".fi"
        else:
            yield _escaped(" ".join(paragraph.split()))


def _escaped(text: str) -> str:
    """Text that roff takes for text: no requests, no escapes, and each `-` as it is typed."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text[:1] in (".", "'") else text


if __name__ == "__main__":
    write()
