"""Merge patches: made of two documents, and applied to one. Pure.

https://www.rfc-editor.org/rfc/rfc7386
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def make_merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that turns `before` into `after`."""
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            if inner := make_merge_patch(old, value):
                patch[key] = inner
        elif key not in before or old != value:
            patch[key] = value
    return patch


def apply_merge_patch(document: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document after a merge patch."""
    merged = dict(document)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            old = merged.get(key)
            merged[key] = apply_merge_patch(old if isinstance(old, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged


def make_three_way_patch(
    last: Mapping[str, Any], wanted: Mapping[str, Any], live: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the merge patch by which `kubectl apply` makes `live` what is wanted.

    A field that was applied `last` and is not wanted any more is removed. One that somebody else
    has set stays, if the wanted document does not have it.
    https://kubernetes.io/docs/tasks/manage-kubernetes-objects/declarative-config/
    """
    patch: dict[str, Any] = {key: None for key in last if key not in wanted and key in live}
    for key, value in wanted.items():
        there, before = live.get(key), last.get(key)
        if isinstance(value, Mapping) and isinstance(there, Mapping):
            before = before if isinstance(before, Mapping) else {}
            if inner := make_three_way_patch(before, value, there):
                patch[key] = inner
        elif key not in live or there != value:
            patch[key] = value
    return patch
