"""From the API server's JSON to the values of world.py.

Each `*_from` takes an object and keeps what is read somewhere, which is a hundredth of a Node; the
reflectors call them, once for each object that comes.
"""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from sys import intern
from time import strptime
from typing import TypeVar

from cluster.labels import labels_of
from cluster.model.annotations import read_refused
from cluster.model.names import (
    APPLIED_NOTE,
    ARCHITECTURE_NOTE,
    DRIVER_LABEL,
    FELL_BACK_NOTE,
    KERNEL_NOTE,
    LEAVE_MODULES,
    LINK_NOTE,
    OS_VERSION_NOTE,
    OUTCOME_NOTE,
    POLICY_KEY,
    REFUSED_NOTE,
    REVISION_LABEL,
    TOOLKIT_NOTE,
)
from cluster.model.parse_pods import MIRROR, _words
from cluster.ownership import FIELD_MANAGER, kept_from
from cluster.world import (
    NOTHING,
    DaemonSetObject,
    Document,
    DriverObject,
    ImageStream,
    JobObject,
    Node,
    NodeDriverObject,
    Pool,
    RevisionObject,
    ToolkitLabels,
)
from nodeside.buildjob import read_message
from nodeside.contract import REPORT_TEXT
from nodeside.errors import SpecError
from nodeside.spec import parse

# The kubelet speaks Go's words, `uname -m` its own; the latter are ours.
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_UNAME = re.compile(r"[A-Za-z0-9._+~-]{1,64}")
_ARCHITECTURE = re.compile(r"[a-z0-9]([a-z0-9_]{0,30}[a-z0-9])?")
T = TypeVar("T")
_DRIVER_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


def node_from(data: Document) -> Node:
    metadata, status = _part(data, "metadata"), _part(data, "status")
    info = _part(status, "nodeInfo")
    architecture = _word(info, "architecture", _ARCHITECTURE)  # the node selector of build Jobs
    ready = _condition(status, "Ready")
    return Node(
        name=_text(metadata, "name"),
        uid=_text(metadata, "uid"),
        labels=labels_of(_part(metadata, "labels")),
        # A kernel for nobody knows what machine is none to build for.
        kernel=_word(info, "kernelVersion") if architecture else "",
        os_image=_said(info, "osImage"),
        architecture=intern(_ARCHITECTURES.get(architecture, architecture)),
        boot_id=_said(info, "bootID"),
        ready=ready.get("status") == "True",
        ready_since=_seconds(ready.get("lastTransitionTime")),
        unschedulable=bool(_part(data, "spec").get("unschedulable")),
        labelled=_labelled(metadata),
    )


def driver_from(data: Document) -> DriverObject:
    """A Driver; one with mistakes has them in `mistakes`, and does nobody else any harm.

    Its metadata are the API server's, which may be newer and have fields that we never heard of.
    """
    metadata = _part(data, "metadata")
    name = _text(metadata, "name")
    driver, mistakes = None, ""
    try:
        driver = parse({**data, "metadata": {"name": name}}, where=f"driver {name}")
    except SpecError as error:
        mistakes = str(error)
    return DriverObject(
        name=name,
        uid=_text(metadata, "uid"),
        generation=int(metadata.get("generation") or 0),
        created=_text(metadata, "creationTimestamp"),
        deleting="deletionTimestamp" in metadata,
        leave_modules=_part(metadata, "annotations").get(LEAVE_MODULES) == "true",
        finalizers=tuple(metadata.get("finalizers") or ()),
        driver=driver,
        mistakes=mistakes,
        status=_part(data, "status"),
        version=str(metadata.get("resourceVersion") or ""),
    )


def daemonset_from(data: Document) -> DaemonSetObject:
    metadata = _part(data, "metadata")
    labels, notes = _part(metadata, "labels"), _part(metadata, "annotations")
    name = _text(metadata, "name")
    return DaemonSetObject(
        name=name,
        uid=_text(metadata, "uid"),
        driver=_text(labels, DRIVER_LABEL),
        pool=Pool(
            _text(notes, ARCHITECTURE_NOTE),
            _text(notes, OS_VERSION_NOTE),
            _text(notes, KERNEL_NOTE),
        ),
        revision=_text(labels, REVISION_LABEL),
        assignment=name.rpartition("-")[2],
        applied=_text(notes, APPLIED_NOTE),
        toolkit=_text(notes, TOOLKIT_NOTE),
        link=_text(notes, LINK_NOTE),
        fell_back=_text(notes, FELL_BACK_NOTE),
        refused=read_refused(str(notes.get(REFUSED_NOTE) or "")),
        deleting="deletionTimestamp" in metadata,
        touched=_touched(metadata),
        spec=_part(data, "spec"),
        kept=kept_from(data),
    )


def node_driver_from(data: Document) -> NodeDriverObject | None:
    """A NodeDriver; None if its name is not `<driver>.<node>`.

    Of whom it speaks its name says, which the admission policy ties to the pod that writes it.
    """
    metadata, status = _part(data, "metadata"), _part(data, "status")
    name = _text(metadata, "name")
    driver, _, node = name.partition(".")
    if not node or not _DRIVER_NAME.fullmatch(driver):
        return None
    return NodeDriverObject(
        name=name,
        driver=intern(driver),
        node=intern(node),
        state=_said(status, "state"),
        boot_id=_said(status, "bootId"),
        kernel=_said(status, "kernel"),
        revision=_said(status, "revision"),
        version=_said(status, "version"),
        source=_said(status, "source"),
        toolkit=_said(status, "toolkit"),
        reason=_said(status, "reason"),
        message=_said(status, "message"),
        hint=_said(status, "hint"),
        said=_touched(metadata),
    )


def unless_mirror(read: Callable[[Document], T]) -> Callable[[Document], T | None]:
    """`read` pods, but none that shows a file of a kubelet: whoever is root on its node wrote it,
    perhaps with a name and labels of ours. Pods of ours are made through the API server."""

    def trim(data: Document) -> T | None:
        notes = _part(_part(data, "metadata"), "annotations")
        return None if MIRROR in notes else read(data)

    return trim


def job_from(data: Document) -> JobObject:
    metadata, status = _part(data, "metadata"), _part(data, "status")
    failed = _condition(status, "Failed")
    gave_up = failed.get("status") == "True"
    return JobObject(
        name=_text(metadata, "name"),
        uid=_text(metadata, "uid"),
        driver=_text(_part(metadata, "labels"), DRIVER_LABEL),
        revision=_text(_part(metadata, "labels"), REVISION_LABEL),
        deleting="deletionTimestamp" in metadata,
        finished=gave_up or _condition(status, "Complete").get("status") == "True",
        why=_words(failed) if gave_up else "",
        outcome=read_message(str(_part(metadata, "annotations").get(OUTCOME_NOTE, ""))),
    )


def revision_from(data: Document) -> RevisionObject:
    metadata, files = _part(data, "metadata"), _part(data, "data")
    labels = _part(metadata, "labels")
    return RevisionObject(
        name=_text(metadata, "name"),
        driver=_text(labels, DRIVER_LABEL),
        revision=_text(labels, REVISION_LABEL),
        document=str(files.get("driver.yaml", files.get(POLICY_KEY, ""))),
        uid=_text(metadata, "uid"),
    )


def image_stream_from(data: Document) -> ImageStream:
    """The tags whose images are named by a pull spec; an empty tag name has been seen, and is none.

    The registry's own copy (`status.tags`) is not needed: nodes pull the release's image.
    """
    metadata = _part(data, "metadata")
    tags: dict[str, str] = {}
    for tag in _part(data, "spec").get("tags") or ():
        source = _part(tag, "from")
        if tag.get("name") and source.get("kind") == "DockerImage" and source.get("name"):
            tags[str(tag["name"])] = str(source["name"])
    return ImageStream(f"{_text(metadata, 'namespace')}/{_text(metadata, 'name')}", tags)


def toolkit_labels_from(data: Document, image: str) -> ToolkitLabels | None:
    """Of an ImageStreamTag; None while the image that it has is not the one that its tag names.

    That is so until a tag that moved was imported: the two have generations. A list of images for
    several architectures has no labels of its own.
    https://docs.redhat.com/en/documentation/openshift_container_platform/4.18/html/image_apis/imagestreamtag-image-openshift-io-v1
    """
    tag = _part(data, "tag")
    wanted = tag.get("generation")
    if wanted is not None and data.get("generation") != wanted:
        return None
    if _part(tag, "from").get("name") not in (None, image):
        return None
    metadata = _part(_part(data, "image"), "dockerImageMetadata")
    labels = _part(_part(metadata, "Config"), "Labels")
    return ToolkitLabels(_text(labels, "kernel-version"), _text(labels, "kernel-rt-version"))


def _part(data: Document, key: str) -> Document:
    found = data.get(key)
    return found if isinstance(found, Mapping) else NOTHING


def _text(data: Document, key: str) -> str:
    """One copy in memory of what 5,000 objects repeat."""
    return intern(str(data.get(key) or ""))


def _said(data: Document, key: str) -> str:
    """A text of a node, as long as nodes of ours write it; older ones wrote more."""
    return intern(_harmless(str(data.get(key) or "")))


def _harmless(text: str) -> str:
    """What a node says comes into Events, conditions and terminals: no escape sequences."""
    text = text[:REPORT_TEXT]
    return text if text.isprintable() else _UNPRINTABLE.sub("\ufffd", text)


def _word(data: Document, key: str, words: re.Pattern[str] = _UNAME) -> str:
    """A word of `uname`, "" if it cannot be one: it goes into the pull spec of a toolkit image."""
    found = str(data.get(key) or "")
    return intern(found) if words.fullmatch(found) else ""


def _condition(status: Document, kind: str) -> Document:
    found = (c for c in status.get("conditions") or () if c.get("type") == kind)
    return next(found, NOTHING)


def _touched(metadata: Document, by: str = "") -> float:
    """When anybody, or `by`, changed a field: the API server keeps that for each field manager.

    https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
    """
    entries = metadata.get("managedFields") or ()
    times = (_seconds(e.get("time")) for e in entries if by in ("", e.get("manager")))
    return max(times, default=0.0)


def _labelled(metadata: Document) -> float:
    """When we changed a label of a node, or when it was at the latest.

    Of more than ten who update an object the API server puts the oldest together, with the time of
    the last of them. capmanagers.go in
    https://github.com/kubernetes/apimachinery/tree/master/pkg/util/managedfields/internal
    """
    return _touched(metadata, by=FIELD_MANAGER) or _touched(metadata, by=_ANCIENT)


_ANCIENT = "ancient-changes"


@lru_cache(maxsize=1024)
def _seconds(moment: str | None) -> float:
    """A metav1.Time by the wall clock; 0 for none."""
    with suppress(TypeError, ValueError):
        return float(timegm(strptime(moment or "", "%Y-%m-%dT%H:%M:%SZ")))
    return 0.0
