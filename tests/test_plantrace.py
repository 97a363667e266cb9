"""The digest of a plan: what it tells apart, and what it does not."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.model.actions import Delete, Plan
from cluster.plan import planner
from nodeside.system import process
from tests import TOP
from tests.cluster.fakes.model import Model
from tests.patience import patience
from tests.plantrace import Trace, plain

LONG = patience(120.0)  # seconds: a deadline that only a broken test meets


def digests(path: Path, *models: Model, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of the first plan of each model, each in a test of its own."""
    monkeypatch.setattr(planner, "plan", planner.plan)  # put back after the test
    trace = Trace(path)
    trace.install()
    for number, model in enumerate(models):
        trace._test = f"test {number}"
        planner.plan(model.snapshot, 0.0)
    trace.pytest_sessionfinish()
    return [line.split()[0] for line in path.read_text().splitlines() if line[0] != "#"]


def of(*nodes: str) -> Model:
    model = Model()
    model.add(nodes)
    model.apply_driver()
    return model


def test_equal_plans_have_one_digest_and_another_action_gives_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, same, other = digests(
        tmp_path / "trace", of("n1"), of("n1"), of("n2"), monkeypatch=monkeypatch
    )
    assert one == same != other


def test_how_a_plan_was_made_is_no_part_of_it() -> None:
    made = Plan((), tags=frozenset(), requeue_after=1.0)
    assert plain(made) == plain(replace(made, reads_all=True))
    assert plain(made) != plain(replace(made, requeue_after=2.0))
    assert plain(made) != plain(replace(made, actions=(Delete("d", None, "x", "y", "z"),)))  # type: ignore[arg-type]
    json.dumps(plain(made))


@pytest.mark.slow
def test_a_file_that_cannot_be_written_is_refused_before_the_first_test(tmp_path: Path) -> None:
    words = ["-p", "tests.plantrace", "--plantrace", str(tmp_path / "none/trace"), "--collect-only"]
    argv = [sys.executable, "-m", "pytest", *words, "tests/text/test_table.py"]
    done = process.run(argv, timeout=LONG, check=False, cwd=TOP)
    assert done.exit_code == pytest.ExitCode.USAGE_ERROR
    assert f"there is no directory {tmp_path / 'none'}" in done.errors
