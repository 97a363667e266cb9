"""Installs nodeside in a cluster, in order, and reports each step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from cluster.kube.client import Api
from cluster.kube.errors import NotFound
from cluster.kube.resources import CRDS, NAMESPACES, resource_of
from nodeside.errors import DeadlinePassed, ExitCode, NodesideError

Document = Mapping[str, Any]

_DEADLINE = 120.0  # seconds for the API server to serve a new kind
_LOOK = 0.2  # seconds between two polls
_RELEASE = "meta.helm.sh/release-"  # plus `name` or `namespace`: the annotations that Helm sets


class InstalledElsewhere(NodesideError):
    """nodeside is already installed in another way or namespace.

    A cluster has it only once: its rules and the labels of nodes have one owner.
    """

    exit_code = ExitCode.USAGE
    reason = "InstalledElsewhere"


def install(
    api: Api, documents: Sequence[Document], *, pause: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """Server-side apply everything in order; yields a line for each. Raises InstalledElsewhere."""
    check_place(api, documents)
    yield from _await_namespace(api, documents, pause)
    for document in documents:
        before = _stored_version(api, document)
        after = _version_of(api.apply(document))
        done = "unchanged" if before == after else "configured" if before else "created"
        yield f"{document_in_words(document)} {done}"
        if resource_of(document) == CRDS:
            name = name_of(document)
            _wait_until(partial(_is_served, api, name), f"{name} to be served", pause)


def check_place(api: Api, documents: Sequence[Document]) -> None:
    """Check that nodeside is not installed in another namespace. Raises InstalledElsewhere.

    A ClusterRoleBinding names the namespace. Applied for another one, it would take the permissions
    from the running controller, and only that controller's log would show it.
    """
    for document in documents:
        if document["kind"] != "ClusterRoleBinding":
            continue
        with suppress(NotFound):
            existing = api.get(resource_of(document), name_of(document))
            _check_helm(existing)
            others = _namespaces_of(existing) - _namespaces_of(document)
            if others:
                namespace = min(others)
                raise InstalledElsewhere(
                    f"nodeside is installed in namespace {namespace}, and a cluster has it once",
                    hint=f"name that one: --namespace {namespace}; to move, remove it there first: "
                    f"nodeside-cluster uninstall --namespace {namespace}",
                )


def _check_helm(existing: Document) -> None:
    """Raise InstalledElsewhere for an object of a Helm release.

    Changing or deleting it without Helm would make Helm's record of the release wrong.
    """
    marks = existing["metadata"].get("annotations") or {}
    if name := marks.get(f"{_RELEASE}name"):
        release = f"{name} --namespace {marks.get(f'{_RELEASE}namespace')}"
        raise InstalledElsewhere(
            f"nodeside was installed by Helm, as release {name}",
            hint=f"helm upgrade {release}, or: kubectl delete drivers --all; "
            f"helm uninstall {release}",
        )


def _namespaces_of(binding: Document) -> set[str]:
    return {str(subject.get("namespace", "")) for subject in binding.get("subjects") or ()}


def _await_namespace(
    api: Api, documents: Sequence[Document], pause: Callable[[float], None]
) -> Iterator[str]:
    """Wait until a namespace is no longer being deleted.

    After an `uninstall` this takes a while, and the namespace accepts no objects until then.
    """
    for document in documents:
        if resource_of(document) == NAMESPACES and not _is_not_being_deleted(
            api, name_of(document)
        ):
            yield f"{document_in_words(document)} is still being deleted: waiting for that"
            stays = partial(_is_not_being_deleted, api, name_of(document))
            _wait_until(stays, f"{document_in_words(document)} to be gone", pause)


def _is_not_being_deleted(api: Api, namespace: str) -> bool:
    """Return whether a namespace does not exist, or exists and is not being deleted."""
    try:
        return "deletionTimestamp" not in api.get(NAMESPACES, namespace)["metadata"]
    except NotFound:
        return True


def _is_served(api: Api, name: str) -> bool:
    conditions = (api.get(CRDS, name).get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Established" and c.get("status") == "True" for c in conditions)


def _wait_until(is_done: Callable[[], bool], what: str, pause: Callable[[float], None]) -> None:
    ends = time.monotonic() + _DEADLINE
    while not is_done():
        if time.monotonic() > ends:
            raise DeadlinePassed(f"waited {_DEADLINE:g} s for {what}")
        pause(_LOOK)


def _stored_version(api: Api, document: Document) -> str:
    namespace = str(document["metadata"].get("namespace", ""))
    try:
        return _version_of(api.get(resource_of(document), name_of(document), namespace=namespace))
    except NotFound:
        return ""


def _version_of(document: Document) -> str:
    return str(document["metadata"].get("resourceVersion", ""))


def name_of(document: Document) -> str:
    return str(document["metadata"]["name"])


def document_in_words(document: Document) -> str:
    return f"{document['kind']} {name_of(document)}"
