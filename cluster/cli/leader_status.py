"""Reports from the Lease whether a controller leads.

`kubectl get drivers` still shows what the last leader wrote, however old it is. So `status` and
`explain` begin with this. It is informational only.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from cluster.install import crd_check
from cluster.kube.client import Api
from cluster.kube.errors import ApiError, Forbidden, NotFound
from cluster.kube.resources import DEPLOYMENTS, LEASES, NAMESPACES, Resource
from cluster.model.json_fields import parse_time
from cluster.model.names import CONTROLLER, LEASE
from nodeside.errors import ExitCode, NodesideError

_BINDINGS = Resource("ClusterRoleBinding", "clusterrolebindings", "rbac.authorization.k8s.io")

# Seconds that a renewal may be late, because the leader's wall clock may differ from ours.
_CLOCKS = 30.0


class ControllerNotInstalled(NodesideError):
    """The given namespace has neither a Lease nor a Deployment of ours."""

    exit_code = ExitCode.USAGE
    reason = "NotInstalled"


@dataclass(frozen=True, slots=True)
class LeaderStatus:
    """The presence of a leader. `leads` is None if unknown; `words` is the problem, "" if none."""

    leads: bool | None
    words: str = ""

    @property
    def absent(self) -> bool:
        return self.leads is False


def read_leader(api: Api, namespace: str) -> LeaderStatus:
    """Read the Lease.

    Raises ControllerNotInstalled if there is neither a Lease nor a Deployment of ours.
    """
    try:
        lease = api.get(LEASES, LEASE, namespace=namespace)
    except NotFound:
        _check_installed(api, namespace)
        return LeaderStatus(False, f"no controller has led yet; {_look_command(namespace)}")
    except Forbidden as error:
        return LeaderStatus(None, f"whether a controller leads is not known: {error}")
    return read(lease, namespace, api.now())


def leader_status(api: Api, namespace: str) -> LeaderStatus:
    """Return the presence, with a note if the definitions are outdated; for one-shot commands."""
    who = _read_unless_ending(api, namespace)
    old = crd_check.missing_fields_in_words(crd_check.find_missing_fields(api))
    messages = (who.words, f"{old}; {crd_check.REMEDY}" if old else "")
    return replace(who, words="\n".join(filter(None, messages)))


def _read_unless_ending(api: Api, namespace: str) -> LeaderStatus:
    """Read the Lease; if it tells of no leader, whether the namespace is being deleted."""
    try:
        who = read_leader(api, namespace)
        if not who.absent or not _is_ending(api, namespace):
            return who
    except ControllerNotInstalled:
        if not _is_ending(api, namespace):
            raise
    wait = f"kubectl wait --for=delete namespace/{namespace} --timeout=10m"
    words = f"no controller leads: namespace {namespace} is being deleted, with all that is in it"
    return LeaderStatus(False, f"{words}; wait for its end: {wait}; then install anew")


def _is_ending(api: Api, namespace: str) -> bool:
    with suppress(ApiError):
        return namespace_ends(api.get(NAMESPACES, namespace))
    return False


def namespace_ends(namespace: Mapping[str, Any]) -> bool:
    return (namespace.get("status") or {}).get("phase") == "Terminating"


def read(lease: Mapping[str, Any], namespace: str, now: float) -> LeaderStatus:
    """Evaluate a Lease. `now` is wall clock time."""
    spec = lease.get("spec") or {}
    holder, renewed = str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or "")
    since = f" since {renewed[:19]}Z" if renewed else ""
    if not holder:
        return LeaderStatus(False, f"no controller leads{since}; {_look_command(namespace)}")
    silent = now - parse_time(f"{renewed[:19]}Z")  # without the fraction
    if silent > float(spec.get("leaseDurationSeconds") or 0) + _CLOCKS:
        words = f"no controller leads: {holder} did, and has been silent{since}"
        return LeaderStatus(False, f"{words}; {_look_command(namespace)}")
    return LeaderStatus(True)


def _look_command(namespace: str) -> str:
    return f"see kubectl -n {namespace} get pods"


def _check_installed(api: Api, namespace: str) -> None:
    try:
        api.get(DEPLOYMENTS, CONTROLLER, namespace=namespace)
    except NotFound:
        where = _find_namespace(api)
        hint = (
            f"it is in namespace {where}: add --namespace {where}"
            if where not in ("", namespace)
            else "nodeside-cluster install --help"
        )
        raise ControllerNotInstalled(
            f"nodeside is not installed in namespace {namespace}: neither the Lease {LEASE} "
            f"nor the Deployment {CONTROLLER} is there",
            hint=hint,
        ) from None
    except Forbidden:
        return  # cannot be determined


def _find_namespace(api: Api) -> str:
    """Return the namespace in which nodeside is installed; "" if it cannot be found."""
    with suppress(ApiError):
        binding = api.get(_BINDINGS, CONTROLLER)
        for subject in binding.get("subjects") or ():
            return str(subject.get("namespace") or "")
    return ""
