"""`nodeside driver …`: each step of the driver container as a command that a person can run.

Verbs are thin: they resolve the task, call one function, and print. They import what they need when
they run, so that `--help` is fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from nodeside.driver.commands.options import (
    dry_run_option,
    with_config_options,
    with_kernel_options,
)
from nodeside.failures import format_option, output_option

if TYPE_CHECKING:
    from nodeside.driver.commands.outcome import CommandOutput
    from nodeside.driver.ladder.task import Config, Task
    from nodeside.system.host import Kernel


@click.group()
def driver() -> None:
    """Build, load, check and announce a driver on this node.

    Every verb is a step of what the driver container does by itself (`run`), and takes the same
    options. Name the driver with -f: a driver.yaml, or the directory it is in.
    """


@driver.command()
@with_config_options
@with_kernel_options
@output_option
def plan(config: Config, kernel: Kernel | None, output: str) -> None:
    """Show which rung would serve and why; change nothing."""
    from nodeside.driver.commands.dry_run import preview_run

    _print_outcome(preview_run(_resolve_task(config, kernel)), output)


@driver.command()
@with_config_options
@with_kernel_options
@dry_run_option
@output_option
def fetch(config: Config, kernel: Kernel | None, dry_run: bool, output: str) -> None:
    """Fetch the prebuilt modules into the node's cache."""
    from nodeside.driver.commands import bundles as verbs

    step = verbs.would_fetch if dry_run else verbs.fetch
    _print_outcome(step(_resolve_task(config, kernel)), output)


@driver.command()
@with_config_options
@with_kernel_options
@click.option(
    "--local",
    is_flag=True,
    help="Start a sidecar here, with this machine's compiler and headers, instead of --shared.",
)
@click.option("--again", is_flag=True, help="Build even if the cache has the bundle.")
@dry_run_option
@output_option
def build(
    *, config: Config, kernel: Kernel | None, local: bool, again: bool, dry_run: bool, output: str
) -> None:
    """Build the modules into a bundle in the cache.

    The toolkit sidecar of --shared builds them, or one that is started here (--local).
    """
    from nodeside.driver.commands import bundles as verbs

    step = verbs.would_build if dry_run else verbs.build
    _print_outcome(step(_resolve_task(config, kernel), local=local, again=again), output)


@driver.command()
@with_config_options
@dry_run_option
@output_option
def load(config: Config, dry_run: bool, output: str) -> None:
    """Load the modules from the cache, and validate them.

    If the right modules are loaded already, nothing is touched.
    """
    from nodeside.driver.commands import load as verbs

    step = verbs.would_load if dry_run else verbs.load
    _print_outcome(step(_resolve_task(config)), output)


@driver.command()
@with_config_options
@dry_run_option
@output_option
def validate(config: Config, dry_run: bool, output: str) -> None:
    """Check that the right modules are loaded and work.

    They work if they do what `validate` in driver.yaml declares.
    """
    from nodeside.driver.commands import load as verbs

    step = verbs.would_validate if dry_run else verbs.validate
    _print_outcome(step(_resolve_task(config)), output)


@driver.command()
@with_config_options
@click.option("--wait", is_flag=True, help="Wait until nothing holds them; report what does.")
@dry_run_option
@output_option
def unload(*, config: Config, wait: bool, dry_run: bool, output: str) -> None:
    """Unload the modules, or report what holds them.

    Never by force.
    """
    from nodeside.driver.commands import unload as verbs
    from nodeside.driver.ladder.task import resolve_loaded

    if dry_run:
        _print_outcome(verbs.would_unload(_resolve_task(config)), output)
        return
    step = verbs.unload_when_idle if wait else verbs.unload
    _print_outcome(step(resolve_loaded(config)), output)


@driver.command()
@with_config_options
@output_option
@click.option("--quiet", "-q", is_flag=True, help="Print nothing; exit 0 if the driver is ready.")
def status(config: Config, output: str, quiet: bool) -> None:
    """Show the loaded modules, their holders, and readiness.

    Also shows whether the cache has the bundle. Exits with 0 only if the driver is ready.
    """
    from nodeside.driver.commands.status import read_status

    outcome = read_status(_resolve_task(config))
    if not quiet:
        click.echo(outcome.render_as(output))
    raise SystemExit(outcome.exit_code)


@driver.command()
@with_config_options
@output_option
def devices(config: Config, output: str) -> None:
    """Show the devices that `devices` in driver.yaml declares, and whether each works."""
    from nodeside.driver.commands.devices import find_devices

    _print_outcome(find_devices(config), output)


@driver.command()
@with_config_options
@click.option("--stop", is_flag=True, help="Stop them, the last one first.")
@dry_run_option
@output_option
def services(*, config: Config, stop: bool, dry_run: bool, output: str) -> None:
    """Show the processes of the driver's services, and what they use.

    `nodeside driver run` starts them, and starts them again after --stop.
    """
    from nodeside.driver.commands import services as verbs

    step = verbs.show_services
    if stop:
        step = verbs.would_stop_services if dry_run else verbs.stop_services
    _print_outcome(step(_resolve_task(config)), output)


@driver.command()
@with_config_options
@with_kernel_options
@format_option("shell")
def env(config: Config, kernel: Kernel | None, output: str) -> None:
    """Print the facts, for a shell or a bug report."""

    from nodeside.driver.commands.env import describe_environment

    _print_outcome(describe_environment(config, kernel), output)


@driver.command()
@with_config_options
@with_kernel_options
@output_option
def doctor(config: Config, kernel: Kernel | None, output: str) -> None:
    """Find what keeps a build or a load from working.

    Each finding says what to do about it.
    """

    from nodeside.driver.commands.doctor import examine_node

    _print_outcome(examine_node(config, kernel), output)


@driver.command()
@with_config_options
@with_kernel_options
@click.option(
    "--to",
    help="oci:REPOSITORY, oci+http:REPOSITORY (plain HTTP) or a directory.  "
    "[default: the source in spec.prebuilt.sources that has publish, else the first]",
)
@click.option("--overwrite", is_flag=True, help="Replace a different bundle of the same tag.")
@dry_run_option
@output_option
def publish(
    *,
    config: Config,
    kernel: Kernel | None,
    to: str | None,
    overwrite: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Publish the cached bundle, for nodes to fetch."""
    from nodeside.driver.commands import bundles as verbs

    step = verbs.would_publish if dry_run else verbs.publish
    _print_outcome(step(_resolve_task(config, kernel), to, overwrite=overwrite), output)


@driver.command()
@with_config_options
@click.option("--once", is_flag=True, help="Bring the driver up, then exit with its exit code.")
@click.option(
    "--with-services",
    is_flag=True,
    help="With --once: start the services too, and keep them until SIGTERM, or one ends.",
)
@click.option(
    "--expected-kernel",
    envvar="NODESIDE_KERNEL",
    default="",
    hidden=True,
    help="The release this pod was made for; on another kernel it does nothing.",
)
@click.option(
    "--sidecar-timeout",
    envvar="NODESIDE_SIDECAR_TIMEOUT",
    type=click.FloatRange(min=1),
    default=1800.0,
    show_default=True,
    help="Seconds to wait for a toolkit sidecar to appear.",
)
@dry_run_option
@output_option
def run(
    *,
    config: Config,
    once: bool,
    with_services: bool,
    expected_kernel: str,
    sidecar_timeout: float,
    dry_run: bool,
    output: str,
) -> None:
    """Bring the driver up, announce it, keep it up.

    This is what the driver container does.
    """
    if with_services and not once:
        raise click.UsageError("--with-services goes with --once; without both, services run too")
    if dry_run:
        from nodeside.driver.commands.dry_run import preview_run

        _print_outcome(preview_run(_resolve_task(config)), output)
        return
    from nodeside.driver.commands import run as container
    from nodeside.driver.commands.console import make_listener

    console = make_listener(sidecar_timeout)
    if once and with_services:
        container.run_once_with_services(
            config, expected_kernel, console, lambda outcome: _print_outcome(outcome, output)
        )
    elif once:
        _print_outcome(container.run_once(config, expected_kernel, console), output)
    else:
        container.run_for_ever(config, expected_kernel, console)


@driver.command()
@click.argument("name")
@click.option(
    "--host-root",
    envvar="NODESIDE_HOST",
    default="/",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Where the host's /run/nodeside is.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=600.0,
    show_default=True,
    help="Seconds to wait; 0: look once.",
)
def wait(name: str, host_root: Path, timeout: float) -> None:
    """Wait until driver NAME is ready on this node.

    For the init container of a workload that needs the driver. It needs no privilege, only the
    host's /run/nodeside, mounted read-only.
    """
    import os

    from nodeside.driver.commands.wait import await_admission, await_ready
    from nodeside.protocol.labels import ADMITTED_VARIABLE
    from nodeside.system.host import Host

    boot_id = Host().boot_id  # the kernel's, so every container's own /proc has it
    await_ready(Host(host_root), name, boot_id, timeout=timeout)
    if admitted := os.environ.get(ADMITTED_VARIABLE):
        await_admission(Path(admitted), boot_id)


_OUTCOME_FILE = click.option(
    "--outcome-file",
    envvar="NODESIDE_OUTCOME",
    type=click.Path(path_type=Path),
    help="Write the outcome there as one JSON record, for a container's termination message.",
)


@driver.command()
@with_config_options
@click.option("--kernel", default="", help="Kernel release to build for, one that the toolkit has.")
@click.option(
    "--kernel-variant",
    help="Kernel variant instead: rt, 64k, …; empty: the plain kernel.  [default: the only kernel]",
)
@click.option("--to", default="", help="Where to publish, as for `publish`.")
@click.option("--no-publish", is_flag=True, help="Build only: ask no store, publish nowhere.")
@click.option(
    "--rebuild",
    envvar="NODESIDE_REBUILD",
    is_flag=True,
    help="Build what the store has, too, and replace it.",
)
@_OUTCOME_FILE
@dry_run_option
@output_option
def order(
    *,
    config: Config,
    kernel: str,
    kernel_variant: str | None,
    to: str,
    no_publish: bool,
    rebuild: bool,
    outcome_file: Path | None,
    dry_run: bool,
    output: str,
) -> None:
    """Request a build in steps, unless the store has it and --rebuild is not given.

    Runs after `toolkit.pyz kernels`, before `toolkit.pyz answer` in the same shared directory.
    """
    from nodeside.driver.commands import job

    options = job.OrderOptions(kernel, kernel_variant, not no_publish, to, rebuild)
    with job.record_outcome(outcome_file, kernel):
        outcome = job.order_build(config, options, dry_run=dry_run)
    _print_outcome(outcome, output)


@driver.command()
@with_config_options
@_OUTCOME_FILE
@dry_run_option
@output_option
def finish(config: Config, outcome_file: Path | None, dry_run: bool, output: str) -> None:
    """Check, sign and publish the ordered build.

    The last step, after `toolkit.pyz answer`. The exit code is that of the build.
    """
    from nodeside.driver.commands import job

    if dry_run:
        _print_outcome(job.preview_finish(config), output)
        return
    with job.record_outcome(outcome_file, job.ordered_kernel(config)) as outcomes:
        outcome, result = job.finish_build(config)
        outcomes.append(result)
    _print_outcome(outcome, output)


@driver.command(hidden=True)
@click.option("--shared", envvar="NODESIDE_SHARED", type=click.Path(path_type=Path))
def provide(shared: Path | None) -> None:
    """Put the sidecar's program and Python into the shared directory.

    This is what the init container does.
    """
    from nodeside.driver.handoff.provide import provide_toolkit
    from nodeside.protocol.shared_directory import SharedDir

    if shared is None:
        raise click.UsageError("--shared DIR is required: the directory to fill")
    packed = Path("/usr/lib/nodeside/python")  # the image's build put it there
    provide_toolkit(SharedDir(shared), packed if packed.is_dir() else None)


def _resolve_task(config: Config, kernel: Kernel | None = None) -> Task:
    from nodeside.driver.ladder.task import resolve_task

    return resolve_task(config, kernel)


def _print_outcome(outcome: CommandOutput, output: str) -> None:
    """Print an outcome, and exit with its code if it is a failure."""
    click.echo(outcome.render_as(output))
    if outcome.exit_code:
        raise SystemExit(outcome.exit_code)
