"""The DaemonSet that runs a driver's pod on the nodes of one pool and revision. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from cluster.driver.pod import DaemonSetInput, Document, pod_spec
from cluster.driver.revisions import owner_references
from cluster.kube.comparison import contains_desired
from cluster.kube.managed_fields import ExistingObject, existing_object, has_additions
from cluster.model.names import (
    APPLIED_NOTE,
    ARCHITECTURE_NOTE,
    ASSIGNMENT_LABEL,
    DRIVER_CONTAINER,
    DRIVER_LABEL,
    FELL_BACK_NOTE,
    KERNEL_NOTE,
    LINK_NOTE,
    OS_VERSION_NOTE,
    TOOLKIT_NOTE,
    object_labels,
)
from cluster.model.parse import daemonset_from
from cluster.model.snapshot import DaemonSetObject


def daemonset_document(wanted: DaemonSetInput) -> Document:
    """Return the DaemonSet with its own hash as an annotation."""
    document: Document = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": _object_metadata(wanted),
        "spec": {
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": _node_selector(wanted)},
            # A new pod finds its modules loaded and changes nothing, so replacing pods is cheap. A
            # new revision must roll out slowly and therefore gets its own DaemonSet.
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {"metadata": _pod_metadata(wanted), "spec": pod_spec(wanted)},
        },
    }
    document["metadata"]["annotations"][APPLIED_NOTE] = document_digest(document)
    return document


def document_digest(document: Mapping[str, Any]) -> str:
    """Return 16 hex digits that identify a document, for the annotation `applied`."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def object_to_overwrite(
    document: Mapping[str, Any], found: DaemonSetObject
) -> ExistingObject | None:
    """Return what to overwrite if the desired state changed or the object was edited; else None.

    Fields that we do not set count as API server defaults as long as nobody owns them.
    """
    ours = daemonset_from(document)
    is_as_applied = _stored_values(ours) == _stored_values(found)
    has_desired = contains_desired(document["spec"], found.spec)
    if is_as_applied and has_desired and not has_additions(found.meta, document):
        return None
    # What was applied is still what we want, so somebody else changed the object.
    return existing_object(found.meta, document, edited=is_as_applied)


def _stored_values(found: DaemonSetObject) -> tuple[object, ...]:
    """Return the values that the object has in its labels and annotations."""
    notes = found.applied, found.toolkit, found.link, found.fell_back
    return found.pool, found.driver, found.revision, *notes


def has_same_content(one: DaemonSetObject, other: DaemonSetObject) -> bool:
    """Return whether two observations of an object differ in no more than status and times.

    `object_to_overwrite` returns the same for both then.
    """
    if one is other:
        return True
    return one == other and _managers_without_times(one) == _managers_without_times(other)


def _managers_without_times(found: DaemonSetObject) -> list[dict[str, Any]]:
    return [{k: v for k, v in each.items() if k != "time"} for each in found.meta.managed]


def _object_metadata(wanted: DaemonSetInput) -> Document:
    return {
        "name": wanted.name,
        "namespace": wanted.settings.namespace,
        "labels": {
            **wanted.pods.labels,
            **object_labels(wanted.driver.name, wanted.revision),
        },
        "annotations": {
            ARCHITECTURE_NOTE: wanted.pool.architecture,
            OS_VERSION_NOTE: wanted.pool.os_version,
            KERNEL_NOTE: wanted.pool.kernel,
            TOOLKIT_NOTE: wanted.toolkit,
            LINK_NOTE: wanted.link,
            **({FELL_BACK_NOTE: wanted.fell_back} if wanted.fell_back else {}),
        },
        "ownerReferences": owner_references(wanted.owner),
    }


def _node_selector(wanted: DaemonSetInput) -> dict[str, str]:
    return {DRIVER_LABEL: wanted.driver.name, ASSIGNMENT_LABEL: wanted.assignment}


def _pod_metadata(wanted: DaemonSetInput) -> Document:
    notes = {"kubectl.kubernetes.io/default-container": DRIVER_CONTAINER}
    if wanted.settings.scc:
        notes["openshift.io/required-scc"] = wanted.settings.scc
    own = object_labels(wanted.driver.name, wanted.revision) | _node_selector(wanted)
    return {
        "labels": {**wanted.pods.labels, **own},
        "annotations": {**wanted.pods.annotations, **notes},
    }
