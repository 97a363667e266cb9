"""Finds fields of our objects that other field managers set, and takes back their ownership.

Pure. The API server records in `managedFields` which manager set which field. We own the whole spec
of a DaemonSet and the pod template of a Deployment, since an added field there changes what runs on
the nodes. The replica count of a Deployment may be scaled by others. For other kinds we own only
the fields we set: OpenShift, for example, adds pull secrets to a service account. A field without
an owner is a default or comes from an admission webhook; it is not a hand edit.

Server-side apply never removes a field that another manager owns. So ownership of these fields is
taken over first, which changes no value, and then the usual apply removes what it does not name.
https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management

`cluster.controller.executor` sends the patch that `regained` returns.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from nodeside.shortlist import shortlist

Document = Mapping[str, Any]
Path = tuple[str, ...]

_EMPTY: Final[Document] = MappingProxyType({})
OWNED: Final[Mapping[str, Path]] = {"DaemonSet": ("spec",), "Deployment": ("spec", "template")}

# `kubectl rollout restart` is permitted: modules stay loaded.
_HARMLESS: Final = ("spec.template.metadata.annotations[kubectl.kubernetes.io/restartedAt]",)
_MAPS: Final = ("annotations", "labels", "matchLabels", "nodeSelector")  # keys are not field names
_ABSENT: Final = object()
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class ForeignField:
    """A field that is set but not in our document.

    `manager` is our own field manager if an apply was interrupted.
    """

    manager: str
    field: str


@dataclass(frozen=True, slots=True)
class Overwrite:
    """The existing object that an apply overwrites.

    `edit` describes a hand edit, "" if only the desired state changed. `regains` is the patch that
    takes over ownership before the apply, None if no foreign fields would remain.
    """

    stamp: str
    edit: str = ""
    regains: Document | None = None


def over(kept: ObjectMeta, document: Document, *, edited: bool) -> Overwrite:
    """Return the Overwrite for applying `document`.

    `edited`: the existing object was applied as `document` and has been changed since.
    """
    regains = regained(kept, document) if strangers(kept, document) else None
    return Overwrite(kept.stamp, _edit(kept, document) if edited else "", regains)


def strangers(kept: ObjectMeta, document: Document) -> tuple[ForeignField, ...]:
    """Return the fields in the parts we own that `document` does not name, by any manager."""
    every = (s for entry in kept.managed for s in _of(entry, document, leaves=False))
    return tuple(strange for strange in every if strange.field not in _HARMLESS)


def _edit(kept: ObjectMeta, document: Document) -> str:
    """Describe which manager set which fields, as far as the API server knows."""
    others = [entry for entry in kept.managed if entry.get("manager") != FIELD_MANAGER]
    strange = [s for entry in others for s in _of(entry, document, leaves=True)]
    fields: dict[str, list[str]] = {}
    for each in strange:
        fields.setdefault(each.manager, []).append(each.field)
    words = [f"{manager} set {shortlist(fields[manager], _NAMED)}" for manager in sorted(fields)]
    return "; ".join(words) or "something changed it"


def _of(entry: Document, document: Document, *, leaves: bool) -> Iterator[ForeignField]:
    owned = OWNED.get(str(document.get("kind")))
    if owned is None or entry.get("subresource"):
        return
    wanted: Any = document
    for name in owned:
        wanted = wanted.get(name) or _EMPTY
    fields = _below(entry.get("fieldsV1") or _EMPTY, owned)
    ours = _is_ours(entry)
    for field in _beyond(fields, wanted, ".".join(owned), ours=ours, leaves=leaves):
        yield ForeignField(str(entry.get("manager")), field)


def regained(kept: ObjectMeta, document: Document) -> dict[str, Any] | None:
    """Return the merge patch that takes ownership of foreign fields not named in `document`.

    Return None if there are no such fields. The patch changes no value. The apply itself takes
    ownership of the fields that `document` names.
    """
    ours: dict[str, Any] = {"manager": FIELD_MANAGER, "operation": "Apply"}
    ours |= {"apiVersion": document["apiVersion"], "fieldsType": "FieldsV1", "fieldsV1": {}}
    rest: list[dict[str, Any]] = []
    taken: dict[str, Any] = {}
    for each in kept.managed:
        entry = copy.deepcopy(dict(each))
        if _is_ours(entry):
            ours = entry
            continue
        if not entry.get("subresource"):
            _merge(taken, _cut(entry["fieldsV1"], document, OWNED[document["kind"]]))
        rest.append(entry)
    if not taken:
        return None
    _merge(ours["fieldsV1"], taken)
    rest = [entry for entry in rest if entry["fieldsV1"]]
    metadata = {"uid": kept.uid, "resourceVersion": kept.version, "managedFields": [ours, *rest]}
    return {"metadata": metadata}


def _is_ours(entry: Document) -> bool:
    """Return whether the entry is from our applies; our other patches have entries of their own."""
    asked = (entry.get("manager"), entry.get("operation"), entry.get("subresource", ""))
    return asked == (FIELD_MANAGER, "Apply", "")


# --- FieldsV1: `f:name`, `k:{…}` for a list item by its keys, `v:…` for a value in a set ----------


def _below(fields: Document, path: Path) -> Document:
    for name in path:
        fields = fields.get(f"f:{name}") or _EMPTY
    return fields


def _beyond(fields: Document, wanted: Any, at: str, *, ours: bool, leaves: bool) -> Iterator[str]:
    """Yield the paths in `fields` that are not in `wanted`, each cut at its first missing part.

    A map or list that is owned as a whole by another manager counts as missing. With `leaves`, also
    yield the leaves that are in both.
    """
    for key, inner in fields.items():
        if key == ".":
            continue
        there, where = _step(key, wanted, at)
        if there is _ABSENT or (not inner and not ours and there and _is_whole(there)):
            yield where
        elif inner:
            yield from _beyond(inner, there, where, ours=ours, leaves=leaves)
        elif leaves:
            yield where


def _step(key: str, wanted: Any, at: str) -> tuple[Any, str]:
    """Return the value in `wanted` at `key`, or _ABSENT, and the path for display."""
    kind, _, rest = key.partition(":")
    if kind == "f":
        in_map = at.rpartition(".")[2] in _MAPS
        where = f"{at}[{rest}]" if in_map else f"{at}.{rest}"
        return (wanted.get(rest, _ABSENT) if isinstance(wanted, Mapping) else _ABSENT), where
    asked = json.loads(rest)
    items = wanted if isinstance(wanted, Sequence) and not isinstance(wanted, str) else ()
    if kind == "k":
        where = f"{at}[{', '.join(str(value) for value in asked.values())}]"
        return next((item for item in items if _has(item, asked)), _ABSENT), where
    return next((item for item in items if item == asked), _ABSENT), f"{at}[{asked}]"


def _is_whole(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple)


def _has(item: Any, asked: Document) -> bool:
    """Return whether the item has these keys; a key that we leave out has its default there."""
    return isinstance(item, Mapping) and all(
        item.get(k, value) == value for k, value in asked.items()
    )


def _cut(fields: dict[str, Any], wanted: Any, path: Path = ()) -> dict[str, Any]:
    """Move fields that are not in `wanted` out of `fields`, only below `path`; return them."""
    taken: dict[str, Any] = {}
    for key in [f"f:{path[0]}"] if path else list(fields):
        if key == "." or key not in fields:
            continue
        there = _step(key, wanted, "")[0]
        if there is _ABSENT:
            taken[key] = fields.pop(key)
        elif fields[key] and (inner := _cut(fields[key], there, path[1:])):
            taken[key] = inner
            if not fields[key]:
                del fields[key]
    return taken


def _merge(into: dict[str, Any], more: Document) -> None:
    for key, value in more.items():
        if isinstance(into.get(key), dict) and value:
            _merge(into[key], value)
        else:
            into.setdefault(key, copy.deepcopy(value))


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """Metadata for detecting changes and foreign fields.

    `stamp` changes with each change of the applied fields: it is the generation if the object has
    one, else the resource version. `managed` is the object's `managedFields`.
    """

    uid: str = ""
    version: str = ""
    stamp: str = ""
    managed: Sequence[Mapping[str, Any]] = ()


def kept_from(data: Mapping[str, Any]) -> ObjectMeta:
    metadata = data.get("metadata") or {}
    version = str(metadata.get("resourceVersion") or "")
    return ObjectMeta(
        uid=str(metadata.get("uid") or ""),
        version=version,
        stamp=str(metadata.get("generation") or version),
        managed=tuple(metadata.get("managedFields") or ()),
    )


FIELD_MANAGER: Final = "nodeside-cluster"  # our name in managedFields
