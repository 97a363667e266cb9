"""A list read item by item is the list that json would have read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.kube.listing import read_page

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
ITEMS = st.lists(st.dictionaries(st.text(), VALUES, max_size=3), max_size=5)


@given(ITEMS, st.sampled_from([None, 2]), st.permutations(["kind", "metadata", "items"]))
def test_any_list_in_any_order_of_keys_is_read(
    items: list[dict[str, Any]], indent: int | None, order: list[str]
) -> None:
    whole = {"kind": "X", "metadata": {"resourceVersion": "5", "continue": "c"}, "items": items}
    text = json.dumps({key: whole[key] for key in order}, indent=indent)

    page = read_page(text, lambda item: item)

    assert page.items == items
    assert (page.resource_version, page.next) == ("5", "c")


def test_items_that_are_null_are_none() -> None:
    assert read_page('{"metadata": {}, "items": null}', lambda item: item).items == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "{}",
        '{"items": [',
        '{"items": [}',
        '{"a" 1}',
        "x",
        '{"kind": "Status", "metadata": {}}',
        '{"items": []} {"items": []}',
    ],
)
def test_what_is_no_list_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        read_page(text, lambda item: item)
