"""Whether two ways to install nodeside give the same objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Document = Mapping[str, Any]


def different(found: Iterable[Document], wanted: Iterable[Document]) -> list[str]:
    """The names of all objects that only one of them has, or that differ; in any order."""
    ours, theirs = _by_name(found), _by_name(wanted)
    return sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))


def _by_name(documents: Iterable[Document]) -> dict[str, Document]:
    named = {}
    for document in documents:
        metadata = document["metadata"]
        name = f"{document['kind']} {metadata.get('namespace', '')}/{metadata['name']}"
        assert name not in named, name
        named[name] = document
    return named
