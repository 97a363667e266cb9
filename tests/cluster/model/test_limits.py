"""What is too long for a status, or too much, is cut where it stands: nothing is refused for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.model.limits import fit_status, truncate
from cluster.model.status_schema import DRAIN_LIMIT, POOL_LIMIT, STATUS
from nodeside.protocol.node_status import State
from tests.cluster.fakes.model import Model
from tests.cluster.fakes.statuses import full

ETCD = 1_500_000  # bytes of an object, spec included


def too_much(schema: dict[str, Any], value: Any, where: str = "status") -> Iterator[str]:
    """What the API server would refuse for its size."""
    if isinstance(value, str) and len(value) > schema.get("maxLength", len(value)):
        yield f"{where}: {len(value)} characters"
    elif isinstance(value, list):
        if len(value) > schema.get("maxItems", len(value)):
            yield f"{where}: {len(value)} rows"
        for each in value:
            yield from too_much(schema["items"], each, f"{where}[]")
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from too_much(schema["properties"][key], each, f"{where}.{key}")


def size(status: Any) -> int:
    return len(json.dumps(status, ensure_ascii=False).encode())


def test_a_kernel_with_a_long_name_makes_no_status_that_is_refused() -> None:
    model = Model()
    model.add(["n0"])
    model.add(["odd"], kernel="6.1.0-" + "x" * 300, os_image="Linux " + "9" * 300)
    model.apply_driver()

    model.settle_ready()

    status = model.drivers["edu"].status
    assert list(too_much(STATUS, status)) == []
    [odd] = [row for row in status["pools"] if row["kernel"] != "6.1.0-50-amd64"]
    assert odd["kernel"].startswith("6.1.0-xxx")
    assert odd["kernel"].endswith("x [cut]")


@pytest.mark.slow
def test_of_more_pools_than_a_status_has_rows_the_last_row_counts_the_rest() -> None:
    model = Model()
    for number in range(POOL_LIMIT + 44):
        model.add([f"n{number:03}"], kernel=f"6.1.{number:03}")
    model.apply_driver(rollout={"canary": 0})
    model.settle()
    for name in model.nodes:
        model.report(name, State.FAILED, reason="BuildFailed", message="错" * 2000)
    model.settle()

    status = model.drivers["edu"].status

    assert list(too_much(STATUS, status)) == []
    assert size(status) < ETCD / 2
    *rows, last = status["pools"]
    assert len(rows) == POOL_LIMIT - 1
    assert rows[0]["message"].startswith("n000: BuildFailed: 错错")
    assert last["message"] == "and 45 more"
    assert last["nodes"] == {
        "wanted": 45, "assigned": 45, "updated": 45, "ready": 0, "failed": 45,
    }  # fmt: skip


@pytest.mark.slow
def test_the_largest_status_that_there_can_be_is_small_enough() -> None:
    status = fit_status(full(STATUS))

    assert list(too_much(STATUS, status)) == []
    assert size(status) < ETCD
    assert status["draining"][DRAIN_LIMIT - 1]["message"] == "and 2 more"


@given(text=st.text(), limit=st.integers(min_value=16, max_value=64))
def test_a_text_is_cut_to_whole_letters_and_says_so(text: str, limit: int) -> None:
    cut = truncate(text, limit)

    assert len(cut.encode()) <= limit
    assert cut == text or (cut.endswith(" [cut]") and text.startswith(cut.removesuffix(" [cut]")))
