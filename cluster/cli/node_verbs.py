"""`nodeside-cluster logs`: options and output; pod_logs.py does the work."""

from __future__ import annotations

import click

from cluster.cli.options import (
    DRIVER,
    LOOKING,
    NODE,
    Connection,
    explain_missing_role,
    with_connection,
)


def _complete_containers(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in ("driver", "toolkit", "provide") if name.startswith(incomplete)]


@click.command()
@explain_missing_role(LOOKING)
@with_connection
@DRIVER
@NODE
@click.option(
    "--container",
    "-c",
    default="",
    shell_complete=_complete_containers,
    help="driver, toolkit or provide.  [default: the one that failed, else driver]",
)
@click.option("--follow", "-f", is_flag=True, help="Also show what comes, until it ends.")
@click.option("--previous", "-p", is_flag=True, help="Of the run before the last restart.")
def logs(
    *,
    connection: Connection,
    driver: str,
    node: str,
    container: str,
    follow: bool,
    previous: bool,
) -> None:
    """Show the log of the pod of DRIVER on NODE.

    The log is on stdout; which pod and container it is of is on stderr. Exit code 46 if the
    container has no log yet.
    """
    from cluster.cli import pod_logs

    api = connection.open()
    log = pod_logs.find_log(api, connection.namespace, driver, node, container, previous=previous)
    click.echo(log.title, err=True)
    for line in log.read_lines(api, follow=follow):
        click.echo(line)


VERBS = (logs,)
