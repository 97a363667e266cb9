"""`nodeside try`: the whole product on a machine with no cluster, no hardware and no modules."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from nodeside.failures import output_option
from nodeside.trial.architecture import AMD64, ARCHITECTURES, architecture_named

if TYPE_CHECKING:
    from nodeside.trial.architecture import Architecture
    from nodeside.trial.owned_place import OwnedPlace
    from nodeside.trial.pod import TrialRun
    from nodeside.trial.session import TryOptions

Argv = tuple[str, ...]

_FOR_A_SHELL = frozenset("|&;<>()$`*?\n")
_DEFAULT_TARGET = "examples/edu"
_EPILOG = (
    "The exit code is that of the node side (see nodeside --help), 70 if the machine could not be "
    "made, or 42 if a --command failed. With several boots, it is that of the last one that "
    "failed. The cache is in $XDG_CACHE_HOME/nodeside/trial, or NODESIDE_TRIAL_CACHE. Temporary "
    "files are in $TMPDIR. NODESIDE_MIRROR and NODESIDE_SUITE select another Debian mirror and "
    "release."
)


def _split_commands(
    _context: click.Context, _option: click.Parameter, lines: Sequence[str]
) -> list[Argv]:
    return [split_command(line) for line in lines]


def split_command(line: str) -> Argv:
    """Split a command into an argv. `sh` gets one with a character that a shell acts on."""
    try:
        argv = ("sh", "-c", line) if _FOR_A_SHELL & set(line) else tuple(shlex.split(line))
    except ValueError as exc:
        raise click.BadParameter(f"{exc} in {line}") from None
    if not (argv and argv[0]):
        raise click.BadParameter("expected a program and its arguments, got nothing")
    return argv


@click.command(name="try", epilog=_EPILOG)
@click.argument("target", required=False)
@click.option(
    "--kernel",
    "-k",
    "kernels",
    multiple=True,
    show_default="cloud-amd64; with --arch arm64, cloud-arm64",
    metavar="KERNEL",
    help="A release, a flavour of the release's own series (amd64), the default flavour of a "
    "version (6.12), both (6.12-amd64); `list` prints them all. Several are tried one after the "
    "other, each on a node of its own.",
)
@click.option(
    "--arch",
    default=AMD64.name,
    show_default=True,
    metavar="ARCH",
    help=f"The machine's architecture: {' or '.join(ARCHITECTURES)}, which is emulated.",
)
@click.option(
    "--device", "devices", multiple=True, metavar="DEVICE", help="An additional QEMU device."
)
@click.option(
    "--command",
    "-c",
    "commands",
    multiple=True,
    metavar="COMMAND",
    callback=_split_commands,
    help="Run this in the machine afterwards, in a container with its devices; by sh, if it has a "
    "character such as | or $.",
)
@click.option(
    "--reboot-into",
    "reboots",
    multiple=True,
    metavar="KERNEL",
    help="Then reboot the same node into this kernel and try again.",
)
@click.option("--keep", is_flag=True, help="Open a shell in the machine before it ends.")
@click.option(
    "--watch",
    "-w",
    is_flag=True,
    help="Keep the machine, and try each saved change in it until Ctrl-C.",
)
@click.option(
    "--build-on",
    type=click.Choice(["auto", "node", "host"]),
    default="auto",
    show_default=True,
    help="Where to compile: in the machine, or in the toolkit's root file system on this host; "
    "auto does so in the machine if that has KVM.",
)
@click.option(
    "--accel",
    type=click.Choice(["auto", "kvm", "tcg"]),
    default="auto",
    show_default=True,
    help="KVM, or software emulation; auto tries KVM once.",
)
@click.option(
    "--append",
    multiple=True,
    metavar="WORD",
    help="An additional word for the kernel's command line.",
)
@click.option(
    "--toolkit-package",
    "toolkit_packages",
    multiple=True,
    metavar="PACKAGE",
    help="A Debian package that the build needs besides those of the toolkit, such as g++.",
)
@output_option
@click.option(
    "--report",
    metavar="DIR",
    help="Write report.html, report.json and junit.xml into this directory.",
)
@click.option("--clean-cache", is_flag=True, help="Remove the cache and exit.")
def trial(
    *,
    target: str | None,
    kernels: Sequence[str],
    arch: str,
    devices: Sequence[str],
    commands: Sequence[Argv],
    reboots: Sequence[str],
    keep: bool,
    watch: bool,
    build_on: str,
    accel: str,
    append: Sequence[str],
    toolkit_packages: Sequence[str],
    output: str,
    report: str | None,
    clean_cache: bool,
) -> None:
    """Boot a throwaway machine and try a driver in it.

    TARGET is a directory with a driver.yaml (or that file), the source of a module without one, or
    the name of a Debian package such as vpoll-dkms.
    """
    signal.signal(signal.SIGTERM, _interrupt_trial)
    from nodeside.trial.privilege import become_root

    become_root()
    architecture = architecture_named(arch)
    kernels = kernels or (architecture.default_kernel,)
    if clean_cache:
        _clean_cache()
    elif "" in (target, report, *kernels, *reboots):
        raise click.UsageError(
            "the target, a kernel or the directory of the report is empty; is a shell variable "
            "unset?"
        )
    elif "list" in kernels:
        _list_kernels(accel, architecture, output)
    elif target is None:
        raise click.UsageError(f"name a driver to try, such as {_DEFAULT_TARGET}")
    else:
        from nodeside.trial.session import TryOptions

        options = TryOptions(
            target=target,
            kernels=tuple(kernels),
            reboots=tuple(reboots),
            devices=tuple(devices),
            commands=tuple(commands),
            append=tuple(append),
            keep=keep,
            build_on=build_on,
            accelerator=accel,
            architecture=architecture,
            toolkit_packages=tuple(toolkit_packages),
        )
        if (keep or watch) and len(kernels) > 1:
            raise click.UsageError("--keep and --watch are about one machine: name one --kernel")
        if watch:
            _watch_target(options, others=report is not None or output == "json")
        else:
            _try_target(options, output, report)


def _watch_target(options: TryOptions, *, others: bool) -> NoReturn:
    from nodeside.trial.session import watch_session

    if options.keep or options.reboots or others:
        raise click.UsageError("--watch goes with no --keep, --reboot-into, --report and --output")
    if options.build_on == "node":
        raise click.UsageError("--watch builds on this host")
    raise SystemExit(watch_session(options))


def _try_target(options: TryOptions, output: str, report: str | None) -> NoReturn:
    from nodeside.trial.result import exit_code
    from nodeside.trial.session import run_session

    with _open_report_place(report) as place:
        runs: list[TrialRun] = []
        try:
            run_session(options, runs=runs)
        finally:
            if runs:  # an interrupted matrix shows the runs that it has
                _show_runs(options, runs, output, place)
        raise SystemExit(int(exit_code(runs)))


@contextmanager
def _open_report_place(report: str | None) -> Iterator[OwnedPlace | None]:
    """Open the report's directory, so that a bad one fails before minutes of work."""
    if report is None:
        yield None
        return
    from nodeside.trial.owned_place import open_place

    with open_place(Path(report)) as place:
        yield place


def _show_runs(
    options: TryOptions, runs: Sequence[TrialRun], output: str, place: OwnedPlace | None
) -> None:
    from nodeside.trial import result
    from nodeside.trial.report_files import write_report

    if output == "json":
        click.echo(result.as_json(options.target, runs))
    else:
        click.echo(result.as_table(runs, matrix=len(options.kernels) > 1))
    if place is not None:
        write_report(place, options.target, runs)


def _clean_cache() -> None:
    from nodeside.trial import cache

    click.echo(f"removed {cache.remove_cache()}")


def _list_kernels(accelerator: str, architecture: Architecture, output: str) -> None:
    from nodeside.text.table import table
    from nodeside.trial.workshop import Workshop

    with Workshop(accelerator=accelerator, architecture=architecture) as workshop:
        kernels = workshop.available_kernels()
    if output == "json":
        records = [
            {"release": k.release, "flavour": k.flavour, "headers": bool(k.headers)}
            for k in kernels
        ]
        click.echo(json.dumps({"kernels": records}, indent=2))
        return
    words = {True: "yes", False: "no: can boot, cannot build"}
    rows = [(kernel.release, kernel.flavour, words[bool(kernel.headers)]) for kernel in kernels]
    click.echo(table(rows, header=("KERNEL", "FLAVOUR", "HEADERS")))


def _interrupt_trial(_number: int, _frame: FrameType | None) -> None:
    """End the trial on SIGTERM as Ctrl-C does, with a full cleanup."""
    raise KeyboardInterrupt
