"""`nodeside-cluster history`, `undo`, `pause`, `resume`, `retry`, `rebuild`, `restart`.

verbs.py does the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cluster.cli.options import (
    DRIVER,
    LOOKING,
    NODE,
    OPTIONAL_NODE,
    ORDERING,
    Connection,
    explain_missing_role,
    with_connection,
)
from nodeside.failures import output_option

if TYPE_CHECKING:
    from cluster.cli.verbs import Order
    from cluster.kube.client import Api

DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="Only show what would be done, and the kubectl command for it."
)


@click.command()
@explain_missing_role(LOOKING)
@with_connection
@DRIVER
@output_option
def history(*, connection: Connection, driver: str, output: str) -> None:
    """Show the revisions of DRIVER that `undo` can go back to, oldest first."""
    from cluster.cli import verbs

    found = verbs.history(connection.open(), connection.namespace, driver)
    click.echo(verbs.history_json(found) if output == "json" else verbs.history_text(found))


@click.command()
@explain_missing_role(ORDERING)
@with_connection
@DRIVER
@click.option("--to", metavar="REVISION", default="", help="A revision that `history` shows.")
@DRY_RUN
def undo(*, connection: Connection, driver: str, to: str, dry_run: bool) -> None:
    """Let DRIVER go back to its last good revision.

    If that is the newest one, to the one that was made before it. `rollout`, `hardware` and
    whatever else is not part of a revision stay as they are.
    """
    from cluster.cli import verbs

    api = connection.open()
    _carry_out(api, verbs.undo(api, connection.namespace, driver, to), dry_run=dry_run)


@click.command()
@explain_missing_role(ORDERING)
@with_connection
@DRIVER
@DRY_RUN
def pause(*, connection: Connection, driver: str, dry_run: bool) -> None:
    """Pause the rollout of DRIVER: no further node changes."""
    from cluster.cli import verbs

    api = connection.open()
    _carry_out(api, verbs.pause(api, driver, paused=True), dry_run=dry_run)


@click.command()
@explain_missing_role(ORDERING)
@with_connection
@DRIVER
@DRY_RUN
def resume(*, connection: Connection, driver: str, dry_run: bool) -> None:
    """Let a paused rollout of DRIVER go on."""
    from cluster.cli import verbs

    api = connection.open()
    _carry_out(api, verbs.pause(api, driver, paused=False), dry_run=dry_run)


@click.command()
@explain_missing_role(ORDERING)
@with_connection
@DRIVER
@OPTIONAL_NODE
@DRY_RUN
def retry(*, connection: Connection, driver: str, node: str, dry_run: bool) -> None:
    """Forget the failures of DRIVER (on NODE) until now.

    A rollout that they have stopped goes on with the same version.
    """
    from cluster.cli import verbs

    api = connection.open()
    _carry_out(api, verbs.retry(api, driver, node), dry_run=dry_run)


@click.command()
@explain_missing_role(ORDERING)
@with_connection
@DRIVER
@DRY_RUN
def rebuild(*, connection: Connection, driver: str, dry_run: bool) -> None:
    """Build DRIVER anew, with images that are pulled again.

    For a toolkit image that was repaired under the same tag. Modules that are loaded stay.
    """
    from cluster.cli import verbs

    api = connection.open()
    _carry_out(api, verbs.rebuild(api, driver), dry_run=dry_run)


@click.command()
@explain_missing_role(ORDERING)
@with_connection
@DRIVER
@NODE
@DRY_RUN
def restart(*, connection: Connection, driver: str, node: str, dry_run: bool) -> None:
    """Give DRIVER a new pod on NODE. Its modules stay loaded."""
    from cluster.cli import verbs

    api = connection.open()
    order = verbs.restart(api, connection.namespace, driver, node)
    _carry_out(api, order, dry_run=dry_run)


def _carry_out(api: Api, order: Order, *, dry_run: bool) -> None:
    """Send an order and show it; the command is on stdout also where it was only shown."""
    if order.send is not None and not dry_run:
        order.send(api)
    click.echo(order.text())


VERBS = (history, undo, pause, resume, retry, rebuild, restart)
