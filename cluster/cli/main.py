"""`nodeside-cluster …`: runs the controller, inspects Drivers, installs nodeside.

Subcommands import what they need when they are called. A failure is reported as in all commands of
nodeside: a message, a hint, and an exit code of `nodeside.errors.ExitCode`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cluster.cli.completion import complete_for_kubectl, completion
from cluster.cli.diff import diff
from cluster.cli.extra import require_extra
from cluster.cli.installation import COMMANDS
from cluster.cli.node_verbs import VERBS as NODE_VERBS
from cluster.cli.options import (
    AGENT_IMAGE_HELP,
    ARCHITECTURE,
    CA_CONFIG_MAP,
    DRIVER,
    KUBELET_ROOT,
    LOOKING,
    OPTIONAL_DRIVER,
    OPTIONAL_NODE,
    PROXIES,
    PROXY_NAMES,
    PULL_SECRETS,
    Connection,
    explain_missing_role,
    not_empty,
    with_connection,
)
from cluster.cli.preflight import preflight
from cluster.cli.rollout_verbs import VERBS
from nodeside import __version__
from nodeside.errors import ExitCode, NodesideError
from nodeside.failures import document_of_failure, output_option, show_failure, show_usage

if TYPE_CHECKING:
    from cluster.cli.status import Overview

_MEANINGS = {
    ExitCode.OK: "done; for `status`, every driver is ready; for `diff`, nothing changes",
    ExitCode.BUG: f"for `diff`, something changes; otherwise {ExitCode.BUG.meaning}",
    ExitCode.USAGE: "the command line is wrong, or names what is not there; for `diff`, also a bug",
    ExitCode.SPEC: f"`check`, `diff`: {ExitCode.SPEC.meaning}",
    ExitCode.NOT_READY: "`status`: a driver is not ready, or no controller leads; "
    "`resolve`, `preflight`: there is no image; `check`: something is missing; "
    "`logs`: there is no log yet",
}
# fmt: off
_CODES = (
    ExitCode.OK, ExitCode.BUG, ExitCode.USAGE, ExitCode.SPEC, ExitCode.BUILD_FAILED,
    ExitCode.NO_MODULE, ExitCode.NO_HEADERS, ExitCode.TOOLCHAIN, ExitCode.EXCLUDED,
    ExitCode.NOT_READY, ExitCode.TIMEOUT, ExitCode.SYSTEM, ExitCode.CLUSTER, ExitCode.INTERRUPTED,
)
# fmt: on
_EPILOG = "Exit codes: " + "; ".join(f"{c.value} {_MEANINGS.get(c, c.meaning)}" for c in _CODES)
_CLOSED_PIPE = 128 + signal.SIGPIPE  # as a shell reports a program that was ended by a signal

_WAITED = 300  # seconds that `check --wait` waits

_PORT = click.IntRange(0, 65535)


class _Root(click.Group):
    """The command group. Exits as with SIGPIPE on a closed pipe; click would exit with code 1."""

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        with _closed_pipe():
            return super().make_context(*args, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with _closed_pipe(), document_of_failure(ctx):
            return super().invoke(ctx)


@contextmanager
def _closed_pipe() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)  # for output that Python has still buffered
        os.dup2(nowhere, sys.stdout.fileno())
        raise SystemExit(_CLOSED_PIPE) from None


@click.group(cls=_Root, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="nodeside-cluster")
def root() -> None:
    """The controller: which node gets which driver pod, and when."""  # noqa: D401 (it is --help)


@root.command()
@with_connection
@click.option("--scc", default="", help="SecurityContextConstraints for driver pods (OpenShift).")
@PULL_SECRETS
@CA_CONFIG_MAP
@PROXIES
@click.option("--agent-image", default="", help=AGENT_IMAGE_HELP)
@KUBELET_ROOT
@click.option(
    "--health-port",
    type=_PORT,
    default=8080,
    show_default=True,
    help="Port of /healthz and /readyz.",
)
@click.option(
    "--metrics-port", type=_PORT, default=8443, show_default=True, help="Port of /metrics (HTTPS)."
)
@click.option(
    "--metrics-certificate",
    type=click.Path(path_type=Path),
    default=None,
    help="Directory with tls.crt and tls.key. Default: a certificate made at start.",
)
@click.option(
    "--lease-seconds",
    type=click.IntRange(2, 600),
    default=15,
    show_default=True,
    help="Lease duration in seconds; the same on all replicas.",
)
@click.option("--log-format", type=click.Choice(["json", "text"]), default="json")
@click.option("--verbose", is_flag=True, help="Also log debug details.")
def run(
    *,
    connection: Connection,
    scc: str,
    pull_secrets: tuple[str, ...],
    ca_config_map: str,
    proxy: dict[str, str],
    agent_image: str,
    kubelet_root: str,
    health_port: int,
    metrics_port: int,
    metrics_certificate: Path | None,
    lease_seconds: int,
    log_format: Any,
    verbose: bool,
) -> None:
    """Run the controller, one replica of several, until SIGTERM."""
    from cluster.kube.election import LeaseTimings
    from cluster.manager import manager
    from cluster.plan.planner import Planner
    from nodeside import log

    log.setup("nodeside-cluster", format=log_format, verbose=verbose)
    settings = connection.settings(
        scc=scc,
        pull_secrets=pull_secrets,
        ca_config_map=ca_config_map,
        proxy=_proxy_variables() | proxy,
        agent_image=agent_image,
        kubelet_root=kubelet_root,
    )
    options = manager.Options(
        settings,
        manager.own_identity(os.environ),
        health_port,
        metrics_port,
        metrics_certificate,
        election=LeaseTimings.scaled_to(lease_seconds),
    )
    with manager.ending_signals() as stopping:
        manager.run_controller(connection.open(reach=False), options, Planner(), stopping)


@root.command()
@explain_missing_role(LOOKING)
@with_connection
@OPTIONAL_DRIVER
@output_option
@click.option("--pools", is_flag=True, help="Also show the pools, devices and stages of each.")
@click.option(
    "--watch", "-w", is_flag=True, help="Show it again after each change, until interrupted."
)
def status(*, connection: Connection, driver: str, output: str, pools: bool, watch: bool) -> None:
    """Show all drivers, or DRIVER with its pools, devices and stages.

    Exit code 46 if one is not ready, or if no controller leads.
    """
    from cluster.cli import status as overview

    api, namespace = connection.open(), connection.namespace
    # A watch would keep retrying after a refusal.
    current = overview.look(api, namespace, driver, detailed=pools)
    if watch:
        # It never ends by itself.
        for current in overview.watch_status(api, namespace, driver, detailed=pools):
            if output == "table" and sys.stdout.isatty():
                _show_in_place(current)
            else:
                _print_overview(current, output)
    _print_overview(current, output)
    raise SystemExit(ExitCode.OK if current.ready else ExitCode.NOT_READY)


def _show_in_place(current: Overview) -> None:
    """Write over what was shown before, line by line: to clear the screen first would flicker."""
    lines = "".join(f"{line}\x1b[K\n" for line in current.table().splitlines())
    click.echo(f"\x1b[H{lines}\x1b[J", nl=False)


def _print_overview(current: Overview, output: str) -> None:
    if output == "table":
        click.echo(current.table())
        return
    click.echo(current.json())
    if current.leader.words:
        click.echo(current.leader.words, err=True)


@root.command()
@explain_missing_role(LOOKING)
@with_connection
@DRIVER
@OPTIONAL_NODE
@output_option
def explain(*, connection: Connection, driver: str, node: str, output: str) -> None:
    """Say what DRIVER (on NODE) waits for, and why.

    The output shows what is wanted, what is there, what blocks, what happens next, and what to
    type.
    """
    from cluster.cli import explain as inspection
    from cluster.cli.installed_settings import as_installed

    api = connection.open()
    settings = as_installed(api, connection.settings())
    explanation = inspection.explain(api, settings, driver, node)
    click.echo(explanation.json() if output == "json" else explanation.text())


@root.command()
@explain_missing_role(LOOKING)
@with_connection
@OPTIONAL_DRIVER
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    default=None,
    help="The file to write.  [default: stdout]",
)
def report(*, connection: Connection, driver: str, output: Path | None) -> None:
    """Write an HTML page about all drivers, or DRIVER.

    The page shows nodes by kernel and state, devices, stages, and what blocks. It is one file that
    needs no network and no script.
    """
    from cluster.cli import fleet_report
    from cluster.install.directory import write_file

    page = fleet_report.make_report(connection.open(), connection.namespace, driver)
    if output is None or str(output) == "-":
        click.echo(page)
    else:
        write_file(output, page)
        click.echo(f"written: {output}", err=True)


@root.command()
@explain_missing_role(LOOKING)
@with_connection
@click.argument("os_version", callback=not_empty)
@click.option("--kernel", default="", help="Kernel release, for images that are named by kernel.")
@ARCHITECTURE
@click.option("--driver", default="", help="A Driver of the cluster whose `toolkit` is used.")
@output_option
def resolve(
    *,
    connection: Connection,
    os_version: str,
    kernel: str,
    architecture: str,
    driver: str,
    output: str,
) -> None:
    """Find the toolkit image of an OS version.

    OS_VERSION is, for example, 418.94.202501221327-0.
    """
    from cluster.cli import resolve as resolution
    from cluster.model.snapshot import Pool

    pool = Pool(architecture, os_version, kernel)
    resolved = resolution.resolve(connection.open(), pool, driver)
    click.echo(resolved.json() if output == "json" else resolved.text())
    raise SystemExit(ExitCode.OK if resolved.image else ExitCode.NOT_READY)


@root.command()
@explain_missing_role(LOOKING)
@with_connection
@click.option(
    "--driver",
    "-f",
    "file",
    type=click.Path(path_type=Path),
    default=None,
    help="Look at what this driver.yaml needs too; the directory it is in will do.",
)
@click.option(
    "--wait",
    metavar="[SECONDS]",
    type=click.IntRange(min=0),
    is_flag=False,
    flag_value=_WAITED,
    default=None,
    help=f"Look again until nothing is missing, for at most so long.  [{_WAITED} without a number]",
)
@click.option("--quiet", "-q", is_flag=True, help="Show only what is not ok; nothing if all is.")
@output_option
def check(
    *, connection: Connection, file: Path | None, wait: int | None, quiet: bool, output: str
) -> None:
    """Check whether the cluster has what nodeside needs.

    With a driver.yaml also what that driver needs. Run it before `install` and after it. Nothing is
    changed. Exit code 46 if something is missing, with --wait if it still is at the end.
    """
    from cluster.cli import check as checking
    from nodeside.spec import load

    driver = None
    if file is not None:
        driver = load(file / "driver.yaml" if file.is_dir() else file)
    api = connection.open()
    checked = checking.wait_until_good(
        lambda: checking.check(api, connection.namespace, driver),
        wait or 0,
        lambda words: click.echo(words, err=True),
    )
    text = checked.json(quiet=quiet) if output == "json" else checked.text(quiet=quiet)
    if text:
        click.echo(text)
    raise SystemExit(ExitCode.OK if checked.good else ExitCode.NOT_READY)


for command in (preflight, diff, *NODE_VERBS, *VERBS, *COMMANDS, completion):
    root.add_command(command)


def _proxy_variables() -> dict[str, str]:
    variables = {
        name: os.environ.get(name) or os.environ.get(name.lower(), "") for name in PROXY_NAMES
    }
    return {name: value for name, value in variables.items() if value}


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn an expected failure into text and an exit code."""
    try:
        yield
    except NodesideError as error:
        show_failure(error)
        raise SystemExit(error.exit_code) from None
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        raise SystemExit(ExitCode.INTERRUPTED) from None


def complete() -> None:
    """Run the console script `kubectl_complete-nodeside`."""
    complete_for_kubectl(root)


def plugin() -> None:
    """Run the console script `kubectl-nodeside`: the same commands as `kubectl nodeside`."""
    main("kubectl nodeside")


def main(name: str = "nodeside-cluster") -> None:
    """Run the console script."""
    with exit_on_error(), require_extra():
        try:
            code = root.main(standalone_mode=False, prog_name=name)
        except click.ClickException as error:
            show_usage(error)
            raise SystemExit(error.exit_code) from None
    raise SystemExit(code if isinstance(code, int) else ExitCode.OK)
