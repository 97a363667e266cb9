"""What the pages of docs/ say of JSON documents, compared with such a document."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests import TOP

PAGE = TOP / "docs/output.md"


_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}


def documented(verb: str) -> dict[str, set[str]]:
    """Field to types, of the section whose heading has the verb."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    named = ((text.splitlines()[0].split(", "), text) for text in sections)
    section = next(text for verbs, text in named if verb in verbs)
    rows = re.findall(r"^\| (\S+) \| ([\w ]+) \|", section, flags=re.MULTILINE)
    return {field: set(types.split(" or ")) for field, types in rows if field != "field"}


def fields(value: Any, at: str, known: dict[str, set[str]]) -> Iterator[tuple[str, str]]:
    """Every field of a document with its type; an object that is documented as such is one."""
    if isinstance(value, dict):
        if "object" in known.get(at, ()):
            yield at, "object"
        data = f"{at}.*" in known
        inner = any(field.startswith(f"{at}.") for field in known) or not at
        for key, item in value.items() if inner else ():
            yield from fields(item, f"{at}.*" if data else f"{at}.{key}".lstrip("."), known)
    elif isinstance(value, list):
        for item in value:
            yield from fields(item, f"{at}[]", known)
    else:
        yield at, "null" if value is None else _TYPES[type(value).__name__]


def compare(verb: str, *documents: Any) -> None:
    """The documents have the fields of the page; together they have all of them."""
    known = documented(verb)
    seen: set[str] = set()
    for document in documents:
        for field, kind in fields(document, "", known):
            assert field in known, f"{verb} prints {field}, which docs/output.md does not have"
            kinds = known[field] | ({"integer"} if "number" in known[field] else set())
            assert kind in kinds, f"{verb}: {field} is {kind}, docs/output.md says {known[field]}"
            seen.add(field)
    assert set(known) - seen == set(), f"docs/output.md has fields that {verb} never prints"
