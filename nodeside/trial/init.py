"""`nodeside init`: the files of a driver for a source that has none, made from what is in it."""

from __future__ import annotations

import json
import re
import shlex
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nodeside.errors import ExitCode
from nodeside.failures import output_option
from nodeside.trial.architecture import AMD64

if TYPE_CHECKING:
    from nodeside.trial.target.draft import Draft
    from nodeside.trial.target.plan import Wishes

_SHOWN = 12  # ids and directories in the table
_PACKAGE = re.compile(r"\(package ([\w.+-]+)(?: on Debian)?\b")  # as a hint of a build names it


@click.command(name="init")
@click.argument("source", default=".", metavar="[SOURCE]")
@click.option(
    "--into",
    metavar="DIR",
    help="Where a Debian package is unpacked to.  [default: its name, without -dkms]",
)
@click.option(
    "--directory",
    "build_directory",
    metavar="DIR",
    help="The directory of SOURCE to build in: one that lists modules or has a dkms.conf, or the "
    "one for --command.",
)
@click.option(
    "--command",
    metavar="COMMAND",
    help="How to build SOURCE, such as 'make driver'; by sh, if it has a character such as | or $.",
)
@click.option(
    "--version",
    "driver_version",
    metavar="VERSION",
    help="The driver's version, where the source has none, or only a placeholder.",
)
@click.option(
    "--kernel",
    "-k",
    default=AMD64.default_kernel,
    show_default=True,
    metavar="KERNEL",
    help="The kernel to build for. Takes the same values as in `nodeside try`.",
)
@click.option(
    "--toolkit-package",
    "toolkit_packages",
    multiple=True,
    metavar="PACKAGE",
    help="A Debian package that the build needs besides those of the toolkit, such as g++.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Write the files anew if they are there, and build as spec.build of the driver.yaml says. "
    "The source of a package that is there stays.",
)
@output_option
def init(
    *,
    source: str,
    into: str | None,
    build_directory: str | None,
    command: str | None,
    driver_version: str | None,
    kernel: str,
    toolkit_packages: tuple[str, ...],
    force: bool,
    output: str,
) -> None:
    """Write driver.yaml and what else an image needs beside a source.

    SOURCE is a dkms tree, a directory with a Kbuild, a Makefile, a configure or a CMakeLists.txt,
    or the name of a Debian package such as vpoll-dkms. It is built once in the toolkit of a Debian
    kernel, as an ordinary user without network, to see what modules it has and what hardware they
    are for. Each likely way to build it is tried until one builds a module; --command, --directory,
    or spec.build of a driver.yaml with --force say which way. A value that the source does not tell
    is marked with "guess". If it has several drivers and nothing speaks for one of them, nothing is
    written, and the exit code is 2. If it does not compile, the files are written if it lists its
    modules, and the exit code is 10; if its dkms.conf excludes the kernel, the exit code is 77.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    from nodeside.trial.privilege import become_root

    become_root()
    if "" in (source, kernel, into, build_directory, command, driver_version):
        raise click.UsageError("SOURCE or the value of an option is empty; is a variable unset?")
    from nodeside.driver.handoff.request import ToolkitBuildFailed
    from nodeside.trial.cli import split_command
    from nodeside.trial.target.plan import Wishes, build_options

    wishes = Wishes(
        directory=build_directory or "",
        command=split_command(command) if command else (),
        version=driver_version or "",
        options=build_options(kernel, toolkit_packages),
    )
    try:
        directory, draft = _write_files(source, into, kernel, toolkit_packages, wishes, force=force)
    except ToolkitBuildFailed as error:
        if option := _package_option(error.hint):
            again = shlex.join(["nodeside", "init", source, *wishes.options])
            error.hint += f"; here: {again} {option}"
        raise
    document = _summary_document(directory, draft)
    click.echo(
        json.dumps(document, indent=2)
        if output == "json"
        else _summary_table(document, draft, wishes.options)
    )
    if draft.problem:
        excluded = draft.failures[0].error.exit_code == ExitCode.EXCLUDED
        raise SystemExit(ExitCode.EXCLUDED if excluded else ExitCode.BUILD_FAILED)


def _write_files(
    source: str,
    into: str | None,
    kernel: str,
    packages: tuple[str, ...],
    wishes: Wishes,
    *,
    force: bool,
) -> tuple[Path, Draft]:
    """Write the files. Nothing is written unless all of it is known."""
    from dataclasses import replace
    from functools import partial

    from nodeside import __version__
    from nodeside.errors import UsageError
    from nodeside.spec import load
    from nodeside.system.scratch import scratch_directory
    from nodeside.trial import scaffold, vendor_tree
    from nodeside.trial.owned_place import open_place
    from nodeside.trial.target.dependencies import require_packages
    from nodeside.trial.target.draft import draft_of
    from nodeside.trial.target.own_driver import read_own_driver
    from nodeside.trial.target.target import LEFT_OUT, package_tree, path_exists
    from nodeside.trial.workshop import Workshop

    path = Path(source)
    is_package = not path_exists(path)
    if not is_package and into:
        raise UsageError(f"--into is for packages, and {source} is a directory")
    directory = Path(into or source.removesuffix("-dkms")) if is_package else path
    if is_package and path_exists(directory) and not force:
        raise UsageError(f"{directory} is there already", hint="--into DIR, or --force")
    with (
        open_place(directory) as place,
        Workshop(toolkit_packages=packages) as workshop,
        scratch_directory("init") as scratch,
    ):
        if not force:
            scaffold.require_absent(place)
        require_packages(packages, workshop.archive)
        chosen = workshop.resolve(kernel)
        found = package_tree(source, scratch, workshop.archive) if is_package else path
        tree = scratch / "source"
        vendor_tree.copy_tree(found, tree, leave_out=(*LEFT_OUT, *scaffold.FILES))
        evaluate, build = partial(workshop.evaluate, chosen), partial(workshop.build, chosen)
        own = read_own_driver(directory / "driver.yaml", tree, "src" if is_package else ".")
        part = tree if is_package else tree / own.source
        draft = draft_of(part, path / own.source, evaluate, build, replace(wishes, own=own))
        files = scaffold.make_file_texts(draft, own.source, __version__)
        (scratch / "driver.yaml").write_text(files["driver.yaml"])
        load(scratch / "driver.yaml")  # the source may have a name that no driver can have
        if is_package and place.has_name("src"):
            workshop.progress.print_step(f"{directory}/src is there already, and stays as it is")
        written = {name: text.encode() for name, text in files.items()}
        place.write_files(written, tree if is_package else None)
    return directory, draft


def _summary_document(directory: Path, draft: Draft) -> dict[str, Any]:
    from nodeside.trial import scaffold
    from nodeside.trial.target.ways import way_in_words

    hardware = scaffold.find_hardware(draft.files)
    return {
        "directory": str(directory),
        "files": list(scaffold.FILES),
        "driver": draft.name,
        "version": draft.version,
        "kind": draft.build.kind.value,
        "candidates": [
            {
                "directory": each.directory,
                "file": each.file,
                "modules": list(each.modules),
                "deviceTables": list(each.tables),
            }
            for each in draft.candidates
        ],
        "modules": list(draft.modules),
        "pci": [f"{vendor}:{device}" for vendor, device in hardware.pci],
        "needs": [
            {"package": need.package, "driver": need.driver, "directory": need.directory}
            for need in draft.needs
        ],
        "guesses": dict(draft.guesses),
        "problem": draft.problem,
        "failures": [
            {"way": way_in_words(each.way), "error": each.line, "hint": each.error.hint}
            for each in draft.failures
        ],
    }


def needs_in_words(directory: Path, draft: Draft, options: Sequence[str]) -> Iterator[str]:
    """Yield a line for each package that BUILD_DEPENDS names, and one with what to write."""
    for need in draft.needs:
        words = f"{need.package}, by BUILD_DEPENDS in its dkms.conf"
        if need.directory:
            place = str(directory / need.directory)
            command = shlex.join(["nodeside", "init", place, *options])
            words += f"; its source is in {shlex.quote(place)}: {command} makes its Driver"
        yield words
    if draft.needs:
        names = ", ".join(need.driver for need in draft.needs)
        yield (
            "in driver.yaml, where other Drivers have these modules, below spec: "
            f"after: [{names}] loads them first, and builds this one with their symbols"
        )


def _summary_table(document: dict[str, Any], draft: Draft, options: Sequence[str]) -> str:
    from nodeside.spec.schema import LIST_LIMIT
    from nodeside.text.shortlist import shortlist
    from nodeside.text.table import table
    from nodeside.trial.target.ways import way_in_words

    directory, problem = Path(document["directory"]), document["problem"]
    rows = [
        ("driver", f"{document['driver']} {document['version']}"),
        ("build", way_in_words(draft.build) if draft.build.command else document["kind"]),
        ("modules", ", ".join(document["modules"])),
    ]
    if ids := document["pci"]:
        rows.append(("hardware", shortlist(ids, _SHOWN)))
        if len(ids) > LIST_LIMIT:
            words = f"driver.yaml has {LIST_LIMIT} of {len(ids)} ids: see spec.hardware in it"
            rows.append(("guess: hardware", words))
    if len(draft.candidates) > 1:
        rows += [("candidate", each.in_words()) for each in draft.candidates[:_SHOWN]]
        if left := len(draft.candidates) - _SHOWN:
            rows += [("candidate", f"and {left} more: --output json")] if left > 0 else []
    rows += [("needs", words) for words in needs_in_words(directory, draft, options)]
    rows += [(f"guess: {name}", why) for name, why in document["guesses"].items()]
    failures = document["failures"]
    if problem:
        rows.append(("not built", f"{failures[0]['way']}: {problem}"))
        rows += [("hint", failures[0]["hint"])] if failures[0]["hint"] else []
        failures = failures[1:]
    rows += [("also tried", f"{each['way']}: {each['error']}") for each in failures]
    rows += [("written", f"{directory / name}") for name in document["files"]]
    if problem:
        option = _package_option(draft.failures[0].error.hint) or "[--kernel KERNEL]"
        again = shlex.join(["nodeside", "init", str(directory), "--force", *options])
        rows.append(("again", f"{again} {option}"))
    rows.append(("next", shlex.join(["nodeside", "try", str(directory), *options])))
    return table(rows)


def _package_option(hint: str) -> str:
    """Return the option for what the toolkit lacks, as a hint of a build says; "" for others."""
    if package := _PACKAGE.search(hint):
        return f"--toolkit-package {package[1]}"
    return "--toolkit-package PACKAGE" if "development package" in hint else ""
