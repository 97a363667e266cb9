"""Drivers for the same thing: what is compared, and how often."""

from __future__ import annotations

from collections import Counter

import pytest

from cluster.model.snapshot import Node
from cluster.plan import rivals
from nodeside.spec import parse
from nodeside.spec.model import Driver
from tests.cluster.fakes.model import document


def test_many_drivers_on_many_nodes_are_compared_by_their_first_common_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [Node(f"n{number:04}") for number in range(2000)]
    drivers = [
        parse(document(f"d{number}", modules=[{"name": f"m{number}"}])) for number in range(20)
    ]
    asked: Counter[str] = Counter()

    def select(node: Node, driver: Driver) -> bool:
        asked[driver.name] += 1
        return True

    monkeypatch.setattr(rivals, "is_selected", select)

    found = list(rivals.find_rivalries(nodes, drivers[:1], drivers))

    assert len(found) == 19
    assert found[0].found == "driver d1 is for 1234:11e8 too, on n0000, n0001, n0002 and more nodes"
    assert asked["d0"] == 2000, "its own nodes, once"
    assert max(asked[driver.name] for driver in drivers[1:]) == 4
