"""`nodeside try --report DIR`: what a trial found as files, for a CI server and for people.

    DIR/report.json    the document of `--output json`
    DIR/junit.xml      a test suite for each boot, as CI servers read it
    DIR/report.html    one page that needs nothing else: no network, no script

What a driver, a build or a kernel printed is data in all of them: escaped, and never a link.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from xml.etree import ElementTree

from nodeside.errors import ExitCode
from nodeside.files import disk_errors, publish_bytes
from nodeside.log import escaped
from nodeside.trial.pod import Run
from nodeside.trial.privilege import give
from nodeside.trial.result import as_json, first_error, stage_seconds

_SHOWN = 2000  # lines of a log on the page, from its end
_WIDTH = 600  # of the picture, in its own units
_ROW = 26
# Of each stage; they differ in lightness too, and the legend names them.
_COLORS = ("#8c510a", "#d8b365", "#5ab4ac", "#01665e", "#7b3294", "#c2a5cf", "#888888")


@dataclass(frozen=True)
class Case:
    """A test case of JUnit. `problem` is empty if it passed, `skipped` why it did not run."""

    name: str
    seconds: float = 0.0
    problem: str = ""
    skipped: str = ""


def write_report(directory: Path, target: str, runs: Sequence[Run]) -> None:
    """Write the three files, each by rename. Raises NoSpace, SystemRefused."""
    with disk_errors(directory):
        if not directory.is_dir():
            directory.mkdir(parents=True)
            give(directory)
    for name, text in (
        ("report.json", as_json(target, runs) + "\n"),
        ("junit.xml", as_junit(target, runs)),
        ("report.html", as_page(target, runs)),
    ):
        publish_bytes(directory / name, text.encode())
        give(directory / name)


# --- JUnit ------------------------------------------------------------------------------------


def cases(run: Run) -> Iterator[Case]:
    """Yield the steps of a run: build, load, each check, each command."""
    code = run.exit_code
    built = not code or code not in _OF_BUILD
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
        yield Case(name, _number(check.get("seconds")), "" if check.get("ok") else found)
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


def as_junit(target: str, runs: Sequence[Run]) -> str:
    """Return the runs as JUnit XML. A kernel that the driver excludes is skipped, not failed."""
    root = ElementTree.Element("testsuites", name=_xml(f"nodeside try {target}"))
    for run in runs:
        all_cases = list(cases(run))
        if run.exit_code == ExitCode.EXCLUDED:
            all_cases = [Case("build", skipped=first_error(run))]
        failures = sum(bool(case.problem) for case in all_cases)
        skipped = sum(bool(case.skipped) for case in all_cases)
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=_xml(run.kernel),
            tests=str(len(all_cases)),
            failures=str(failures),
            skipped=str(skipped),
            errors="0",
            time=f"{sum(stage_seconds(run).values()):.3f}",
        )
        for case in all_cases:
            name = _xml(case.name)
            row = ElementTree.SubElement(
                suite, "testcase", name=name, classname=_xml(run.kernel), time=f"{case.seconds:.3f}"
            )
            if case.problem:
                first = _xml(case.problem.partition("\n")[0])
                failure = ElementTree.SubElement(row, "failure", message=first)
                failure.text = _xml(case.problem)
            if case.skipped:
                ElementTree.SubElement(row, "skipped", message=_xml(case.skipped))
        if failures:
            output = ElementTree.SubElement(suite, "system-out")
            output.text = _xml("\n".join(run.log[-_SHOWN:]))
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, "unicode")}\n'


def _xml(text: str) -> str:
    """Return a text without the characters that no XML document may have."""
    return escaped(text, keep="\t\n")


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


# --- the page ---------------------------------------------------------------------------------

_PAGE = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>$title</title>
<style>
:root { color-scheme: light dark; --good: #1a7f37; --bad: #c62828; --line: #8886; }
@media (prefers-color-scheme: dark) { :root { --good: #56d364; --bad: #ff7b72; } }
body { font: 15px/1.45 system-ui, sans-serif; margin: 1.5rem auto; max-width: 70rem;
       padding: 0 1rem; }
h1 { font-size: 1.3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin-top: 2rem; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { text-align: left; padding: .3rem .7rem; border-bottom: 1px solid var(--line);
         vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.e { min-width: 16rem; overflow-wrap: anywhere; }
.good { color: var(--good); } .bad { color: var(--bad); font-weight: 600; }
pre { overflow: auto; max-height: 30rem; border: 1px solid var(--line); padding: .6rem;
      font-size: 12px; }
svg { width: 100%; max-width: 44rem; height: auto; display: block; }
svg text { font-size: 12px; fill: currentColor; }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }
</style>
</head>
<body>
<h1>$title</h1>
<p>$verdict</p>
<div class="wide"><table>
<thead><tr><th>kernel</th><th>result</th>$heads<th>first error</th></tr></thead>
<tbody>
$rows
</tbody>
</table></div>
<h2>Where the time went</h2>
$picture
<p>$legend</p>
$details
</body>
</html>
""")


def as_page(target: str, runs: Sequence[Run]) -> str:
    """Return the page. It is readable without style, and at a width of 400 pixels."""
    stages = list(dict.fromkeys(name for run in runs for name in stage_seconds(run)))
    good = sum(run.verdict == ExitCode.OK for run in runs)
    return _PAGE.substitute(
        title=_html(f"nodeside try {target}"),
        verdict=f"{good} of {len(runs)} kernels: the driver gets ready and works.",
        heads="".join(f'<th class="n">{_html(name)}</th>' for name in stages),
        rows="\n".join(_row(run, stages) for run in runs),
        picture=_picture(runs, stages),
        legend=" ".join(
            f'<span class="key" style="background:{_color(stages, name)}"></span>{_html(name)}'
            for name in stages
        ),
        details="\n".join(_details(run) for run in runs),
    )


def _row(run: Run, stages: Sequence[str]) -> str:
    seconds = stage_seconds(run)
    cells = "".join(
        f'<td class="n">{seconds[name]:.1f} s</td>' if name in seconds else '<td class="n">-</td>'
        for name in stages
    )
    verdict = _meaning(run.verdict)
    kind = "good" if run.verdict == ExitCode.OK else "bad"
    return (
        f'<tr><td>{_html(run.kernel)}</td><td class="{kind}">{_html(verdict)}</td>{cells}'
        f'<td class="e">{_html(first_error(run))}</td></tr>'
    )


def _meaning(verdict: int) -> str:
    return "ready" if verdict == ExitCode.OK else f"exit code {verdict}"


def _picture(runs: Sequence[Run], stages: Sequence[str]) -> str:
    """Return a bar for each run, made of its stages, all to one scale."""
    longest = max([sum(stage_seconds(run).values()) for run in runs] or [0.0]) or 1.0
    parts = []
    for number, run in enumerate(runs):
        top, left = number * 2 * _ROW, 0.0
        total = sum(stage_seconds(run).values())
        label = f"{_html(run.kernel)}: {total:.1f} s"
        parts.append(f'<text x="0" y="{top + _ROW - 8}">{label}</text>')
        for name, seconds in stage_seconds(run).items():
            width = _WIDTH * seconds / longest
            parts.append(
                f'<rect x="{left:.1f}" y="{top + _ROW}" width="{width:.1f}" height="{_ROW - 6}" '
                f'fill="{_color(stages, name)}"><title>{_html(name)} {seconds:.1f} s</title></rect>'
            )
            left += width
    height = len(runs) * 2 * _ROW
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="time of each stage">'
        f"{''.join(parts)}</svg>"
    )


def _color(stages: Sequence[str], name: str) -> str:
    return _COLORS[min(stages.index(name), len(_COLORS) - 1)]


def _details(run: Run) -> str:
    facts: Mapping[str, str] = {
        "exit code": f"{run.verdict}",
        "message": str(run.report.get("message") or ""),
        "what to do": str(run.report.get("hint") or ""),
    }
    rows = "".join(
        f'<tr><th>{name}</th><td class="e">{_html(value)}</td></tr>'
        for name, value in facts.items()
        if value
    )
    left_out = len(run.log) - _SHOWN
    more = f"... {left_out} lines before\n" if left_out > 0 else ""
    log = _html(more + "\n".join(run.log[-_SHOWN:]))
    return (
        f"<h2>{_html(run.kernel)}</h2>\n<table>{rows}</table>\n"
        f"<details><summary>log</summary><pre>{log}</pre></details>"
    )


def _html(text: str) -> str:
    return escape(escaped(text, keep="\t\n"))
