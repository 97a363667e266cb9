"""Looks up the conditions of objects by type.

https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def find_condition(status: Mapping[str, Any], kind: str) -> Mapping[str, str]:
    """Return the condition of this type, or a placeholder with status Unknown if there is none."""
    unknown = {"status": "Unknown", "reason": "Unknown", "message": "not reported yet"}
    matching = (c for c in status.get("conditions", ()) if c.get("type") == kind)
    return next(matching, unknown)
