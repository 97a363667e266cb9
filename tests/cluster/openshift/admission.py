"""A judge of pods that stands in for OpenShift's admission by SecurityContextConstraints.

A pod is completed with what the constraints prescribe, and then held against them, field by field,
as described in
https://docs.redhat.com/en/documentation/openshift_container_platform/4.16/html/authentication_and_authorization/managing-pod-security-policies
and, where that leaves questions, as OpenShift does it
(https://github.com/openshift/apiserver-library-go, pkg/securitycontextconstraints). A refusal reads
like that of the real server; test_admission.py holds the judge to what that server said of our
pods. Not judged: sysctls, drivers of flexVolume, and profiles of seccomp in annotations. Pure.

    with_token        what the API server adds before
    Namespace         the numbers that OpenShift gives to a namespace
    admit             one pod, one SecurityContextConstraints

cluster.py knows who may use which.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Document = dict[str, Any]

_UIDS = "openshift.io/sa.scc.uid-range"
_LEVEL = "openshift.io/sa.scc.mcs"
_SECCOMP = {"RuntimeDefault": "runtime/default", "Unconfined": "unconfined"}
_SHARED = ("runAsUser", "runAsNonRoot", "seLinuxOptions", "seccompProfile")  # with the pod
_HOST = {"hostNetwork": "Host network", "hostPID": "Host PID", "hostIPC": "Host IPC"}


class Refused(Exception):
    """The words after `pods "…" is forbidden: `."""


@dataclass(frozen=True)
class Namespace:
    """The first user ID, how many there are, and the SELinux level."""

    uid: int
    size: int
    level: str

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Namespace:
        """Reads it from the annotations, as OpenShift does. Raises Refused without them."""
        notes = document["metadata"].get("annotations", {})
        for key in (_UIDS, _LEVEL):
            if key not in notes:
                name = document["metadata"]["name"]
                words = f'error fetching namespace "{name}": unable to find annotation {key}'
                raise Refused(words)
        first, _, size = notes[_UIDS].partition("/")
        return cls(int(first), int(size), notes[_LEVEL])


def with_token(pod: Mapping[str, Any]) -> Document:
    """Returns the pod with the volume that every pod gets unless it says no."""
    made = copy.deepcopy(dict(pod))
    if made.get("automountServiceAccountToken", True):
        token = {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}}
        volume = {"name": "kube-api-access", "projected": {"sources": [token]}}
        made["volumes"] = [*made.get("volumes", ()), volume]
    return made


def admit(pod: Mapping[str, Any], scc: Mapping[str, Any], namespace: Namespace) -> Document:
    """Returns the pod as it would be stored. Raises Refused with all that is wrong."""
    rules = _Rules(scc, namespace)
    made = rules.completed(pod)
    provider = f"provider {scc['metadata']['name']}: "
    if problems := [f"{provider}{problem}" for problem in rules.problems(made)]:
        raise Refused(problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]")
    return made


@dataclass(frozen=True)
class _Rules:
    scc: Mapping[str, Any]
    namespace: Namespace

    def completed(self, pod: Mapping[str, Any]) -> Document:
        made = copy.deepcopy(dict(pod))
        security = made.setdefault("securityContext", {})
        for field, value in self._pod_defaults():
            security.setdefault(field, value)
        for _, container in _containers(made):
            self._complete(container.setdefault("securityContext", {}), security)
        return made

    def _pod_defaults(self) -> Iterator[tuple[str, Any]]:
        if self._must_run_as("supplementalGroups"):
            yield "supplementalGroups", [self.namespace.uid]
        if self._must_run_as("fsGroup"):
            yield "fsGroup", self.namespace.uid
        if self._must_run_as("seLinuxContext"):
            yield "seLinuxOptions", dict(self._selinux())
        profiles = {profile: kind for kind, profile in _SECCOMP.items()}
        for allowed in (each for each in self.scc.get("seccompProfiles") or () if each != "*"):
            yield "seccompProfile", {"type": profiles[allowed]}

    def _complete(self, own: Document, pod: Mapping[str, Any]) -> None:
        shared = {**pod, **own}
        if self.scc["runAsUser"]["type"] == "MustRunAsRange":
            own.setdefault("runAsUser", shared.get("runAsUser", self.namespace.uid))
        if "runAsNonRoot" not in shared and {**pod, **own}.get("runAsUser"):
            own["runAsNonRoot"] = True
        self._complete_capabilities(own)
        if self.scc.get("readOnlyRootFilesystem"):
            own.setdefault("readOnlyRootFilesystem", True)
        if not self.scc.get("allowPrivilegeEscalation", True):
            own.setdefault("allowPrivilegeEscalation", False)

    def _complete_capabilities(self, own: Document) -> None:
        asked = own.get("capabilities", {})
        add, drop = set(asked.get("add", ())), set(asked.get("drop", ()))
        add |= {*(self.scc.get("defaultAddCapabilities") or ())} - drop
        drop |= {*(self.scc.get("requiredDropCapabilities") or ())}
        both = {"add": sorted(add), "drop": sorted(drop)}
        if found := {key: value for key, value in both.items() if value}:
            own["capabilities"] = found

    def problems(self, pod: Mapping[str, Any]) -> Iterator[str]:
        """Yields what the constraints do not allow, as `path: Invalid value: …`."""
        at, security = ".spec.securityContext", pod["securityContext"]
        yield from self._group_problems(at, "fsGroup", [security.get("fsGroup")])
        groups = security.get("supplementalGroups") or [None]
        yield from self._group_problems(at, "supplementalGroups", groups)
        yield from self._seccomp_problems(at, security)
        yield from self._selinux_problems(at, security)
        for field, words in _HOST.items():
            if pod.get(field) and not self.scc.get(f"allow{field[0].upper()}{field[1:]}"):
                yield _invalid(f"{at}.{field}", True, f"{words} is not allowed to be used")
        if self.scc.get("userNamespaceLevel") == "RequirePodLevel" and pod.get("hostUsers", True):
            yield _invalid(
                ".spec.hostUsers", pod.get("hostUsers"), "Host Users must be set to false"
            )
        yield from self._volume_problems(pod)
        for path, container in _containers(pod):
            yield from self._container_problems(path, container, security)

    def _volume_problems(self, pod: Mapping[str, Any]) -> Iterator[str]:
        allowed = set(self.scc.get("volumes") or ())
        # The older field decides: https://docs.okd.io on allowHostDirVolumePlugin.
        if self.scc.get("allowHostDirVolumePlugin"):
            allowed |= {"hostPath"}
        else:
            allowed -= {"hostPath"}
        for number, volume in enumerate(pod.get("volumes", ())):
            [kind] = volume.keys() - {"name"}
            if not allowed & {kind, "*"}:
                words = f"{kind} volumes are not allowed to be used"
                yield _invalid(f".spec.volumes[{number}]", kind, words)

    def _container_problems(
        self, at: str, container: Mapping[str, Any], pod: Mapping[str, Any]
    ) -> Iterator[str]:
        own = container["securityContext"]
        shared = {**{key: pod[key] for key in _SHARED if key in pod}, **own}
        yield from self._user_problems(at, shared)
        yield from self._selinux_problems(at, shared)
        yield from self._seccomp_problems(at, shared)
        if own.get("privileged") and not self.scc.get("allowPrivilegedContainer"):
            yield _invalid(f"{at}.privileged", True, "Privileged containers are not allowed")
        yield from self._capability_problems(at, own.get("capabilities", {}))
        if not self.scc.get("allowHostPorts"):
            for port in (each.get("hostPort") for each in container.get("ports", ())):
                if port:
                    yield _invalid(f"{at}.hostPort", port, "Host ports are not allowed to be used")
        if self.scc.get("readOnlyRootFilesystem") and not own["readOnlyRootFilesystem"]:
            words = "ReadOnlyRootFilesystem must be set to true"
            yield _invalid(f"{at}.readOnlyRootFilesystem", False, words)
        allows = self.scc.get("allowPrivilegeEscalation", True)
        if own.get("allowPrivilegeEscalation", True) and not allows:
            words = "Allowing privilege escalation for containers is not allowed"
            yield _invalid(f"{at}.allowPrivilegeEscalation", True, words)

    def _user_problems(self, at: str, security: Mapping[str, Any]) -> Iterator[str]:
        rule, user = self.scc["runAsUser"]["type"], security.get("runAsUser")
        first, last = self.namespace.uid, self.namespace.uid + self.namespace.size - 1
        match rule:
            case "RunAsAny":
                return
            case "MustRunAsNonRoot":
                if user == 0 or not (user or security.get("runAsNonRoot")):
                    words = "running with the root UID is forbidden"
                    yield _invalid(f"{at}.runAsUser", user, words)
            case "MustRunAsRange":
                assert user is not None, "it was completed"
                if not first <= user <= last:
                    words = f"must be in the ranges: [{first}, {last}]"
                    yield _invalid(f"{at}.runAsUser", user, words)
            case _:
                raise NotImplementedError(rule)

    def _selinux_problems(self, at: str, security: Mapping[str, Any]) -> Iterator[str]:
        if self._must_run_as("seLinuxContext"):
            wanted, found = self._selinux(), security["seLinuxOptions"]
            for field in ("level", "role", "type", "user"):
                here, must = found.get(field, ""), wanted.get(field, "")
                if here != must:
                    yield _invalid(f"{at}.seLinuxOptions.{field}", here, f"must be {must}")

    def _selinux(self) -> Mapping[str, str]:
        options = self.scc["seLinuxContext"].get("seLinuxOptions") or {}
        return {"level": self.namespace.level, **options}

    def _group_problems(self, at: str, field: str, groups: list[int | None]) -> Iterator[str]:
        if self._must_run_as(field):
            last = self.namespace.uid + (0 if field == "fsGroup" else self.namespace.size - 1)
            for group in groups:
                if group is None or not self.namespace.uid <= group <= last:
                    yield _invalid(f"{at}.{field}", [group], f"{group} is not an allowed group")

    def _seccomp_problems(self, at: str, security: Mapping[str, Any]) -> Iterator[str]:
        allowed = self.scc.get("seccompProfiles") or []
        found = security.get("seccompProfile", {})
        profile = _SECCOMP.get(found.get("type", ""), f"localhost/{found.get('localhostProfile')}")
        profile = profile if found else ""
        if "*" in allowed or profile in (allowed or [""]):
            return
        words = f"{profile} is not an allowed seccomp profile. Valid values are {allowed}"
        yield f"{at}.seccompProfile: Forbidden: {words if allowed else 'seccomp may not be set'}"

    def _capability_problems(self, at: str, found: Mapping[str, Any]) -> Iterator[str]:
        allowed = {*(self.scc.get("allowedCapabilities") or ())}
        if "*" in allowed:
            return
        allowed |= {*(self.scc.get("defaultAddCapabilities") or ())}
        for each in found.get("add", ()):
            if each not in allowed:
                yield _invalid(f"{at}.capabilities.add", each, "capability may not be added")
        for each in self.scc.get("requiredDropCapabilities") or ():
            if each not in found.get("drop", ()):
                words = f"{each} is required to be dropped but was not found"
                yield _invalid(f"{at}.capabilities.drop", found.get("drop", []), words)

    def _must_run_as(self, field: str) -> bool:
        rule = self.scc[field]["type"]
        if rule not in ("MustRunAs", "RunAsAny"):
            raise NotImplementedError(f"{field}: {rule}")
        return bool(rule == "MustRunAs")


def _containers(pod: Mapping[str, Any]) -> Iterator[tuple[str, Document]]:
    for field in ("initContainers", "containers", "ephemeralContainers"):
        for number, container in enumerate(pod.get(field, ())):
            yield f".{field}[{number}]", container


def _invalid(path: str, value: object, words: str) -> str:
    return f"{path}: Invalid value: {json.dumps(value)}: {words}"
