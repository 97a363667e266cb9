"""Orders to forget failures, as anybody may write them into an annotation."""

from __future__ import annotations

import pytest

from cluster.model.retries import EVERY_NODE, format_retries, parse_retries, retried_at

_DAY = "2026-01-01T00:00:00Z"
_AT = 1767225600.0


@pytest.mark.parametrize(
    ("text", "orders"),
    [
        ("", {}),
        (_DAY, {EVERY_NODE: _AT}),
        (f"*={_DAY}", {EVERY_NODE: _AT}),
        (f"n1={_DAY}, n2.example.com={_DAY}", {"n1": _AT, "n2.example.com": _AT}),
        (f"n1,n1=,N1={_DAY},n1=tuesday,../x={_DAY},n1={_DAY}={_DAY}", {}),
        (f"{'n' * 254}={_DAY}", {}),
    ],
)
def test_orders_are_read_and_what_is_none_is_left_out(text: str, orders: dict[str, float]) -> None:
    assert dict(parse_retries(text)) == orders
    assert dict(parse_retries(format_retries(orders))) == orders


def test_orders_are_few() -> None:
    assert len(parse_retries(",".join(f"n{number}={_DAY}" for number in range(100_000)))) == 256


def test_an_order_for_all_nodes_is_one_for_each() -> None:
    orders = parse_retries(f"n1={_DAY}")
    assert (retried_at(orders, "n1"), retried_at(orders, "n2")) == (_AT, 0.0)
    assert retried_at(parse_retries(_DAY), "n2") == _AT
