"""Parses objects and pods of stages from the API server's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.kube.managed_fields import object_meta_from
from cluster.model.json_fields import part
from cluster.model.names import (
    ADMITTED_NOTE,
    APPLIED_NOTE,
    DRIVER_LABEL,
    JOB_NOTE,
    MANAGED_BY,
    MANAGER,
    NODE_NOTE,
    PREFLIGHT,
    STAGE_LABEL,
    STAGE_MANAGER,
)
from cluster.model.parse_pods import daemon_pod_from, failure_in_words
from cluster.model.stages import ServiceAddress, StageObject, StagePod, TemplateSource


@dataclass(frozen=True, slots=True)
class StageItem:
    """An object of the namespace.

    `source` is set for a ConfigMap unless nodeside created it, since a stage may not use its own
    ConfigMap as a template. Nor is one of a preflight kept: its user may make many large ones.
    `address` is set for a Service that nodeside did not create.
    """

    name: str
    object: StageObject
    source: TemplateSource | None = None
    address: ServiceAddress | None = None

    @property
    def uid(self) -> str:
        return self.object.uid


def stage_item_from(kind: str, data: Mapping[str, Any]) -> StageItem:
    metadata = data.get("metadata") or {}
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    name, manager = str(metadata.get("name")), labels.get(MANAGED_BY)
    if manager != STAGE_MANAGER:
        foreign = manager not in (MANAGER, PREFLIGHT)
        files = data.get("data") or {} if kind == "ConfigMap" and foreign else None
        source = None if files is None else TemplateSource(name, dict(files))
        address = _service_address(data) if kind == "Service" and foreign else None
        return StageItem(name, StageObject(kind, name), source, address)
    rolled_out, progress = _rollout_state(data) if kind == "Deployment" else (True, "")
    body = {key: value for key, value in data.items() if key not in ("metadata", "status")}
    parsed = StageObject(
        kind=kind,
        name=name,
        uid=str(metadata.get("uid", "")),
        driver=str(labels.get(DRIVER_LABEL, "")),
        stage=str(labels.get(STAGE_LABEL, "")),
        applied=str(notes.get(APPLIED_NOTE, "")),
        deleting="deletionTimestamp" in metadata,
        rolled_out=rolled_out,
        progress=progress,
        document=body,
        meta=object_meta_from(data),
    )
    return StageItem(name, parsed)


def _service_address(data: Mapping[str, Any]) -> ServiceAddress:
    spec = part(data, "spec")
    ports = [each for each in spec.get("ports") or () if isinstance(each, Mapping)]
    numbers = [(str(each.get("name") or ""), int(each.get("port") or 0)) for each in ports]
    ip = str(spec.get("clusterIP") or "")
    return ServiceAddress(
        cluster_ip="" if ip == "None" else ip,  # a headless one has none
        port=next((number for _, number in numbers), 0),
        ports={name: number for name, number in numbers if name},
    )


def _rollout_state(data: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether a Deployment is rolled out, by the rules of `kubectl rollout status`."""
    spec, status = data.get("spec") or {}, data.get("status") or {}
    replicas = int(spec.get("replicas", 1))
    updated, available = (int(status.get(f"{w}Replicas") or 0) for w in ("updated", "available"))
    observed = int(status.get("observedGeneration") or 0)
    current = observed >= int((data.get("metadata") or {}).get("generation") or 0)
    done = current and updated >= replicas and available >= replicas
    return done, f"{min(updated, available)} of {replicas} replicas available"


@dataclass(frozen=True, slots=True)
class ClusterVersion:
    """OpenShift's ClusterVersion. `version` is the last one that was installed to its end."""

    name: str
    uid: str = ""
    version: str = ""


def cluster_version_from(data: Mapping[str, Any]) -> ClusterVersion:
    metadata, status = data.get("metadata") or {}, data.get("status") or {}
    history = status.get("history") or ()  # the newest first
    done = (each.get("version") for each in history if each.get("state") == "Completed")
    return ClusterVersion(
        name=str(metadata.get("name")),
        uid=str(metadata.get("uid", "")),
        version=str(next(done, None) or (status.get("desired") or {}).get("version") or ""),
    )


def stage_pod_from(data: Mapping[str, Any]) -> StagePod:
    pod = daemon_pod_from(data)
    metadata = data.get("metadata") or {}
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    containers = (data.get("spec") or {}).get("containers") or ()
    owners = metadata.get("ownerReferences") or ()
    status = part(data, "status")
    conditions = status.get("conditions") or ()
    return StagePod(
        name=pod.name,
        uid=pod.uid,
        driver=pod.driver,
        stage=str(labels.get(STAGE_LABEL, "")),
        node=pod.node,
        daemonset=pod.daemonset,
        job=next((str(o.get("uid", "")) for o in owners if o.get("kind") == "Job"), ""),
        run_of=str(notes.get(JOB_NOTE, "")),
        run_on=str(notes.get(NODE_NOTE, "")),
        container=str(containers[0].get("name", "") if containers else ""),
        admitted=str(notes.get(ADMITTED_NOTE, "")),
        deleting=pod.deleting,
        ready=any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions),
        over=status.get("phase") in ("Succeeded", "Failed"),
        failure=failure_in_words(status),
        waiting=pod.waiting,
    )
