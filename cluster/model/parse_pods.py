"""Parses pods from the API server's JSON: driver pods, build pods, unload pods, consumers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from sys import intern
from typing import Any, Final, TypeVar

from cluster.model.json_fields import make_printable, parse_time, part, text
from cluster.model.names import (
    DRIVER_LABEL,
    MANAGED_BY,
    MANAGER,
    NAMESPACE,
    REVISION_LABEL,
    STAGE_LABEL,
    STAGE_MANAGER,
    TOOLKIT_CONTAINER,
    TRUSTED_CONTAINERS,
    UNLOAD_LABEL,
)
from cluster.model.pod_demand import PodDemand
from cluster.model.snapshot import (
    EMPTY,
    BuildPod,
    Consumer,
    Document,
    DriverPod,
    NamespacedName,
    UnloadPod,
)
from cluster.model.waiting import CRASH_LOOP, Crash, Waiting
from nodeside.protocol.build_job import read_outcome
from nodeside.spec.fleet import DEVICES_STAGE


def pod_from(data: Document) -> DriverPod | UnloadPod:
    labels = part(part(data, "metadata"), "labels")
    return _unload_pod_from(data) if labels.get(UNLOAD_LABEL) else daemon_pod_from(data)


def daemon_pod_from(data: Document) -> DriverPod:
    """Parse a pod of a DaemonSet, of a Driver or of a stage."""
    owners = part(data, "metadata").get("ownerReferences") or ()
    daemonset = next((text(o, "name") for o in owners if o.get("kind") == "DaemonSet"), "")
    creating = _describe_creation(part(data, "status"))
    return DriverPod(**_common_fields(data), daemonset=daemonset, creating=creating)


def _unload_pod_from(data: Document) -> UnloadPod:
    status, labels = part(data, "status"), part(part(data, "metadata"), "labels")
    phase, ended = str(status.get("phase") or ""), _terminated_state(status)
    code = ended.get("exitCode")
    return UnloadPod(
        **_common_fields(data),
        mark=str(labels[UNLOAD_LABEL]),
        revision=str(labels.get(REVISION_LABEL) or ""),
        phase=phase,
        code=int(code) if code is not None else None,
        ended=_termination_reason(status, ended) if phase == "Failed" else "",
    )


def _common_fields(data: Document) -> dict[str, Any]:
    """Return the fields of PodObject."""
    metadata, spec, status = (part(data, name) for name in ("metadata", "spec", "status"))
    labels = part(metadata, "labels")
    is_ours = labels.get(STAGE_LABEL, DEVICES_STAGE) == DEVICES_STAGE
    waiting = _waiting_containers(status, is_ours=is_ours)
    if STAGE_LABEL not in labels and _toolkit_was_killed(status):
        waiting = {name: why for name, why in waiting.items() if name != TOOLKIT_CONTAINER}
    return {
        "name": text(metadata, "name"),
        "namespace": text(metadata, "namespace"),
        "uid": text(metadata, "uid"),
        "driver": text(labels, DRIVER_LABEL),
        "node": text(spec, "nodeName") or _pinned_to(spec),
        "deleting": "deletionTimestamp" in metadata,
        "created": parse_time(metadata.get("creationTimestamp")),
        "waiting": waiting,
    }


# 128 + SIGKILL. Container runtimes may lose the event that makes this "OOMKilled"
# (containerd#12714).
_KILLED: Final = 137


def build_pod_from(data: Document) -> BuildPod:
    """Parse a pod of a build Job. Only containers that run no vendor code are trusted."""
    metadata, status = part(data, "metadata"), part(data, "status")
    owners = metadata.get("ownerReferences") or ()
    outcome, ended = None, ""
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or ():
            end, name = part(part(container, "state"), "terminated"), str(container.get("name"))
            said = str(end.get("message") or "") if name in TRUSTED_CONTAINERS else ""
            if message := read_outcome(said):
                outcome = message
            elif end.get("exitCode"):
                ended = f"{name}: {end.get('reason')}, exit code {end['exitCode']}"
                if end.get("reason") == "OOMKilled":
                    ended += ": out of memory; raise build.memoryLimitMib of the Driver"
                elif end["exitCode"] == _KILLED:
                    ended += ": killed; if for memory, raise build.memoryLimitMib of the Driver"
    return BuildPod(
        name=text(metadata, "name"),
        job=next((text(o, "name") for o in owners if o.get("kind") == "Job"), ""),
        driver=text(part(metadata, "labels"), DRIVER_LABEL),
        created=parse_time(metadata.get("creationTimestamp")),
        waiting=_waiting_containers(status, is_ours=True),
        outcome=outcome,
        ended=make_printable(ended or text(status, "reason")),
    )


def _pinned_to(spec: Document) -> str:
    """Return the node to which the DaemonSet controller pins an unbound pod by affinity."""
    required = part(part(part(spec, "affinity"), "nodeAffinity"), _REQUIRED)
    for term in required.get("nodeSelectorTerms") or ():
        for match in term.get("matchFields") or ():
            if match.get("key") == "metadata.name" and match.get("values"):
                return intern(str(match["values"][0]))
    return ""


_STARTING: Final = ("ContainerCreating", "PodInitializing")
PULLING: Final = "pulling images"
CREATING: Final = "creating containers, which pulls images"

_CONTAINERS: Final = 64  # of a kind in a pod; its kubelet may report any number, with any name
_NAME: Final = 63  # characters
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _waiting_containers(status: Document, *, is_ours: bool) -> Mapping[str, Waiting]:
    """Return why containers wait, except those that are just starting.

    `is_ours`: they run nodeside, and end with its exit codes.
    """
    reasons: dict[str, Waiting] = {}
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in islice(status.get(kind) or (), _CONTAINERS):
            waiting = part(part(container, "state"), "waiting")
            if waiting.get("reason") not in (None, "", *_STARTING):
                why = replace(_waiting_for(waiting), crash=_crash_of(container, is_ours=is_ours))
                reasons[make_printable(str(container.get("name"))[:_NAME])] = why
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            reasons["pod"] = _waiting_for(condition)
    return reasons or EMPTY


def _describe_creation(status: Document) -> str:
    """Return what the kubelet does before all containers of a pod run, "" if nothing is known.

    Once a pod is ready to start containers, its volumes and network are there, and images are left.
    Kubelets before 1.35 say so only after the pull.
    """
    states = [
        part(container, "state")
        for kind in ("initContainerStatuses", "containerStatuses")
        for container in islice(status.get(kind) or (), _CONTAINERS)
    ]
    inits = len(status.get("initContainerStatuses") or ())
    if any(part(state, "running") for state in states[:inits]):
        return ""  # the others have to wait for it
    if not any(part(state, "waiting").get("reason") in _STARTING for state in states):
        return ""
    is_set_up = any(
        condition.get("type") == "PodReadyToStartContainers" and condition.get("status") == "True"
        for condition in status.get("conditions") or ()
    )
    return PULLING if is_set_up else CREATING


def _waiting_for(cause: Document) -> Waiting:
    return Waiting(
        make_printable(str(cause.get("reason"))), make_printable(str(cause.get("message") or ""))
    )


def _crash_of(container: Document, *, is_ours: bool) -> Crash | None:
    """Return how a container in a crash loop ended last, None if it is in none."""
    end = part(part(container, "lastState"), "terminated")
    waiting = part(part(container, "state"), "waiting")
    code, restarts = end.get("exitCode"), container.get("restartCount")
    if waiting.get("reason") != CRASH_LOOP or not isinstance(code, int):
        return None
    return Crash(
        code,
        make_printable(str(end.get("reason") or "")),
        make_printable(" ".join(str(end.get("message") or "").split())[:_LINE]),
        restarts if isinstance(restarts, int) else 0,
        is_ours,
    )


def _toolkit_was_killed(status: Document) -> bool:
    """Return whether SIGKILL ended the toolkit container of a driver pod, mostly for its memory.

    The driver container reports that and builds again with fewer jobs, unless it waits itself.
    """
    return any(
        container.get("name") == TOOLKIT_CONTAINER
        and part(part(container, "lastState"), "terminated").get("exitCode") == _KILLED
        and part(part(container, "state"), "waiting").get("reason") == CRASH_LOOP
        for container in islice(status.get("containerStatuses") or (), _CONTAINERS)
    )


_MESSAGE: Final = 4096  # bytes of a termination message, by the kubelet
_LINE: Final = 300  # characters of its last line


def failure_in_words(status: Document) -> str:
    """Return how a container of a pod failed, with the last line of its termination message."""
    words = ""
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in islice(status.get(kind) or (), _CONTAINERS):
            ends = (part(part(container, each), "terminated") for each in ("state", "lastState"))
            end = next((each for each in ends if each.get("exitCode")), EMPTY)
            if end:
                lines = str(end.get("message") or "")[-_MESSAGE:].strip().splitlines()
                said = f": {lines[-1][:_LINE]}" if lines else ""
                name = str(container.get("name"))[:_NAME]
                words = f"{name}: {end.get('reason')}, exit code {end['exitCode']}{said}"
    return make_printable(words or (cause_in_words(status) if status.get("reason") else ""))


def cause_in_words(cause: Document) -> str:
    return str(_waiting_for(cause))


def _terminated_state(status: Mapping[str, Any]) -> Mapping[str, Any]:
    for container in status.get("containerStatuses") or ():
        terminated: Mapping[str, Any] = (container.get("state") or {}).get("terminated") or {}
        return terminated
    return {}


def _termination_reason(status: Mapping[str, Any], ended: Mapping[str, Any]) -> str:
    """Return the kubelet's own reason (an eviction), else how the container ended."""
    reasons = [str(status[key]) for key in ("reason", "message") if status.get(key)]
    code = ended.get("exitCode")
    if not reasons and isinstance(code, int):
        meaning = Crash(code, str(ended.get("reason") or ""), is_ours=True).meaning
        reasons = [f"exit code {code} ({meaning})"]
    return make_printable(": ".join(reasons)) or "no reason was given"


# The field selector of pods that are bound to a node and have not ended.
RUNNING_PODS: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


# Marks a mirror pod of a kubelet's static pod file; only the kubelet may set or remove it.
MIRROR: Final = "kubernetes.io/config.mirror"


_NONE = ("0", "")


def pod_name(document: Mapping[str, Any]) -> str:
    """Return namespace/name, since pod names are unique only within their namespace."""
    return str(_namespaced_name(document))


def _namespaced_name(document: Mapping[str, Any]) -> NamespacedName:
    metadata = document.get("metadata", {})
    namespace, name = str(metadata.get("namespace", "")), str(metadata.get("name", ""))
    return NamespacedName(intern(namespace), name)


def consumer_from(
    document: Mapping[str, Any], demand: PodDemand, ours: str = NAMESPACE
) -> Consumer | None:
    """Return the parts of a pod that match this demand; None if nothing matches.

    `ours` is the controller's namespace: only there do labels say that a pod is one of ours.
    If the demand names drivers of dynamic resource allocation, every pod with claims is kept;
    `with_claims` finds out what they are for.
    """
    metadata, spec = document["metadata"], document.get("spec", {})
    if demand.namespaces and metadata.get("namespace") not in demand.namespaces:
        return None
    labels = metadata.get("labels") or EMPTY
    resources = demand.resources & _requested_resources(spec) if demand.resources else frozenset()
    selectors = [selector for selector in demand.selectors if selector <= labels.items()]
    is_asked_for = resources or selectors or (demand.by_claims and _has_claims(document))
    if not is_asked_for or not spec.get("nodeName") or _may_stay(document, ours):
        return None
    return Consumer(
        pod=_namespaced_name(document),
        uid=str(metadata.get("uid", "")),
        node=intern(str(spec["nodeName"])),
        resources=frozenset(intern(each) for each in resources),
        labels={intern(k): intern(v) for selector in selectors for k, v in selector} or EMPTY,
        deleting="deletionTimestamp" in metadata,
    )


def _requested_resources(spec: Mapping[str, Any]) -> frozenset[str]:
    """Return the requested resources; for an extended resource, request and limit are equal."""
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    return frozenset(
        name
        for container in containers
        for name, amount in ((container.get("resources") or {}).get("requests") or {}).items()
        if str(amount) not in _NONE
    )


def _has_claims(document: Mapping[str, Any]) -> bool:
    """Return whether a pod has claims of its own, or one for an extended resource."""
    status = document.get("status") or {}
    return bool(
        (document.get("spec") or {}).get("resourceClaims")
        or status.get("extendedResourceClaimStatus")
    )


def _may_stay(document: Mapping[str, Any], ours: str) -> bool:
    """Return whether the pod need not or must not be evicted."""
    metadata = document["metadata"]
    labels, owners = metadata.get("labels") or EMPTY, metadata.get("ownerReferences") or ()
    manager = labels.get(MANAGED_BY) if metadata.get("namespace") == ours else None
    # A Job of a stage, which an eviction might fail, ends with its stage.
    kinds = ("DaemonSet", "Job") if manager == STAGE_MANAGER else ("DaemonSet",)
    return (
        document.get("status", {}).get("phase") in ("Succeeded", "Failed")
        or MIRROR in (metadata.get("annotations") or ())
        or manager == MANAGER
        or any(o.get("kind") in kinds and o.get("controller") for o in owners)
    )


T = TypeVar("T")


def skip_mirror_pods(parse: Callable[[Document], T]) -> Callable[[Document], T | None]:
    """Return a parser that skips mirror pods and passes other pods to `parse`.

    Root on a node can write static pod files with our names and labels. Our own pods are always
    created through the API server.
    """

    def parse_unless_mirror(data: Document) -> T | None:
        notes = part(part(data, "metadata"), "annotations")
        return None if MIRROR in notes else parse(data)

    return parse_unless_mirror
