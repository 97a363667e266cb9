"""`nodeside-cluster check`: what must be true of a cluster for a driver to get ready in it.

Runs before the installation, with the rights of whoever installs, and after it. It changes nothing:
questions about rights are SelfSubjectAccessReviews, which are not stored. Each line about
something that is missing says what to do. `wait_until_good` repeats it.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import Enum
from itertools import islice
from typing import Any

from cluster.cli import image_pulls
from cluster.cli.leader_status import ControllerNotInstalled, namespace_ends, read_leader
from cluster.cli.resolve import image_streams, read_evidence
from cluster.driver import toolkit_image
from cluster.driver.nodes import CANNOT_PULL
from cluster.driver.other_installers import find_other_installers
from cluster.driver.pools import pool_of
from cluster.install import crd_check
from cluster.kube.client import Api
from cluster.kube.errors import ApiError, Forbidden, NotFound
from cluster.kube.resources import (
    ACCESS_REVIEWS,
    CLUSTER_VERSIONS,
    CRDS,
    DRIVERS,
    NAMESPACES,
    NODES,
    PODS,
    Resource,
)
from cluster.model.parse import driver_from, node_from
from cluster.model.snapshot import DriverObject, Node, Pool
from cluster.plan.rivals import find_rivalries, is_selected
from nodeside.log import escape_controls
from nodeside.spec.fleet import Toolkit
from nodeside.spec.model import Driver
from nodeside.spec.other_installers import FoundInstaller
from nodeside.text.shortlist import shortlist
from nodeside.text.table import Colored, bad, busy, good, table

_OLDEST = (1, 30)  # the token of a pod names its node: KEP-4193, beta and on by default
_POLICIES = ("admissionregistration.k8s.io/v1", "validatingadmissionpolicies")
_RBAC = "rbac.authorization.k8s.io"
# What `install` creates that an ordinary user may not. And `escalate`: a user can only give rights
# that the user has, unless with this verb, and our roles give some, such as to evict pods.
_RIGHTS = (
    ("create", CRDS),
    ("create", NAMESPACES),
    ("create", Resource("ClusterRole", "clusterroles", _RBAC)),
    ("escalate", Resource("ClusterRole", "clusterroles", _RBAC)),
    ("create", Resource("ClusterRoleBinding", "clusterrolebindings", _RBAC)),
    (
        "create",
        Resource("ValidatingAdmissionPolicy", _POLICIES[1], "admissionregistration.k8s.io"),
    ),
)
_ENFORCE = "pod-security.kubernetes.io/enforce"
_SHOWN = 3
_USER = re.compile(r'User "([A-Za-z0-9:@._-]+)" cannot')
_ACCOUNT = "system:serviceaccount:"
_OTHERS = 8  # lines for a driver about others at work


_AGAIN = 5.0  # seconds between two looks at everything
_NAMED = 4  # of what is waited for, in one line


class CheckGroup(Enum):
    """What a check is about. The groups are shown in this order."""

    CLUSTER = "cluster"
    NODES = "nodes"
    DRIVERS = "drivers"
    NODESIDE = "nodeside"


class CheckState(Enum):
    """Whether something holds. What cannot be seen with these rights is not known."""

    OK = "ok"
    MISSING = "MISSING"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Check:
    """One thing that must be true, what was found, and what to do if it is not."""

    name: str
    state: CheckState
    found: str
    remedy: str = ""
    group: CheckGroup = CheckGroup.CLUSTER

    def row(self) -> Sequence[str]:
        found = f"{self.found}\n-> {self.remedy}" if self.remedy else self.found
        return self.name, _COLORED[self.state](self.state.value), found

    def document(self) -> dict[str, str]:
        return {**asdict(self), "state": self.state.value.lower(), "group": self.group.value}


_COLORED: Mapping[CheckState, Callable[[str], Colored]] = {
    CheckState.OK: good,
    CheckState.MISSING: bad,
    CheckState.UNKNOWN: busy,
}


@dataclass(frozen=True)
class ClusterCheck:
    """All checks, by group. `good` if nothing is missing.

    `unread` are the names of checks that an API server did not answer; `good` does not count them.
    """

    checks: tuple[Check, ...]
    unread: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        return all(check.state is not CheckState.MISSING for check in self.checks)

    @property
    def awaited(self) -> tuple[str, ...]:
        """The names of what `wait_until_good` waits for."""
        missing = (each.name for each in self.checks if each.state is CheckState.MISSING)
        return (*missing, *self.unread)

    @property
    def verdict(self) -> Colored:
        counts, every = Counter(each.state for each in self.checks), len(self.checks)
        missing, unknown = counts[CheckState.MISSING], counts[CheckState.UNKNOWN]
        rest = f"; {unknown} {'is' if unknown == 1 else 'are'} not known" if unknown else ""
        if missing:
            return bad(f"{missing} of {every} {'needs' if missing == 1 else 'need'} you{rest}")
        if unknown:
            return busy(f"nothing of {every} needs you{rest}")
        return good(f"all {every} are ok")

    def text(self, *, quiet: bool = False) -> str:
        """Return the verdict and a table for each group; if `quiet`, only of what is not ok."""
        shown = self._shown(quiet=quiet)
        if quiet and not shown:
            return ""
        tables = [
            table([each.row() for each in shown if each.group is group], header=_title(group))
            for group in CheckGroup
            if any(each.group is group for each in shown)
        ]
        return "\n\n".join((self.verdict.painted(), *tables))

    def json(self, *, quiet: bool = False) -> str:
        rows = [each.document() for each in self._shown(quiet=quiet)]
        return json.dumps({"checks": rows, "good": self.good}, indent=2)

    def _shown(self, *, quiet: bool) -> Sequence[Check]:
        return [each for each in self.checks if not quiet or each.state is not CheckState.OK]


def _title(group: CheckGroup) -> Sequence[str]:
    return (group.value.upper(), "", "")


def wait_until_good(
    look: Callable[[], ClusterCheck],
    seconds: float,
    say: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> ClusterCheck:
    """Look until nothing is missing or unread, or for `seconds`; return what was found last.

    What is waited for is said at first and after each change.
    """
    ends, said = clock() + seconds, ""
    while (found := look()).awaited and (left := ends - clock()) > 0:
        awaited = f"waiting for {shortlist(found.awaited, _NAMED)}"
        if awaited != said:
            say(f"{awaited}; {left:.0f} s left")
            said = awaited
        pause(min(_AGAIN, left))
    return found


def check(api: Api, namespace: str, driver: Driver | None = None) -> ClusterCheck:
    """Look at everything. A refusal or an error of one check does not end the others.

    Without `driver`, what the Drivers of the cluster need is looked at.
    """
    nodes = _Nodes(api)
    found, read_error = _read_drivers(api)
    others = [each.driver for each in found if each.driver is not None]
    drivers = [driver] if driver is not None else others
    looks: Mapping[CheckGroup, Sequence[tuple[str, Callable[[], Iterator[Check]]]]] = {
        CheckGroup.CLUSTER: (
            ("Kubernetes", lambda: _check_version(api)),
            ("admission policies", lambda: _check_policies(api)),
            ("rights", lambda: _check_rights(api)),
            ("namespace", lambda: _check_namespace(api, namespace)),
        ),
        CheckGroup.NODES: (
            ("nodes", lambda: _check_pools(nodes)),
            ("labels of hardware", lambda: _check_labels(nodes, drivers)),
            ("hardware", lambda: _check_hardware(nodes, drivers)),
        ),
        CheckGroup.DRIVERS: (
            ("drivers", lambda: _check_documents(found, read_error)),
            ("other drivers", lambda: _check_rivals(nodes, drivers, others)),
            ("other installers", lambda: _check_others(nodes, drivers)),
            ("image", lambda: _check_image(driver)),
            ("toolkit", lambda: _check_toolkits(api, nodes, drivers, read_error)),
        ),
        CheckGroup.NODESIDE: (
            ("definitions", lambda: _check_definitions(api)),
            ("controller", lambda: _check_controller(api, namespace)),
            ("images", lambda: _check_pulls(api, namespace)),
        ),
    }
    checks: list[Check] = []
    unread: list[str] = []
    refused: list[Forbidden] = []
    for group, members in looks.items():
        for name, look in members:
            found_here: list[Check] = []
            try:
                found_here += look()
            except Forbidden as error:
                found_here.append(Check(name, CheckState.UNKNOWN, str(error)))
                refused.append(error)
            except ApiError as error:
                found_here.append(Check(name, CheckState.UNKNOWN, str(error), error.hint))
                unread.append(name)
            checks += (replace(each, group=group) for each in found_here)
    if refused:
        checks.append(_ask_for_rights(refused))
    return ClusterCheck(tuple(checks), tuple(unread))


def _ask_for_rights(refused: Sequence[Forbidden]) -> Check:
    """Return one line for all that a user may not see: the rules come from an administrator."""
    who = next(iter(_USER.findall(str(refused[0]))), "USER")
    account = who.removeprefix(_ACCOUNT)
    subject = f"--serviceaccount={account}" if account != who else f"--user={who}"
    name = account.partition(":")[2] or account
    command = (
        f"kubectl create clusterrolebinding {shlex.quote(f'{name}-admin')} "
        f"--clusterrole=cluster-admin {shlex.quote(subject)}"
    )
    return Check(
        "permissions",
        CheckState.UNKNOWN,
        f"this user may not look at {len(refused)} of these",
        f"to check and to install, an administrator runs: {command}",
    )


def _read_drivers(api: Api) -> tuple[list[DriverObject], ApiError | None]:
    """Return the Drivers of the cluster, none before the installation, or why they are unknown."""
    try:
        found = api.list(DRIVERS, driver_from).items
    except NotFound:
        return [], None
    except ApiError as error:
        return [], error
    return [each for each in found if not each.deleting], None


def _check_documents(found: Sequence[DriverObject], read_error: ApiError | None) -> Iterator[Check]:
    if read_error is not None:
        raise read_error
    for each in found:
        if each.driver is None:
            remedy = f"correct it: kubectl edit driver {each.name}"
            yield Check(
                f"driver {each.name}", CheckState.MISSING, escape_controls(each.mistakes), remedy
            )


def _check_version(api: Api) -> Iterator[Check]:
    version = api.get_version()
    found = str(version.get("gitVersion", "?"))
    digits = ["".join(filter(str.isdigit, str(version.get(key, "")))) for key in ("major", "minor")]
    number = tuple(int(each or 0) for each in digits)
    if openshift := _openshift_version(api):
        found += f", OpenShift {openshift}"
    oldest = ".".join(map(str, _OLDEST))
    if number >= _OLDEST:
        yield Check("Kubernetes", CheckState.OK, found)
    else:
        yield Check("Kubernetes", CheckState.MISSING, found, f"nodeside needs {oldest} or later")


def _openshift_version(api: Api) -> str:
    try:
        status = api.get(CLUSTER_VERSIONS, "version").get("status") or {}
    except ApiError:
        return ""
    return str((status.get("desired") or {}).get("version") or "")


def _check_policies(api: Api) -> Iterator[Check]:
    group, plural = _POLICIES
    name = "admission policies"
    if plural in api.served_kinds(group):
        yield Check(name, CheckState.OK, f"{plural} are served")
        return
    why = "they keep the token of one node's pod from writing about another node"
    yield Check(
        name,
        CheckState.MISSING,
        f"{group} does not serve {plural}; {why}",
        "enable them in the API server: --runtime-config",
    )


def _check_rights(api: Api) -> Iterator[Check]:
    lacking = [
        f"{verb} {resource.plural}"
        for verb, resource in _RIGHTS
        if not _is_allowed(api, verb, resource)
    ]
    if not lacking:
        yield Check("rights", CheckState.OK, "this user may install nodeside")
        return
    yield Check(
        "rights",
        CheckState.MISSING,
        f"this user may not {shortlist(lacking, _SHOWN)}",
        "install as a cluster administrator; to look at a cluster, other rights will do",
    )


def _is_allowed(api: Api, verb: str, resource: Resource) -> bool:
    attributes = {"verb": verb, "group": resource.group, "resource": resource.plural}
    review = api.create(
        {
            "apiVersion": ACCESS_REVIEWS.api_version,
            "kind": ACCESS_REVIEWS.kind,
            "spec": {"resourceAttributes": attributes},
        }
    )
    return (review.get("status") or {}).get("allowed") is True


def _check_namespace(api: Api, namespace: str) -> Iterator[Check]:
    name = f"namespace {namespace}"
    try:
        found = api.get(NAMESPACES, namespace)
    except NotFound:
        yield Check(
            name,
            CheckState.OK,
            "is not there; `install` creates it, and admits privileged pods to it",
        )
        return
    if namespace_ends(found):
        remedy = f"wait: kubectl wait --for=delete namespace/{namespace} --timeout=10m"
        yield Check(name, CheckState.MISSING, "is being deleted, with all that is in it", remedy)
        return
    level = str((found["metadata"].get("labels") or {}).get(_ENFORCE, "not set"))
    if level in ("privileged", "not set"):
        yield Check(name, CheckState.OK, f"pod security: {level}")
        return
    yield Check(
        name,
        CheckState.MISSING,
        f"pod security: {level}, which admits no driver pod",
        f"kubectl label --overwrite namespace {namespace} {_ENFORCE}=privileged",
    )


class _Nodes:
    """The Linux nodes of the cluster, listed once."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._found: tuple[Node, ...] | None = None

    def all(self) -> tuple[Node, ...]:
        if self._found is None:
            page = self._api.list(NODES, node_from)
            self._found = tuple(
                node
                for node in page.items
                if node.labels.get("kubernetes.io/os", "linux") == "linux"
            )
        return self._found

    def pools(self, driver: Driver | None) -> Counter[Pool]:
        """Return the pools of the nodes that the driver is for, if any, with their sizes."""
        fitting = [node for node in self.all() if driver is not None and is_selected(node, driver)]
        return Counter(pool_of(node) for node in fitting or self.all())


def _check_pools(nodes: _Nodes) -> Iterator[Check]:
    count = len(nodes.all())
    kernels = sorted({node.kernel for node in nodes.all() if node.kernel})
    if not count:
        yield Check("nodes", CheckState.MISSING, "no Linux node", "add one; see kubectl get nodes")
        return
    words = f"{count} with {len(kernels)} kernel{'s' * (len(kernels) != 1)}"
    yield Check("nodes", CheckState.OK, f"{words}: {shortlist(kernels, _SHOWN)}")


def _check_labels(nodes: _Nodes, drivers: Sequence[Driver]) -> Iterator[Check]:
    if drivers and not any(driver.spec.hardware.pci for driver in drivers):
        return
    labelled = [node for node in nodes.all() if any("/pci-" in key for key in node.labels)]
    name = "labels of hardware"
    remedy = (
        "install Node Feature Discovery, and let it label the class of the device: "
        "sources.pci.deviceClassWhitelist, see docs/cluster.md; or select nodes by labels of "
        "your own: hardware.nodeSelector"
    )
    count = len(nodes.all())
    state = CheckState.OK if labelled else CheckState.MISSING
    found = f"{len(labelled)} of {count} nodes have labels of Node Feature Discovery for PCI"
    yield Check(name, state, found, "" if labelled else remedy)


def _check_hardware(nodes: _Nodes, drivers: Sequence[Driver]) -> Iterator[Check]:
    count = len(nodes.all())
    for driver in drivers:
        fitting = sum(is_selected(node, driver) for node in nodes.all())
        other = (
            "is the class of the device in deviceClassWhitelist, and are the ids those of lspci?"
        )
        remedy = other if driver.spec.hardware.pci else "label the nodes: kubectl label node"
        yield Check(
            f"hardware of {driver.name}",
            CheckState.OK if fitting else CheckState.MISSING,
            f"{fitting} of {count} nodes have what `hardware` asks for",
            _only_vendors_warning(nodes, driver) if fitting else remedy,
        )


def _only_vendors_warning(nodes: _Nodes, driver: Driver) -> str:
    """Return a warning if labels do not tell the driver's devices from others of their vendor."""
    named = {f"{each.vendor}_{each.device}" for each in driver.spec.hardware.pci if each.device}
    labels = {key for node in nodes.all() if is_selected(node, driver) for key in node.labels}
    if not named or any(name in key for name in named for key in labels):
        return ""
    return (
        "their labels name only the vendor, so any device of it counts; let Node Feature "
        "Discovery label the device too: sources.pci.deviceLabelFields: [class, vendor, device]"
    )


def _check_rivals(
    nodes: _Nodes, drivers: Sequence[Driver], others: Sequence[Driver]
) -> Iterator[Check]:
    for each in find_rivalries(nodes.all(), drivers, others):
        state = CheckState.MISSING if each.certain else CheckState.UNKNOWN
        yield Check(each.subject, state, each.found, each.remedy)


def _check_others(nodes: _Nodes, drivers: Sequence[Driver]) -> Iterator[Check]:
    """Yield who else works on what a driver is for, with the nodes."""
    for driver in drivers:
        found: dict[FoundInstaller, list[str]] = {}
        for node in nodes.all():
            for each in find_other_installers(driver, node) if is_selected(node, driver) else ():
                found.setdefault(each, []).append(node.name)
        for each, names in islice(found.items(), _OTHERS):
            words = f"{each.name} works on {shortlist(names, _SHOWN)} too: {each.sign}"
            name = f"others for {driver.name}"
            yield Check(name, CheckState.UNKNOWN, words, each.way_out)


def _check_image(driver: Driver | None) -> Iterator[Check]:
    if driver is not None and not driver.spec.image:
        yield Check(
            f"image of {driver.name}",
            CheckState.MISSING,
            "spec.image is not set",
            "name the driver image that the nodes pull: spec.image in driver.yaml",
        )


def _check_toolkits(
    api: Api, nodes: _Nodes, drivers: Sequence[Driver], read_error: ApiError | None
) -> Iterator[Check]:
    are_several = len(drivers) > 1
    if not drivers and read_error is None:
        yield from _check_toolkit(api, nodes, None, "toolkit")
    for driver in drivers:
        is_for_some = not are_several or any(is_selected(node, driver) for node in nodes.all())
        if driver.spec.modules and is_for_some:
            name = f"toolkit of {driver.name}" if are_several else "toolkit"
            yield from _check_toolkit(api, nodes, driver, name)


def _check_toolkit(api: Api, nodes: _Nodes, driver: Driver | None, name: str) -> Iterator[Check]:
    """One line for each kernel, by the same chain as the controller's."""
    toolkit = driver.spec.toolkit if driver is not None else Toolkit()
    streams = image_streams(api)
    for pool, count in sorted(nodes.pools(driver).items(), key=str):
        if not pool.kernel:
            continue
        known = read_evidence(api, pool, toolkit, streams)
        found = toolkit_image.resolve_toolkit_image(pool, toolkit, streams, known)
        where = f"{pool.kernel} ({count} node{'s' * (count != 1)})"
        if found.image:
            yield Check(f"{name} for {where}", CheckState.OK, f"{found.image}: {found.why}")
            continue
        if driver is not None and (driver.spec.prebuilt.sources or driver.spec.prebuilt.image):
            words = "none; prebuilt modules are used"
            yield Check(f"{name} for {where}", CheckState.OK, words)
            continue
        remedy = found.remedy
        if driver is None:
            remedy += "; with --driver FILE, the `toolkit` of that driver is used"
        yield Check(f"{name} for {where}", CheckState.MISSING, found.why, remedy)


def _check_definitions(api: Api) -> Iterator[Check]:
    old = crd_check.missing_fields_in_words(crd_check.find_missing_fields(api))
    if old:
        yield Check("definitions", CheckState.MISSING, old, crd_check.REMEDY)


def _check_controller(api: Api, namespace: str) -> Iterator[Check]:
    with suppress(ApiError):
        if namespace_ends(api.get(NAMESPACES, namespace)):
            return  # a controller that is left in it ends with it
    try:
        who = read_leader(api, namespace)
    except ControllerNotInstalled as error:
        yield Check("controller", CheckState.UNKNOWN, "not installed yet", error.hint)
        return
    if who.leads:
        yield Check("controller", CheckState.OK, "leads")
    else:
        state = CheckState.MISSING if who.absent else CheckState.UNKNOWN
        yield Check("controller", state, who.words)


def _check_pulls(api: Api, namespace: str) -> Iterator[Check]:
    """Which images of our pods cannot be pulled; nothing before the installation."""
    pods = api.list(PODS, lambda pod: pod, namespace=namespace).items
    failed = dict(each for pod in pods for each in _not_pulled(pod))
    if failed:
        image, message = next(iter(sorted(failed.items())))
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        yield Check(
            "images",
            CheckState.MISSING,
            escape_controls(f"{image} cannot be pulled{more}: {message}"),
            image_pulls.remedy(message),
        )
    elif pods:
        yield Check("images", CheckState.OK, f"{len(pods)} pods, none waits for an image")


def _not_pulled(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    status = pod.get("status") or {}
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or ():
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") in CANNOT_PULL:
                yield str(container.get("image", "")), str(waiting.get("message", ""))[:300]
