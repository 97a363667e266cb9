"""The `nodeside` command: its groups, and the only place that turns failures into messages.

Subcommands are imported on first use, so that `--help` and completion stay fast.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click
from click.shell_completion import CompletionItem

from nodeside import __version__
from nodeside.errors import ExitCode, NodesideError, UsageError

_EPILOG = "Exit codes: " + "; ".join(f"{code.value} {code.meaning}" for code in ExitCode) + "."

# name -> (module, attribute, help). The help is here so that `--help` imports no subcommand.
_COMMANDS = {
    "driver": (
        "nodeside.driver.cli",
        "driver",
        "Build, load, check and announce a driver on this node.",
    ),
    "device-agent": (
        "nodeside.device_agent.cli",
        "device_agent",
        "Offer a driver's devices to the kubelet of this node.",
    ),
    "try": ("nodeside.trial.cli", "trial", "Boot a throwaway machine and try a driver in it."),
    "init": (
        "nodeside.trial.init",
        "init",
        "Write driver.yaml and what else an image needs beside a source.",
    ),
    "spec": (
        "nodeside.spec.cli",
        "spec",
        "Check a driver.yaml; print its schema and its reference.",
    ),
    "completion": ("nodeside.completion", "completion", "Print the completion script for SHELL."),
}


class LazyGroup(click.Group):
    """A group that imports a subcommand only when it is used.

    An image has the parts of nodeside that run there: what needs another one is not listed.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in _COMMANDS if _is_installed(name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        if not _is_installed(cmd_name):
            raise UsageError(
                f"nodeside {cmd_name} is not part of this image",
                hint=f"it has: {', '.join(self.list_commands(ctx))}; the whole of nodeside is "
                "installed from its repository, on a machine of yours",
            )
        module, attribute, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Propose the command that may be meant; click knows only those that are imported."""
        if args[0] not in _COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches  # late: only a mistake needs it

            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            guess = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{guess}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Exit as after SIGPIPE if the output was closed; click would exit with 1, our bug code."""
        from nodeside.failures import document_of_failure

        try:
            with document_of_failure(ctx):
                return super().invoke(ctx)
        except BrokenPipeError:
            _drop_output()
            raise SystemExit(128 + signal.SIGPIPE) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [
            CompletionItem(name, help=text)
            for name, (_, _, text) in _COMMANDS.items()
            if name.startswith(incomplete) and _is_installed(name)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][2]) for name in self.list_commands(ctx)])


def _is_installed(command: str) -> bool:
    """Return whether the part of nodeside that a command is in is there."""
    part, _, _ = _COMMANDS[command][0].rpartition(".")
    return importlib.util.find_spec(part) is not None


@click.group(
    cls=LazyGroup, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="nodeside")
def root() -> None:
    """The right kernel module on every node, for the kernel that runs there now."""  # noqa: D401


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn expected failures into a message and an exit code; nothing else does this."""
    try:
        yield
    except NodesideError as error:
        from nodeside.failures import show_failure

        show_failure(error)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        raise SystemExit(ExitCode.INTERRUPTED) from None
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _drop_output()
        click.echo(f"error: no space left writing {error.filename or 'the output'}", err=True)
        raise SystemExit(ExitCode.NO_SPACE) from None


def _drop_output() -> None:
    """Discard pending output; flushing it at exit would fail again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def _end_in_order(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """Turn SIGTERM and SIGHUP into an exception: children are stopped, partial files removed."""
    raise SystemExit(128 + number)


def main() -> None:
    """Run the console script."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end_in_order)
    with exit_on_error():
        try:
            code = root.main(standalone_mode=False, prog_name="nodeside")
        except click.ClickException as error:
            from nodeside.failures import show_usage

            show_usage(error)
            raise SystemExit(error.exit_code) from None
        except click.Abort:
            raise KeyboardInterrupt from None
    raise SystemExit(code if isinstance(code, int) else ExitCode.OK)
