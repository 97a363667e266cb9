"""Finds fields of our objects that other field managers set.

Pure. The API server records in `managedFields` which manager set which field. We own the whole spec
of a DaemonSet and the pod template of a Deployment, since an added field there changes what runs on
the nodes. The replica count of a Deployment may be scaled by others. For other kinds we own only
the fields we set: OpenShift, for example, adds pull secrets to a service account. A field without
an owner is a default or comes from an admission webhook; it is not a hand edit.

Server-side apply never removes a field that another manager owns. So if another manager set fields
in our part, we first replace that part as a whole (`replacement_patch`). This removes the fields
that the part does not contain, and their owner. The replacement is an Update, which makes us a
second owner of the fields that it restored; so later applies need a replacement too.
https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nodeside.text.shortlist import shortlist

Document = Mapping[str, Any]

FIELD_MANAGER: Final = "nodeside-cluster"  # our name in managedFields

_OWNED: Final = {"DaemonSet": ("spec",), "Deployment": ("spec", "template")}
# `kubectl rollout restart` is permitted: modules stay loaded.
_HARMLESS: Final = "spec.template.metadata.annotations[kubectl.kubernetes.io/restartedAt]"
_MAPS: Final = ("annotations", "labels", "matchLabels", "nodeSelector")  # keys are not field names
_ABSENT: Final = object()
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """Metadata for detecting changes and foreign fields.

    `last_write` changes with each change of the applied fields: it is the generation if the object
    has one, else the resource version. `managed` is the object's `managedFields`.
    """

    last_write: str = ""
    managed: Sequence[Document] = ()
    uid: str = ""


@dataclass(frozen=True, slots=True)
class ExistingObject:
    """The existing object that an apply overwrites.

    `edit` describes a hand edit, "" if only the desired state changed. `co_owned`: the part that is
    ours has fields with another owner than our applies, which an apply would leave.
    """

    last_write: str
    edit: str = ""
    co_owned: bool = False
    uid: str = ""


def object_meta_from(data: Document) -> ObjectMeta:
    """Parse the metadata of an object."""
    metadata = data.get("metadata") or {}
    last_write = str(metadata.get("generation") or metadata.get("resourceVersion") or "")
    managed = tuple(metadata.get("managedFields") or ())
    return ObjectMeta(last_write, managed, str(metadata.get("uid") or ""))


def existing_object(meta: ObjectMeta, document: Document, *, edited: bool) -> ExistingObject:
    """Return what applying `document` will overwrite.

    `edited`: the existing object was applied as `document` and has been changed since.
    """
    co_owned = any(
        (entry.get("manager"), entry.get("operation")) != (FIELD_MANAGER, "Apply")
        for entry, _ in _entries_of_part(meta, document)
    )
    return ExistingObject(
        meta.last_write, _describe_edit(meta, document) if edited else "", co_owned, meta.uid
    )


def has_additions(meta: ObjectMeta, document: Document) -> bool:
    """Return whether others set fields in the part we own that `document` does not set."""
    return any(new and field != _HARMLESS for _, field, new in _foreign_fields(meta, document))


def replacement_patch(document: Document, uid: str = "") -> list[dict[str, Any]]:
    """Return the JSON patch that replaces the part we own of a DaemonSet or Deployment.

    It fails if the object has another uid ("": any uid).
    """
    owned = _OWNED[document["kind"]]
    test = {"op": "test", "path": "/metadata/uid", "value": uid}
    step = {"op": "replace", "path": "/" + "/".join(owned), "value": _part_at(document, owned)}
    return [test, step] if uid else [step]


def _describe_edit(meta: ObjectMeta, document: Document) -> str:
    """Describe which manager set which fields, as far as the API server knows."""
    fields: dict[str, list[str]] = {}
    for manager, field, _ in _foreign_fields(meta, document):
        fields.setdefault(manager, []).append(field)
    edits = [f"{manager} set {shortlist(fields[manager], _NAMED)}" for manager in sorted(fields)]
    return "; ".join(edits) or "something changed it"


def _foreign_fields(meta: ObjectMeta, document: Document) -> Iterator[tuple[str, str, bool]]:
    """Yield the fields in the part we own that another manager set: manager, path, is it new.

    A field is new if `document` does not set it.
    """
    for entry, fields in _entries_of_part(meta, document):
        manager, owned = str(entry.get("manager")), _OWNED[document["kind"]]
        if manager != FIELD_MANAGER:
            for field, new in _paths_below(fields, _part_at(document, owned), ".".join(owned)):
                yield manager, field, new


def _entries_of_part(meta: ObjectMeta, document: Document) -> Iterator[tuple[Document, Document]]:
    """Yield the managers' entries with fields in the part we own, and these fields."""
    owned = _OWNED.get(document["kind"])
    for entry in meta.managed if owned else ():
        fields = _part_at(entry.get("fieldsV1") or {}, [f"f:{name}" for name in owned or ()])
        if fields and not entry.get("subresource"):
            yield entry, fields


def _part_at(document: Document, path: Sequence[str]) -> Document:
    for name in path:
        document = document.get(name) or {}
    return document


# --- FieldsV1: `f:name`, `k:{…}` for a list item by its keys, `v:…` for a value in a set ----------


def _paths_below(fields: Document, ours: Any, at: str) -> Iterator[tuple[str, bool]]:
    """Yield the paths in `fields`, and whether they are not in `ours`.

    A path is cut at its first missing part. A map or list that is owned as a whole counts as
    missing, since the owner may have added to it.
    """
    for key, inner in fields.items():
        if key == ".":
            continue
        value, path = _follow_key(key, ours, at)
        if value is _ABSENT or (not inner and value and isinstance(value, Mapping | list | tuple)):
            yield path, True
        elif inner:
            yield from _paths_below(inner, value, path)
        else:
            yield path, False


def _follow_key(key: str, ours: Any, at: str) -> tuple[Any, str]:
    """Return the value in `ours` at `key`, or _ABSENT, and the path for display."""
    kind, _, rest = key.partition(":")
    if kind == "f":
        in_map = at.rpartition(".")[2] in _MAPS
        value = ours.get(rest, _ABSENT) if isinstance(ours, Mapping) else _ABSENT
        return value, f"{at}[{rest}]" if in_map else f"{at}.{rest}"
    keys = json.loads(rest)
    items = ours if isinstance(ours, Sequence) and not isinstance(ours, str) else ()
    if kind == "k":
        name = ", ".join(str(value) for value in keys.values())
        return next((item for item in items if _has_keys(item, keys)), _ABSENT), f"{at}[{name}]"
    return next((item for item in items if item == keys), _ABSENT), f"{at}[{keys}]"


def _has_keys(item: Any, keys: Document) -> bool:
    """Return whether the item has these keys; a key that we leave out has its default there."""
    return isinstance(item, Mapping) and all(
        item.get(key, value) == value for key, value in keys.items()
    )
