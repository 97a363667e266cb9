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


def amount(value: Any) -> Decimal | None:
    """Return a quantity as a number; None if it is none, or has more than 64 characters."""
    words = str(value) if isinstance(value, str | int | float) else ""
    parsed = _QUANTITY.fullmatch(words) if len(words) <= _LONGEST else None
    return Decimal(parsed[1]) * _UNITS[parsed[2] or ""] if parsed else None
