"""Checks whether the served definitions have all fields that this program writes and reads.

Helm never upgrades definitions, and a repository of manifests may leave them out. The API server
then silently drops unknown fields, which may include the last good revision. Every authenticated
user may read the served schemas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from cluster.install.crds import crd_documents
from cluster.kube.client import Api
from cluster.kube.errors import ApiError
from nodeside import log
from nodeside.text.shortlist import shortlist

_SHOWN = 3  # maximum number of fields that a message names
REMEDY: Final = (
    "update them: nodeside-cluster crds | kubectl apply --server-side --force-conflicts -f -"
)


def find_missing_fields(api: Api) -> tuple[str, ...]:
    """Return the fields that the served definitions lack, with their kind; empty if unreadable."""
    try:
        served = api.served_schemas()
    except ApiError:
        return ()
    return tuple(
        f"{kind}.{field}"
        for kind, schema in _our_schemas().items()
        if kind in served
        for field in _missing_paths(schema, served[kind])
    )


def missing_fields_in_words(missing: tuple[str, ...]) -> str:
    """Return a sentence about missing fields; "" if nothing is missing."""
    if not missing:
        return ""
    named = shortlist(missing, _SHOWN)
    return f"the definitions in the cluster are older than this program and do not have {named}"


def warn_of_missing_fields(api: Api) -> None:
    """Warn about missing fields in the controller's log."""
    if message := missing_fields_in_words(find_missing_fields(api)):
        log.warning(message, hint=REMEDY)


def _our_schemas() -> dict[str, Mapping[str, Any]]:
    return {
        crd["spec"]["names"]["kind"]: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for crd in crd_documents()
    }


def _missing_paths(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], path: str = ""
) -> Iterator[str]:
    """Yield the paths of missing fields, without the fields below them."""
    served = theirs.get("properties", {})
    for name, schema in ours.get("properties", {}).items():
        at = f"{path}.{name}" if path else name
        if name not in served:
            yield at
        elif at != "metadata":  # the API server's own
            yield from _missing_paths(schema, served[name], at)
    for below in ("items", "additionalProperties"):
        inner, served_inner = ours.get(below), theirs.get(below)
        if isinstance(inner, Mapping) and isinstance(served_inner, Mapping):
            yield from _missing_paths(inner, served_inner, f"{path}[]")
