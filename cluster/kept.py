"""What the API server keeps of an object besides what is in it: versions, and who set which field.

Part of the values of world.py and stage.py; ownership.py reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Kept:
    """`stamp` is another one after each change of what is applied: the generation, where there
    is one; else the resource version. `managed` is the object's `managedFields`."""

    uid: str = ""
    version: str = ""
    stamp: str = ""
    managed: Sequence[Mapping[str, Any]] = ()


def kept_from(data: Mapping[str, Any]) -> Kept:
    metadata = data.get("metadata") or {}
    version = str(metadata.get("resourceVersion") or "")
    return Kept(
        uid=str(metadata.get("uid") or ""),
        version=version,
        stamp=str(metadata.get("generation") or version),
        managed=tuple(metadata.get("managedFields") or ()),
    )
