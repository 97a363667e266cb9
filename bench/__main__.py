"""`python -m bench`: measure, show the page, and write it if everything was measured."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
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
from bench.candidates import CANDIDATES, QUICK
from bench.ground import Ground
from bench.page import Section
from nodeside.cli import exit_on_error
from nodeside.errors import ExitCode, NodesideError
from nodeside.trial.progress import Progress

PAGE = Path("docs/benchmarks.md")
Measurement = Callable[..., Section]

_FULL: dict[str, Measurement] = {
    "handoff": handoff.measure,
    "footprint": footprint.measure,
    "failure": failure.measure,
    "starts": starts.measure,
    "builds": partial(builds.measure, candidates=CANDIDATES, rounds=None),
}
_QUICK: dict[str, Measurement] = {
    "handoff": partial(handoff.measure, samples=10),
    "footprint": partial(footprint.measure, times=5),
    "failure": partial(failure.measure, samples=3),
    "starts": partial(starts.measure, times=3),
    "builds": partial(builds.measure, candidates=QUICK, rounds=2),
}
_ORDER = ("builds", "handoff", "footprint", "starts", "failure")  # on the page


def _measure_cluster(progress: Progress, *, quick: bool) -> tuple[Section, Mapping[str, str]]:
    from bench.cluster import run

    return run.measure(progress.say, quick=quick)


# Parts of their own, which need none of the others' ground.
_PARTS = {
    "images": images.measure,
    "devices": devices.measure,
    "trials": trials.measure,
    "cluster": _measure_cluster,
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="A subset in six minutes; the page is only shown.")
@click.option(
    "--only",
    type=click.Choice((*_ORDER, *_PARTS)),
    multiple=True,
    help="Only these; of the page, only `images`, `devices`, `trials` and `cluster` are written "
    "alone.",
)
@click.option("--rounds", type=click.IntRange(min=1), help="Of each build.  [default: 5, long: 3]")
@click.option("--to", type=click.Path(path_type=Path), default=PAGE, show_default=True)
def bench(*, quick: bool, only: tuple[str, ...], rounds: int | None, to: Path) -> None:
    """Measure nodeside on this machine, beside plain make and dkms."""
    progress = Progress()
    failures: list[str] = []
    with exit_on_error():
        if not only or set(only) - set(_PARTS):
            text, failures = _machine(progress, only, rounds, quick=quick)
            click.echo(text)
            if not (quick or only or failures):
                _write(progress, to, page.with_machine, text)
        for name in _PARTS:
            if only and name not in only:
                continue
            try:
                text = _part(progress, name, quick=quick)
            except NodesideError as error:
                progress.say(f"{name} failed: {error}")
                failures.append(name)
                continue
            click.echo(text)
            if not quick:
                _write(progress, to, partial(_with_part, name), text)
    if failures:
        progress.say(f"not measured: {', '.join(failures)}")
        sys.exit(ExitCode.SYSTEM)


def _write(progress: Progress, to: Path, put: Callable[[str, str], str], text: str) -> None:
    """Put one part on the page at once, so that a failure of the next does not lose it."""
    to.write_text(put(to.read_text() if to.exists() else "", text))
    progress.say(f"written: {to}")


def _with_part(name: str, whole: str, text: str) -> str:
    return page.with_part(whole, name, text)


def _part(progress: Progress, name: str, *, quick: bool) -> str:
    """A part of the page with the run and the machine of its own."""
    load_before = os.getloadavg()[0]
    section, versions = _PARTS[name](progress, quick=quick)
    about = surroundings.describe_part(versions, load_before)
    return page.render_part(name, f"python -m bench --only {name}", about, section)


def _machine(
    progress: Progress, only: tuple[str, ...], rounds: int | None, *, quick: bool
) -> tuple[str, list[str]]:
    """Everything that is measured on one machine, and what could not be."""
    load_before = os.getloadavg()[0]
    wanted = {n: work for n, work in (_QUICK if quick else _FULL).items() if not only or n in only}
    if rounds and "builds" in wanted:
        wanted["builds"] = partial(wanted["builds"], rounds=rounds)
    with Ground(progress) as ground:
        sections, failures = _measure(ground, wanted)
        kernel = ground.kernel(starts.FLAVOUR)
        accelerator = ground.workshop.accelerator_for(kernel)
        about = surroundings.describe(ground, builds.FLAVOUR, accelerator, load_before)
    command = f"make bench ARGS='--rounds {rounds}'" if rounds else "make bench"
    return page.render(command, about, sections), failures


def _measure(ground: Ground, wanted: dict[str, Measurement]) -> tuple[list[Section], list[str]]:
    """Every measurement that could be made, in the page's order; and those that could not."""
    found: dict[str, Section] = {}
    for name, work in wanted.items():
        try:
            found[name] = work(ground)
        except NodesideError as error:
            ground.progress.say(f"{name} failed: {error}")
    failures = [name for name in wanted if name not in found]
    return [found[name] for name in _ORDER if name in found], failures


if __name__ == "__main__":
    bench()
