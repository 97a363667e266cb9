"""Detects drift from what was applied, ignoring how the API server normalizes values.

Pure. The server returns some values of a user's manifest in its own notation: `0.1` as `100m`, and
empty lists not at all. Treating that as drift would reapply the object endlessly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

_NOT_OURS = frozenset(("metadata", "status"))

# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
_QUANTITY = re.compile(r"([+-]?[0-9]+(?:\.[0-9]*)?)(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E)?")
_UNITS = {
    **{unit: Decimal(1024) ** (n + 1) for n, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"))},
    **{unit: Decimal(1000) ** (n + 1) for n, unit in enumerate("kMGTPE")},
    **{unit: Decimal(1000) ** -(n + 1) for n, unit in enumerate("mun")},
    "Ei": Decimal(1024) ** 6,
    "": Decimal(1),
}


def drifted(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> bool:
    """Return whether any field in `desired` differs; metadata and status are ignored."""
    ours = {key: value for key, value in desired.items() if key not in _NOT_OURS}
    return not holds(ours, actual)


def holds(desired: Any, actual: Any) -> bool:
    """Return whether `actual` contains all of `desired`; a missing value equals an empty one."""
    if isinstance(desired, dict):
        return isinstance(actual, Mapping) and all(
            holds(value, actual[key]) if key in actual else _is_empty(value)
            for key, value in desired.items()
        )
    if isinstance(desired, list):
        return (
            isinstance(actual, list)
            and len(actual) == len(desired)
            and all(holds(ours, theirs) for ours, theirs in zip(desired, actual, strict=True))
        )
    return bool(desired == actual) or _same_amount(desired, actual)


def _is_empty(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_empty(each) for each in value.values())
    return value in (None, "", 0, False, [])


def _same_amount(desired: Any, actual: Any) -> bool:
    one, other = _amount(desired), _amount(actual)
    return one is not None and one == other


def _amount(value: Any) -> Decimal | None:
    parsed = _QUANTITY.fullmatch(str(value)) if isinstance(value, str | int | float) else None
    return Decimal(parsed[1]) * _UNITS[parsed[2] or ""] if parsed else None
