"""Whether a controller is at work, for a person who asks: what the Lease says.

`kubectl get drivers` goes on showing what the last leader wrote, however long ago that was. So
`status` and `explain` begin with this. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from cluster.install import crd_check
from cluster.kube.client import Api
from cluster.kube.errors import ApiError, Forbidden, NotFound
from cluster.kube.resources import DEPLOYMENTS, LEASES, Resource
from cluster.model.names import CONTROLLER, LEASE
from nodeside.errors import ExitCode, NodesideError
from nodeside.timestamps import parse_rfc3339

_BINDINGS = Resource("ClusterRoleBinding", "clusterrolebindings", "rbac.authorization.k8s.io")

# Seconds that a renewal may be late: the Lease has the leader's wall clock, and we have ours.
_CLOCKS = 30.0


class NotInstalled(NodesideError):
    """No controller was ever in the namespace that was named."""

    exit_code = ExitCode.USAGE
    reason = "NotInstalled"


@dataclass(frozen=True, slots=True)
class Presence:
    """`leads` is None where it cannot be known. `words` say what is wrong, "" if nothing is."""

    leads: bool | None
    words: str = ""

    @property
    def absent(self) -> bool:
        return self.leads is False


def presence(api: Api, namespace: str) -> Presence:
    """Raises NotInstalled if there is neither a Lease nor a Deployment of ours."""
    try:
        lease = api.get(LEASES, LEASE, namespace=namespace)
    except NotFound:
        _check_installed(api, namespace)
        return Presence(False, f"no controller has led yet; {_look(namespace)}")
    except Forbidden as error:
        return Presence(None, f"whether a controller leads is not known: {error}")
    return read(lease, namespace, api.now())


def standing(api: Api, namespace: str) -> Presence:
    """The same, with a sentence if the definitions are old: for who looks once."""
    who = presence(api, namespace)
    old = crd_check.words(crd_check.lacking(api))
    said = (who.words, f"{old}; {crd_check.REMEDY}" if old else "")
    return replace(who, words="\n".join(filter(None, said)))


def read(lease: Mapping[str, Any], namespace: str, now: float) -> Presence:
    """What a Lease says. `now` is the wall clock."""
    spec = lease.get("spec") or {}
    holder, renewed = str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or "")
    since = f" since {renewed[:19]}Z" if renewed else ""
    if not holder:
        return Presence(False, f"no controller leads{since}; {_look(namespace)}")
    silent = now - _seconds(renewed)
    if silent > float(spec.get("leaseDurationSeconds") or 0) + _CLOCKS:
        words = f"no controller leads: {holder} did, and is silent{since}; {_look(namespace)}"
        return Presence(False, words)
    return Presence(True)


def _seconds(moment: str) -> float:
    """A MicroTime as seconds, without its fraction; 0 for what is none."""
    with suppress(ValueError):
        return parse_rfc3339(f"{moment[:19]}Z")
    return 0.0


def _look(namespace: str) -> str:
    return f"see kubectl -n {namespace} get pods"


def _check_installed(api: Api, namespace: str) -> None:
    try:
        api.get(DEPLOYMENTS, CONTROLLER, namespace=namespace)
    except NotFound:
        where = _elsewhere(api)
        hint = (
            f"it is in namespace {where}: add --namespace {where}"
            if where not in ("", namespace)
            else "nodeside-cluster install --help"
        )
        raise NotInstalled(
            f"nodeside is not installed in namespace {namespace}: neither the Lease {LEASE} "
            f"nor the Deployment {CONTROLLER} is there",
            hint=hint,
        ) from None
    except Forbidden:
        return  # then nobody can say


def _elsewhere(api: Api) -> str:
    """The namespace in which nodeside is installed, "" if that cannot be found."""
    with suppress(ApiError):
        binding = api.get(_BINDINGS, CONTROLLER)
        for subject in binding.get("subjects") or ():
            return str(subject.get("namespace") or "")
    return ""
