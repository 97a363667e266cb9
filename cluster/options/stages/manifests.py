"""The objects of a stage: its documents, checked, marked as ours, and gated.

Pure. A stage may have only the kinds that RBAC grants the controller. A DaemonSet or Job gets a
node selector, which limits its pods to nodes where the driver and the previous stage are ready.
After a reboot the labels still describe the previous boot, so it also gets an init container that
waits for the ready file of this boot, and for an annotation by which the controller says in which
boot the previous stage became ready.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from cluster.driver.daemonset import document_digest
from cluster.driver.pod import unprivileged_context
from cluster.driver.pod_policy import container_resources, pods_of
from cluster.driver.revisions import owner_references
from cluster.model.names import (
    ADMITTED_NOTE,
    APPLIED_NOTE,
    CONTROLLER,
    DEVICE_AGENT,
    DRIVER_LABEL,
    MANAGED_BY,
    STAGE_LABEL,
    STAGE_MANAGER,
    STAGE_READY,
    STAGES_CLOSED,
    closed_label,
    stage_label,
)
from cluster.model.snapshot import DriverObject, Settings
from cluster.model.stages import ALLOWED, OPTIONAL, FramedDocuments, key_of
from cluster.options.stages.job_manifests import complete_job, job_problems
from cluster.render.templates import StageInvalid
from nodeside.protocol.labels import ADMITTED_VARIABLE, state_label
from nodeside.protocol.node_status import State
from nodeside.spec import Driver
from nodeside.spec.patterns import PULL_SPEC
from nodeside.spec.pods import Pods

Document = dict[str, Any]

GATE: Final = "nodeside-wait"  # the init container
_RUN: Final = "nodeside-run"  # its volumes
_ADMITTED: Final = "nodeside-admitted"
_ADMITTED_AT: Final = "/etc/nodeside-admitted"
_GATE_SECONDS = 3600  # then the gate reports a timeout and the kubelet restarts it
_GATE_USER = 65532
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_KINDS = {(each.api_version, each.kind): each for each in ALLOWED}
_ORDER = {each.kind: position for position, each in enumerate(ALLOWED)}
_OPTIONAL = frozenset(each.kind for each in OPTIONAL)
_WORKLOADS = ("DaemonSet", "Deployment", "Job")
_GATED = ("DaemonSet", "Job")
# The lists of a pod spec that we read or extend.
_LISTS = ("containers", "initContainers", "volumes", "imagePullSecrets", "tolerations")
AFFINITY: Final = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class Frame:
    """The context that a stage's documents are completed with. `driver` is of the good revision.

    `after` is the previous stage with pods on nodes, "" for none.
    """

    owner: DriverObject
    driver: Driver
    stage: str
    after: str
    settings: Settings


def frame_documents(
    frame: Frame,
    config_map: str,
    documents: Sequence[tuple[str, Mapping[str, Any]]],
    absent: frozenset[str],
) -> FramedDocuments:
    """Return the objects to apply, and messages about those left out because of an absent kind.

    `documents` are those of the ConfigMap, each with its file. Raises StageInvalid.
    """
    framed: dict[tuple[str, str], Document] = {}
    skipped: list[str] = []
    for file, document in documents:
        where = f"ConfigMap {config_map}, {file}"
        _check_document(where, document, frame.settings)
        kind, name = key_of(document)
        if kind in _OPTIONAL & absent:
            skipped.append(f"{kind} {name}: this cluster has no such kind")
        elif (kind, name) in framed:
            raise StageInvalid(f"{kind} {name} is defined twice", where=where)
        else:
            framed[kind, name] = _frame_document(document, frame)
    return tuple(sorted(framed.values(), key=lambda each: _ORDER[each["kind"]])), tuple(skipped)


def frame_built_in(
    frame: Frame, documents: Sequence[Mapping[str, Any]], absent: frozenset[str]
) -> FramedDocuments:
    """Return the objects to apply of a stage whose documents our own code makes.

    Objects of kinds that the cluster does not have are left out without a message.
    """
    there = (each for each in documents if each["kind"] not in _OPTIONAL & absent)
    return tuple(_frame_document(each, frame) for each in there), ()


# --- what may be applied -------------------------------------------------------------------------


def _check_document(where: str, document: Mapping[str, Any], settings: Settings) -> None:
    for problem in _list_problems(document, settings):
        raise StageInvalid(problem, where=where)


def _list_problems(document: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    kind, version = document.get("kind"), document.get("apiVersion")
    if not isinstance(kind, str) or (str(version), kind) not in _KINDS:
        allowed = ", ".join(each.kind for each in ALLOWED)
        yield (
            f"{kind} of {version} is not a kind that a stage may have ({allowed}): "
            "apply it yourself, once, beside the Driver"
        )
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield f"{kind}: metadata.name is missing or invalid"
    assert isinstance(metadata, dict)
    namespace = metadata.get("namespace", settings.namespace)
    if namespace != settings.namespace:
        yield (
            f"{kind} {name}: a stage's objects are in namespace {settings.namespace}, "
            f"not {namespace}; omit metadata.namespace"
        )
    for field in ("finalizers", "ownerReferences", "generateName"):
        if field in metadata:
            yield f"{kind} {name}: metadata.{field} is not allowed in a stage"
    for field in ("labels", "annotations"):
        if not isinstance(metadata.get(field, {}), dict):
            yield f"{kind} {name}: metadata.{field}: expected a mapping"
    if kind in _WORKLOADS:
        yield from (f"{kind} {name}: {words}" for words in _pod_problems(document, settings))
    if kind == "Job":
        yield from (f"{kind} {name}: {words}" for words in job_problems(document))


def _pod_problems(document: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    template = _nested_part(_nested_part(document, "spec"), "template")
    pod, metadata = _nested_part(template, "spec"), _nested_part(template, "metadata")
    affinity = _nested_part(_nested_part(pod, "affinity"), "nodeAffinity")
    if not _is_template(pod, metadata) or affinity is None:
        yield "spec.template is not a valid pod template"
        return
    for key, value in pod.get("nodeSelector", {}).items():
        if not isinstance(value, str):
            yield f"nodeSelector: {key}: expected text: write the value in quotes"
    # If serviceAccountName is empty, the API server uses serviceAccount, its old name.
    account = pod.get("serviceAccountName") or pod.get("serviceAccount") or ""
    if not isinstance(account, str):
        yield "serviceAccountName: expected a string"
    if account in (CONTROLLER, DEVICE_AGENT, settings.service_account):
        yield f"the service account {account} is nodeside's own; name another one"
    yield from _image_problems(pod)
    if document["kind"] in _GATED and AFFINITY in affinity:
        yield "select nodes by nodeSelector: nodeside sets the required nodeAffinity itself"


def _image_problems(pod: Mapping[str, Any]) -> Iterator[str]:
    """Yield images that no container runtime would pull; the API server takes any text.

    The text is not repeated: it may come from a Secret.
    """
    for container in (*pod.get("initContainers", ()), *pod.get("containers", ())):
        image = container.get("image")
        if isinstance(image, str) and not PULL_SPEC.fits(image):
            remedy = PULL_SPEC.remedy(image)
            words = f"image of container {container.get('name')}: expected {PULL_SPEC.words}"
            yield f"{words}; {remedy}" if remedy else words


def _nested_part(document: Any, name: str) -> Any:
    """Return a nested mapping, empty if it is missing; None if it has another type."""
    inner = document.get(name, {}) if isinstance(document, dict) else None
    return inner if isinstance(inner, dict) else None


def _is_template(pod: Any, metadata: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether every field that we read or extend has its expected type."""
    if (
        pod is None
        or _nested_part(metadata, "labels") is None
        or _nested_part(pod, "nodeSelector") is None
    ):
        return False
    lists = [pod.get(name, []) for name in _LISTS]
    return "containers" in pod and all(
        isinstance(each, list) and all(isinstance(item, dict) for item in each) for each in lists
    )


# --- what is added -------------------------------------------------------------------------------


def _frame_document(document: Mapping[str, Any], frame: Frame) -> Document:
    """Return a copy marked as ours; a DaemonSet or Job is also gated."""
    framed = copy.deepcopy(dict(document))
    framed.pop("status", None)
    metadata = framed["metadata"]
    metadata["namespace"] = frame.settings.namespace
    metadata["labels"] = {**metadata.get("labels", {}), **_frame_labels(frame)}
    metadata["ownerReferences"] = owner_references(frame.owner)
    if framed["kind"] in _WORKLOADS:
        _frame_pod(framed, frame)
    # Computed last, so that the digest covers our additions. A Job runs again if it changes, so
    # there it covers only what its author wrote.
    content = document_digest(document if framed["kind"] == "Job" else framed)
    notes = {**metadata.get("annotations", {}), APPLIED_NOTE: content}
    metadata["annotations"] = notes
    return framed


def _frame_labels(frame: Frame) -> dict[str, str]:
    return {
        MANAGED_BY: STAGE_MANAGER,
        DRIVER_LABEL: frame.driver.name,
        STAGE_LABEL: frame.stage,
    }


def _frame_pod(document: Document, frame: Frame) -> None:
    template = document["spec"]["template"]
    pod, metadata = template["spec"], template.setdefault("metadata", {})
    metadata["labels"] = {**metadata.get("labels", {}), **_frame_labels(frame)}
    _add_pull_secrets(pod, frame.settings.pull_secrets)
    if document["kind"] == "Job":
        complete_job(document)
    if document["kind"] in _GATED:
        _gate_pod(pod, frame)


def _add_pull_secrets(pod: Document, names: Sequence[str]) -> None:
    existing = pod.get("imagePullSecrets", [])
    missing = [{"name": name} for name in names if {"name": name} not in existing]
    if missing:
        pod["imagePullSecrets"] = [*existing, *missing]


def gate_labels(driver: str, after: str) -> dict[str, str]:
    """Return the labels that a node needs for a stage to run there."""
    before = {stage_label(driver, after): STAGE_READY} if after else {}
    return {state_label(driver): State.READY.value, **before}


def _gate_pod(pod: Document, frame: Frame) -> None:
    driver = frame.driver
    pod["nodeSelector"] = {**pod.get("nodeSelector", {}), **gate_labels(driver.name, frame.after)}
    away = {"key": closed_label(driver.name), "operator": "NotIn", "values": [STAGES_CLOSED]}
    affinity = pod.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    affinity[AFFINITY] = {"nodeSelectorTerms": [{"matchExpressions": [away]}]}
    wait = _wait_container(driver, pods_of(frame.owner))
    host = {"path": "/run/nodeside", "type": "DirectoryOrCreate"}
    volumes: list[Document] = [{"name": _RUN, "hostPath": host}]
    if frame.after:
        volumes.append(_wait_for_stage(wait))
    pod["initContainers"] = [wait, *pod.get("initContainers", ())]
    pod["volumes"] = [*pod.get("volumes", ()), *volumes]


def _wait_for_stage(wait: Document) -> Document:
    """Make the container wait for the stage before as well; return the volume that it reads.

    An environment variable tells it so. An image with an older nodeside ignores that, and waits for
    the driver only.
    """
    wait["env"] = [{"name": ADMITTED_VARIABLE, "value": f"{_ADMITTED_AT}/boot"}]
    wait["volumeMounts"].append({"name": _ADMITTED, "mountPath": _ADMITTED_AT, "readOnly": True})
    field = {"fieldPath": f"metadata.annotations['{ADMITTED_NOTE}']"}
    return {"name": _ADMITTED, "downwardAPI": {"items": [{"path": "boot", "fieldRef": field}]}}


def _wait_container(driver: Driver, asked: Pods) -> Document:
    """Return the container that waits for the ready file of this boot.

    It can read one directory of the host and nothing else. `--host-root` overrides the image's
    environment, which is made for a driver container with the host below /host.
    """
    return {
        "name": GATE,
        "image": driver.spec.image,
        "command": [
            *("nodeside", "driver", "wait", driver.name),
            *("--host-root", "/", "--timeout", str(_GATE_SECONDS)),
        ],
        "securityContext": {
            **unprivileged_context(runAsUser=_GATE_USER, runAsGroup=_GATE_USER, runAsNonRoot=True),
            # With SELinux enforcing, the default container type cannot read host files.
            "seLinuxOptions": {"type": "spc_t"},
        },
        "resources": container_resources(asked.resources.driver, {"cpu": "5m", "memory": "32Mi"}),
        "volumeMounts": [{"name": _RUN, "mountPath": "/run/nodeside", "readOnly": True}],
    }
