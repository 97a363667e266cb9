"""Quantities of the API: 100m, 1024Mi, 10k.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

_QUANTITY = re.compile(r"([+-]?[0-9]+(?:\.[0-9]*)?)(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E)?")
_LONGEST = 64  # characters
_UNITS = {
    **{unit: Decimal(1024) ** (n + 1) for n, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"))},
    **{unit: Decimal(1000) ** (n + 1) for n, unit in enumerate("kMGTPE")},
    **{unit: Decimal(1000) ** -(n + 1) for n, unit in enumerate("mun")},
    "Ei": Decimal(1024) ** 6,
    "": Decimal(1),
}


def parse_quantity(value: Any) -> Decimal | None:
    """Return a quantity as a number; None if it is none, or has more than 64 characters."""
    words = str(value) if isinstance(value, str | int | float) else ""
    parsed = _QUANTITY.fullmatch(words) if len(words) <= _LONGEST else None
    return Decimal(parsed[1]) * _UNITS[parsed[2] or ""] if parsed else None


def canonical_quantity(quantity: str) -> str:
    """Return a quantity as the API server writes it: without a fraction, in the largest unit.

    Raises ValueError.
    """
    number = parse_quantity(quantity)
    if number is None:
        raise ValueError(f"expected a quantity, got {quantity}")
    units, step = ("m", "", *"kMGTPE"), 1000
    if quantity.endswith("i") and number >= 1024:
        units, step = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1024
    else:
        number *= 1000
    unit = 0
    while number and number % step == 0 and unit + 1 < len(units):
        number, unit = number / step, unit + 1
    return f"{int(number)}{units[unit]}" if number else "0"
