"""A list read item by item is the list that json would have read."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.kube import nesting
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


DEEP = '{"f:a":' * 9990 + "{}" + "}" * 9990


def test_a_page_is_read_without_a_copy_of_it() -> None:
    text = json.dumps({"metadata": {}, "items": [{"a": "a" * 10_000}] * 100}) + "\n"
    tracemalloc.start()
    try:
        read_page(text, lambda item: None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(text) / 2


def test_an_item_that_nests_deeper_than_json_goes_is_read_without_its_depths() -> None:
    entry = f'{{"manager": "x", "fieldsV1": {DEEP}, "operation": "Update"}}'
    name = r'"a\"]}"'
    deep = f'{{"metadata": {{"managedFields": [{entry}], "name": {name}}}, "spec": {{"b": [1]}}}}'
    text = (
        f'{{"metadata": {{}}, "items": [{{"metadata": {{"name": "first"}}}}, {deep}, {{"x": 1}}]}}'
    )

    first, found, last = read_page(text, lambda item: item).items

    assert (first, last) == ({"metadata": {"name": "first"}}, {"x": 1})
    assert found["spec"] == {"b": [1]}
    assert found["metadata"]["name"] == 'a"]}'
    (kept,) = found["metadata"]["managedFields"]
    assert (kept["manager"], kept["operation"]) == ("x", "Update")
    assert kept["fieldsV1"]["f:a"]["f:a"]


@pytest.mark.parametrize("cut", [20, 9990 * 7, len(DEEP) - 1])
def test_depths_that_are_cut_off_are_a_value_error(cut: int) -> None:
    with pytest.raises(ValueError):
        read_page(f'{{"items": [{DEEP[:cut]}}}', lambda item: item)


@given(VALUES)
def test_nothing_is_lost_of_what_is_not_too_deep(value: Any) -> None:
    text = json.dumps([value])
    assert nesting._without_deep(text + ", 1", 0) == (text, len(text))
