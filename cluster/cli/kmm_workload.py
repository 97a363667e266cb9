"""The device plugin or DRA driver of a Module of KMM as a stage, for `nodeside-cluster import`.

The pods get what their Module says, and what KMM adds to it,
https://kmm.sigs.k8s.io/documentation/deploy_kmod/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cluster.cli.document_keys import DocumentPart
from cluster.model.names import NAMESPACE
from nodeside.spec.yamltext import write_yaml

_TEMPLATE = re.compile(r"\{[{%#]")  # what begins an expression, a block or a comment of a template
_PLUGINS: Final = "/var/lib/kubelet/plugins/"
_REGISTRY: Final = "/var/lib/kubelet/plugins_registry/"
_CDI: Final = "/var/run/cdi"
_HEALTH: Final = 51515  # the port of a DRA driver's health check


@dataclass(frozen=True)
class Workload:
    """A DaemonSet that KMM runs beside a driver. `paths` are the host's, by name.

    `instead` says what makes it superfluous.
    """

    key: str
    stage: str
    instead: str
    paths: Mapping[str, str]
    variables: tuple[Mapping[str, Any], ...] = ()
    container: Mapping[str, Any] | None = None
    host_network: bool = False


def _field_reference(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


_PLUGIN = Workload(
    "devicePlugin",
    "device-plugin",
    "`devices` needs no plugin",
    {"kubelet": "/var/lib/kubelet/device-plugins"},
)
_DRA = Workload(
    "dra",
    "dra-driver",
    "`devices` with `expose: dra` needs no DRA driver",
    {"kubelet-plugins": _PLUGINS, "kubelet-registry": _REGISTRY, "cdi": _CDI},
    variables=(
        _field_reference("NODE_NAME", "spec.nodeName"),
        _field_reference("POD_UID", "metadata.uid"),
        {"name": "CDI_ROOT", "value": _CDI},
        {"name": "KUBELET_REGISTRAR_DIRECTORY_PATH", "value": _REGISTRY},
        {"name": "KUBELET_PLUGINS_DIRECTORY_PATH", "value": _PLUGINS},
        {"name": "HEALTHCHECK_PORT", "value": str(_HEALTH)},
    ),
    container={
        "livenessProbe": {
            "grpc": {"port": _HEALTH, "service": "liveness"},
            "initialDelaySeconds": 30,
            "timeoutSeconds": 5,
        }
    },
    host_network=True,
)


def workloads_of(spec: DocumentPart) -> Iterator[Workload]:
    """Yield what a Module's `spec` has beside the driver."""
    yield from (each for each in (_PLUGIN, _DRA) if spec.part(each.key))


def stage_config_map(workload: Workload, spec: DocumentPart, name: str) -> dict[str, Any]:
    """Return the ConfigMap `name` of a stage, with the DaemonSet as a template."""
    labels = {"app": name}
    pod = _pod_spec(workload, spec.part(workload.key))
    if tolerations := spec.part("tolerations").sequence():
        pod["tolerations"] = tolerations
    daemonset = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": dict(labels)},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "data": {"daemonset.yaml": _escape_template(write_yaml(daemonset))},
    }


def _escape_template(text: str) -> str:
    """Return a text as a template that renders to it."""
    return _TEMPLATE.sub(lambda found: "{{ '" + found[0] + "' }}", text)


def _pod_spec(workload: Workload, section: DocumentPart) -> dict[str, Any]:
    volumes = [
        {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
        for name, path in workload.paths.items()
    ]
    pod: dict[str, Any] = {
        "priorityClassName": "system-node-critical",
        **({"hostNetwork": True} if workload.host_network else {}),
        "containers": [_container_spec(workload, section.part("container").mapping())],
        "volumes": [*section.part("volumes").sequence(), *volumes],
    }
    if first := section.part("initContainer").mapping():
        pod["initContainers"] = [{"name": "init", "securityContext": {"privileged": True}, **first}]
    for key in ("serviceAccountName", "automountServiceAccountToken"):
        if (value := section.part(key)).value is not None:
            pod[key] = value.whole()
    return pod


def _container_spec(workload: Workload, given: Mapping[str, Any]) -> dict[str, Any]:
    mounts = [{"name": name, "mountPath": path} for name, path in workload.paths.items()]
    main: dict[str, Any] = {
        "name": workload.stage,
        "securityContext": {"privileged": True},
        **(workload.container or {}),
        **given,
    }
    main["volumeMounts"] = [*_list_of(given, "volumeMounts"), *mounts]
    if environment := [*workload.variables, *_list_of(given, "env")]:
        main["env"] = environment
    return main


def _list_of(given: Mapping[str, Any], key: str) -> list[Any]:
    value = given.get(key)
    return value if isinstance(value, list) else []


def device_classes(spec: DocumentPart) -> Iterator[dict[str, Any]]:
    """Yield the DeviceClasses of a DRA driver, which no stage may have: they are cluster-wide."""
    for each in spec.part("dra", "deviceClasses").entries():
        given = dict(each.mapping())
        name = given.pop("name", "")
        yield {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": name},
            "spec": given,
        }
