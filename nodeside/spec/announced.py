"""Checks whether an API server would accept what a node announces.

`nodeside try` uses these checks, since it has no API server. They are pure: the rules for labels,
and for the NodeDriver object the shapes from which its schema is made.
https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from nodeside.protocol.labels import API_GROUP, API_VERSION, LABEL_VALUE
from nodeside.protocol.node_status import ReportedStatus
from nodeside.spec.mistakes import Document, Mistake, in_brief
from nodeside.spec.reader import Reader
from nodeside.spec.schema import shape_of

_LABEL_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_NAME_LIMIT = 253  # characters of an object's name


def check_labels(labels: Mapping[str, str]) -> list[str]:
    """Return what is wrong with labels that a node sets on itself, one sentence each."""
    return [
        sentence
        for key, value in labels.items()
        for sentence in (_key_mistake(key), _value_mistake(key, value))
        if sentence
    ]


def check_node_driver(document: object) -> list[str]:
    """Return what is wrong with a NodeDriver object, one sentence each."""
    reader = Reader(Document("NodeDriver", document))
    if not isinstance(document, Mapping):
        reader.add_expected("a mapping", (), document)
        return [str(mistake) for mistake in reader.mistakes]
    for key, value in (("apiVersion", API_VERSION), ("kind", "NodeDriver")):
        if document.get(key) != value:
            reader.add_expected(value, (key,), document.get(key))
    reader.mistakes += _check_name(document.get("metadata"))
    reader.read(shape_of(ReportedStatus), document.get("status"), ("status",))
    return [str(mistake) for mistake in reader.mistakes]


def _check_name(metadata: object) -> list[Mistake]:
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    good = isinstance(name, str) and len(name) <= _NAME_LIMIT and _SUBDOMAIN.fullmatch(name)
    if good and "." in str(name):
        return []
    expected = f"expected <driver>.<node>, a DNS name of at most {_NAME_LIMIT} characters"
    return [Mistake(("metadata", "name"), f"{expected}, got {in_brief(name)}")]


def _key_mistake(key: str) -> str:
    prefix, slash, name = key.rpartition("/")
    if not slash or prefix != API_GROUP:
        return f"label {in_brief(key)}: a node may only set labels that begin with {API_GROUP}/"
    if not _LABEL_NAME.fullmatch(name):
        return (
            f"label {in_brief(key)}: the part after / has at most 63 letters, digits and _.-, a "
            "letter or digit at both ends"
        )
    return ""


def _value_mistake(key: str, value: object) -> str:
    if isinstance(value, str) and LABEL_VALUE.fullmatch(value):
        return ""
    return (
        f"label {in_brief(key)}: expected at most 63 letters, digits and _.-, a letter or digit at "
        f"both ends, got {in_brief(value)}"
    )
