"""`nodeside completion SHELL`: prints the script that completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash:  eval "$(nodeside completion bash)"
    zsh:   eval "$(nodeside completion zsh)"
    fish:  nodeside completion fish | source
    """
    from nodeside.cli import root

    kind = get_completion_class(shell)
    assert kind is not None  # the choices are click's own
    click.echo(kind(root, {}, "nodeside", "_NODESIDE_COMPLETE").source())
