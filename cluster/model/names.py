"""Names that the controller gives and reads: labels, annotations, object names, fixed keys.

Users see most of them, so they do not change without a line in the CHANGELOG.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from nodeside.contract import API_GROUP

if TYPE_CHECKING:
    pass


DRIVER_LABEL: Final = f"{API_GROUP}/driver"


REVISION_LABEL: Final = f"{API_GROUP}/revision"


MANAGED_BY: Final = "app.kubernetes.io/managed-by"


MANAGER: Final = "nodeside"


BUILDER: Final = "nodeside-build"  # manages the pods of build Jobs: they are no driver pods


OURS: Final = f"{MANAGED_BY}={MANAGER}"  # the label selector of every list but that of the nodes


# On a DaemonSet: the pool it is for, the toolkit image in it, and the hash of what was applied.
ARCHITECTURE_NOTE: Final = f"{API_GROUP}/architecture"


OS_VERSION_NOTE: Final = f"{API_GROUP}/os-version"


KERNEL_NOTE: Final = f"{API_GROUP}/kernel"


TOOLKIT_NOTE: Final = f"{API_GROUP}/toolkit"


LINK_NOTE: Final = f"{API_GROUP}/toolkit-from"


FELL_BACK_NOTE: Final = f"{API_GROUP}/fell-back"


REFUSED_NOTE: Final = f"{API_GROUP}/refused-toolkits"


APPLIED_NOTE: Final = f"{API_GROUP}/applied"


# On a build Job: what came of it, which outlives its pods.
OUTCOME_NOTE: Final = f"{API_GROUP}/outcome"


# Containers of such a Job whose termination messages are believed: no vendor code runs in them.
TELLING: Final = ("order", "finish")


# The file in the ConfigMap of a Driver's policy, which is listed with those of its revisions.
POLICY_KEY: Final = "policy.json"


DRIVER_CONTAINER: Final = "driver"


STAGE_LABEL: Final = f"{API_GROUP}/stage"


# Of objects of stages. Not the one of other objects of ours: those are listed by it.
STAGE_MANAGER: Final = "nodeside-stages"


READY: Final = "ready"


CLOSED: Final = "closed"


def stage_label(driver: str, stage: str) -> str:
    """The node label that says that a stage of a driver is ready there.

    Under a prefix of its own, since the part after it holds 63 characters.
    """
    return f"stage.{API_GROUP}/{driver}.{stage}"


def closed_label(driver: str) -> str:
    """The node label that keeps pods of all stages away: the driver there is about to change."""
    return f"{API_GROUP}/{driver}.stages"


CORDONED: Final = f"{API_GROUP}/cordoned"


@lru_cache(maxsize=1024)
def draining_label(driver: str) -> str:
    return f"{API_GROUP}/{driver}.draining"


@lru_cache(maxsize=1024)
def undrained_label(driver: str) -> str:
    return f"{API_GROUP}/{driver}.undrained"


UNLOAD_LABEL: Final = f"{API_GROUP}/unload"  # its value is the mark of the boot


LEAVE_MODULES: Final = f"{API_GROUP}/leave-modules"  # annotation of a Driver: unload nothing


def boot_mark(node: str, boot_id: str) -> str:
    """12 hex digits for a boot of a node: what a pod was to unload there is gone after a reboot."""
    return hashlib.sha256(f"{node}\n{boot_id}".encode()).hexdigest()[:12]


def unloader_name(driver: str, marked: str) -> str:
    """At most 40 + 8 + 12 characters. One name for one boot: no second pod can be made for it."""
    return f"{driver}-unload-{marked}"


ASSIGNMENT_LABEL: Final = f"{API_GROUP}/assignment"


KERNEL_LABEL: Final = "feature.node.kubernetes.io/kernel-version.full"


def before_label(driver: str) -> str:
    """The node label with the assignment under which the node was ready before its last change.

    It comes and goes in the same request as `assigned`, and tells a later controller which of the
    nodes that are not ready are so by our doing.
    """
    return f"{API_GROUP}/{driver}.before"


OSTREE_LABEL: Final = "feature.node.kubernetes.io/system-os_release.OSTREE_VERSION"


FINALIZER = f"{API_GROUP}/driver"


LEASE = "nodeside-controller"


NAMESPACE = "nodeside"


CONTROLLER = "nodeside-controller"  # its service account, roles, Deployment


DRIVER = "nodeside-driver"  # the service account and the roles of driver pods; their SCC


METRICS = f"{CONTROLLER}-metrics"  # Service, Secret with its certificate, ServiceMonitor


EVICTION = "nodeside-eviction"  # the role of the controller that only Drivers that evict need


METRICS_PATH = "/metrics"


METRICS_READER = "nodeside-metrics-reader"  # the ClusterRole of whoever scrapes


EXPLAIN = "nodeside-explain"  # the ClusterRole of whoever has `view` and wants to know why


PREFLIGHT = "nodeside-preflight"  # the roles of whoever tries a build; who manages those Jobs


CERTIFICATE = "/etc/nodeside/metrics"  # where the Secret is mounted


SILENT = "silent"  # the state of a node whose pod has said nothing in this boot


def daemonset_name(driver: str, assigned: str) -> str:
    """At most 40 + 1 + 12 characters."""
    return f"{driver}-{assigned}"


def config_map_name(driver: str, revision: str) -> str:
    return f"{driver}-revision-{revision}"


def object_labels(driver: str, revision: str) -> dict[str, str]:
    """The labels of every object of ours that belongs to a revision."""
    return {MANAGED_BY: MANAGER, DRIVER_LABEL: driver, REVISION_LABEL: revision}


POLICY_DIRECTORY: Final = "/policy"


POLICY_FILE: Final = f"{POLICY_DIRECTORY}/{POLICY_KEY}"


def policy_name(driver: str) -> str:
    return f"{driver}-node-policy"
