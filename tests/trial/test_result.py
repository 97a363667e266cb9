"""What a trial prints, and the exit code it ends with."""

from __future__ import annotations

import json
import re

import pytest

from nodeside.trial import result
from nodeside.trial.pod import CommandRun
from tests.trial.runs import REPORT, run


def test_the_table_says_what_happened() -> None:
    text = result.as_table([run(commands=(CommandRun(("cat", "/dev/edu0"), 0, "120"),))])

    lines = [" ".join(line.split()) for line in text.splitlines()]
    for expected in (
        "driver edu 1.0.0",
        "machine software emulation, booted in 5.2 s",
        "build on the node",
        "exit code 0: done; for `run --once`, the driver is ready",
        "loaded - edu not loaded",
        "built served the toolkit built it",
        "/dev/edu0 ok a character device",
        "/sys/x FAILED 119; expected 120",
        "monitor ready",
        "late not ready it starts",
        "build 20.50 s toolkit container",
        "load 0.25 s driver container",
        "label nodeside.io/edu.state=ready",
        "checked labels and NodeDriver are valid",
        "cat /dev/edu0 ok 120",
    ):
        assert expected in lines


def test_what_an_api_server_would_refuse_is_shown() -> None:
    text = result.as_table([run(mistakes=("the label is too long",))])

    assert "the label is too long" in text


def test_a_build_on_the_host_is_told_apart() -> None:
    text = result.as_table([run(built_on="host")])

    assert "in the toolkit's root file system on this host" in text


def test_the_document_carries_the_nodes_own_report_unchanged() -> None:
    document = json.loads(result.as_json("examples/edu", [run()]))

    assert document["target"] == "examples/edu"
    assert document["exitCode"] == 0
    assert document["runs"][0]["report"] == REPORT
    assert document["runs"][0]["builtOn"] == "node"


@pytest.mark.parametrize(
    ("codes", "expected"), [((0,), 0), ((10,), 10), ((0, 41), 41), ((10, 0), 10), ((10, 41), 41)]
)
def test_the_exit_code_is_that_of_the_last_boot_that_failed(
    codes: tuple[int, ...], expected: int
) -> None:
    assert result.exit_code([run(exit_code=code) for code in codes]) == expected


def test_a_consumer_that_fails_fails_the_trial_of_a_ready_driver() -> None:
    commands = (CommandRun(("true",), 0, ""), CommandRun(("false",), 1, ""))

    assert result.exit_code([run(commands=commands)]) == 42
    assert result.exit_code([run(commands=commands, exit_code=41)]) == 41


def test_a_kernel_that_complained_later_fails_the_trial_of_a_ready_driver() -> None:
    complained = run(splats=("WARNING: CPU: 0 PID: 1 at edu.c:1",))

    assert result.exit_code([complained]) == 42
    assert "kernel log  WARNING: CPU: 0 PID: 1 at edu.c:1" in result.as_table([complained])


def test_a_node_side_that_ended_without_a_report_is_no_crash() -> None:
    text = result.as_table([run(report={}, exit_code=45, built_on="")])

    assert "no report" in text
    assert "45: another process is working on this driver on this node" in text


def test_of_a_command_without_end_three_short_lines_are_shown() -> None:
    output = "\n".join(["x" * 5000] * 5)
    text = result.as_table([run(report={}, commands=(CommandRun(("cat",), 0, output),))])
    assert text.count("x" * 1000) == 3
    assert "x" * 1001 not in text


def test_a_bundle_that_was_built_for_this_trial_is_not_only_called_cached() -> None:
    report = REPORT | {"source": "cached"}
    fresh = result.as_table([run(report=report, built_on="host", build_seconds=1.5)])
    earlier = result.as_table([run(report=report, built_on="host")])

    assert "cached: it was built on this host just now" in fresh
    assert "just now" not in earlier


def test_what_a_ready_driver_has_not_shown_is_a_note() -> None:
    shown = run(notes=("the machine has none of the devices",))

    assert "note" in result.as_table([shown])
    assert "the machine has none of the devices" in result.as_table([shown])
    assert json.loads(result.as_json("edu", [shown]))["runs"][0]["notes"] == [*shown.notes]


def test_in_a_matrix_a_kernel_on_which_the_driver_works_is_one_line() -> None:
    good = run(notes=("the machine has none of the devices",))
    bad = run(exit_code=41, report=REPORT | {"message": "cannot load it"}, notes=("of the bad",))

    text = result.as_table([good, bad, good], matrix=True)

    assert text.count("driver     edu 1.0.0") == 1
    assert text.count("the machine has none of the devices") == 1
    assert len(re.findall(r"^\S+ +(ready|exit code 41) ", text, re.MULTILINE)) == 3
    assert text.count("of the bad") == 1
    assert " ready " in result.as_table([good], matrix=True), "of one that was interrupted"
    assert result.as_table([good, bad, good]).count("driver     edu 1.0.0") == 3


def test_the_stages_of_several_kernels_are_in_the_order_of_the_work() -> None:
    kept = run(report={"stages": {"load": 0.1}})
    built = run(report={"stages": {"load": 0.1}}, build_seconds=2.0)

    assert result.stages_of([kept, built]) == ["build", "boot", "load"]
