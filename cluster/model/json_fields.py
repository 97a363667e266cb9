"""Reads fields of the API server's JSON without trusting their writers.

Every function returns a value of the declared type, whatever the field contains.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from sys import intern

from cluster.model.snapshot import EMPTY, Document
from nodeside.protocol.node_status import REPORT_TEXT
from nodeside.protocol.timestamps import parse_rfc3339

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


_UNAME = re.compile(r"[A-Za-z0-9._+~-]{1,64}")


def part(data: Document, key: str) -> Document:
    """Return the object in a field, an empty one if there is none."""
    value = data.get(key)
    return value if isinstance(value, Mapping) else EMPTY


def text(data: Document, key: str) -> str:
    """Return an interned text: one copy in memory for what 5,000 objects repeat."""
    return intern(str(data.get(key) or ""))


def report_text(data: Document, key: str) -> str:
    """Return a text from a node, cut to the length that our driver containers write at most."""
    return intern(make_printable(str(data.get(key) or "")))


def make_printable(text: str) -> str:
    """Replace control characters: texts from nodes go into Events, conditions and terminals."""
    text = text[:REPORT_TEXT]
    return text if text.isprintable() else _UNPRINTABLE.sub("\ufffd", text)


def uname_field(data: Document, key: str, pattern: re.Pattern[str] = _UNAME) -> str:
    """Return a `uname` field, "" if invalid: it goes into the pull spec of a toolkit image."""
    value = str(data.get(key) or "")
    return intern(value) if pattern.fullmatch(value) else ""


def condition_of(status: Document, kind: str) -> Document:
    matching = (c for c in status.get("conditions") or () if c.get("type") == kind)
    return next(matching, EMPTY)


@lru_cache(maxsize=1024)
def parse_time(moment: str | None) -> float:
    """Parse a metav1.Time to seconds since the epoch; 0 if missing or invalid."""
    with suppress(TypeError, ValueError):
        return parse_rfc3339(moment or "")
    return 0.0
