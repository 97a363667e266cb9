"""Completion in a shell, also of `kubectl nodeside`.

kubectl runs the program `kubectl_complete-nodeside` with the words after `nodeside`, the last of
which is to be completed. It prints one completion a line, and last a number that tells the shell
what else to do.
https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/
"""

from __future__ import annotations

import sys

import click
from click.shell_completion import ShellComplete, get_completion_class

_NO_FILES = 4  # ShellCompDirectiveNoFileComp of cobra, the library of kubectl
_FILES = 0


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash:  eval "$(nodeside-cluster completion bash)"
    zsh:   eval "$(nodeside-cluster completion zsh)"
    fish:  nodeside-cluster completion fish | source

    `kubectl nodeside` is completed by kubectl's own script.
    """
    root, kind = context.find_root().command, get_completion_class(shell)
    assert kind is not None  # the choices are click's own
    click.echo(kind(root, {}, "nodeside-cluster", "_NODESIDE_CLUSTER_COMPLETE").source())


def complete_for_kubectl(root: click.Command) -> None:
    """Print what completes the last argument of this process."""
    *words, incomplete = sys.argv[1:] or [""]
    found = ShellComplete(root, {}, "kubectl nodeside", "").get_completions(words, incomplete)
    plain = [item for item in found if item.type == "plain"]
    for item in plain:
        click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(f":{_NO_FILES if len(plain) == len(found) else _FILES}")
