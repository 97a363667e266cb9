"""An API server that holds objects, and gives them in the shape in which a real one does.

A real one leaves `apiVersion` and `kind` out of the items of a list of a kind that it, or an
aggregated API server, has compiled in: the list's own `kind` says it for all of them. Items of a
CustomResourceDefinition's kind have both, as has whatever is read alone and each event of a watch.
tests/cluster/kube/test_listing_served.py compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs

from cluster.kube.resources import KNOWN, Resource, resource_of
from tests.cluster.fakes.scripted import Asked, Said
from tests.refusals import NO_SUCH_PATH, not_found

_CUSTOM = (  # groups whose kinds are defined by a CustomResourceDefinition
    "nodeside.io",
    "monitoring.coreos.com",
    "config.openshift.io",
    "security.openshift.io",
)
_VERSION = "7"  # of the whole store: nothing in it changes
Document = dict[str, Any]


class StoredObjects:
    """Give `answer` to `ScriptedServer.always`. A write is kept in `written` and changes nothing.

    A watch begins with what is in `changes`, once, and ends.
    """

    def __init__(self, documents: Iterable[Document], *, absent: Iterable[str] = ()) -> None:
        self.documents = list(documents)
        self.absent = tuple(absent)  # groups that are not served
        self.changes: list[Document] = []
        self.written: list[Asked] = []

    def answer(self, asked: Asked) -> Said:
        path, _, query = asked.path.partition("?")
        options = {key: values[0] for key, values in parse_qs(query).items()}
        if asked.method != "GET":
            self.written.append(asked)
            return Said(body=asked.body)
        if any(f"/apis/{group}/" in path for group in self.absent):
            return Said(404, NO_SUCH_PATH)
        for resource in KNOWN:
            for namespace in _namespaces(resource, path):
                if path == resource.path(namespace=namespace):
                    return self._collection(resource, namespace, options)
        found = (each for each in self.documents if _path(each) == path)
        one = next(found, None)
        return Said(body=json.dumps(one)) if one else _not_found(path)

    def _collection(self, resource: Resource, namespace: str, options: dict[str, str]) -> Said:
        if "watch" in options:
            events, self.changes = self.changes, []
            lines = [json.dumps({"type": "MODIFIED", "object": each}) + "\n" for each in events]
            return Said(body="".join(lines))
        selector = options.get("labelSelector", "")
        found = [
            each
            for each in self.documents
            if resource_of(each) == resource
            and namespace in ("", each["metadata"].get("namespace"))
            and _matches(each["metadata"].get("labels") or {}, selector)
        ]
        begin = int(options.get("continue") or 0)
        end = begin + int(options.get("limit") or len(found))
        metadata = {"resourceVersion": _VERSION}
        metadata |= {"continue": str(end)} if end < len(found) else {}
        items = [as_item(resource, each) for each in found[begin:end]]
        return Said(body=json.dumps(listed(resource, metadata, items)))


def as_item(resource: Resource, document: Document) -> Document:
    """An object as an item of a list."""
    without = () if resource.group in _CUSTOM else ("apiVersion", "kind")
    return {key: value for key, value in document.items() if key not in without}


def listed(resource: Resource, metadata: Document, items: list[Document]) -> Document:
    kinds = {"apiVersion": resource.api_version, "kind": f"{resource.kind}List"}
    return {**kinds, "metadata": metadata, "items": items}


def _path(document: Document) -> str:
    metadata = document["metadata"]
    namespace = metadata.get("namespace", "")
    return resource_of(document).path(metadata["name"], namespace=namespace)


def _namespaces(resource: Resource, path: str) -> Iterator[str]:
    yield ""
    _, found, rest = path.partition("/namespaces/")
    if resource.namespaced and found:
        yield rest.partition("/")[0]


def _matches(labels: Mapping[str, str], selector: str) -> bool:
    """The forms of a selector that the controller uses: a set alone, the others also together."""
    key, is_set, values = selector.partition(" in ")
    if is_set:
        return labels.get(key) in values.strip("()").split(",")
    if "," in selector:
        return all(_matches(labels, each) for each in selector.split(","))
    key, equals, value = selector.partition("=")
    return (labels.get(key) == value) if equals else (not key or key in labels)


def _not_found(path: str) -> Said:
    """The API server does not know a path of no kind; of a kind, it names the object."""
    for resource in KNOWN:
        for namespace in _namespaces(resource, path):
            directory, _, name = path.rpartition("/")
            if directory == resource.path(namespace=namespace):
                return Said(404, json.dumps(not_found(resource.plural, name, resource.group)))
    return Said(404, NO_SUCH_PATH)
