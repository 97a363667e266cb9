"""Merge patches, beside the words of RFC 7386 as a program."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cluster.kube.merge_patch import apply_merge_patch, make_merge_patch

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
