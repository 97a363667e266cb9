"""The objects of the stage `devices`: the device agent on each node, and its driver.yaml.

Pure; options/stages marks and gates them like those of any other stage. Mounts and environment
match what `nodeside device-agent` reads. The agent reads sysfs and /dev, and registers with the
kubelet through the directory of its device plugins. It has further directories, and a token, only
if driver.yaml asks for dynamic resource allocation or for node labels. Where the cluster has the
Prometheus operator, a PodMonitor makes it scrape the agent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from cluster.driver.pod import TOKEN_DIRECTORY, token_volume, unprivileged_context
from cluster.driver.pod_policy import container_resources, with_pull_policy
from cluster.driver.revisions import revision_text
from cluster.model.names import (
    DEVICE_AGENT,
    DRIVER,
    DRIVER_LABEL,
    STAGE_LABEL,
    agent_name,
)
from cluster.model.snapshot import KUBELET_ROOT, Settings
from nodeside.protocol.labels import dra_driver
from nodeside.spec import Driver
from nodeside.spec.devices import dra_devices, label_names
from nodeside.spec.fleet import DEVICES_STAGE
from nodeside.spec.pods import Pods

Document = dict[str, Any]

CONTAINER: Final = "device-agent"
COMMAND: Final = ("nodeside", "device-agent")
DOCUMENT_DIRECTORY: Final = "/etc/nodeside"
# The only directory of the kubelet that does not follow its --root-dir.
KUBELET: Final = "/var/lib/kubelet/device-plugins"
METRICS_PORT: Final = 9402

# Below the kubelet's root.
_POD_RESOURCES: Final = "pod-resources"
_PLUGINS: Final = "plugins"
_PLUGINS_REGISTRY: Final = "plugins_registry"
CDI: Final = "/var/run/cdi"
STATE: Final = "/var/lib/nodeside-devices"
# The parent of NFD's features.d: that is there only if NFD is, and may come later.
FEATURES: Final = "/etc/kubernetes/node-feature-discovery"

_SCRATCH_LIMIT: Final = "16Mi"


@dataclass(frozen=True, slots=True)
class _HostPath:
    """A directory of the host, and where it is mounted ("": under the same path)."""

    volume: str
    path: str
    at: str = ""
    type: str = "DirectoryOrCreate"
    read_only: bool = False

    @property
    def mount(self) -> Document:
        mount: Document = {"name": self.volume, "mountPath": self.at or self.path}
        return mount | {"readOnly": True} if self.read_only else mount

    @property
    def source(self) -> Document:
        return {"name": self.volume, "hostPath": {"path": self.path, "type": self.type}}


_ALWAYS: Final = (
    _HostPath("sys", "/sys", "/host/sys", "Directory", read_only=True),
    _HostPath("dev", "/dev", "/host/dev", "Directory", read_only=True),
    _HostPath("run-nodeside", "/run/nodeside", "/host/run/nodeside", read_only=True),
    _HostPath("device-plugins", KUBELET, type="Directory"),
)


def _host_paths(driver: Driver, settings: Settings) -> Iterator[_HostPath]:
    """Yield the directories of the host; those of the kubelet are mounted at their own paths."""
    root = settings.kubelet_root
    yield from _ALWAYS
    yield _HostPath("pod-resources", f"{root}/{_POD_RESOURCES}", read_only=True)
    yield _HostPath("state", STATE)
    if dra_devices(driver.spec.devices):
        # Of the directories of plugins, the agent has only its own.
        yield _HostPath("plugin", f"{root}/{_PLUGINS}/{dra_driver(driver.name)}")
        yield _HostPath("plugins-registry", f"{root}/{_PLUGINS_REGISTRY}")
        yield _HostPath("cdi", CDI)
    if label_names(driver.spec.devices):
        yield _HostPath("features", FEATURES)


def _has_token(driver: Driver) -> bool:
    return bool(dra_devices(driver.spec.devices) or label_names(driver.spec.devices))


def device_agent(
    driver: Driver, settings: Settings, pods: Pods | None = None
) -> tuple[Document, Document, Document]:
    """Return ConfigMap, DaemonSet and PodMonitor, which the caller completes.

    `pods` is of the Driver as it is now; None: as `driver` has it.
    """
    text, name = revision_text(driver), agent_name(driver.name)
    return (
        _config_map(name, text),
        _agent_daemonset(driver, text, settings, pods or driver.spec.pods),
        _pod_monitor(driver.name),
    )


def _config_map(name: str, text: str) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {"driver.yaml": text},
    }


def _pod_monitor(driver: str) -> Document:
    # A sample has labels that name the pod which uses the device; honorLabels keeps them.
    found = {"node": "node_name", "driver": "label_nodeside_io_driver"}
    relabelings = [
        {"sourceLabels": [f"__meta_kubernetes_pod_{source}"], "targetLabel": target}
        for target, source in found.items()
    ]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": agent_name(driver)},
        "spec": {
            "selector": {"matchLabels": _pod_labels(driver)},
            "podMetricsEndpoints": [
                {"port": "metrics", "honorLabels": True, "relabelings": relabelings},
            ],
        },
    }


def _pod_labels(driver: str) -> dict[str, str]:
    """Return the labels of the stage's pods, which the caller sets."""
    return {DRIVER_LABEL: driver, STAGE_LABEL: DEVICES_STAGE}


def _agent_daemonset(driver: Driver, text: str, settings: Settings, pods: Pods) -> Document:
    # On OpenShift, the installation has an SCC for the agent, narrower than that of driver pods.
    scc = DEVICE_AGENT if settings.scc == DRIVER else settings.scc
    selector = _pod_labels(driver.name)  # a DaemonSet's selector cannot be changed
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": agent_name(driver.name), "labels": dict(pods.labels)},
        "spec": {
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": selector},
            # Two agents on a node would both offer the same resource.
            "updateStrategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": "10%", "maxSurge": 0},
            },
            "template": {
                "metadata": {
                    "labels": {**pods.labels, **selector},
                    "annotations": {
                        **pods.annotations,
                        **({"openshift.io/required-scc": scc} if scc else {}),
                    },
                },
                "spec": with_pull_policy(_agent_pod(driver, text, settings, pods), pods),
            },
        },
    }


def _agent_pod(driver: Driver, text: str, settings: Settings, pods: Pods) -> Document:
    return {
        "serviceAccountName": DEVICE_AGENT,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "tolerations": [{"operator": "Exists"}],
        "priorityClassName": pods.priority_class_name,
        "terminationGracePeriodSeconds": 10,
        "containers": [_agent_container(driver, text, settings, pods)],
        "volumes": [
            {"name": "driver-yaml", "configMap": {"name": agent_name(driver.name)}},
            *(each.source for each in _host_paths(driver, settings)),
            *([token_volume()] if _has_token(driver) else []),
            {"name": "tmp", "emptyDir": {"sizeLimit": _SCRATCH_LIMIT}},
        ],
    }


def _kubelet_paths(root: str) -> dict[str, str]:
    """Return the variables that tell the agent where the kubelet is, unless it is where usual."""
    if root == KUBELET_ROOT:
        return {}
    return {
        "NODESIDE_POD_RESOURCES": f"{root}/{_POD_RESOURCES}/kubelet.sock",
        "NODESIDE_PLUGINS_DIRECTORY": f"{root}/{_PLUGINS}",
        "NODESIDE_PLUGINS_REGISTRY": f"{root}/{_PLUGINS_REGISTRY}",
    }


def _agent_container(driver: Driver, text: str, settings: Settings, pods: Pods) -> Document:
    has_token = _has_token(driver)
    # The hash of the document, since a change of it must replace the pods. It is made here, since
    # this controller may know more fields than the agent.
    revision = hashlib.sha256(text.encode()).hexdigest()[:16]
    values = {
        "NODESIDE_REVISION": revision,
        "NODESIDE_DRIVER": f"{DOCUMENT_DIRECTORY}/driver.yaml",
        "NODESIDE_HOST": "/host",
        "NODESIDE_LOG_FORMAT": "json",
        "NODESIDE_METRICS_PORT": str(METRICS_PORT),
        **({"NODESIDE_TOKEN_DIR": TOKEN_DIRECTORY} if has_token else {}),
        **_kubelet_paths(settings.kubelet_root),
    }
    return {
        "name": CONTAINER,
        "image": settings.agent_image,
        "command": list(COMMAND),
        "ports": [{"name": "metrics", "containerPort": METRICS_PORT}],
        "env": [
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            *({"name": key, "value": value} for key, value in values.items()),
        ],
        "securityContext": {
            **unprivileged_context(runAsUser=0),
            # With SELinux enforcing, the default container type cannot read host files.
            "seLinuxOptions": {"type": "spc_t"},
        },
        # Requests to the API server need a TLS library and certificates, so more memory.
        "resources": container_resources(
            pods.resources.device_agent,
            {"cpu": "5m", "memory": "56Mi" if has_token else "40Mi"},
            {"memory": "192Mi" if has_token else "128Mi"},
        ),
        "volumeMounts": [
            {"name": "driver-yaml", "mountPath": DOCUMENT_DIRECTORY, "readOnly": True},
            *(each.mount for each in _host_paths(driver, settings)),
            *(
                [{"name": "token", "mountPath": TOKEN_DIRECTORY, "readOnly": True}]
                if has_token
                else []
            ),
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
        ],
    }
