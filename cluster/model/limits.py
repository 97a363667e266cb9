"""What a status may be: as long as its schema allows, and as large as the API server takes.

What stands in a status is said by nodes, compilers and people, at any length. A status that is too
long anywhere is refused as a whole, so what is made goes through `fitted` before it is compared or
written. Limits are counted in bytes, which is at least as strict as the schema's characters. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cluster.model.status_schema import STATUS, WORD_LIMIT

TEXT_LIMIT: Final = 4096  # bytes of a sentence
_SENTENCES: Final = 256 << 10  # bytes of one such field in all rows; etcd takes 1.5 MiB an object
_CUT: Final = " [cut]"
_CONDITIONS: Final = "conditions"  # few, and read first: they are not cut for the rows

Schema = Mapping[str, Any]


def fitted(status: Mapping[str, Any]) -> dict[str, Any]:
    """A status that is not refused. Where a list has many rows, their sentences are shorter."""
    rows = sum(len(value) for key, value in status.items() if _is_rows(key, value))
    share = min(TEXT_LIMIT, _SENTENCES // max(1, rows))
    fields = STATUS["properties"]
    return {
        key: _fit(value, fields.get(key, {}), TEXT_LIMIT if key == _CONDITIONS else share)
        for key, value in status.items()
    }


def clipped(text: str, limit: int = TEXT_LIMIT) -> str:
    """At most so many bytes of UTF-8, marked where something is missing."""
    if 4 * len(text) <= limit:
        return text
    data = text.encode(errors="replace")
    if len(data) <= limit:
        return text
    return data[: limit - len(_CUT)].decode(errors="ignore") + _CUT


def _is_rows(key: str, value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and key != _CONDITIONS


def _fit(value: Any, schema: Schema, share: int) -> Any:
    match value:
        case str():
            limit = schema.get("maxLength", TEXT_LIMIT)
            return clipped(value, limit if limit <= WORD_LIMIT else min(limit, share))
        case Mapping():
            fields = schema.get("properties", {})
            return {key: _fit(each, fields.get(key, {}), share) for key, each in value.items()}
        case list() | tuple():
            return [_fit(each, schema.get("items", {}), share) for each in _bounded(value, schema)]
    return value


def _bounded(rows: Sequence[Any], schema: Schema) -> Sequence[Any]:
    """As many rows as there may be; the last one stands for all that are left out then."""
    limit = schema.get("maxItems", len(rows))
    if len(rows) <= limit:
        return rows
    if not isinstance(rows[0], Mapping):
        return rows[:limit]
    return [*rows[: limit - 1], _rest(rows[limit - 1 :])]


def _rest(left: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A row with what the others count together."""
    row: dict[str, Any] = {}
    for key, value in left[0].items():
        if isinstance(value, Mapping):
            row[key] = {each: sum(one[key][each] for one in left) for each in value}
        else:
            row[key] = f"and {len(left)} more" if key == "message" else type(value)()
    return row
