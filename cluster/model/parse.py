"""Parses the API server's JSON into the values of snapshot.py.

Each `*_from` takes an object and keeps only the fields that are used, about 1% of a Node. The
reflectors call them once for each object they receive.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from sys import intern
from typing import Any

from cluster.kube.managed_fields import FIELD_MANAGER, object_meta_from
from cluster.kube.quantity import parse_quantity
from cluster.model.json_fields import condition_of, parse_time, part, report_text, text, uname_field
from cluster.model.labelmap import labels_of
from cluster.model.names import (
    APPLIED_NOTE,
    ARCHITECTURE_NOTE,
    DRIVER_LABEL,
    FELL_BACK_NOTE,
    JOB_NOTE,
    KERNEL_NOTE,
    LEAVE_MODULES,
    LINK_NOTE,
    MANAGED_BY,
    NODE_NOTE,
    OS_VERSION_NOTE,
    OUTCOME_NOTE,
    POLICY_KEY,
    REVISION_LABEL,
    RUN_MARK_NOTE,
    STAGE_LABEL,
    STAGE_MANAGER,
    TOOLKIT_NOTE,
    assignment_of,
)
from cluster.model.parse_pods import cause_in_words
from cluster.model.retries import REBUILD_NOTE, RETRY_NOTE, parse_rebuild, parse_retries
from cluster.model.snapshot import (
    EMPTY,
    BuildJob,
    DaemonSetObject,
    Document,
    DriverObject,
    ImageStream,
    Node,
    NodeReport,
    Pool,
    RevisionObject,
    StageJob,
    StageRun,
    Taint,
    ToolkitLabels,
)
from nodeside.errors import SpecError
from nodeside.protocol.build_job import read_outcome
from nodeside.protocol.labels import parse_node_driver_name
from nodeside.spec import parse
from nodeside.spec.image_names import DIGEST

_RESOURCES = 256  # of a node
_SERVICES = 16  # of a driver on a node
_PARAMETERS = 16  # of a driver on a node
_COUNT = 1 << 32  # of one resource; a sum over all nodes fits into 64 bits
# The kubelet uses Go's architecture names; we use those of `uname -m`.
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
_ARCHITECTURE = re.compile(r"[a-z0-9]([a-z0-9_]{0,30}[a-z0-9])?")
_DRIVER_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


def node_from(data: Document) -> Node:
    metadata, status = part(data, "metadata"), part(data, "status")
    info = part(status, "nodeInfo")
    architecture = uname_field(
        info, "architecture", _ARCHITECTURE
    )  # the node selector of build Jobs
    ready = condition_of(status, "Ready")
    return Node(
        name=text(metadata, "name"),
        uid=text(metadata, "uid"),
        labels=labels_of(part(metadata, "labels")),
        # Without a valid architecture there is nothing to build for.
        kernel=uname_field(info, "kernelVersion") if architecture else "",
        os_image=report_text(info, "osImage"),
        architecture=intern(_ARCHITECTURES.get(architecture, architecture)),
        boot_id=report_text(info, "bootID"),
        ready=ready.get("status") == "True",
        ready_since=parse_time(ready.get("lastTransitionTime")),
        unschedulable=bool(part(data, "spec").get("unschedulable")),
        capacity=_extended_resources(part(status, "capacity")),
        allocatable=_extended_resources(part(status, "allocatable")),
        taints=tuple(_lasting_taints(part(data, "spec").get("taints") or ())),
        labelled=_last_labelled(metadata),
    )


def _lasting_taints(taints: Sequence[Document]) -> Iterator[Taint]:
    """Yield the taints that keep pods away, except those that come and go with a node's state."""
    for taint in islice(taints, _TAINTS):
        key, value, effect = (text(taint, name) for name in ("key", "value", "effect"))
        if effect in ("NoSchedule", "NoExecute") and not _OF_A_STATE.fullmatch(key):
            yield Taint(key, value, effect)


_TAINTS = 64  # of a node
# Of Kubernetes, of a cloud's controller, of autoscalers, and of what a node needs before any pod.
_OF_A_STATE = re.compile(
    r"node\.kubernetes\.io/.*|node\.cloudprovider\.kubernetes\.io/.*|.*ClusterAutoscaler.*"
    r"|karpenter\.sh/.*|.*/agent-not-ready|[^/]*/(.*[-.])?startup([-.]taint)?"
)


def _extended_resources(resources: Document) -> Mapping[str, int]:
    """Return the extended resources: those whose name has a domain that is not Kubernetes' own."""
    names = [name for name in resources if "/" in name and "kubernetes.io/" not in name]
    found = {intern(name): parse_quantity(resources[name]) for name in names[:_RESOURCES]}
    counts = {
        name: max(0, min(int(count), _COUNT)) for name, count in found.items() if count is not None
    }
    return counts or EMPTY


def driver_from(data: Document) -> DriverObject:
    """Parse a Driver. An invalid one has its errors in `mistakes` and does not affect others.

    If a bug of ours made it vanish, its objects would be removed as leftovers. Its metadata is not
    validated: a newer API server may have fields that are unknown here.
    """
    metadata = part(data, "metadata")
    name, notes = text(metadata, "name"), part(metadata, "annotations")
    driver, mistakes = None, ""
    try:
        driver = parse({**data, "metadata": {"name": name}}, where=f"driver {name}")
    except SpecError as error:
        mistakes = str(error)
    except Exception as exc:
        traceback.print_exc()
        mistakes = f"a bug in nodeside, please report it with the controller's log: {exc!r}"
    return DriverObject(
        name=name,
        uid=text(metadata, "uid"),
        generation=int(metadata.get("generation") or 0),
        created=text(metadata, "creationTimestamp"),
        deleting="deletionTimestamp" in metadata,
        leave_modules=notes.get(LEAVE_MODULES) == "true",
        retries=parse_retries(text(notes, RETRY_NOTE)),
        rebuild=parse_rebuild(text(notes, REBUILD_NOTE)),
        finalizers=tuple(metadata.get("finalizers") or ()),
        driver=driver,
        mistakes=mistakes,
        status=part(data, "status"),
        version=str(metadata.get("resourceVersion") or ""),
    )


def daemonset_from(data: Document) -> DaemonSetObject:
    metadata = part(data, "metadata")
    labels, notes = part(metadata, "labels"), part(metadata, "annotations")
    name = text(metadata, "name")
    return DaemonSetObject(
        name=name,
        uid=text(metadata, "uid"),
        driver=text(labels, DRIVER_LABEL),
        pool=Pool(
            text(notes, ARCHITECTURE_NOTE),
            text(notes, OS_VERSION_NOTE),
            text(notes, KERNEL_NOTE),
        ),
        revision=text(labels, REVISION_LABEL),
        assignment=assignment_of(name),
        applied=text(notes, APPLIED_NOTE),
        toolkit=text(notes, TOOLKIT_NOTE),
        link=text(notes, LINK_NOTE),
        fell_back=text(notes, FELL_BACK_NOTE),
        deleting="deletionTimestamp" in metadata,
        touched=_last_changed(metadata),
        applied_at=_last_changed(metadata, by=FIELD_MANAGER),
        spec=part(data, "spec"),
        meta=object_meta_from(data),
    )


def node_driver_from(data: Document) -> NodeReport | None:
    """Parse a NodeDriver; None if its name is not `<driver>.<node>`.

    Driver and node are taken from the name, which the admission policy ties to the writing pod.
    """
    metadata, status = part(data, "metadata"), part(data, "status")
    name = text(metadata, "name")
    driver, node = parse_node_driver_name(name)
    if not node or not _DRIVER_NAME.fullmatch(driver):
        return None
    return NodeReport(
        name=name,
        driver=intern(driver),
        node=intern(node),
        state=report_text(status, "state"),
        boot_id=report_text(status, "bootId"),
        kernel=report_text(status, "kernel"),
        revision=report_text(status, "revision"),
        version=report_text(status, "version"),
        source=report_text(status, "source"),
        toolkit=report_text(status, "toolkit"),
        reason=report_text(status, "reason"),
        message=report_text(status, "message"),
        hint=report_text(status, "hint"),
        services=tuple(_service_lines(status)),
        parameters=_parameter_lines(status),
        time=_last_changed(metadata),
    )


def _parameter_lines(status: Document) -> tuple[str, ...]:
    """Return what a node says of the parameters of modules, a line for each."""
    listed = status.get("parameters")
    rows = (listed if isinstance(listed, list) else [])[:_PARAMETERS]
    texts = (report_text({"line": row}, "line").partition("\n")[0] for row in rows)
    return tuple(filter(None, texts))


def _service_lines(status: Document) -> Iterator[str]:
    """Yield what a node says of each service, on one line."""
    listed = status.get("services")
    for row in (listed if isinstance(listed, list) else [])[:_SERVICES]:
        if not isinstance(row, Mapping):
            continue
        state = "ready" if row.get("ready") is True else "not ready"
        restarts = row.get("restarts")
        if isinstance(restarts, int) and restarts > 0:
            state += f", started again {'once' if restarts == 1 else f'{restarts} times'}"
        message = report_text(row, "message").partition("\n")[0]
        yield f"{report_text(row, 'name')}: {state}" + (message and f": {message}")


def job_from(data: Document) -> BuildJob | StageJob:
    metadata, status = part(data, "metadata"), part(data, "status")
    labels, notes = part(metadata, "labels"), part(metadata, "annotations")
    failed = condition_of(status, "Failed")
    gave_up = failed.get("status") == "True"
    common: dict[str, Any] = {
        "name": text(metadata, "name"),
        "uid": text(metadata, "uid"),
        "driver": text(labels, DRIVER_LABEL),
        "deleting": "deletionTimestamp" in metadata,
        "finished": gave_up or condition_of(status, "Complete").get("status") == "True",
        "why": cause_in_words(failed) if gave_up else "",
    }
    if labels.get(MANAGED_BY) == STAGE_MANAGER:
        words = (text(notes, key) for key in (JOB_NOTE, NODE_NOTE, RUN_MARK_NOTE))
        return StageJob(**common, run=StageRun(text(labels, STAGE_LABEL), *words))
    return BuildJob(
        **common,
        revision=text(labels, REVISION_LABEL),
        outcome=read_outcome(str(notes.get(OUTCOME_NOTE, ""))),
        applied=text(notes, APPLIED_NOTE),
    )


def revision_from(data: Document) -> RevisionObject:
    metadata, files = part(data, "metadata"), part(data, "data")
    labels = part(metadata, "labels")
    return RevisionObject(
        name=text(metadata, "name"),
        driver=text(labels, DRIVER_LABEL),
        revision=text(labels, REVISION_LABEL),
        document=str(files.get("driver.yaml", files.get(POLICY_KEY, ""))),
        uid=text(metadata, "uid"),
        created=text(metadata, "creationTimestamp"),
        stamp=object_meta_from(data).last_write,
    )


def image_stream_from(data: Document) -> ImageStream:
    """Parse the tags with their pull specs. Tags with an empty name occur and are ignored.

    A tag of a release names its image in the spec, which nodes pull. A tag that was pushed, as at a
    site with a mirror, and one that is an alias of another tag, have theirs in the status only.
    """
    metadata = part(data, "metadata")
    tags: dict[str, str] = {}
    for tag in part(data, "spec").get("tags") or ():
        source = part(tag, "from")
        if tag.get("name") and source.get("kind") == "DockerImage" and source.get("name"):
            tags[str(tag["name"])] = str(source["name"])
    for tag in part(data, "status").get("tags") or ():
        newest = next(iter(tag.get("items") or ()), EMPTY).get("dockerImageReference")
        if tag.get("tag") and newest:
            tags.setdefault(str(tag["tag"]), str(newest))
    return ImageStream(f"{text(metadata, 'namespace')}/{text(metadata, 'name')}", tags)


def toolkit_labels_from(data: Document, image: str) -> ToolkitLabels | None:
    """Parse the labels of an ImageStreamTag; None while its image is not the one its tag names.

    That is the case until a moved tag is imported; their generations differ until then. An image
    of several architectures has no labels of its own, see `architecture_digests_from`.
    https://docs.redhat.com/en/documentation/openshift_container_platform/4.18/html/image_apis/imagestreamtag-image-openshift-io-v1
    """
    tag = part(data, "tag")
    generation = tag.get("generation")
    if generation is not None and data.get("generation") != generation:
        return None
    source = part(tag, "from")
    named = source.get("name") if source.get("kind") == "DockerImage" else None
    if (named or part(data, "image").get("dockerImageReference")) not in (None, image):
        return None
    return image_labels_from(data)


def image_labels_from(data: Document) -> ToolkitLabels:
    """Parse the labels of the image of an ImageStreamTag or an ImageStreamImage.

    A label that is no kernel release becomes "", since whoever made the image may write anything.
    """
    metadata = part(part(data, "image"), "dockerImageMetadata")
    labels = part(part(metadata, "Config"), "Labels")
    return ToolkitLabels(
        uname_field(labels, "kernel-version"), uname_field(labels, "kernel-rt-version")
    )


def architecture_digests_from(data: Document) -> Mapping[str, str]:
    """Parse the digest of each architecture's image of an ImageStreamTag.

    Only an image of several architectures has them, imported with `importMode: PreserveOriginal`.
    https://docs.redhat.com/en/documentation/openshift_container_platform/4.18/html/image_apis/image-image-openshift-io-v1
    """
    return {
        _ARCHITECTURES[each["architecture"]]: each["digest"]
        for each in islice(part(data, "image").get("dockerImageManifests") or (), _MANIFESTS)
        if str(each.get("architecture")) in _ARCHITECTURES
        and each.get("os") in (None, "", "linux")
        and _DIGEST.fullmatch(str(each.get("digest")))
    }


_MANIFESTS = 64
_DIGEST = re.compile(DIGEST)


def _last_changed(metadata: Document, by: str = "") -> float:
    """Return when any manager, or `by`, last changed a field, as managedFields records it.

    https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
    """
    entries = metadata.get("managedFields") or ()
    times = (parse_time(e.get("time")) for e in entries if by in ("", e.get("manager")))
    return max(times, default=0.0)


def _last_labelled(metadata: Document) -> float:
    """Return when we last changed a label of a node, or an upper bound for that time.

    If more than ten managers update an object, the API server merges the oldest entries into one,
    with the latest of their times. capmanagers.go in
    https://github.com/kubernetes/apimachinery/tree/master/pkg/util/managedfields/internal
    """
    return _last_changed(metadata, by=FIELD_MANAGER) or _last_changed(metadata, by=_ANCIENT)


_ANCIENT = "ancient-changes"
