"""Who else set fields of what is ours, and how they become ours again.

Pure. The API server keeps in `managedFields` who set which field. What is ours is the whole spec of
a DaemonSet, and the pod template of a Deployment, whose number of replicas others may scale: what
somebody adds there changes what runs on the nodes. Of other kinds only what we set is ours: a
service account, for one, gets pull secrets from OpenShift. A field that nobody owns is a default,
or an admission webhook's; it is no hand edit.

Server-side apply never takes away what another manager owns. So these fields are made ours first,
which changes no value, and then the usual apply drops what it does not name.
https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management

`cluster.controller.executor` sends what `regained` makes.
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

# Who restarts the pods gets what he wants: modules stay loaded.
_HARMLESS: Final = ("spec.template.metadata.annotations[kubectl.kubernetes.io/restartedAt]",)
_MAPS: Final = ("annotations", "labels", "matchLabels", "nodeSelector")  # their keys are no fields
_ABSENT: Final = object()
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class ForeignField:
    """A field that somebody set and we do not name. `manager` is ours if an apply was cut off."""

    manager: str
    field: str


@dataclass(frozen=True, slots=True)
class Overwrite:
    """What is there where something is to be applied again.

    `edit` is what somebody did to it, "" if only something else is wanted now. `regains` is the
    patch that makes it ours before, None where nothing would stay of what others added.
    """

    stamp: str
    edit: str = ""
    regains: Document | None = None


def over(kept: ObjectMeta, document: Document, *, edited: bool) -> Overwrite:
    """`edited`: what is there was applied as `document`, and is so no more."""
    regains = regained(kept, document) if strangers(kept, document) else None
    return Overwrite(kept.stamp, _edit(kept, document) if edited else "", regains)


def strangers(kept: ObjectMeta, document: Document) -> tuple[ForeignField, ...]:
    """Fields that `document` does not name where only it should, whoever has set them."""
    every = (s for entry in kept.managed for s in _of(entry, document, leaves=False))
    return tuple(strange for strange in every if strange.field not in _HARMLESS)


def _edit(kept: ObjectMeta, document: Document) -> str:
    """Who set what, as far as the API server knows."""
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
    """The merge patch that makes ours what others set and `document` does not name.

    It changes no value. What `document` names is ours by being applied.
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
    """Whether it is what we applied; what we changed by a patch is another entry."""
    asked = (entry.get("manager"), entry.get("operation"), entry.get("subresource", ""))
    return asked == (FIELD_MANAGER, "Apply", "")


# --- FieldsV1: `f:name`, `k:{…}` for an item of a list by its keys, `v:…` for a value in a set ----


def _below(fields: Document, path: Path) -> Document:
    for name in path:
        fields = fields.get(f"f:{name}") or _EMPTY
    return fields


def _beyond(fields: Document, wanted: Any, at: str, *, ours: bool, leaves: bool) -> Iterator[str]:
    """What is in `fields` and not in `wanted`, each by its first part that is not.

    A map or list that has one owner as a whole is another one if the owner is not we. With
    `leaves`, what is in both too.
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
    """What stands in `wanted` there, and how a person calls the place."""
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
    """Whether it is the item with these keys; one that we leave out is a default there."""
    return isinstance(item, Mapping) and all(
        item.get(k, value) == value for k, value in asked.items()
    )


def _cut(fields: dict[str, Any], wanted: Any, path: Path = ()) -> dict[str, Any]:
    """Take out of `fields` what is not in `wanted`; above the end of `path` nothing is taken."""
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
    """`stamp` is another one after each change of what is applied: the generation, where there
    is one; else the resource version. `managed` is the object's `managedFields`."""

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


FIELD_MANAGER: Final = (
    "nodeside-cluster"  # in managedFields, where the API server keeps who did what
)
