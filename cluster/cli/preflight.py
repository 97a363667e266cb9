"""`nodeside-cluster preflight`: its options and its output. trial_build.py does the work."""

from __future__ import annotations

import signal
from typing import Any

import click

from cluster.cli.options import (
    ARCHITECTURE,
    DRIVER,
    TRYING,
    Connection,
    explain_missing_role,
    with_connection,
)
from nodeside.failures import output_option

_SECONDS = 3600.0


@click.command()
@explain_missing_role(TRYING)
@with_connection
@DRIVER
@click.option("--os-version", default="", help="The toolkit image of this tag.")
@click.option("--kernel", default="", help="The toolkit image for this release.")
@click.option("--toolkit", default="", help="This toolkit image.")
@ARCHITECTURE
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=_SECONDS,
    show_default=True,
    help="Seconds until the build is given up.",
)
@output_option
def preflight(
    *,
    connection: Connection,
    driver: str,
    os_version: str,
    kernel: str,
    toolkit: str,
    architecture: str,
    timeout: float,
    output: str,
) -> None:
    """Try to build DRIVER for a kernel, and publish nothing.

    The build runs in a Job of its own, whose log is shown and which is removed at the end. The exit
    code is that of the build: 0 if the driver builds.
    """
    from cluster.cli import trial_build
    from cluster.cli.installed_settings import as_installed
    from nodeside.errors import UsageError
    from nodeside.spec.fleet import Preflight
    from nodeside.spec.patterns import PULL_SPEC

    if [bool(os_version), bool(kernel), bool(toolkit)].count(True) != 1:
        raise click.UsageError("expected one of --os-version, --kernel and --toolkit")
    if toolkit and not PULL_SPEC.fits(toolkit):
        words = f"--toolkit {toolkit}: expected {PULL_SPEC.words}"
        raise UsageError(words, hint=PULL_SPEC.remedy(toolkit))
    signal.signal(signal.SIGTERM, _interrupt_on_sigterm)
    api, entry = connection.open(), Preflight(os_version, kernel, toolkit)
    settings = as_installed(api, connection.settings())
    build = trial_build.trial_of(api, driver, entry, architecture)
    result = trial_build.TrialBuild(
        api,
        settings,
        build,
        _print_progress,
        _print_log_line,
        timeout,
        trial_build.tolerated_taints(api, build.driver),
    ).run()
    click.echo(result.json() if output == "json" else result.text())
    raise SystemExit(result.exit_code)


def _interrupt_on_sigterm(*_: Any) -> None:
    """Handle SIGTERM like Ctrl-C, so that it cleans up."""
    raise KeyboardInterrupt


def _print_progress(words: str) -> None:
    from nodeside.log import escape_controls  # it may quote a container or a kubelet

    click.echo(escape_controls(words), err=True)


def _print_log_line(line: str) -> None:
    _print_progress(f"build | {line}")
