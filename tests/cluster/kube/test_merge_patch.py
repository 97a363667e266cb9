"""Merge patches, beside the words of RFC 7386 as a program."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.kube.merge_patch import (
    apply_merge_patch,
    make_merge_patch,
    make_three_way_patch,
)

DOCUMENTS = st.recursive(
    st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
)
MAPPINGS = st.dictionaries(st.sampled_from("abc"), DOCUMENTS, max_size=3)


@given(MAPPINGS, MAPPINGS)
def test_a_difference_makes_the_one_of_the_other(before: Any, after: Any) -> None:
    patch = make_merge_patch(before, after)

    assert merged(before, patch) == merged(after, {})
    assert apply_merge_patch(before, patch) == merged(before, patch)
    assert make_merge_patch(after, after) == {}


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386, as it stands there."""
    if not isinstance(patch, dict):
        return patch
    made = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merged(made.get(key), value)
    return made


@settings(max_examples=40)
@given(last=MAPPINGS, wanted=MAPPINGS, live=MAPPINGS)
def test_an_apply_gives_what_is_wanted_and_keeps_what_others_set(
    last: Any, wanted: Any, live: Any
) -> None:
    after = apply_merge_patch(live, make_three_way_patch(last, wanted, live))

    assert_contains(after, wanted)
    for key in after.keys() - wanted.keys():  # another hand set it, and no apply did
        assert key not in last
        assert after[key] == live[key]
    assert after.keys() >= wanted.keys() | (live.keys() - last.keys())


def assert_contains(document: Any, part: Any) -> None:
    for key, value in part.items():
        if isinstance(value, dict):
            assert isinstance(document[key], dict)
            assert_contains(document[key], value)
        else:
            assert document[key] == value


def test_an_apply_removes_what_the_last_one_had_and_leaves_a_pause() -> None:
    last = {"spec": {"image": "a", "rollout": {"canary": 2}}}
    live = {"spec": {"image": "a", "rollout": {"canary": 2, "paused": True}}}
    wanted = {"spec": {"image": "b", "rollout": {}}}

    patch = make_three_way_patch(last, wanted, live)

    assert patch == {"spec": {"image": "b", "rollout": {"canary": None}}}
