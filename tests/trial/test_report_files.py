"""The files of `nodeside try --report`: for a CI server, for people, and with hostile text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from nodeside.trial import result
from nodeside.trial.owned_place import open_place
from nodeside.trial.pod import CommandRun, TrialRun
from nodeside.trial.report_files import as_junit, as_page, write_report
from tests.trial.runs import REPORT, broken, ready, run

HOSTILE = "</pre><script>alert(1)</script>\x1b]0;x\x07 ]]> &amp; \x00 \ufffe"


def suites(*runs: TrialRun) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(as_junit("edu", runs)))


def failures(suite: ElementTree.Element) -> dict[str, str]:
    found = ((case.get("name"), case.find("failure")) for case in suite)
    return {str(name): str(each.get("message")) for name, each in found if each is not None}


class Tags(HTMLParser):
    """The tags and references of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [str(value) for name, value in attrs if name in ("src", "href")]


def test_a_kernel_on_which_all_is_well_has_a_case_for_each_step() -> None:
    [suite] = suites(ready(commands=(CommandRun(("cat", "/dev/edu0"), 0, "120"),)))

    assert suite.get("name") == "6.1.0-56-cloud-amd64"
    assert [case.get("name") for case in suite] == [
        "build",
        "load",
        "check /dev/edu0",
        "command cat /dev/edu0",
    ]
    assert suite[0].get("time") == "1.500"
    assert not failures(suite)


@pytest.mark.parametrize(
    ("tried", "expected"),
    [
        (broken(), {"build": "a.c:1: no"}),
        (
            ready(exit_code=41, report={"message": "cannot load edu: ENODEV"}),
            {"load": "cannot load edu: ENODEV"},
        ),
        (ready(exit_code=42, report=REPORT), {"check /sys/x": "119; expected 120"}),
        (ready(splats=("WARNING: edu.c:1",)), {"kernel log": "WARNING: edu.c:1"}),
        (ready(commands=(CommandRun(("false",), 3, "no"),)), {"command false": "exit code 3"}),
    ],
)
def test_what_failed_is_the_case_that_fails(tried: TrialRun, expected: dict[str, str]) -> None:
    [suite] = suites(tried)

    assert failures(suite) == expected
    assert suite.get("failures") == "1"


def test_a_build_on_this_host_that_was_not_done_did_not_pass() -> None:
    late = run(accelerator="", built_on="host", exit_code=50, report={"message": "too slow"})

    assert failures(suites(late)[0]) == {"build": "too slow"}


def test_a_kernel_that_the_driver_excludes_is_skipped() -> None:
    [suite] = suites(run(exit_code=77, report={"message": "is not made for this kernel"}))

    assert suite.get("skipped") == "1"
    assert not failures(suite)


def test_the_log_of_a_kernel_is_there_where_it_fails() -> None:
    good, bad = suites(ready(log=("a line",)), run(exit_code=41, log=("the line",)))

    assert good.find("system-out") is None
    assert "the line" in str(bad.findtext("system-out"))


def test_the_page_has_a_row_and_the_first_error_of_each_kernel() -> None:
    page = as_page("edu", [ready(), broken()])

    assert "1 of 2 kernels" in page
    assert re.search(r'6\.12\.1</td><td class="bad"[^>]*>exit code 10</td>.*a\.c:1: no', page)
    assert re.search(r'<td class="n"[^>]*>1.5 s</td>', page)


def test_the_page_needs_nothing_else() -> None:
    seen = Tags(as_page("edu", [ready(log=("see https://example.com",)), broken()]))

    assert not seen.references
    assert not {"script", "link", "img", "iframe", "object"} & set(seen.tags)
    assert {"table", "div", "details"} <= set(seen.tags)


def test_hostile_text_is_text() -> None:
    hostile = ready(
        kernel=HOSTILE,
        exit_code=41,
        log=(HOSTILE,),
        report={"message": HOSTILE, "hint": HOSTILE, "stages": {HOSTILE: 1}},
    )

    page = as_page(HOSTILE, [hostile])
    [suite] = suites(hostile)

    assert "script" not in Tags(page).tags
    assert not re.search("[\x00\x1b]", page)
    assert "alert(1)" in str(suite.get("name"))


def test_no_run_is_a_page_too() -> None:
    assert "0 of 0 kernels" in as_page("edu", [])


def test_the_files_are_written_for_whoever_owns_the_place(tmp_path: Path) -> None:
    with open_place(tmp_path / "out" / "put") as place:
        write_report(place, "edu", [ready(), broken()])

    names = sorted(path.name for path in (tmp_path / "out" / "put").iterdir())
    assert names == ["junit.xml", "report.html", "report.json"]
    document = json.loads((tmp_path / "out" / "put" / "report.json").read_text())
    assert document == json.loads(result.as_json("edu", [ready(), broken()]))


def test_several_kernels_end_with_a_table_of_all() -> None:
    last = result.as_table([ready(), broken()]).rpartition("\n\n")[2].splitlines()

    assert last[0].split() == ["KERNEL", "RESULT", "BUILD", "BOOT", "LOAD", "FIRST", "ERROR"]
    assert last[1].split()[:4] == ["6.1.0-56-cloud-amd64", "ready", "1.5", "s"]
    assert last[2].split()[:4] == ["6.12.1", "exit", "code", "10"]
    assert last[2].endswith("a.c:1: no")


def test_the_command_that_repeats_a_build_is_a_line_to_copy() -> None:
    command = f"cd /shared/out && {'x ' * 100}make"
    failed = broken(f"make failed\nto repeat it, in the toolkit container:\n{command}")

    lines = result.as_table([failed]).splitlines()

    assert lines[lines.index("to repeat it, in the toolkit container:") + 1] == command
    assert sum("repeat" in line for line in lines) == 1


def test_a_command_that_failed_is_the_exit_code_in_the_table_too() -> None:
    text = result.as_table([ready(commands=(CommandRun(("false",), 1, ""),))])

    assert "exit code  42" in text
