"""The table of Debian's dkms packages, docs/dkms-packages.md; the page says how it is made.

It takes root, and some twenty minutes on two cores that have nothing else to do. Words after the
command are packages, if not all are wanted; `--largest FILES` leaves out what has more files, and
`--arch arm64` makes the table for that architecture, under emulation: then it takes hours.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from nodeside.text.table import table
from nodeside.trial.architecture import AMD64, ARCHITECTURES
from nodeside.trial.workshop import Workshop
from tests.vm.dkms_effects import EFFECTS, Effect
from tests.vm.dkms_packages import LARGE, SMALL, DkmsPackages, Outcome, package_names

COMMAND = "python -m tests.vm.dkms_table"

_HEADER = ("package", "version", "kernel", "source files", "built in", "outcome", "rung", "reason")
_PREFACE = """\
# Debian's dkms packages

<!-- Generated: {command} > docs/dkms-packages.md -->

What nodeside does with every package of Debian {suite} for {arch} that is called NAME-dkms. They
are unmodified. This table is what `{command}` found, as root, in the virtual environment.

Each package is built by the driver and sidecar processes in the toolkit's root file system (the
seconds are those of one run on {cpus} cores that had other work too), and then brought up by a
driver container in a throwaway machine that has none of its hardware. Modules that were built
before the machine was switched on come from the node's cache there: hence the rung.

A package that does not get ready has its exit code (the [README](../README.md#exit-codes) lists
them) and its first error, or the first line of another reason, as nodeside reports it.

"""
_VERSIONS = """\

## Which dkms this follows

nodeside does what dkms 3.2 does. dkms 3.0, which Debian 12 has, differs:

- `PRE_BUILD`, `POST_BUILD`: where one fails, 3.2 ends the build. 3.0 goes on.
- `BUILD_EXCLUSIVE_KERNEL_MIN`, `BUILD_EXCLUSIVE_KERNEL_MAX`: 3.0 does not know them, and builds.
- `OBSOLETE_BY`: 3.2 excludes each later kernel, unless `BUILD_EXCLUSIVE_KERNEL_MAX` is set.
  3.0 builds for it.
- `CC`: 3.2 exports the compiler that the kernel's configuration names, if it is installed. With
  3.0, `PRE_BUILD` has that, and `MAKE` only the one of Debian's `.kernelvariables`.

nodeside differs from both:

- `BUILD_DEPENDS` fails nothing: what it names may be in the kernel, or of another Driver, which
  `after: [NAME]` in driver.yaml puts first. 3.2 builds nothing while a package that it names is
  not installed (exit code 13); 3.0 builds.
- `CC` is `gcc` or `clang` where that has the major version of the kernel's compiler.
- `DEST_MODULE_LOCATION` may be missing, since nothing is installed.
- A `BUILD_EXCLUSIVE_` rule at an index above 0 leaves out the module of that index. dkms reads
  only the first.
- `/usr/src/NAME-VERSION` in a command is replaced by the build directory, since a build cannot
  write to `/usr/src`.
- A compiler of another major version than the kernel's is refused, or replaced by the right one
  if that is installed.

A test asks the dkms of Debian 12 and the newest of Debian sid about these trees:
`tests/toolkit_sidecar/test_dkms_judges.py`.
"""
_LONGEST = 200  # characters of a reason in the table


def as_text(outcomes: Iterable[Outcome]) -> str:
    """The table for a terminal."""
    return table([_row(outcome) for outcome in outcomes], header=[name.upper() for name in _HEADER])


def as_markdown(outcomes: Iterable[Outcome]) -> str:
    """The table for docs/dkms-packages.md."""
    rows = [_HEADER, tuple("---" for _ in _HEADER), *map(_row, outcomes)]
    lines = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def merged(built: Iterable[Outcome], loaded: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """One outcome for each package: that of its load, else that of its build."""
    last = {outcome.package: outcome for outcome in (*built, *loaded)}
    return tuple(last[name] for name in sorted(last))


def _row(outcome: Outcome) -> tuple[str, ...]:
    why = outcome.why
    return (
        outcome.package,
        outcome.version,
        outcome.kernel,
        str(outcome.files),
        f"{outcome.seconds:.0f} s",
        outcome.result,
        outcome.rung,
        why if len(why) <= _LONGEST else f"{why[:_LONGEST]}…",
    )


def _summary(outcomes: tuple[Outcome, ...]) -> str:
    ready = sum(outcome.ready for outcome in outcomes)
    return f"Ready are {ready} of {len(outcomes)}.\n\n"


def _notes(outcomes: Iterable[Outcome], packages: DkmsPackages) -> Iterator[str]:
    """What the table does not say: what was seen, what was done differently, what is missing."""
    seen = [o for o in outcomes if o.ready and o.package in EFFECTS]
    if seen:
        yield "## What is run beside those that are ready\n"
        yield (
            "What each must print stands in `tests/vm/dkms_effects.py`; a test compares it, of "
            f"packages of up to {SMALL} files in `make test`, of up to {LARGE} in "
            "`make lab-story`.\n"
        )
        yield from (f"- {o.package}: `{EFFECTS[o.package].command}`" for o in seen)
        yield ""
    special = [(o.package, _note(EFFECTS[o.package])) for o in outcomes if o.package in EFFECTS]
    if any(note for _, note in special):
        yield "## What was done differently\n"
        yield from (f"- {package}: {note}." for package, note in special if note)
        yield ""
    if packages.treeless:
        yield f"Not in the table, since they have no dkms tree: {', '.join(packages.treeless)}."
    if packages.left_out:
        yield f"Not in the table, since they are larger: {', '.join(packages.left_out)}."


def _note(effect: Effect) -> str:
    """What was done differently for a package, and the reason; empty for most."""
    given = [f"{name}={value}" for p in effect.parameters.values() for name, value in p.items()]
    how = [f"loaded with {' '.join(given)}"] if given else []
    if effect.left_out:
        how.append(f"loaded without {', '.join(effect.left_out)}")
    if effect.stays:
        how.append("left loaded")
    return " and ".join(how) + (f": {effect.why}" if effect.why else "")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("packages", nargs="*", help="packages, if not all")
    parser.add_argument("--largest", type=int, default=sys.maxsize, metavar="FILES")
    parser.add_argument("--arch", choices=ARCHITECTURES, default=AMD64.name)
    return parser.parse_args()


def _said(outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """Each outcome, told on stderr as it comes."""
    for outcome in outcomes:
        line = " ".join((outcome.package, outcome.result, outcome.rung, outcome.why))
        sys.stderr.write(f"{line}\n")
        yield outcome


def main() -> None:
    arguments = _arguments()
    architecture = ARCHITECTURES[arguments.arch]
    with (
        Workshop(architecture=architecture) as workshop,
        tempfile.TemporaryDirectory(prefix="nodeside-dkms-") as scratch,
    ):
        kernel = workshop.kernel(architecture.ordinary_kernel)
        packages = DkmsPackages(workshop, kernel, Path(scratch) / "packages")
        names = arguments.packages or package_names(workshop.archive)
        built = list(_said(packages.build(names, largest=arguments.largest)))
        outcomes = merged(built, _said(packages.load(built)))
        command = shlex.join((*COMMAND.split(), *sys.argv[1:]))
        suite = workshop.archive.sources.suite
        page = _PREFACE.format(
            command=command, suite=suite, arch=arguments.arch, cpus=os.cpu_count()
        )
        notes = "\n".join(_notes(outcomes, packages))
        sys.stdout.write(f"{page}{_summary(outcomes)}{as_markdown(outcomes)}")
        sys.stdout.write(f"{_VERSIONS}\n{notes}\n")


if __name__ == "__main__":
    main()
