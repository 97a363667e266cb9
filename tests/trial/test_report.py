"""A report of the node side that somebody else wrote in its place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nodeside.trial import result
from nodeside.trial.pod import _find_mistakes
from nodeside.trial.report import read_devices, read_report
from tests.trial.runs import DEVICES, REPORT, run


def test_a_true_report_is_read_unchanged() -> None:
    assert read_report(json.dumps(REPORT)) == REPORT


@pytest.mark.parametrize(
    "forged",
    ['{"notes": [' + ",".join(["[]"] * 400_000) + "]}", '{"message": "' + "a " * 600_000 + '"}'],
)
def test_a_report_that_would_fill_the_memory_is_not_read(
    monkeypatch: pytest.MonkeyPatch, forged: str
) -> None:
    monkeypatch.delattr(json, "loads")
    assert "not believed" in read_report(forged)["message"]


@pytest.mark.parametrize("text", ["", "no JSON", "[]", "7"])
def test_no_report_is_an_empty_one(text: str) -> None:
    assert read_report(text) == {}


@pytest.mark.parametrize(
    "forged",
    [
        {"announced": [1]},
        {"announced": {"labels": [1]}},
        {"announced": {"nodeDriver": {"metadata": 7}}},
        {"announced": {"nodeDriver": {"status": {"stages": {"x": 10**400}}}}},
        {"stages": {"build": "long"}},
        {"stages": {"build": 10**400}},
        {"stages": {"build": float("inf")}},
        {"rungs": [{}]},
        {"rungs": 7},
        {"checks": ["a"]},
        {"services": ["a"]},
        {"services": [{"name": ["x"], "ready": "true", "message": 7}]},
        {"modules": [None]},
        {"notes": 7},
    ],
)
def test_a_forged_report_is_not_believed_and_no_crash(forged: dict[str, Any]) -> None:
    shown(json.dumps({"state": "ready"} | forged))


@pytest.mark.parametrize("depth", [50, 500, 100_000])
def test_a_report_too_deep_to_be_shown_is_not_believed(depth: int) -> None:
    shown(f'{{"x": {"[" * depth}{"]" * depth}}}')


def shown(text: str) -> None:
    report = read_report(text)
    assert report["state"] == "failed"
    done = run(report=report, mistakes=_find_mistakes(report))
    assert "is not believed" in result.as_table([done])
    assert "is not believed" in result.as_json("x", [done])


def test_the_devices_are_read_unchanged_and_shown() -> None:
    assert read_devices(json.dumps(DEVICES)) == DEVICES
    done = run(devices=DEVICES)
    rows = [line.split() for line in result.as_table([done]).splitlines()]
    assert ["example.com/edu", "00:05.0", "/dev/edu0", "healthy"] in rows
    assert ["example.com/edu", "00:06.0", "unbound"] in rows
    assert json.loads(result.as_json("x", [done]))["runs"][0]["devices"] == DEVICES


def test_a_machine_cannot_forge_the_row_of_another_device() -> None:
    forged = json.loads(json.dumps(DEVICES))
    forged["resources"][0]["devices"][0]["id"] = "x\nexample.com/edu  00:09.0  healthy"
    assert "\nexample.com/edu  00:09.0" not in result.as_table([run(devices=forged)])


@pytest.mark.parametrize(
    "forged",
    [
        "",
        "[]",
        "{}",
        '{"resources": 7}',
        '{"resources": [7]}',
        '{"resources": [{"resource": "x", "devices": [{"id": 7}], "notes": []}]}',
        '{"resources": [{"resource": "x", "devices": [], "notes": [{}]}]}',
        '{"resources": [], "x": ' + "[" * 500 + "]" * 500 + "}",
        '{"resources": [], "x": "' + "a" * (4 << 20) + '"}',
    ],
)
def test_forged_devices_are_none(forged: str) -> None:
    assert read_devices(forged) is None
