"""The object kinds that the controller accesses, and their URLs.

A `Resource` is the only place that spells a REST path or the names for an RBAC rule.
`resource_of` returns the one for a document to apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from nodeside.errors import NodesideError
from nodeside.protocol.labels import API_GROUP


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind and its location in the API. `group` is empty for the core group."""

    kind: str
    plural: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, name: str = "", *, namespace: str = "", subresource: str = "") -> str:
        """Return the path of one object, or of the collection if `name` is empty.

        Without `namespace`, the path covers all namespaces.
        """
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/" + "/".join(quote(part, safe="") for part in parts)


NODES = Resource("Node", "nodes")
PODS = Resource("Pod", "pods", namespaced=True)
SECRETS = Resource("Secret", "secrets", namespaced=True)
CONFIG_MAPS = Resource("ConfigMap", "configmaps", namespaced=True)
NAMESPACES = Resource("Namespace", "namespaces")
SERVICE_ACCOUNTS = Resource("ServiceAccount", "serviceaccounts", namespaced=True)
DAEMON_SETS = Resource("DaemonSet", "daemonsets", "apps", namespaced=True)
DEPLOYMENTS = Resource("Deployment", "deployments", "apps", namespaced=True)
JOBS = Resource("Job", "jobs", "batch", namespaced=True)
SERVICES = Resource("Service", "services", namespaced=True)
EVENTS = Resource("Event", "events", "events.k8s.io", namespaced=True)
LEASES = Resource("Lease", "leases", "coordination.k8s.io", namespaced=True)
DRIVERS = Resource("Driver", "drivers", API_GROUP, "v1alpha1")
NODE_DRIVERS = Resource("NodeDriver", "nodedrivers", API_GROUP, "v1alpha1")
IMAGE_STREAMS = Resource("ImageStream", "imagestreams", "image.openshift.io", namespaced=True)
IMAGE_STREAM_TAGS = Resource(
    "ImageStreamTag", "imagestreamtags", "image.openshift.io", namespaced=True
)
IMAGE_STREAM_IMAGES = Resource(
    "ImageStreamImage", "imagestreamimages", "image.openshift.io", namespaced=True
)
CLUSTER_VERSIONS = Resource("ClusterVersion", "clusterversions", "config.openshift.io")
RESOURCE_CLAIMS = Resource("ResourceClaim", "resourceclaims", "resource.k8s.io", namespaced=True)
CRDS = Resource("CustomResourceDefinition", "customresourcedefinitions", "apiextensions.k8s.io")
_MONITORING = "monitoring.coreos.com"
SERVICE_MONITORS = Resource("ServiceMonitor", "servicemonitors", _MONITORING, namespaced=True)
POD_MONITORS = Resource("PodMonitor", "podmonitors", _MONITORING, namespaced=True)
PROMETHEUS_RULES = Resource("PrometheusRule", "prometheusrules", _MONITORING, namespaced=True)
TOKEN_REVIEWS = Resource("TokenReview", "tokenreviews", "authentication.k8s.io")
SUBJECT_ACCESS_REVIEWS = Resource(
    "SubjectAccessReview", "subjectaccessreviews", "authorization.k8s.io"
)
ACCESS_REVIEWS = Resource(
    "SelfSubjectAccessReview", "selfsubjectaccessreviews", "authorization.k8s.io"
)

_RBAC = "rbac.authorization.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"

KNOWN = (
    NODES,
    PODS,
    CONFIG_MAPS,
    NAMESPACES,
    SERVICE_ACCOUNTS,
    DAEMON_SETS,
    DEPLOYMENTS,
    JOBS,
    SERVICES,
    SERVICE_MONITORS,
    POD_MONITORS,
    PROMETHEUS_RULES,
    EVENTS,
    LEASES,
    DRIVERS,
    NODE_DRIVERS,
    IMAGE_STREAMS,
    CRDS,
    TOKEN_REVIEWS,
    SUBJECT_ACCESS_REVIEWS,
    ACCESS_REVIEWS,
    Resource("ClusterRole", "clusterroles", _RBAC),
    Resource("ClusterRoleBinding", "clusterrolebindings", _RBAC),
    Resource("Role", "roles", _RBAC, namespaced=True),
    Resource("RoleBinding", "rolebindings", _RBAC, namespaced=True),
    Resource("ValidatingAdmissionPolicy", "validatingadmissionpolicies", _ADMISSION),
    Resource("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", _ADMISSION),
    Resource("PodDisruptionBudget", "poddisruptionbudgets", "policy", namespaced=True),
    Resource("SecurityContextConstraints", "securitycontextconstraints", "security.openshift.io"),
)
_BY_KIND = {(known.api_version, known.kind): known for known in KNOWN}


class UnknownKind(NodesideError):
    """A document whose kind is not in `KNOWN`."""

    reason = "UnknownKind"


def resource_of(document: Mapping[str, Any]) -> Resource:
    """Return the resource of a document by its `apiVersion` and `kind`, or raise UnknownKind."""
    key = (str(document.get("apiVersion", "")), str(document.get("kind", "")))
    if key not in _BY_KIND:
        raise UnknownKind(f"no resource known for kind {key[1]!r} of {key[0]!r}")
    return _BY_KIND[key]
