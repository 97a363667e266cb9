"""The objects of the stage `devices`: the device agent on each node, and its driver.yaml.

Pure; plan/stages marks and gates them like any other stage's. Mounts and environment match what
`nodeside device-agent` reads. The agent reads sysfs and /dev, and registers with the kubelet
through the directory of its device plugins, the only one that it can write to. It has no token.
Where the cluster has the Prometheus operator, a PodMonitor has its metrics scraped.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from cluster.model.names import (
    DEVICE_AGENT,
    DRIVER_LABEL,
    STAGE_LABEL,
    agent_name,
)
from cluster.model.snapshot import Settings
from cluster.plan.objects.driver_pod import unprivileged
from cluster.plan.objects.revision import revision_text
from nodeside.spec import Driver
from nodeside.spec.fleet import DEVICES_STAGE

Document = dict[str, Any]

CONTAINER: Final = "device-agent"
COMMAND: Final = ("nodeside", "device-agent")
DOCUMENT_DIRECTORY: Final = "/etc/nodeside"
KUBELET: Final = "/var/lib/kubelet/device-plugins"
POD_RESOURCES: Final = "/var/lib/kubelet/pod-resources"
METRICS_PORT: Final = 9402

# Volume, host path, hostPath type, mount path, whether read-only.
_HOST_PATHS: Final = (
    ("sys", "/sys", "Directory", "/host/sys", True),
    ("dev", "/dev", "Directory", "/host/dev", True),
    ("run-nodeside", "/run/nodeside", "DirectoryOrCreate", "/host/run/nodeside", True),
    ("device-plugins", KUBELET, "Directory", KUBELET, False),
    ("pod-resources", POD_RESOURCES, "DirectoryOrCreate", POD_RESOURCES, True),
)
_SCRATCH_LIMIT: Final = "16Mi"


def device_agent(driver: Driver, settings: Settings) -> tuple[Document, Document, Document]:
    """Returns ConfigMap, DaemonSet and PodMonitor, which the caller completes."""
    text, name = revision_text(driver), agent_name(driver.name)
    return (
        _config_map(name, text),
        _daemonset(driver.name, text, settings),
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
    # Labels of a sample that name the pod which has a device stay: honorLabels.
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
            "selector": {"matchLabels": _selector(driver)},
            "podMetricsEndpoints": [
                {"port": "metrics", "honorLabels": True, "relabelings": relabelings},
            ],
        },
    }


def _selector(driver: str) -> dict[str, str]:
    """The labels of the stage's pods, which the caller sets."""
    return {DRIVER_LABEL: driver, STAGE_LABEL: DEVICES_STAGE}


def _daemonset(driver: str, text: str, settings: Settings) -> Document:
    revision = hashlib.sha256(text.encode()).hexdigest()[:16]  # a change replaces the pods
    notes = {"openshift.io/required-scc": settings.scc} if settings.scc else {}
    selector = _selector(driver)  # it cannot change
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": agent_name(driver)},
        "spec": {
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": selector},
            # Two agents on a node would both offer the same resource.
            "updateStrategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": "10%", "maxSurge": 0},
            },
            "template": {
                "metadata": {"labels": selector, "annotations": notes},
                "spec": _pod(agent_name(driver), revision, settings),
            },
        },
    }


def _pod(config_map: str, revision: str, settings: Settings) -> Document:
    return {
        "serviceAccountName": DEVICE_AGENT,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "tolerations": [{"operator": "Exists"}],
        "priorityClassName": "system-node-critical",
        "terminationGracePeriodSeconds": 10,
        "containers": [_container(revision, settings)],
        "volumes": [
            {"name": "driver-yaml", "configMap": {"name": config_map}},
            *(
                {"name": volume, "hostPath": {"path": path, "type": kind}}
                for volume, path, kind, _, _ in _HOST_PATHS
            ),
            {"name": "tmp", "emptyDir": {"sizeLimit": _SCRATCH_LIMIT}},
        ],
    }


def _container(revision: str, settings: Settings) -> Document:
    values = {
        "NODESIDE_REVISION": revision,  # a newer controller than the agent may know more fields
        "NODESIDE_DRIVER": f"{DOCUMENT_DIRECTORY}/driver.yaml",
        "NODESIDE_HOST": "/host",
        "NODESIDE_LOG_FORMAT": "json",
        "NODESIDE_METRICS_PORT": str(METRICS_PORT),
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
            **unprivileged(runAsUser=0),
            # With SELinux enforcing, the default container type cannot read host files.
            "seLinuxOptions": {"type": "spc_t"},
        },
        "resources": {
            "requests": {"cpu": "5m", "memory": "40Mi"},
            "limits": {"memory": "128Mi"},
        },
        "volumeMounts": [
            {"name": "driver-yaml", "mountPath": DOCUMENT_DIRECTORY, "readOnly": True},
            *(
                {"name": volume, "mountPath": at} | ({"readOnly": True} if read_only else {})
                for volume, _, _, at, read_only in _HOST_PATHS
            ),
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
        ],
    }
