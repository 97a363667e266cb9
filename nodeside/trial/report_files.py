"""`nodeside try --report DIR`: what a trial found as files, for a CI server and for people.

    DIR/report.json    the document of `--output json`
    DIR/junit.xml      a test suite for each boot, as CI servers read it
    DIR/report.html    one page that needs nothing else: no network, no script

What a driver, a build or a kernel printed is data in all of them: escaped, and never a link.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

from nodeside.errors import ExitCode
from nodeside.log import escape_controls
from nodeside.text.html_page import (
    Bar,
    Cell,
    bad_cell,
    fold_text,
    good_cell,
    html_heading,
    html_paragraph,
    html_table,
    long_cell,
    number_cell,
    render_bars,
    render_page,
)
from nodeside.trial.owned_place import OwnedPlace
from nodeside.trial.pod import TrialRun
from nodeside.trial.result import as_json, first_error, stage_seconds, stages_of
from nodeside.values import frozen

_SHOWN = 2000  # lines of a log on the page, from its end
# Of each stage; they differ in lightness too, and the legend names them.
_COLORS = ("#8c510a", "#d8b365", "#5ab4ac", "#01665e", "#7b3294", "#c2a5cf", "#888888")


@frozen
class Case:
    """A test case of JUnit. `problem` is empty if it passed, `skipped` why it did not run."""

    name: str
    seconds: float = 0.0
    problem: str = ""
    skipped: str = ""


def write_report(place: OwnedPlace, target: str, runs: Sequence[TrialRun]) -> None:
    """Write the three files, each by rename. Raises NoSpace, SystemRefused."""
    texts = {
        "report.json": as_json(target, runs) + "\n",
        "junit.xml": as_junit(target, runs),
        "report.html": as_page(target, runs),
    }
    place.write_files({name: text.encode() for name, text in texts.items()})


# --- JUnit ------------------------------------------------------------------------------------


def list_cases(run: TrialRun) -> Iterator[Case]:
    """Yield the steps of a run: build, load, each check, each command."""
    code = run.exit_code
    never_booted = run.built_on == "host" and not run.accelerator
    built = not code or not (never_booted or code in _OF_BUILD)
    error = first_error(run)
    seconds = stage_seconds(run)
    yield Case("build", seconds.get("build", 0.0), "" if built else error)
    if not built:
        yield Case("load", skipped="there is nothing to load")
        return
    loaded = not code or code == ExitCode.VALIDATION_FAILED
    yield Case("load", seconds.get("load", 0.0), "" if loaded else error)
    for check in run.report.get("checks") or ():
        found = f"{check.get('found') or 'nothing'}; expected {check.get('expected', '')}"
        name = f"check {check.get('name', '')}"
        yield Case(name, _seconds_of(check.get("seconds")), "" if check.get("ok") else found)
    if run.splats:
        yield Case("kernel log", problem="\n".join(run.splats))
    for command in run.commands:
        problem = f"exit code {command.exit_code}\n{command.output}" if command.exit_code else ""
        yield Case(f"command {' '.join(command.argv)}", problem=problem)


_OF_BUILD = frozenset(
    {
        ExitCode.TRIAL,
        ExitCode.SPEC,
        ExitCode.BUILD_FAILED,
        ExitCode.NO_MODULE,
        ExitCode.NO_HEADERS,
        ExitCode.TOOLCHAIN,
        ExitCode.EXCLUDED,
        ExitCode.NO_MEMORY,
    }
)


def as_junit(target: str, runs: Sequence[TrialRun]) -> str:
    """Return the runs as JUnit XML. A kernel that the driver excludes is skipped, not failed."""
    root = ElementTree.Element("testsuites", name=_xml_text(f"nodeside try {target}"))
    for run in runs:
        all_cases = list(list_cases(run))
        if run.exit_code == ExitCode.EXCLUDED:
            all_cases = [Case("build", skipped=first_error(run))]
        failures = sum(bool(case.problem) for case in all_cases)
        skipped = sum(bool(case.skipped) for case in all_cases)
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=_xml_text(run.kernel),
            tests=str(len(all_cases)),
            failures=str(failures),
            skipped=str(skipped),
            errors="0",
            time=f"{sum(stage_seconds(run).values()):.3f}",
        )
        for case in all_cases:
            name = _xml_text(case.name)
            row = ElementTree.SubElement(
                suite,
                "testcase",
                name=name,
                classname=_xml_text(run.kernel),
                time=f"{case.seconds:.3f}",
            )
            if case.problem:
                first = _xml_text(case.problem.partition("\n")[0])
                failure = ElementTree.SubElement(row, "failure", message=first)
                failure.text = _xml_text(case.problem)
            if case.skipped:
                ElementTree.SubElement(row, "skipped", message=_xml_text(case.skipped))
        if failures:
            output = ElementTree.SubElement(suite, "system-out")
            output.text = _xml_text("\n".join(run.log[-_SHOWN:]))
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, "unicode")}\n'


def _xml_text(text: str) -> str:
    """Return a text without the characters that no XML document may have."""
    return escape_controls(text, keep="\t\n")


def _seconds_of(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


# --- the page ---------------------------------------------------------------------------------


def as_page(target: str, runs: Sequence[TrialRun]) -> str:
    """Return the page: a table of kernels by stage, a picture of their times, each one's log."""
    stages = stages_of(runs)
    working = sum(run.verdict == ExitCode.OK for run in runs)
    colors = {name: _COLORS[min(at, len(_COLORS) - 1)] for at, name in enumerate(stages)}
    header: list[str | Cell] = [
        "kernel",
        "result",
        *(number_cell(name) for name in stages),
        "first error",
    ]
    return render_page(
        f"nodeside try {target}",
        (
            html_paragraph(f"{working} of {len(runs)} kernels: the driver gets ready and works."),
            html_table(header, [_run_row(run, stages) for run in runs]),
            html_heading("Where the time went"),
            render_bars("time of each stage", [_run_bar(run) for run in runs], colors),
            *(part for run in runs for part in _run_details(run)),
        ),
    )


def _run_row(run: TrialRun, stages: Sequence[str]) -> list[str | Cell]:
    seconds = stage_seconds(run)
    times = [number_cell(f"{seconds[name]:.1f} s" if name in seconds else "-") for name in stages]
    if run.verdict == ExitCode.OK:
        return [run.kernel, good_cell("ready"), *times, ""]
    return [run.kernel, bad_cell(f"exit code {run.verdict}"), *times, long_cell(first_error(run))]


def _run_bar(run: TrialRun) -> Bar:
    seconds = stage_seconds(run)
    return Bar(f"{run.kernel}: {sum(seconds.values()):.1f} s", tuple(seconds.items()))


def _run_details(run: TrialRun) -> Iterator[str]:
    facts = {
        "exit code": f"{run.verdict}",
        "message": str(run.report.get("message") or ""),
        "what to do": str(run.report.get("hint") or ""),
        "note": "; ".join(run.notes),
    }
    left_out = len(run.log) - _SHOWN
    more = f"... {left_out} lines before\n" if left_out > 0 else ""
    yield html_heading(run.kernel)
    yield html_table(("", ""), [(name, long_cell(value)) for name, value in facts.items() if value])
    yield fold_text("log", more + "\n".join(run.log[-_SHOWN:]))
