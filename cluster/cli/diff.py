"""`nodeside-cluster diff`: its options, output and exit code. driver_diff.py does the work."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from cluster.cli.options import LOOKING, Connection, explain_missing_role, with_connection
from nodeside.errors import ExitCode, NodesideError
from nodeside.failures import output_option


@click.command()
@explain_missing_role(LOOKING)
@with_connection
@click.option(
    "--file",
    "-f",
    "file",
    type=click.Path(path_type=Path, allow_dash=True),
    required=True,
    help="A file with one Driver or several, the directory of a driver.yaml, or - for stdin.",
)
@output_option
def diff(*, connection: Connection, file: Path, output: str) -> None:
    """Say what `kubectl apply` of a driver.yaml would do, and change nothing.

    Whether it is a new revision and why, the nodes in their order, builds, what is unloaded, and
    what the API server says of it (a dry run, which needs the right to change Drivers).

    Exit code 0 if nothing changes, 1 if something does, 60 if the API server refuses the file;
    any other is an error, a bug too (2).
    """
    with _bugs_as_errors():
        from cluster.cli import driver_diff, driver_diff_text
        from cluster.cli.driver_documents import read_drivers
        from cluster.cli.installed_settings import as_installed

        drivers = read_drivers(file)
        api = connection.open()
        settings = as_installed(api, connection.settings())
        found = driver_diff.diff(api, settings, drivers)
        click.echo(
            driver_diff_text.diff_json(found)
            if output == "json"
            else driver_diff_text.diff_text(found)
        )
    raise SystemExit(found.exit_code)


@contextmanager
def _bugs_as_errors() -> Iterator[None]:
    """Exit with 2 after a bug, since 1 means that something changes. `diff` does the same."""
    try:
        yield
    except (NodesideError, click.ClickException, BrokenPipeError):
        raise
    except Exception:
        traceback.print_exc()
        raise SystemExit(ExitCode.USAGE) from None
