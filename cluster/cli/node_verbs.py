"""`nodeside-cluster logs` and `nodes`: options and output.

pod_logs.py and node_list.py do the work.
"""

from __future__ import annotations

import click

from cluster.cli.options import (
    DRIVER,
    LOOKING,
    NODE,
    OPTIONAL_DRIVER,
    Connection,
    explain_missing_role,
    with_connection,
)
from nodeside.failures import output_option
from nodeside.protocol.node_status import State

SILENT = "silent"  # as in node_list.py, which is not imported for a fast start


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


@click.command()
@explain_missing_role(LOOKING)
@with_connection
@OPTIONAL_DRIVER
@click.option(
    "--state",
    "states",
    type=click.Choice([*(state.value for state in State), SILENT]),
    multiple=True,
    help="Only nodes in this state; may be given again.",
)
@output_option
def nodes(*, connection: Connection, driver: str, states: tuple[str, ...], output: str) -> None:
    """Show the nodes of all drivers, or of DRIVER, those that failed first.

    A node is silent if it has not reported since it was given the driver, or since it has rebooted.
    """
    from cluster.cli import node_list

    found = node_list.list_nodes(connection.open(), driver, states)
    click.echo(found.json() if output == "json" else found.text())
    if found.notice:
        click.echo(found.notice, err=True)


VERBS = (nodes, logs)
