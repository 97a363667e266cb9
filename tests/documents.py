"""What a document has a reader type, as click parses it, and where its links lead."""

from __future__ import annotations

import re
from pathlib import Path

import click

from cluster.cli.main import root as cluster_root
from nodeside.cli import root


def parse(program: str, words: list[str]) -> None:
    """Parse what follows the program's name as click does, down to the verb, and run nothing."""
    command: click.Command = {"nodeside": root, "nodeside-cluster": cluster_root}[program]
    context = command.make_context(program, list(words))
    while isinstance(command, click.Group):
        attribute = "_protected_args" if hasattr(context, "_protected_args") else "protected_args"
        rest = [*getattr(context, attribute), *context.args]
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        if isinstance(found, click.Group) and not rest:
            return
        command, context = found, found.make_context(name, rest, parent=context)


def anchors(document: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them of its headings."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings}
