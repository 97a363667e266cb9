"""Devices as ResourceSlices, and what has to be written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeside.device_agent.dra.slices import (
    MOST,
    PAGE,
    Document,
    SlicePool,
    device_document,
    plan_writes,
    typed_attribute,
)
from tests.device_agent.dra.documents import POOL, carried_out, offered, plain
from tests.tries import tries


def names(stored: Sequence[Document]) -> list[list[str]]:
    return [[each["name"] for each in document["spec"]["devices"]] for document in stored]


def generations(stored: Sequence[Document]) -> set[tuple[int, int]]:
    pools = [each["spec"]["pool"] for each in stored]
    return {(each["generation"], each["resourceSliceCount"]) for each in pools}


def test_a_device_says_where_and_what_it_is() -> None:
    found = offered(
        address="00:06.0",
        pci_root="pci0000:00",
        numa_node=1,
        attributes={"afu_id": "d8424dc4a4a3c413", "speed": "8", "interrupts": "4711"},
    )
    assert device_document(
        "edu-00-06-0-47d5b5925eb3",
        found,
        resource="example.com/edu",
        version="1.0.0",
        ids=("1234", "11e8"),
        left_out=["interrupts"],
    ) == {
        "name": "edu-00-06-0-47d5b5925eb3",
        "attributes": {
            "resource": {"string": "example.com/edu"},
            "driverVersion": {"version": "1.0.0"},
            "resource.kubernetes.io/pciBusID": {"string": "0000:00:06.0"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
            "numaNode": {"int": 1},
            "vendor": {"string": "1234"},
            "device": {"string": "11e8"},
            "afu_id": {"string": "d8424dc4a4a3c413"},
            "speed": {"int": 8},
        },
    }


@pytest.mark.parametrize(
    ("text", "attribute"),
    [
        ("0", {"int": 0}),
        ("-5", {"int": -5}),
        (str((1 << 63) - 1), {"int": (1 << 63) - 1}),
        (str(1 << 63), {"string": str(1 << 63)}),
        ("007", {"string": "007"}),
        ("0x1f", {"string": "0x1f"}),
        ("", {"string": ""}),
        ("a\tb\x07\nc", {"string": "abc"}),
        ("\u00e9" * 40, {"string": "\u00e9" * 32}),
        ("\u00e9" + "x" * 80, {"string": "\u00e9" + "x" * 62}),
        ("\u0663", {"string": "\u0663"}),
        ("\udcff", {"string": ""}),
        ("x" * (1 << 20), {"string": "x" * 64}),
    ],
)
def test_an_attribute_has_the_type_that_its_text_has(text: str, attribute: Any) -> None:
    assert typed_attribute(text) == attribute


@pytest.mark.parametrize(
    ("version", "attribute"),
    [
        ("1.0.0", "version"),
        ("1.0.0-rc.1+b5", "version"),
        ("2024.1", "string"),
        ("01.2.3", "string"),
        ("1.0.0\n", "string"),
        ("\u0661.0.0", "string"),
        (f"1.0.0-{'x' * 60}", "string"),
    ],
)
def test_a_version_is_semantic_or_a_string(version: str, attribute: str) -> None:
    found = device_document("a", offered(), resource="example.com/edu", version=version)
    assert list(found["attributes"]["driverVersion"]) == [attribute]


def test_the_first_devices_make_one_slice_that_the_node_owns() -> None:
    (write,) = plan_writes(POOL, [], plain("a", "b"))
    assert write.verb == "create"
    assert write.document == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "name": "edu.nodeside.io-n1-0",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-of-n1"}
            ],
        },
        "spec": {
            "driver": "edu.nodeside.io",
            "nodeName": "n1",
            "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
            "devices": plain("a", "b"),
        },
    }


def test_slices_of_two_drivers_and_nodes_never_have_one_name() -> None:
    pools = [
        SlicePool("a-x.nodeside.io", "gpu", "u"),
        SlicePool("x.nodeside.io", "gpu-a", "u"),
        SlicePool("a.nodeside.io", "x.nodeside.io-gpu", "u"),
        SlicePool("x.nodeside.io", "gpu", "u"),
    ]
    assert len({plan_writes(pool, [], plain("a"))[0].name for pool in pools}) == len(pools)


def test_what_is_as_it_should_be_is_not_written() -> None:
    stored = carried_out([], plan_writes(POOL, [], plain("a")))
    assert plan_writes(POOL, stored, plain("a")) == []


def test_a_slice_has_128_devices_and_all_know_how_many_slices_there_are() -> None:
    every = [f"d{number}" for number in range(300)]
    stored = carried_out([], plan_writes(POOL, [], plain(*every)))
    assert list(map(len, names(stored))) == [128, 128, 44]
    assert generations(stored) == {(1, 3)}


def test_a_device_that_goes_changes_its_slice_only() -> None:
    every = [f"d{number}" for number in range(300)]
    stored = carried_out([], plan_writes(POOL, [], plain(*every)))

    (write,) = plan_writes(POOL, stored, plain(*every[1:]))

    assert (write.verb, write.name) == ("update", "edu.nodeside.io-n1-0")
    assert write.document["metadata"]["resourceVersion"] == "1"
    assert write.document["spec"]["pool"]["generation"] == 1
    assert len(write.document["spec"]["devices"]) == 127


def test_a_device_that_comes_takes_the_free_place() -> None:
    every = [f"d{number}" for number in range(300)]
    stored = carried_out([], plan_writes(POOL, [], plain(*every)))
    stored = carried_out(stored, plan_writes(POOL, stored, plain(*every[1:])))

    stored = carried_out(stored, plan_writes(POOL, stored, plain(*every[1:], "new")))

    assert names(stored)[0][-1] == "new"
    assert generations(stored) == {(1, 3)}


def test_another_number_of_slices_is_a_new_generation_of_all() -> None:
    stored = carried_out([], plan_writes(POOL, [], plain("a")))
    every = ["a", *(f"d{number}" for number in range(PAGE))]

    found = plan_writes(POOL, stored, plain(*every))

    assert [write.verb for write in found] == ["update", "create"]
    assert generations(carried_out(stored, found)) == {(2, 2)}


def test_no_devices_are_no_slices() -> None:
    stored = carried_out([], plan_writes(POOL, [], plain("a")))
    assert [write.verb for write in plan_writes(POOL, stored, [])] == ["delete"]


def test_a_slice_of_another_pool_is_deleted_and_one_that_was_changed_is_put_right() -> None:
    stored = carried_out([], plan_writes(POOL, [], plain("a")))
    stored[0] = {**stored[0], "spec": {**stored[0]["spec"], "devices": plain("a", "forged")}}
    other = {"metadata": {"name": "odd"}, "spec": {"pool": {"name": "elsewhere"}}}

    found = plan_writes(POOL, [*stored, other, {"metadata": {"name": "x"}}], plain("a"))

    assert [(write.verb, write.name) for write in found] == [
        ("update", "edu.nodeside.io-n1-0"),
        ("delete", "odd"),
        ("delete", "x"),
    ]


def test_a_node_that_was_made_anew_owns_its_slices() -> None:
    stored = carried_out([], plan_writes(POOL, [], plain("a")))
    (write,) = plan_writes(SlicePool(POOL.driver, POOL.node, "another"), stored, plain("a"))
    assert write.document["metadata"]["ownerReferences"][0]["uid"] == "another"


@pytest.mark.slow
def test_ten_thousand_devices_are_79_slices_and_more_than_the_most_are_cut() -> None:
    assert len(plan_writes(POOL, [], plain(*(f"d{number}" for number in range(10_000))))) == 79
    found = plan_writes(POOL, [], plain(*(f"d{number}" for number in range(MOST + 1))))
    assert len(found) == MOST // PAGE


@settings(max_examples=tries(50))
@given(
    looks=st.lists(st.sets(st.integers(0, 400), max_size=400).map(sorted), min_size=1, max_size=5)
)
def test_whatever_comes_and_goes_the_slices_say_it_and_a_device_never_moves(
    looks: list[list[int]],
) -> None:
    stored: list[Document] = []
    for look in looks:
        wanted = [f"d{number}" for number in look]
        before = {each: n for n, some in _named(stored).items() for each in some}

        stored = carried_out(stored, plan_writes(POOL, stored, plain(*wanted)))

        after = {each: n for n, some in _named(stored).items() for each in some}
        assert sorted(after) == sorted(wanted)
        assert all(after[each] == before[each] for each in after.keys() & before.keys())
        assert all(0 < len(some) <= PAGE for some in names(stored))
        assert len(generations(stored)) <= 1
        assert plan_writes(POOL, stored, plain(*wanted)) == []


def _named(stored: Sequence[Document]) -> dict[str, list[str]]:
    return dict(zip([each["metadata"]["name"] for each in stored], names(stored), strict=True))
