"""Trims a status to the limits of its schema and of the API server.

The texts in a status come from nodes, compilers and people and have any length. The API server
rejects the whole status if any field is too long, so a status goes through `fit_status` before it
is compared or written. Limits are in bytes, which is at least as strict as the schema's characters.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cluster.model.status_schema import STATUS, TEXT_LIMIT, WORD_LIMIT

_ALL_ROWS: Final = 256 << 10  # bytes of one text field over all rows; etcd's limit is 1.5 MiB
_CUT: Final = " [cut]"
_CONDITIONS: Final = "conditions"  # few, and read first: not shortened for the sake of the rows

Schema = Mapping[str, Any]


def fit_status(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return a status that the API server accepts. Many rows share a limit for their messages."""
    rows = sum(len(value) for key, value in status.items() if _is_rows(key, value))
    share = min(TEXT_LIMIT, _ALL_ROWS // max(1, rows))
    fields = STATUS["properties"]
    return {
        key: _fit_value(value, fields.get(key, {}), TEXT_LIMIT if key == _CONDITIONS else share)
        for key, value in status.items()
    }


def truncate(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return `text` cut to at most `limit` bytes of UTF-8, with a mark at the cut."""
    if 4 * len(text) <= limit:
        return text
    data = text.encode(errors="replace")
    if len(data) <= limit:
        return text
    return data[: limit - len(_CUT)].decode(errors="ignore") + _CUT


def _is_rows(key: str, value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and key != _CONDITIONS


def _fit_value(value: Any, schema: Schema, share: int) -> Any:
    match value:
        case str():
            limit = schema.get("maxLength", TEXT_LIMIT)
            return truncate(value, limit if limit <= WORD_LIMIT else min(limit, share))
        case Mapping():
            fields = schema.get("properties", {})
            return {
                key: _fit_value(each, fields.get(key, {}), share) for key, each in value.items()
            }
        case list() | tuple():
            return [
                _fit_value(each, schema.get("items", {}), share)
                for each in _bound_rows(value, schema)
            ]
    return value


def _bound_rows(rows: Sequence[Any], schema: Schema) -> Sequence[Any]:
    """Return at most `maxItems` rows; if some are left out, the last row summarizes them."""
    limit = schema.get("maxItems", len(rows))
    if len(rows) <= limit:
        return rows
    if not isinstance(rows[0], Mapping):
        return rows[:limit]
    return [*rows[: limit - 1], _sum_rest(rows[limit - 1 :])]


def _sum_rest(left: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a row with the summed counts of the rows that are left out."""
    row: dict[str, Any] = {}
    for key, value in left[0].items():
        if isinstance(value, Mapping):
            row[key] = {each: sum(one[key][each] for one in left) for each in value}
        else:
            row[key] = f"and {len(left)} more" if key == "message" else type(value)()
    return row
