"""What a person does about each state that `explain` shows: a total table, by reason and by state.

A step is something to type, a `Remedy` is steps in order: look, repeat, go back. advice.py makes
commands of them. Tests compare the tables with the enums, with the reasons of all conditions, and
with all that a node can report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from cluster.driver.hardware import Match
from cluster.model.states import Health, Phase
from cluster.options.unload.nodes import UnloadPhase


class Step(Enum):
    """Something to type: what for, and the command with the fields of `advice.Subject`.

    They are in the order in which they are shown: look, repeat, correct, go back. A word of the
    command is one argument, whatever the field contains; a word in brackets is left out if its
    field is not known, and without any other field the whole step.
    """

    CONTROLLER_PODS = (
        "see the pods of the controller and its lease",
        "kubectl get -n {namespace} pods,leases",
    )
    CONTROLLER_LOG = (
        "see the log of the controller",
        "kubectl logs -n {namespace} deployment/nodeside-controller",
    )
    EXPLAIN_NODE = ("see the node where it failed", "nodeside-cluster explain {driver} {node}")
    EXPLAIN = ("see the whole Driver", "nodeside-cluster explain {driver}")
    LAST_LOG = (
        "see what the container said before it crashed",
        "kubectl logs -n {namespace} {pod} -c {container} --previous",
    )
    LOG = ("see the log of the container", "kubectl logs -n {namespace} {pod} -c {container}")
    BUILD_LOG = (
        "see the log of the build",
        "kubectl logs -n {namespace} {pod} -c {toolkit}",
    )
    JOB_LOG = ("see the log of the build", "kubectl logs -n {namespace} job/{job} -c answer")
    JOB_PODS = (
        "see why the pod of the build has no node",
        "kubectl describe pods -n {namespace} -l job-name={job}",
    )
    UNLOAD_LOG = ("see the log of the unload", "kubectl logs -n {namespace} {unload}")
    UNLOAD_POD = (
        "see what Kubernetes says of the unload pod",
        "kubectl describe pod -n {namespace} {unload}",
    )
    POD = ("see what Kubernetes says of the pod", "kubectl describe pod -n {namespace} {pod}")
    DAEMONSET = (
        "see what Kubernetes says of its DaemonSet",
        "kubectl describe daemonset -n {namespace} {daemonset}",
    )
    NODE = ("see what Kubernetes says of the node", "kubectl describe node {node}")
    NODES = ("see which nodes are ready", "kubectl get nodes -o wide")
    NODE_LABELS = ("see the labels of the node", "kubectl get node {node} --show-labels")
    ALL_LABELS = ("see the labels of all nodes", "kubectl get nodes --show-labels")
    NODE_PODS = (
        "see the pods on the node",
        "kubectl get pods -A -o wide --field-selector spec.nodeName={node}",
    )
    BUDGETS = ("see what protects pods from eviction", "kubectl get poddisruptionbudgets -A")
    STAGE_PODS = (
        "see the pods of the stages",
        "kubectl get pods -n {namespace} -o wide -l nodeside.io/driver={driver},nodeside.io/stage",
    )
    DRIVERS = ("see all Drivers", "nodeside-cluster status")
    EVENTS = ("see the Events of the Driver", "kubectl describe driver {driver}")
    CHECK = ("see what the cluster lacks", "nodeside-cluster check")
    RESOLVE = (
        "see where its toolkit image is looked for",
        (
            "nodeside-cluster resolve {os_version} [--kernel={kernel}] "
            "[--architecture={architecture}] --driver {driver}"
        ),
    )
    HOLDERS = (
        "see what is loaded, and who holds it",
        "kubectl exec -n {namespace} {pod} -c driver -- nodeside driver status",
    )
    DOCTOR = (
        "see what keeps a build or a load from working",
        "kubectl exec -n {namespace} {pod} -c driver -- nodeside driver doctor",
    )
    VALIDATE = (
        "check again what is loaded",
        "kubectl exec -n {namespace} {pod} -c driver -- nodeside driver validate",
    )
    SECRET = (
        "see which files the Secret has",
        "kubectl describe secret -n {namespace} {driver}-signing",
    )
    TRY_BUILD = (
        "repeat the build in a Job of its own, and publish nothing",
        "nodeside-cluster preflight {driver} --toolkit {image} [--architecture={architecture}]",
    )
    EDIT = ("correct the Driver (or its driver.yaml)", "kubectl edit driver {driver}")
    REPEAT_JOB = (
        "repeat the build for the nodes, once its cause is gone",
        "kubectl delete job -n {namespace} {job}",
    )
    RESTART = (
        "try again in a new pod, once its cause is gone",
        "nodeside-cluster restart {driver} {node}",
    )
    RETRY_NODE = ("try the same again there", "nodeside-cluster retry {driver} {node}")
    RETRY = ("try the same version again", "nodeside-cluster retry {driver}")
    RESUME = ("let the rollout go on", "nodeside-cluster resume {driver}")
    LEAVE = (
        "or leave the modules loaded",
        "kubectl annotate driver {driver} nodeside.io/leave-modules=true",
    )
    DRAIN = ("empty the node, and reboot it then", "kubectl drain {node} --ignore-daemonsets")
    UNDO = ("go back to the last good version", "nodeside-cluster undo {driver}")

    @property
    def why(self) -> str:
        return self.value[0]

    @property
    def command(self) -> str:
        return self.value[1]


@dataclass(frozen=True)
class Remedy:
    """Steps, and the page that tells more, "" for none."""

    steps: tuple[Step, ...] = ()
    page: str = ""


def _remedy(*steps: Step, page: str = "") -> Remedy:
    return Remedy(steps, f"docs/{page}" if page else "")


NOTHING: Final = Remedy()  # it passes by itself, or there is nothing to mend

_S = Step
_READING, _SILENCE = "cluster.md#reading-the-state", "cluster.md#when-nothing-moves"
_ORDERS = "cluster.md#orders-in-a-rollout"
_TOOLKIT = "cluster.md#how-a-toolkit-image-is-found"
_KINDS = "debugging-a-build.md#kinds-of-failure"
_STORE, _TRUST = "prebuilt-modules.md", "prebuilt-modules.md#signed-bundles"
_LOAD, _DAEMONS = "packaging-a-driver.md#when-it-does-not-work", "daemons-and-libraries.md"
_AFTER = "daemons-and-libraries.md#a-driver-after-another-one"

NO_LEADER: Final = _remedy(_S.CONTROLLER_PODS, _S.CONTROLLER_LOG, page=_SILENCE)

_WRITE_FAILED = _remedy(_S.EVENTS, _S.CONTROLLER_LOG, page=_READING)
_UNREADABLE = _remedy(_S.CHECK, _S.CONTROLLER_LOG, page=_READING)
_STAGES = _remedy(_S.STAGE_PODS, page="stages.md#states-of-a-stage")

# By the reason of a condition of the Driver.
BY_CONDITION: Final[Mapping[str, Remedy]] = {
    "InvalidSpec": _remedy(_S.EDIT, _S.UNDO, page="driver-yaml.md"),
    "AfterItself": _remedy(_S.EDIT, page=_AFTER),
    "DriverMissing": _remedy(_S.DRIVERS, _S.EDIT, page=_AFTER),
    "ModuleConflict": _remedy(_S.CHECK, _S.EDIT, page=_READING),
    "RolloutStopped": _remedy(_S.EXPLAIN_NODE, _S.LOG, _S.UNDO, _S.RETRY, page=_ORDERS),
    "BuildFailed": _remedy(
        _S.JOB_LOG, _S.TRY_BUILD, _S.EDIT, _S.REPEAT_JOB, _S.UNDO, page="debugging-a-build.md"
    ),
    "ToolkitRefused": _remedy(_S.EXPLAIN_NODE, _S.RESOLVE, _S.EDIT, page=_TOOLKIT),
    "NodesFailed": _remedy(_S.EXPLAIN_NODE, _S.UNDO, page=_SILENCE),
    "ToolkitMissing": _remedy(_S.RESOLVE, _S.EDIT, page=_TOOLKIT),
    "StagesStuck": _remedy(_S.STAGE_PODS, page="stages.md#when-the-driver-changes"),
    "NoNodes": _remedy(_S.ALL_LABELS, _S.EDIT, page="cluster.md#install"),
    "WaitsForDriver": _remedy(_S.DRIVERS, page=_AFTER),
    "KernelUnknown": _remedy(_S.NODES),
    "NodesNotReady": _remedy(_S.NODES),
    "RolloutPaused": _remedy(_S.RESUME, page=_ORDERS),
    "RolloutBlocked": _remedy(_S.EXPLAIN_NODE, _S.EDIT, _S.UNDO, page="cluster.md#a-new-version"),
    "WaitingForReboot": _remedy(_S.NODES, page="upgrade.md#the-new-version-comes-with-the-reboot"),
    "Draining": _remedy(_S.BUDGETS, page="upgrade.md#pods-that-use-the-device"),
    "NodesOccupied": _remedy(_S.BUDGETS, page="upgrade.md#pods-that-use-the-device"),
    "Unschedulable": _remedy(_S.JOB_PODS, _S.EDIT, page="cluster.md#build-once"),
    "Building": _remedy(_S.JOB_LOG, page="cluster.md#build-once"),
    "ModulesHeld": _remedy(
        _S.EXPLAIN_NODE, _S.LEAVE, page="cluster.md#deletion-and-a-node-that-leaves"
    ),
    "Deleting": _remedy(page="cluster.md#deletion-and-a-node-that-leaves"),
    "FieldsContested": _remedy(_S.EVENTS, page="cluster.md#other-writers"),
    "StageInvalid": _STAGES,
    "StageFailed": _STAGES,
    "StagesUnknown": _UNREADABLE,
    "StagesProgressing": _STAGES,
    **dict.fromkeys(
        ("Canary", "RollingOut", "NodesBusy", "NodesLeaving", "StagesWaiting", "Blocked"), NOTHING
    ),
    **dict.fromkeys(("Ready", "Available", "Complete", "AsExpected"), NOTHING),
    "Unknown": _WRITE_FAILED,  # no controller has written a status yet
    "Forbidden": _UNREADABLE,
    **dict.fromkeys(
        ("ApiServerRefused", "ApiServerUnreachable", "AnswerTooLarge", "NotFound", "Conflict"),
        _WRITE_FAILED,
    ),
    **dict.fromkeys(("Expired", "LostLead", "UnknownKind", "InternalError"), _WRITE_FAILED),
    **dict.fromkeys(("DeadlinePassed", "SystemError"), _WRITE_FAILED),
}


def by_condition(reason: str) -> Remedy:
    """Return the remedy for the reason of a condition; some end with what cannot be read."""
    if reason.endswith("Unreadable"):
        return _UNREADABLE
    return BY_CONDITION.get(reason, _WRITE_FAILED)


_IN_THE_BUILD = _remedy(_S.BUILD_LOG, _S.TRY_BUILD, _S.RESTART, _S.UNDO, page=_KINDS)
_IN_THE_TOOLKIT = _remedy(_S.RESOLVE, _S.EDIT, _S.BUILD_LOG, _S.RESTART, page=_TOOLKIT)
_IN_THE_HANDOFF = _remedy(_S.POD, _S.BUILD_LOG, _S.RESTART, page=_KINDS)
_IN_THE_STORE = _remedy(_S.LOG, _S.EDIT, _S.RESTART, page=_STORE)
_IN_THE_BUNDLE = _remedy(_S.LOG, _S.EDIT, _S.RESTART, page=_TRUST)
_IN_THE_KEYS = _remedy(_S.SECRET, _S.EDIT, _S.RESTART, page="cluster.md#a-first-driver")
_IN_THE_LOAD = _remedy(_S.DOCTOR, _S.LOG, _S.RESTART, _S.UNDO, page=_LOAD)
_IN_THE_CHECKS = _remedy(_S.VALIDATE, _S.LOG, _S.RESTART, _S.UNDO, page=_LOAD)
_IN_A_PROGRAM = _remedy(
    _S.LOG, _S.RESTART, _S.UNDO, page="daemons-and-libraries.md#daemons-and-hooks"
)
_IN_USE = _remedy(_S.HOLDERS, _S.NODE_PODS, _S.DRAIN, page="on-a-node.md#in-the-drivers-pod")
_OF_THE_KERNEL = _remedy(_S.LOG, _S.RETRY_NODE, _S.UNDO, page=_SILENCE)
_NO_SPACE = _remedy(_S.NODE, _S.DOCTOR, _S.RESTART, page=_KINDS)
_OF_THE_SYSTEM = _remedy(_S.DOCTOR, _S.LOG, _S.RESTART, page="on-a-node.md#in-the-drivers-pod")

# By the reason that a node reports: those of build failures, then those of other errors.
BY_REPORT: Final[Mapping[str, Remedy]] = {
    "Compile": _IN_THE_BUILD,
    "NoModule": _IN_THE_BUILD,
    "BadSource": _IN_THE_BUILD,
    "BuildFailed": _IN_THE_BUILD,
    "Timeout": _IN_THE_BUILD,
    "OutOfMemory": _remedy(_S.BUILD_LOG, _S.EDIT, _S.UNDO, page=_KINDS),
    "Excluded": _remedy(_S.EDIT, _S.UNDO, page=_KINDS),
    **dict.fromkeys(
        ("NoHeaders", "WrongKernel", "WrongCompiler", "NoTools", "Noexec"),
        _IN_THE_TOOLKIT,
    ),
    "MalformedSymvers": _IN_THE_TOOLKIT,
    **dict.fromkeys(("DiskFull", "NoSpace"), _NO_SPACE),
    **dict.fromkeys(("Protocol", "Internal", "SidecarMissing", "BootIdMismatch"), _IN_THE_HANDOFF),
    **dict.fromkeys(("RequestWithdrawn", "Withdrawn", "MalformedRecord"), _IN_THE_HANDOFF),
    **dict.fromkeys(("NoRungServed", "NothingCached", "NothingFetched"), _IN_THE_STORE),
    **dict.fromkeys(("FetchFailed", "Unauthorized", "Forbidden", "BadCredentials"), _IN_THE_STORE),
    **dict.fromkeys(("Proxy", "Tls", "Redirects", "Unreachable", "HttpError"), _IN_THE_STORE),
    **dict.fromkeys(("ServerError", "TooManyRequests", "TooLarge", "Truncated"), _IN_THE_STORE),
    **dict.fromkeys(("ReadOnly", "Unreadable"), _IN_THE_STORE),
    **dict.fromkeys(("WrongDigest", "BadBundle", "NotAModule", "UnreadableModule"), _IN_THE_BUNDLE),
    "BadSignature": _remedy(_S.SECRET, _S.LOG, _S.EDIT, _S.RESTART, page=_TRUST),
    "SigningFailed": _IN_THE_KEYS,
    **dict.fromkeys(("RefusedBeforeLoad", "LoadFailed", "NotInTree"), _IN_THE_LOAD),
    **dict.fromkeys(("ConflictBuiltIn", "FirmwareRefused", "UserspaceRefused"), _IN_THE_LOAD),
    "UnloadFailed": _IN_USE,
    "InUse": _IN_USE,
    "RebootRequired": _IN_USE,
    **dict.fromkeys(("KernelDied", "DiedInKernel"), _OF_THE_KERNEL),
    "KernelChanged": _OF_THE_SYSTEM,
    **dict.fromkeys(("ValidationFailed", "NotProven"), _IN_THE_CHECKS),
    **dict.fromkeys(("HookFailed", "ServiceFailed"), _IN_A_PROGRAM),
    "WaitsForDriver": _remedy(_S.DRIVERS, page=_AFTER),
    "NotRestored": _remedy(_S.LOG, _S.RESTART, page="cluster.md#deletion-and-a-node-that-leaves"),
    "Unloaded": _remedy(_S.RESTART, page="on-a-node.md#in-the-drivers-pod"),
    "InvalidSpec": _remedy(_S.EDIT, _S.UNDO, page="driver-yaml.md"),
    **dict.fromkeys(("Usage", "Stopped", "StepMissing", "Locked", "Bug"), _OF_THE_SYSTEM),
    **dict.fromkeys(("SystemError", "DeadlinePassed", "ToolFailed", "ToolMissing"), _OF_THE_SYSTEM),
    **dict.fromkeys(("ChildDied", "NoProcess", "UntrustedFile"), _OF_THE_SYSTEM),
    "ApiServerRefused": _remedy(_S.LOG, _S.CHECK, _S.RESTART, page=_SILENCE),
}


def by_report(reason: str) -> Remedy:
    """Return the remedy for the reason that a node reports; its nodeside may be a newer one."""
    return BY_REPORT.get(reason, _OF_THE_SYSTEM)


_NO_IMAGE = _remedy(_S.POD, _S.EDIT, _S.UNDO, page=_SILENCE)
_NO_PLACE = _remedy(_S.POD, _S.NODE, page=_SILENCE)

# By the kubelet's reason for a container that does not start, or the scheduler's for the pod.
# https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/images/types.go
# https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/container/sync_result.go
BY_WAITING: Final[Mapping[str, Remedy]] = {
    "CrashLoopBackOff": _remedy(_S.LAST_LOG, _S.POD, _S.RESTART, _S.UNDO, page=_SILENCE),
    **dict.fromkeys(("ErrImagePull", "ImagePullBackOff", "InvalidImageName"), _NO_IMAGE),
    **dict.fromkeys(("ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable"), _NO_IMAGE),
    "SignatureValidationFailed": _NO_IMAGE,
    **dict.fromkeys(("Unschedulable", "SchedulingGated", "SchedulerError"), _NO_PLACE),
}
_DOES_NOT_START = _remedy(_S.POD, _S.RESTART, page=_SILENCE)


def by_waiting(reason: str) -> Remedy:
    """Return the remedy for a pod that does not start; kubelets have more reasons than these."""
    return BY_WAITING.get(reason, _DOES_NOT_START)


SILENT: Final = _remedy(_S.LOG, _S.POD, _S.DAEMONSET, _S.RESTART, page=_SILENCE)
STAGE_NOT_READY: Final = _STAGES
HELD_BY_PODS: Final = _remedy(_S.NODE_PODS, _S.BUDGETS, page="upgrade.md#pods-that-use-the-device")

# What the health of a node adds to what it reports.
BY_HEALTH: Final[Mapping[Health, Remedy]] = {
    Health.WORKING: NOTHING,
    Health.BUSY: NOTHING,
    Health.BROKEN: NOTHING,  # by its report, or by its pod
    Health.OUTDATED: NOTHING,
    Health.DOWN: _remedy(_S.NODE),
}

# For a node that the rollout keeps from the newest revision.
BY_PHASE: Final[Mapping[Phase, Remedy]] = {
    Phase.HELD: _remedy(_S.RESUME, page=_ORDERS),
    Phase.FIRST: NOTHING,
    Phase.FIRST_CANARY: NOTHING,
    Phase.FIRST_STOPPED: _remedy(_S.EXPLAIN, _S.RETRY, page=_ORDERS),
    Phase.SETTLED: NOTHING,
    Phase.CANARY: NOTHING,
    Phase.OPEN: NOTHING,
    Phase.PAUSED: _remedy(_S.RESUME, page=_ORDERS),
    Phase.STOPPED: _remedy(_S.EXPLAIN, _S.UNDO, _S.RETRY, page=_ORDERS),
}

_LEAVING = "cluster.md#deletion-and-a-node-that-leaves"

# For a node that the Driver leaves.
BY_UNLOAD: Final[Mapping[UnloadPhase, Remedy]] = {
    UnloadPhase.GONE: NOTHING,
    UnloadPhase.ENDING: NOTHING,
    UnloadPhase.NEXT: NOTHING,
    UnloadPhase.STARTING: NOTHING,
    UnloadPhase.UNLOADING: NOTHING,
    UnloadPhase.HELD: _remedy(_S.UNLOAD_LOG, _S.NODE_PODS, _S.LEAVE, page=_LEAVING),
    UnloadPhase.STUCK: _remedy(_S.UNLOAD_POD, _S.LEAVE, page=_LEAVING),
    UnloadPhase.FAILED: _remedy(_S.UNLOAD_LOG, _S.LEAVE, page=_LEAVING),
    UnloadPhase.STAYS: NOTHING,
    UnloadPhase.DOWN: NOTHING,
}

# For a node that is no member.
BY_MATCH: Final[Mapping[Match, Remedy]] = {
    Match.HAS: NOTHING,
    Match.KEPT: NOTHING,
    Match.LACKS: _remedy(_S.NODE_LABELS, page=_SILENCE),
    Match.FOREIGN: NOTHING,
    Match.CONTRADICTED: _remedy(_S.NODE_LABELS, page=_SILENCE),
}
