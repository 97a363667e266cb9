"""`python -m bench`: measure, show the page, and write it if everything was measured."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click

from bench import (
    builds,
    devices,
    failure,
    footprint,
    handoff,
    images,
    page,
    starts,
    surroundings,
    trials,
)
from bench.ground import Ground
from bench.page import Section
from bench.size import Size
from nodeside.cli import exit_on_error
from nodeside.errors import ExitCode, NodesideError
from nodeside.trial.progress import Progress

PAGE = Path("docs/benchmarks.md")
Measurement = Callable[..., Section]

_ON_A_GROUND: Mapping[str, Measurement] = {
    "handoff": handoff.measure,
    "footprint": footprint.measure,
    "failure": failure.measure,
    "starts": starts.measure,
    "builds": builds.measure,
}
_ORDER = ("builds", "handoff", "footprint", "starts", "failure")  # on the page


def _measure_cluster(progress: Progress, size: Size) -> tuple[Section, Mapping[str, str]]:
    from bench.cluster import run

    return run.measure(progress.print_step, size)


# Parts of their own, which need none of the others' ground.
_PARTS = {
    "images": images.measure,
    "devices": devices.measure,
    "trials": trials.measure,
    "cluster": _measure_cluster,
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--quick",
    "size",
    flag_value=Size.QUICK,
    type=Size,
    help="A subset in six minutes; the page is only shown.",
)
@click.option(
    "--smallest",
    "size",
    flag_value=Size.SMALLEST,
    type=Size,
    help="Everything once, as `make test` does; the numbers mean nothing, and the page is only "
    "shown.",
)
@click.option(
    "--only",
    type=click.Choice((*_ORDER, *_PARTS)),
    multiple=True,
    help="Only these; of the page, only `images`, `devices`, `trials` and `cluster` are written "
    "alone.",
)
@click.option("--rounds", type=click.IntRange(min=1), help="Of each build.  [default: 5, long: 3]")
@click.option("--to", type=click.Path(path_type=Path), default=PAGE, show_default=True)
def bench(*, size: Size | None, only: tuple[str, ...], rounds: int | None, to: Path) -> None:
    """Measure nodeside on this machine, beside plain make and dkms."""
    progress, size = Progress(), size or Size.FULL
    failures: list[str] = []
    with exit_on_error():
        if not only or set(only) - set(_PARTS):
            text, failures = _machine(progress, only, rounds, size)
            click.echo(text)
            if size is Size.FULL and not (only or failures):
                _write(progress, to, page.with_machine, text)
        for name in _PARTS:
            if only and name not in only:
                continue
            with _failing(progress, name, failures):
                text = _part(progress, name, size)
                click.echo(text)
                if size is Size.FULL:
                    _write(progress, to, partial(_with_part, name), text)
    if failures:
        progress.print_step(f"not measured: {', '.join(failures)}")
        sys.exit(ExitCode.SYSTEM)


@contextmanager
def _failing(progress: Progress, name: str, failures: list[str]) -> Iterator[None]:
    """Whatever breaks in a part is said, and the others go on."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, NodesideError):
            traceback.print_exc()
        progress.print_step(f"{name} failed: {error or repr(error)}")
        failures.append(name)


def _write(progress: Progress, to: Path, put: Callable[[str, str], str], text: str) -> None:
    """Put one part on the page at once, so that a failure of the next does not lose it."""
    to.write_text(put(to.read_text() if to.exists() else "", text))
    progress.print_step(f"written: {to}")


def _with_part(name: str, whole: str, text: str) -> str:
    return page.with_part(whole, name, text)


def _part(progress: Progress, name: str, size: Size) -> str:
    """A part of the page with the run and the machine of its own."""
    load_before = os.getloadavg()[0]
    section, versions = _PARTS[name](progress, size)
    about = surroundings.describe_part(versions, load_before)
    return page.render_part(name, f"python -m bench --only {name}", about, section)


def _machine(
    progress: Progress, only: tuple[str, ...], rounds: int | None, size: Size
) -> tuple[str, list[str]]:
    """Everything that is measured on one machine, and what could not be."""
    load_before = os.getloadavg()[0]
    wanted = {
        name: partial(work, size=size)
        for name, work in _ON_A_GROUND.items()
        if not only or name in only
    }
    if rounds and "builds" in wanted:
        wanted["builds"] = partial(wanted["builds"], rounds=rounds)
    with Ground(progress) as ground:
        sections, failures = _measure(ground, wanted)
        kernel = ground.kernel(starts.FLAVOUR)
        accelerator = ground.workshop.accelerator_for(kernel)
        about = surroundings.describe(ground, builds.FLAVOUR, accelerator, load_before)
    command = f"make bench ARGS='--rounds {rounds}'" if rounds else "make bench"
    return page.render(command, about, sections), failures


def _measure(ground: Ground, wanted: Mapping[str, Measurement]) -> tuple[list[Section], list[str]]:
    """Every measurement that could be made, in the page's order; and those that could not."""
    found: dict[str, Section] = {}
    failures: list[str] = []
    for name, work in wanted.items():
        with _failing(ground.progress, name, failures):
            found[name] = work(ground)
    return [found[name] for name in _ORDER if name in found], failures


if __name__ == "__main__":
    bench()
