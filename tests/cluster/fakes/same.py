"""Whether two ways to install nodeside give the same objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Document = Mapping[str, Any]


def different(found: Iterable[Document], wanted: Iterable[Document]) -> list[str]:
    """The names of all objects that only one of them has, or that differ; in any order."""
    ours, theirs = _by_name(found), _by_name(wanted)
    return sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))


# What Helm's conventions ask of the objects of a release.
RELEASE_LABELS = (
    "helm.sh/chart",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/part-of",
)


NAME_LABEL = ("app.kubernetes.io/name", "nodeside")


def without_release(charted: Iterable[Document]) -> list[Document]:
    """Objects of the chart without the labels of the release, which each must have."""
    return [_without_release(each) for each in charted]


def _without_release(document: Document) -> Document:
    if document["kind"] == "CustomResourceDefinition":  # Helm takes files of crds/ as they are
        return document
    labels = document["metadata"]["labels"]
    assert set(RELEASE_LABELS) <= set(labels), document["metadata"]["name"]
    rest = {
        key: value
        for key, value in labels.items()
        if key not in RELEASE_LABELS and (key, value) != NAME_LABEL
    }
    assert NAME_LABEL[0] in labels
    return {**document, "metadata": {**document["metadata"], "labels": rest}}


def _by_name(documents: Iterable[Document]) -> dict[str, Document]:
    named = {}
    for document in documents:
        metadata = document["metadata"]
        name = f"{document['kind']} {metadata.get('namespace', '')}/{metadata['name']}"
        assert name not in named, name
        named[name] = document
    return named
