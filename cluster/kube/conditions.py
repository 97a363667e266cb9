"""Conditions of objects, looked up by their type.

https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def condition(status: Mapping[str, Any], kind: str) -> Mapping[str, str]:
    """One of the three; for a Driver that nobody looked at yet, one that says so."""
    nothing = {"status": "Unknown", "reason": "Unknown", "message": "nobody said anything yet"}
    found = (c for c in status.get("conditions", ()) if c.get("type") == kind)
    return next(found, nothing)
