"""Problems that the controller met."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from cluster.model.problems import Problem
from cluster.model.snapshot import Snapshot


def with_problems(snapshot: Snapshot, *problems: tuple[str, Problem]) -> Snapshot:
    """The snapshot with these, by Driver."""
    by_driver: dict[str, list[Problem]] = defaultdict(list)
    for driver, problem in problems:
        by_driver[driver].append(problem)
    return replace(snapshot, problems=by_driver)
