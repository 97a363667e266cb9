"""An OpenShift cluster as far as it admits pods: which constraints there are, and who may use them.

The constraints are those of an installation and what OpenShift brings; the rights are those of the
installation's roles. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from cluster.install.manifests import InstallSettings, all_manifests
from cluster.model.names import NAMESPACE
from tests.cluster.openshift.admission import Document, Namespace, Refused, admit, with_token

_REQUIRED = "openshift.io/required-scc"

# https://github.com/openshift/cluster-kube-apiserver-operator, bindata/bootkube/scc-manifests
RESTRICTED_V2: Mapping[str, Any] = {
    "metadata": {"name": "restricted-v2"},
    "allowHostDirVolumePlugin": False,
    "allowPrivilegeEscalation": False,
    "allowPrivilegedContainer": False,
    "allowedCapabilities": ["NET_BIND_SERVICE"],
    "requiredDropCapabilities": ["ALL"],
    "readOnlyRootFilesystem": False,
    "runAsUser": {"type": "MustRunAsRange"},
    "seLinuxContext": {"type": "MustRunAs"},
    "fsGroup": {"type": "MustRunAs"},
    "supplementalGroups": {"type": "RunAsAny"},
    "seccompProfiles": ["runtime/default"],
    "volumes": [
        *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image"),
        *("persistentVolumeClaim", "projected", "secret"),
    ],
}
# Newer clusters have it too. Of what it asks in addition, this is what the server named.
RESTRICTED_V3: Mapping[str, Any] = {
    **RESTRICTED_V2,
    "metadata": {"name": "restricted-v3"},
    "userNamespaceLevel": "RequirePodLevel",
}
_OF_ALL = (RESTRICTED_V2, RESTRICTED_V3)  # every account may use them


@cache
def openshift() -> Openshift:
    """Returns the cluster that nodeside is installed in."""
    return Openshift(all_manifests(InstallSettings(openshift=True)))


@dataclass(frozen=True)
class Openshift:
    installed: tuple[Document, ...]
    namespace: Namespace = field(default=Namespace(1000670000, 10000, "s0:c26,c8"))

    def constraints(self) -> dict[str, Document]:
        """Returns those of the installation, by name."""
        kind = "SecurityContextConstraints"
        found = (each for each in self.installed if each["kind"] == kind)
        return {each["metadata"]["name"]: each for each in found}

    def create(self, template: Mapping[str, Any]) -> tuple[str, Document]:
        """Returns what admitted a pod of this template, and the pod. Raises Refused.

        A pod that names its constraints is held against them alone.
        """
        pod = with_token(template["spec"])
        usable = {each["metadata"]["name"]: each for each in self._usable(pod)}
        required = template.get("metadata", {}).get("annotations", {}).get(_REQUIRED, "")
        if required and required not in usable:
            raise Refused(f'provider "{required}": Forbidden: not usable by user or serviceaccount')
        refusals = []
        for scc in [usable[required]] if required else usable.values():
            try:
                return scc["metadata"]["name"], admit(pod, scc, self.namespace)
            except Refused as refusal:
                refusals.append(str(refusal).removeprefix("[").removesuffix("]"))
        words = ", ".join(refusals)
        words = words if words.count("Invalid value") == 1 else f"[{words}]"
        raise Refused(f"unable to validate against any security context constraint: {words}")

    def _usable(self, pod: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        yield from _OF_ALL
        found = self.constraints()
        granted = set(self._granted(pod.get("serviceAccountName", "default")))
        yield from (found[name] for name in sorted(granted & found.keys()))

    def _granted(self, account: str) -> Iterator[str]:
        """Yields the constraints that roles in our namespace let an account use."""
        subject = {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}
        roles = {
            each["roleRef"]["name"]
            for each in self.installed
            if each["kind"] == "RoleBinding" and subject in each["subjects"]
        }
        for each in self.installed:
            if each["kind"] == "Role" and each["metadata"]["name"] in roles:
                for rule in each["rules"]:
                    if "securitycontextconstraints" in rule["resources"] and "use" in rule["verbs"]:
                        yield from rule["resourceNames"]
