"""A status with as much in it as its schema allows."""

from __future__ import annotations

from typing import Any


def full(schema: dict[str, Any]) -> Any:
    """More of everything than a status may have; conditions are ours, so there are few."""
    match schema:
        case {"type": "object"}:
            return {key: full(each) for key, each in schema["properties"].items()}
        case {"x-kubernetes-list-map-keys": [key]}:
            return [full(schema["items"]) | {key: kind} for kind in ("Ready", "Degraded")]
        case {"type": "array"}:
            return [full(schema["items"])] * (schema["maxItems"] + 1)
        case {"type": "integer"}:
            return 1 << 40
        case {"enum": [first, *_]}:
            return first
        case {"pattern": _}:
            return "NodesFailed"
        case {"format": "date-time"}:
            return "2027-01-15T08:00:00Z"
    return "错" * 40_000
