"""The unload pod of a node: the driver's own pod, minus everything unloading does not need.

Pure. It is pinned to its node, tolerates all taints, and terminates: with 0 when the modules are
gone, with 44 where only a reboot helps (see `nodeside driver unload`). It is privileged only if the
driver is, and has hooks that may need it. It mounts neither the signing key nor the credentials.
From the host it mounts only what shows modules and their holders, the driver's locks, its files,
and the tree of the kernel's modules, some of which are loaded again when the driver is gone. The
driver's services have ended with the driver pod.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from cluster.driver.pod import DaemonSetInput, Document, pod_spec
from cluster.driver.pod_policy import pods_of
from cluster.model.names import (
    DRIVER_CONTAINER,
    UNLOAD_LABEL,
    boot_mark,
    object_labels,
    unload_pod_name,
)
from cluster.model.snapshot import DriverObject, Node, Pool, Settings
from nodeside.spec import Driver
from nodeside.spec.model import Restore

COMMAND: Final = ("nodeside", "driver", "unload", "--wait")

_ENVIRONMENT = (
    "NODE_NAME",
    "NODESIDE_DRIVER",
    "NODESIDE_HOST",
    "NODESIDE_REVISION",
    "NODESIDE_TOKEN_DIR",
    "NODESIDE_LOG_FORMAT",
)
_VOLUMES = (
    "driver-yaml",
    "host-sys",
    "host-proc",
    "host-dev",
    "host-run-nodeside",
    "host-run-nodeside-locks",
    "token",
    "tmp",
)
_FILES = "host-var-lib-nodeside"  # firmware, and files for pods
_RUN = "run"  # for hooks
_TREE = "host-lib-modules"  # for modules that the driver had replaced


def unload_pod(
    found: DriverObject, driver: Driver, revision: str, node: Node, settings: Settings
) -> Document:
    """Return the unload pod. `driver` is as of `revision`, the one that the node had."""
    mark, asked = boot_mark(node.name, node.boot_id), pods_of(found)
    notes = {"kubectl.kubernetes.io/default-container": DRIVER_CONTAINER}
    if settings.scc:
        notes["openshift.io/required-scc"] = settings.scc
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": unload_pod_name(driver.name, mark),
            "namespace": settings.namespace,
            "labels": {
                **asked.labels,
                **object_labels(driver.name, revision),
                UNLOAD_LABEL: mark,
            },
            "annotations": {**asked.annotations, **notes},
        },
        "spec": _pod_spec(found, driver, revision, node, settings),
    }


def _pod_spec(
    found: DriverObject, driver: Driver, revision: str, node: Node, settings: Settings
) -> Document:
    hooks = driver.spec.hooks
    has_hooks = bool(hooks.before_unload or hooks.after_unload)
    privileged = driver.spec.privileged and has_hooks
    plain = replace(driver, spec=replace(driver.spec, privileged=privileged))
    pool = Pool(node.architecture, "", node.kernel)
    full = pod_spec(
        DaemonSetInput(
            found, plain, revision, pool, toolkit="", link="", settings=settings,
            pods=pods_of(found),
        )
    )  # fmt: skip
    has_files = driver.spec.firmware is not None or driver.spec.userspace is not None
    restores = driver.spec.conflicts.restore is not Restore.NEVER
    volumes = (
        *(*_VOLUMES, _RUN),
        *((_FILES,) if has_files else ()),
        *((_TREE,) if restores else ()),
    )
    container = next(c for c in full["containers"] if c["name"] == DRIVER_CONTAINER)
    del full["nodeSelector"]
    return full | {
        "restartPolicy": "Never",
        "affinity": _node_affinity(node.name),
        "containers": [
            container
            | {
                "command": list(COMMAND),
                "env": _pick_named(container["env"], _ENVIRONMENT),
                "volumeMounts": _pick_named(container["volumeMounts"], volumes),
            }
        ],
        "volumes": _pick_named(full["volumes"], volumes),
    }


def _node_affinity(node: str) -> Document:
    """Return the affinity that the DaemonSet controller uses to pin its pods to a node."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def _pick_named(items: list[Document], names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [item for item in items if item["name"] in names]
