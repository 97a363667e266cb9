"""The plan of a Driver without options: which files and functions it enters."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import cluster
from cluster.plan.planner import plan
from tests.cluster.fakes.drains import EVICT
from tests.cluster.fakes.model import Model

PACKAGE = Path(cluster.__file__).parent
ROAD = 42  # files of both packages; a new one is worth a second look
STEPS = 250  # functions of this package
COMPREHENSIONS = {"<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<lambda>"}


def entered_functions(model: Model) -> set[tuple[str, str]]:
    """Returns the file and the name of each function of both packages that a plan calls."""
    snapshot, found = model.snapshot, set[tuple[str, str]]()
    root = str(PACKAGE.parent)

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith((f"{root}/cluster/", f"{root}/nodeside/")):
            found.add((name.removeprefix(f"{root}/"), frame.f_code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        plan(snapshot, 0.0)
    finally:
        sys.setprofile(before)
    return found


def entered_files(model: Model) -> set[str]:
    return {file for file, _ in entered_functions(model)}


def model_of_two_nodes(**spec: Any) -> Model:
    model = Model()
    model.add(["n1", "n2"])
    model.apply_driver(**spec)
    return model


def in_options(files: set[str]) -> set[str]:
    return {each for each in files if each.startswith("cluster/options/")}


def test_a_driver_without_options_enters_no_file_of_an_option_from_first_plan_to_rollout() -> None:
    model = model_of_two_nodes(version="1.0.0")

    first = entered_files(model)
    model.settle_ready()
    settled = entered_files(model)
    model.apply_driver(version="2.0.0")
    rollout = entered_files(model)

    assert in_options(first | settled | rollout) == set()
    assert len(first) <= ROAD, sorted(first)


def test_the_first_plan_of_a_driver_without_options_calls_few_functions() -> None:
    functions = [
        (file, name)
        for file, name in entered_functions(model_of_two_nodes(version="1.0.0"))
        if file.startswith("cluster/") and name.rpartition(".")[2] not in COMPREHENSIONS
    ]

    assert len(functions) <= STEPS, sorted(functions)


def test_an_option_in_use_is_entered() -> None:
    model = model_of_two_nodes(rollout={"evict": EVICT})

    assert "cluster/options/drain/drain.py" in entered_files(model)
