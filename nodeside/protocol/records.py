"""Small JSON records on disk: written atomically, read without trusting the writer.

`publish` writes every record. With `read_untrusted`, one side of the shared directory reads records
that the other side, or vendor build code, wrote there.

Stdlib only: the toolkit sidecar uses this module too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NoReturn, TypeVar, cast, get_args, get_origin, get_type_hints

from nodeside.errors import NodesideError
from nodeside.system.files import UntrustedFile, open_untrusted, publish_bytes

T = TypeVar("T")

RECORD_LIMIT = 1 << 20  # bytes; the largest real record, a result with a log tail, is ~20 kB

_KEY_LIMIT = 80  # characters of a key in a message


class MalformedRecord(NodesideError):
    """A record with a missing field or a field of the wrong type."""

    reason = "MalformedRecord"


def publish(path: Path, record: Mapping[str, Any]) -> None:
    """Write `record` to `path` atomically and durably: it survives a power failure."""
    publish_bytes(path, (json.dumps(record, sort_keys=True) + "\n").encode())


def read_untrusted(path: Path) -> dict[str, Any] | None:
    """Return the JSON object at `path`, or None if there is no file. Raises UntrustedFile."""
    try:
        with open_untrusted(path, limit=RECORD_LIMIT) as file:
            data = file.read(RECORD_LIMIT + 1)
    except FileNotFoundError:
        return None
    try:
        record = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        raise UntrustedFile(f"{path}: not a JSON record: {exc}") from exc
    if not isinstance(record, dict):
        raise UntrustedFile(f"{path}: expected a JSON object, got {type(record).__name__}")
    return record


def _refuse_constant(word: str) -> NoReturn:
    """Reject NaN and Infinity: they are not JSON, and corrupt every sum and document."""
    raise ValueError(f"{word} is not a number")


def encode(record: Any) -> dict[str, Any]:
    """Encode a dataclass as a JSON object; enums by value, paths as strings, tuples as lists."""
    return {item.name: _encode_value(getattr(record, item.name)) for item in fields(record)}


def decode(kind: type[T], data: Mapping[str, Any], *, where: str = "record") -> T:
    """Decode a dataclass from a JSON object. Ignores unknown fields: newer versions add some.

    Raises MalformedRecord with the field, the expected type and the actual value.
    """
    hints = _field_types(cast("Any", kind))
    values: dict[str, Any] = {}
    for item in fields(cast("Any", kind)):
        if item.name in data:
            path = f"{where}.{item.name}"
            values[item.name] = _decode_value(hints[item.name], data[item.name], path)
        elif item.default is MISSING and item.default_factory is MISSING:
            raise MalformedRecord(f"{where}: the field {item.name!r} is missing")
    return kind(**values)


@cache
def _field_types(kind: type[Any]) -> Mapping[str, Any]:
    """Return the types of the fields of a dataclass: a bundle's manifest has many of one kind."""
    return get_type_hints(kind)


def _encode_value(value: Any) -> Any:
    if is_dataclass(value):
        return encode(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _encode_value(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_encode_value(item) for item in value]
    return value


def _decode_value(hint: Any, value: Any, where: str) -> Any:
    """Decode `value` to the type `hint`; supports the types that the records here use."""
    origin = get_origin(hint)
    if origin is UnionType:
        inner = [arg for arg in get_args(hint) if arg is not NoneType]
        return None if value is None else _decode_value(inner[0], value, where)
    if origin is tuple and isinstance(value, list):
        item = get_args(hint)[0]
        return tuple(_decode_value(item, v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin in (dict, Mapping) and isinstance(value, dict):
        item = get_args(hint)[1]
        return {
            key: _decode_value(item, v, f"{where}.{_printable_key(key)}")
            for key, v in value.items()
        }
    if is_dataclass(hint) and isinstance(value, dict):
        return decode(cast("type[Any]", hint), value, where=where)
    return _decode_scalar(hint, value, where)


def _decode_scalar(hint: Any, value: Any, where: str) -> Any:
    if isinstance(hint, type) and issubclass(hint, Enum):
        with suppress(ValueError):
            return hint(value)
        words = ", ".join(str(member.value) for member in hint)
        raise MalformedRecord(f"{where}: expected one of {words}; got {value!r:.200}")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        with suppress(OverflowError):
            return float(value)
    elif hint is Path and type(value) is str and _is_text(value):
        return Path(value)
    elif hint is Any or (type(value) is hint and (hint is not str or _is_text(value))):
        return value
    kind = getattr(hint, "__name__", hint)
    raise MalformedRecord(f"{where}: expected {kind}, got {value!r:.200}")


def _printable_key(key: str) -> str:
    """Return an untrusted key in a form that is safe in a message."""
    return key if key.isprintable() and len(key) <= _KEY_LIMIT else f"{key!r:.{_KEY_LIMIT}}"


def _is_text(value: str) -> bool:
    """Return whether it can be a path or an argument: no NUL byte, no lone surrogate."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value
