"""`nodeside-cluster …`: runs the controller, inspects Drivers, installs nodeside.

Subcommands import what they need when they are called. A failure is reported as in all commands of
nodeside: a message, a hint, and an exit code of `nodeside.errors.ExitCode`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cluster.cli.extra import needed
from cluster.cli.options import (
    ARCHITECTURE,
    CA_CONFIG_MAP,
    FORMATS,
    INSTALLING,
    LOOKING,
    NAMESPACE,
    OUTPUT,
    PROXIES,
    PROXY_NAMES,
    Connection,
    connected,
    in_own_right,
    installed,
    not_empty,
)
from cluster.cli.preflight import preflight
from nodeside import __version__
from nodeside.errors import ExitCode, NodesideError

if TYPE_CHECKING:
    from cluster.cli.status import Overview
    from cluster.install.manifests import Installation

_MEANINGS = {
    ExitCode.OK: "done; for `status`, every driver is ready",
    ExitCode.BUG: ExitCode.BUG.meaning,
    ExitCode.USAGE: "the command line is wrong, or names what is not there",
    ExitCode.BUILD_FAILED: ExitCode.BUILD_FAILED.meaning,
    ExitCode.NO_MODULE: ExitCode.NO_MODULE.meaning,
    ExitCode.NO_HEADERS: ExitCode.NO_HEADERS.meaning,
    ExitCode.TOOLCHAIN: ExitCode.TOOLCHAIN.meaning,
    ExitCode.EXCLUDED: ExitCode.EXCLUDED.meaning,
    ExitCode.NOT_READY: "`status`: a driver is not ready, or no controller leads; "
    "`resolve`, `preflight`: there is no image",
    ExitCode.TIMEOUT: ExitCode.TIMEOUT.meaning,
    ExitCode.SYSTEM: ExitCode.SYSTEM.meaning,
    ExitCode.CLUSTER: ExitCode.CLUSTER.meaning,
    ExitCode.INTERRUPTED: ExitCode.INTERRUPTED.meaning,
}
_EPILOG = "Exit codes: " + "; ".join(f"{code.value} {text}" for code, text in _MEANINGS.items())
_CLOSED_PIPE = 128 + signal.SIGPIPE  # as a shell reports a program that was ended by a signal

_PORT = click.IntRange(0, 65535)


class _Root(click.Group):
    """The command group. Exits as with SIGPIPE on a closed pipe; click would exit with code 1."""

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        with _closed_pipe():
            return super().make_context(*args, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with _closed_pipe():
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
    """The controller: which node gets which driver pod, and when."""


@root.command()
@connected
@click.option("--scc", default="", help="SecurityContextConstraints for driver pods (OpenShift).")
@click.option("--pull-secret", multiple=True, help="Secret in the namespace to pull images with.")
@CA_CONFIG_MAP
@PROXIES
@click.option(
    "--health-port", type=_PORT, default=8080, show_default=True, help="Of /healthz and /readyz."
)
@click.option(
    "--metrics-port", type=_PORT, default=8443, show_default=True, help="Of /metrics, by HTTPS."
)
@click.option(
    "--metrics-certificate",
    type=click.Path(path_type=Path),
    default=None,
    help="Directory with tls.crt and tls.key for it. Default: one made at start.",
)
@click.option(
    "--lease-seconds",
    type=click.IntRange(2, 600),
    default=15,
    show_default=True,
    help="So long after the last word of a leader another replica leads. The same for all.",
)
@click.option("--log-format", type=click.Choice(["json", "text"]), default="json")
@click.option("--verbose", is_flag=True, help="Also log what is of no interest when all is well.")
def run(
    *,
    connection: Connection,
    scc: str,
    pull_secret: tuple[str, ...],
    ca_config_map: str,
    proxy: dict[str, str],
    health_port: int,
    metrics_port: int,
    metrics_certificate: Path | None,
    lease_seconds: int,
    log_format: Any,
    verbose: bool,
) -> None:
    """Be the controller, one replica of several, until SIGTERM."""
    from cluster.kube.election import LeaseTimings
    from cluster.manager import manager
    from cluster.plan.planner import Planner
    from nodeside import log

    log.setup("nodeside-cluster", format=log_format, verbose=verbose)
    settings = connection.settings(
        scc=scc,
        pull_secrets=pull_secret,
        ca_config_map=ca_config_map,
        proxy=_proxy_variables() | proxy,
    )
    options = manager.Options(
        settings,
        manager.identity(os.environ),
        health_port,
        metrics_port,
        metrics_certificate,
        election=LeaseTimings.of(lease_seconds),
    )
    with manager.ending_signals() as stopping:
        manager.run(connection.open(reach=False), options, Planner(), stopping)


@root.command()
@in_own_right(LOOKING)
@connected
@click.argument("driver", default="")
@OUTPUT
@click.option("--watch", "-w", is_flag=True, help="Again after each change, until interrupted.")
def status(*, connection: Connection, driver: str, output: str, watch: bool) -> None:
    """Show all drivers, or DRIVER, with their pools and stages.

    Exit code 46 if one is not ready, or if no controller leads.
    """
    from cluster.cli import status as overview

    api, namespace = connection.open(), connection.namespace
    found = overview.look(api, namespace, driver)  # a watch would keep retrying after a refusal
    if watch:
        for found in overview.follow(api, namespace, driver):  # never ends by itself
            if output == "table" and sys.stdout.isatty():
                click.clear()
            _show(found, output)
    _show(found, output)
    raise SystemExit(ExitCode.OK if found.ready else ExitCode.NOT_READY)


def _show(found: Overview, output: str) -> None:
    if output == "table":
        click.echo(found.table())
        return
    click.echo(found.json())
    if found.presence.words:
        click.echo(found.presence.words, err=True)


@root.command()
@in_own_right(LOOKING)
@connected
@click.argument("driver")
@click.argument("node", default="")
@OUTPUT
def explain(*, connection: Connection, driver: str, node: str, output: str) -> None:
    """Say of DRIVER (on NODE): what is wanted, what is there, what blocks, what happens next."""
    from cluster.cli import explain as inspection

    found = inspection.explain(connection.open(), connection.settings(), driver, node)
    click.echo(found.json() if output == "json" else found.text())


@root.command()
@in_own_right(LOOKING)
@connected
@click.argument("os_version", callback=not_empty)
@click.option("--kernel", default="", help="Kernel release, for images that are named by kernel.")
@ARCHITECTURE
@click.option("--driver", default="", help="A Driver of the cluster whose `toolkit` is used.")
@OUTPUT
def resolve(
    *,
    connection: Connection,
    os_version: str,
    kernel: str,
    architecture: str,
    driver: str,
    output: str,
) -> None:
    """Find the toolkit image for OS_VERSION, such as 418.94.202501221327-0."""
    from cluster.cli import resolve as resolution
    from cluster.model.snapshot import Pool

    pool = Pool(architecture, os_version, kernel)
    found = resolution.resolve(connection.open(), pool, driver)
    click.echo(found.json() if output == "json" else found.text())
    raise SystemExit(ExitCode.OK if found.image else ExitCode.NOT_READY)


root.add_command(preflight)


@root.command()
def crds() -> None:
    """Print the custom resource definitions, as YAML."""
    from cluster.install.crds import crds as definitions
    from cluster.install.manifests import to_yaml

    click.echo(to_yaml(definitions()), nl=False)


@root.command()
@click.option("--namespace", "-n", default=NAMESPACE, show_default=True, help="Of nodeside.")
@installed
@click.option(
    "--format",
    type=click.Choice(FORMATS),
    default=FORMATS[0],
    show_default=True,
    help="What to make.",
)
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), help="Directory for the chart or the base."
)
def manifests(
    *, namespace: str, chosen: Mapping[str, Any], format: str, output: Path | None
) -> None:
    """Print everything that `install` applies, as YAML for kubectl.

    With `--format helm` or `kustomize`: make a directory of it, a Helm chart or a base. The other
    options are then the chart's default values.
    """
    from cluster.install.manifests import IMAGE, to_yaml
    from cluster.install.manifests import manifests as all_of

    if (output is None) is not (format == FORMATS[0]):
        raise click.UsageError("--output goes with --format helm or kustomize, and they with it")
    installation = _installation(namespace, chosen)
    if not chosen["image"]:
        click.echo(f"note: without --image the controller's is {IMAGE}, on no registry", err=True)
    if output is None:
        click.echo(to_yaml(all_of(installation)), nl=False)
    else:
        _make_directory(format, output, installation)


def _make_directory(format: str, output: Path, installation: Installation) -> None:
    from cluster.install.directory import write_directory

    if format == "helm":
        from cluster.install.helm import chart

        write_directory(output, chart(installation), main="Chart.yaml")
        place = (
            output if output.is_absolute() else f"./{output}"
        )  # Helm may take a bare name for a repository
        options = f"--namespace {installation.namespace} --create-namespace"
        click.echo(f"made {output}; next: helm install nodeside {place} {options}")
    else:
        from cluster.install.kustomize import KUSTOMIZATION, NAMES, base

        write_directory(output, base(installation), main=KUSTOMIZATION, names=NAMES)
        click.echo(f"made {output}; next: kubectl apply --server-side -k {output}")


@root.command()
@in_own_right(INSTALLING)
@connected
@installed
def install(*, connection: Connection, chosen: Mapping[str, Any]) -> None:
    """Apply definitions, rules and the controller; again after an upgrade."""
    from cluster.install.install import install as apply_all
    from cluster.install.manifests import NotInstallable
    from cluster.install.manifests import manifests as all_of

    if not chosen["image"]:
        raise NotInstallable(
            "--image is missing: where do the nodes pull the controller from?",
            hint="make the image and push it (images/README.md), then: nodeside-cluster install "
            "--image registry.example.com/nodeside-cluster:TAG",
        )
    documents = all_of(_installation(connection.namespace, chosen))
    _tell(apply_all(connection.open(), documents))


@root.command()
@in_own_right(INSTALLING)
@connected
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    help="Seconds for the drivers to be unloaded.",
)
def uninstall(*, connection: Connection, yes: bool, timeout: float) -> None:
    """Delete all Drivers and wait until they are unloaded, then the controller, the definitions.

    However it was installed. Says what holds a module. Nothing of nodeside is deleted before the
    Drivers are gone.
    """
    from cluster.install.manifests import manifests_of_any
    from cluster.install.uninstall import uninstall as delete_all

    documents = manifests_of_any(connection.namespace)
    if not yes:
        click.confirm("Delete every Driver and nodeside itself from this cluster?", abort=True)
    _tell(delete_all(connection.open(), documents, deadline=timeout))


def _installation(namespace: str, chosen: Mapping[str, Any]) -> Installation:
    from cluster.install.manifests import IMAGE, Installation

    return Installation(
        namespace,
        chosen["image"] or IMAGE,
        chosen["openshift"],
        chosen["pull_secret"],
        ca_config_map=chosen["ca_config_map"],
        proxy=chosen["proxy"],
        node_selector=chosen["node_selector"],
        service_monitor=chosen["service_monitor"],
    )


def _tell(steps: Iterable[str]) -> None:
    """Print each step as it is done. A closed pipe (`| head`) does not stop the steps."""
    closed: BrokenPipeError | None = None
    for line in steps:
        if closed is None:
            try:
                click.echo(line)
            except BrokenPipeError as error:
                closed = error
    if closed is not None:
        raise closed


def _proxy_variables() -> dict[str, str]:
    found = {name: os.environ.get(name) or os.environ.get(name.lower(), "") for name in PROXY_NAMES}
    return {name: value for name, value in found.items() if value}


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn an expected failure into text and an exit code. This is the only place that does so."""
    try:
        yield
    except NodesideError as error:
        click.secho(f"error: {error}", fg="red", err=True)
        if error.hint:
            click.echo(f"hint: {error.hint}", err=True)
        raise SystemExit(error.exit_code) from None
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        raise SystemExit(ExitCode.INTERRUPTED) from None


def main() -> None:
    """Run the console script."""
    with exit_on_error(), needed():
        try:
            code = root.main(standalone_mode=False, prog_name="nodeside-cluster")
        except click.ClickException as error:
            error.show()
            raise SystemExit(error.exit_code) from None
    raise SystemExit(code if isinstance(code, int) else ExitCode.OK)
