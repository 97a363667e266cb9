"""Detects drift from what was applied, ignoring how the API server normalizes values.

Pure. The server returns some values of a user's manifest in its own notation: `0.1` as `100m`, and
empty lists not at all. Treating that as drift would reapply the object endlessly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.kube.quantity import parse_quantity

_NOT_OURS = frozenset(("metadata", "status"))


def has_drifted(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> bool:
    """Return whether any field in `desired` differs; metadata and status are ignored."""
    ours = {key: value for key, value in desired.items() if key not in _NOT_OURS}
    return not contains_desired(ours, actual)


def contains_desired(desired: Any, actual: Any) -> bool:
    """Return whether `actual` contains all of `desired`; a missing value equals an empty one."""
    if desired == actual:  # most parts of most objects are, and Python sees that at once
        return True
    if isinstance(desired, dict):
        return isinstance(actual, Mapping) and all(
            contains_desired(value, actual[key]) if key in actual else _is_empty(value)
            for key, value in desired.items()
        )
    if isinstance(desired, list):
        return (
            isinstance(actual, list)
            and len(actual) == len(desired)
            and all(
                contains_desired(ours, theirs) for ours, theirs in zip(desired, actual, strict=True)
            )
        )
    return _same_amount(desired, actual)


def _is_empty(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_empty(each) for each in value.values())
    return value in (None, "", 0, False, [])


def _same_amount(desired: Any, actual: Any) -> bool:
    one, other = parse_quantity(desired), parse_quantity(actual)
    return one is not None and one == other
