"""Uninstalls nodeside: deletes every Driver, waits until all are gone, then deletes the rest.

The Drivers go first because the controller is needed to unload their modules. Each step, and the
reason for each wait, is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.install.install import Document, check_place, document_in_words, name_of
from cluster.kube.client import Api
from cluster.kube.conditions import find_condition
from cluster.kube.errors import ApiError, NotFound
from cluster.kube.resources import DRIVERS, EVENTS, NAMESPACES, resource_of
from cluster.model.names import LEAVE_MODULES, NAMESPACE
from nodeside.errors import DeadlinePassed
from nodeside.log import escape_controls

_LOOK = 0.2  # seconds between two polls
_QUIET = 2.0  # seconds between two lines about one Driver
_LAST_WORDS = ("ModulesStay", "Deleted")  # the reasons of Events; see deletion.py


@dataclass(frozen=True)
class _Driver:
    """A Driver. `waits` is the controller's message about its deletion, "" until there is one.

    The message may quote a node, with any characters.
    """

    name: str
    uid: str
    waits: str


def delete_drivers(
    api: Api,
    *,
    namespace: str = NAMESPACE,
    deadline: float,
    pause: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[str]:
    """Delete all Drivers, and yield a line for each step. `namespace` is the controller's.

    Raises DeadlinePassed, which names what is waited for.
    """
    asked = _list_drivers(api)
    for name in asked:
        api.delete(DRIVERS, name)
        yield f"driver {name}: to be deleted; its modules are unloaded first"
    ends, reported = now() + deadline, dict[str, tuple[str, float]]()
    left = _list_drivers(api)
    while left:
        for each in left.values():
            words, since = reported.get(each.name, ("", float("-inf")))
            if each.waits not in ("", words) and now() >= since + _QUIET:
                reported[each.name] = each.waits, now()
                yield f"driver {each.name}: {each.waits}"
        if now() > ends:
            raise _deadline_error(left, deadline, namespace)
        pause(_LOOK)
        left = _list_drivers(api)
    for each in asked.values():
        yield _last_note(api, each) or f"driver {each.name} deleted"


def _list_drivers(api: Api) -> Mapping[str, _Driver]:
    try:
        return {each.name: each for each in api.list(DRIVERS, _driver_from).items}
    except NotFound:
        return {}


def _driver_from(document: Mapping[str, Any]) -> _Driver:
    metadata = document["metadata"]
    ready = find_condition(document.get("status") or {}, "Ready")
    going = "deletionTimestamp" in metadata and ready["reason"] in ("Deleting", "ModulesStay")
    waits = escape_controls(ready["message"], keep="") if going else ""
    return _Driver(str(metadata["name"]), str(metadata["uid"]), waits)


def _deadline_error(left: Mapping[str, _Driver], deadline: float, namespace: str) -> DeadlinePassed:
    waiting = [f"{each.name} ({each.waits})" if each.waits else each.name for each in left.values()]
    silent = f"is a controller running that cleans up? kubectl -n {namespace} get pods; else take "
    silent += "the finalizer away: kubectl patch driver NAME --type=merge "
    silent += '-p \'{"metadata":{"finalizers":null}}\''
    held = "run it again to go on waiting; to leave modules loaded: kubectl annotate driver NAME "
    held += f"{LEAVE_MODULES}=true"
    return DeadlinePassed(
        f"waited {deadline:g} s for all Drivers to be gone: {', '.join(waiting)}",
        hint=held if all(each.waits for each in left.values()) else silent,
    )


def _last_note(api: Api, gone: _Driver) -> str:
    """Return the note of the controller's last Event on a Driver.

    Returns "" if there is none, or if Events cannot be read. A driver pod may write Events about
    its node, with any uid and any characters.
    """

    def note_of(event: Mapping[str, Any]) -> tuple[str, str] | None:
        about = event.get("regarding") or {}
        ours = about.get("kind") == "Driver" and about.get("uid") == gone.uid
        relevant = ours and event.get("reason") in _LAST_WORDS
        return (str(event.get("eventTime")), str(event.get("note"))) if relevant else None

    try:
        notes = api.list(EVENTS, note_of, namespace="default").items
    except ApiError:
        return ""
    return escape_controls(max(notes, default=("", ""))[1], keep="")


def uninstall(
    api: Api,
    documents: Sequence[Document],
    *,
    deadline: float = 600.0,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """Delete the Drivers, then the documents in reverse order; yields a line for each step.

    The Drivers go first because the running controller unloads their modules and cleans up. Raises
    InstalledElsewhere. Raises DeadlinePassed if the Drivers are not gone in time; the controller is
    then still there.
    """
    check_place(api, documents)
    namespaces = (name_of(each) for each in documents if resource_of(each) == NAMESPACES)
    namespace = next(namespaces, NAMESPACE)
    yield from delete_drivers(api, namespace=namespace, deadline=deadline, pause=pause)
    for document in reversed(documents):
        try:
            resource = resource_of(document)
            place = str(document["metadata"].get("namespace", ""))
            api.delete(resource, name_of(document), namespace=place)
            yield f"{document_in_words(document)} deleted"
        except NotFound:
            yield f"{document_in_words(document)} was not there"
