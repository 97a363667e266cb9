"""Parses a list from the API server item by item.

A page of 500 nodes is 10 MB of JSON and five times that as Python objects. Here only one item is
fully decoded at a time: `trim` extracts the parts we use, and the rest is freed before the next
item. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from cluster.kube.nesting import decode_json_at

T = TypeVar("T")

_BLANK = re.compile(r"[ \t\r\n]*")


@dataclass(slots=True)
class Page(Generic[T]):
    """One page of a list. `next` is the continue token, empty on the last page."""

    items: list[T] = field(default_factory=list)
    resource_version: str = ""
    next: str = ""


def read_page(text: str, trim: Callable[[dict[str, Any]], T | None]) -> Page[T]:
    """Parse the page in `text`. Items for which `trim` returns None are left out.

    Raises ValueError if `text` is not a list: treating it as an empty list would be a disaster.
    """
    page: Page[T] = Page()
    if _skip_space(text, text.rfind("}") + 1) != len(text):
        raise ValueError("the list is cut off")
    at, has_items = _expect_character(text, _skip_space(text, 0), "{"), False
    while text[at] != "}":
        key, at = decode_json_at(text, at)
        at = _expect_character(text, at, ":")
        has_items |= key == "items"
        if key == "items" and text[at] == "[":
            at = _parse_items(text, at, trim, page.items)
        else:
            value, at = decode_json_at(text, at)
            if key == "metadata" and isinstance(value, dict):
                page.resource_version = str(value.get("resourceVersion", ""))
                page.next = str(value.get("continue", ""))
        at = _skip_comma(text, _skip_space(text, at), "}")
    if not has_items or _skip_space(text, at + 1) != len(text):
        raise ValueError("it has no items, or more than a list")
    return page


def _parse_items(
    text: str, at: int, trim: Callable[[dict[str, Any]], T | None], items: list[T]
) -> int:
    at = _skip_space(text, at + 1)
    while text[at] != "]":
        item, at = decode_json_at(text, at)
        small = trim(item)
        if small is not None:
            items.append(small)
        at = _skip_comma(text, _skip_space(text, at), "]")
    return at + 1


def _skip_space(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at


def _expect_character(text: str, at: int, character: str) -> int:
    at = _skip_space(text, at)
    if text[at : at + 1] != character:
        raise ValueError(f"expected {character!r} at {at}, got {text[at : at + 20]!r}")
    return _skip_space(text, at + 1)


def _skip_comma(text: str, at: int, end: str) -> int:
    """Return the position after a comma, or `at` itself at the end of the list or object."""
    if text[at : at + 1] == end:
        return at
    return _expect_character(text, at, ",")
