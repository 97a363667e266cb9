"""Names that the controller sets and reads: labels, annotations, object names, fixed keys.

Users see most of them, so a change needs an entry in the CHANGELOG.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final

from nodeside.protocol import labels
from nodeside.protocol.labels import API_GROUP

DRIVER_LABEL: Final = labels.DRIVER_LABEL


REVISION_LABEL: Final = f"{API_GROUP}/revision"


MANAGED_BY: Final = "app.kubernetes.io/managed-by"


MANAGER: Final = "nodeside"


BUILDER: Final = "nodeside-build"  # managed-by value of build Job pods, which are not driver pods


# The label selector of our objects; objects and Jobs of stages have another managed-by value.
OURS: Final = f"{MANAGED_BY}={MANAGER}"


# Annotations of a DaemonSet: its pool, its toolkit image, the rule that found the image, and why
# its pods build although those of their pool need not.
ARCHITECTURE_NOTE: Final = f"{API_GROUP}/architecture"


OS_VERSION_NOTE: Final = f"{API_GROUP}/os-version"


KERNEL_NOTE: Final = f"{API_GROUP}/kernel"


TOOLKIT_NOTE: Final = f"{API_GROUP}/toolkit"


LINK_NOTE: Final = f"{API_GROUP}/toolkit-from"


FELL_BACK_NOTE: Final = f"{API_GROUP}/fell-back"


# Annotation of what we write: the hash of the document that was applied.
APPLIED_NOTE: Final = f"{API_GROUP}/applied"


# Annotation of a stage's pod: the boot of its node in which the stage before became ready.
ADMITTED_NOTE: Final = f"{API_GROUP}/admitted-in-boot"


# Annotation of a build Job: its outcome, which outlives its pods.
OUTCOME_NOTE: Final = f"{API_GROUP}/outcome"


# Containers of a build Job whose termination messages are trusted: they run no vendor code.
TRUSTED_CONTAINERS: Final = ("order", "finish")


# The file in the ConfigMap of a Driver's policy, which is listed with the revision ConfigMaps.
POLICY_KEY: Final = "policy.json"


DRIVER_CONTAINER: Final = "driver"
TOOLKIT_CONTAINER: Final = "toolkit"


STAGE_LABEL: Final = f"{API_GROUP}/stage"


# managed-by value of stage objects. It differs from MANAGER, by which our other objects are listed.
STAGE_MANAGER: Final = "nodeside-stages"


# The label selector of Jobs: of builds and of stages.
JOBS_OF_OURS: Final = f"{MANAGED_BY} in ({MANAGER},{STAGE_MANAGER})"


# Annotation of a Job in a stage's manifests, by its author: how often it runs.
RUN_NOTE: Final = f"{API_GROUP}/run"


# Annotations of a Job of a stage: its name in the manifest, the node it is for ("" for any), and
# what it is run once for.
JOB_NOTE: Final = f"{API_GROUP}/job"


NODE_NOTE: Final = f"{API_GROUP}/node"


RUN_MARK_NOTE: Final = f"{API_GROUP}/run-mark"


@lru_cache(maxsize=16384)
def run_mark(node_uid: str, boot_id: str, revision: str) -> str:
    """Return 12 hex digits for what a Job runs once for: a revision, or one on a boot of a node.

    Without a node, `node_uid` and `boot_id` are "".
    """
    return hashlib.sha256(f"{node_uid}\n{boot_id}\n{revision}".encode()).hexdigest()[:12]


@lru_cache(maxsize=16384)
def run_name(driver: str, stage: str, job: str, mark: str, content: str) -> str:
    """Return a Job name of at most 50 + 1 + 12 characters: it becomes the value of a label.

    `content` is the hash of the manifest: a Job cannot be changed.
    """
    words = "\n".join((driver, stage, job, mark, content))
    return f"{job[:50].rstrip('-.')}-{hashlib.sha256(words.encode()).hexdigest()[:12]}"


STAGE_READY: Final = "ready"  # the value of `stage_label`


STAGES_CLOSED: Final = "closed"  # the value of `closed_label`


def stage_label(driver: str, stage: str) -> str:
    """Return the node label that marks a driver's stage as ready.

    It has a prefix of its own, since the name part of a label is limited to 63 characters.
    """
    return f"stage.{API_GROUP}/{driver}.{stage}"


def closed_label(driver: str) -> str:
    """Return the node label that keeps pods of all stages away before the driver changes."""
    return f"{API_GROUP}/{driver}.stages"


CORDONED: Final = f"{API_GROUP}/cordoned"  # label of a node: we cordoned it


@lru_cache(maxsize=1024)
def draining_label(driver: str) -> str:
    return f"{API_GROUP}/{driver}.draining"


@lru_cache(maxsize=1024)
def undrained_label(driver: str) -> str:
    return f"{API_GROUP}/{driver}.undrained"


_DRAINING = re.compile(rf"^{re.escape(API_GROUP)}/([a-z0-9-]+)\.draining$")


def driver_of_draining(key: str) -> str:
    """Return the Driver whose `draining_label` this is, "" if it is another label."""
    match = _DRAINING.match(key)
    return match[1] if match else ""


_OF_ONE_DRIVER = re.compile(
    rf"{re.escape(API_GROUP)}/([a-z0-9-]+)\.(?:assigned|before|state|draining|undrained|stages)"
    rf"|stage\.{re.escape(API_GROUP)}/([a-z0-9-]+)\..*"
)


def driver_of_label(key: str) -> str:
    """Return the Driver that a label of a node is about, "" if it is about none."""
    match = _OF_ONE_DRIVER.fullmatch(key)
    return (match[1] or match[2]) if match else ""


UNLOAD_LABEL: Final = f"{API_GROUP}/unload"  # its value is a boot mark


LEAVE_MODULES: Final = f"{API_GROUP}/leave-modules"  # Driver annotation: unload nothing


def boot_mark(node: str, boot_id: str) -> str:
    """Return 12 hex digits that identify a boot of a node; a reboot makes an unload obsolete."""
    return hashlib.sha256(f"{node}\n{boot_id}".encode()).hexdigest()[:12]


def unload_pod_name(driver: str, mark: str) -> str:
    """Return a name of at most 40 + 8 + 12 characters, unique per boot to rule out a second pod."""
    return f"{driver}-unload-{mark}"


ASSIGNMENT_LABEL: Final = f"{API_GROUP}/assignment"


KERNEL_LABEL: Final = "feature.node.kubernetes.io/kernel-version.full"


def before_label(driver: str) -> str:
    """Return the node label for the assignment under which the node was ready before its change.

    It is set and removed in the same request as `assigned`. It shows a later controller which
    unready nodes became unready through our change.
    """
    return f"{API_GROUP}/{driver}.before"


OSTREE_LABEL: Final = "feature.node.kubernetes.io/system-os_release.OSTREE_VERSION"


FINALIZER = f"{API_GROUP}/driver"


LEASE = "nodeside-controller"


NAMESPACE = "nodeside"


CONTROLLER = "nodeside-controller"  # its service account, roles, Deployment


DRIVER = "nodeside-driver"  # the service account and the roles of driver pods; their SCC


DEVICE_AGENT = "nodeside-device-agent"  # the service account and the role of its pods; their SCC


METRICS = f"{CONTROLLER}-metrics"  # the Service, its certificate Secret, and the ServiceMonitor


EVICTION = "nodeside-eviction"  # the controller's role that only Drivers with eviction need


METRICS_PATH = "/metrics"


METRICS_READER = "nodeside-metrics-reader"  # the ClusterRole for scraping metrics


EXPLAIN = "nodeside-explain"  # the ClusterRole that `explain` needs in addition to `view`


PREFLIGHT = "nodeside-preflight"  # the roles for trial builds; managed-by value of their Jobs


CERTIFICATE = "/etc/nodeside/metrics"  # the mount path of the Secret


SILENT = "silent"  # the state of a node whose pod has not reported in this boot


def daemonset_name(driver: str, assigned: str) -> str:
    """Return a name of at most 40 + 1 + 12 characters."""
    return f"{driver}-{assigned}"


def assignment_of(daemonset: str) -> str:
    """Return the assignment that a DaemonSet of ours serves."""
    return daemonset.rpartition("-")[2]


def config_map_name(driver: str, revision: str) -> str:
    return f"{driver}-revision-{revision}"


def agent_name(driver: str) -> str:
    """Return the name of the DaemonSet and the ConfigMap of a driver's device agent."""
    return f"{driver}-devices"


def object_labels(driver: str, revision: str) -> dict[str, str]:
    """Return the labels of all our objects that belong to a revision."""
    return {MANAGED_BY: MANAGER, DRIVER_LABEL: driver, REVISION_LABEL: revision}


POLICY_DIRECTORY: Final = "/policy"


POLICY_FILE: Final = f"{POLICY_DIRECTORY}/{POLICY_KEY}"


def policy_name(driver: str) -> str:
    return f"{driver}-node-policy"
