"""Documents and fields of other tools that are taken for ours: what they are, and what to write.

Pure. The kinds and the fields are those of the API of each tool. A test compares the fields of our
own that the sentences here name with the schema, see `list_mentioned_fields`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from nodeside.protocol.labels import API_GROUP
from nodeside.spec.mistakes import FieldPath
from nodeside.values import frozen

_FROM_SOURCE: Final = "make a driver.yaml from the driver's source: nodeside init DIRECTORY"
_FIELD: Final = re.compile(r"\bspec((?:\.[a-z][A-Za-z]*)+)")


@frozen
class OtherDocument:
    """Which tool a kind belongs to, and what to type instead. FILE is the document's name."""

    whose: str
    remedy: str


_KMM = "Kernel Module Management"
_MODULE = OtherDocument(
    f"of {_KMM}", "make a Driver of it: nodeside-cluster import FILE > driver.yaml"
)
_PREFLIGHT = OtherDocument(
    f"of {_KMM}, which asks whether Modules build",
    "ask by spec.preflight of a Driver, or by: nodeside-cluster preflight DRIVER --kernel RELEASE",
)
_OF_KMM: Final = {
    "Module": _MODULE,
    "ManagedClusterModule": OtherDocument(
        f"of {_KMM}, a Module for other clusters",
        "put its spec.moduleSpec into a Module, and make a Driver of that: nodeside-cluster import",
    ),
    "PreflightValidation": _PREFLIGHT,
    "PreflightValidationOCP": _PREFLIGHT,
    "BootModuleConfig": OtherDocument(
        f"of {_KMM}, which names a module to load at the boot",
        "a Driver loads its modules when its pod starts: make one of the Module",
    ),
    "": OtherDocument(
        f"of {_KMM}, which writes it for itself",
        "take its Modules: kubectl get modules.kmm.sigs.x-k8s.io -A -o yaml",
    ),
}


def _documents_of_operator(name: str) -> Mapping[str, OtherDocument]:
    return {"": OtherDocument(f"of {name}, which brings a driver of its own", _FROM_SOURCE)}


_BY_GROUP: Final[Mapping[str, Mapping[str, OtherDocument]]] = {
    "kmm.sigs.x-k8s.io": _OF_KMM,
    "kmm.sigs.k8s.io": _OF_KMM,
    "hub.kmm.sigs.x-k8s.io": _OF_KMM,
    "nvidia.com": _documents_of_operator("NVIDIA's GPU Operator"),
    "mellanox.com": _documents_of_operator("NVIDIA's Network Operator"),
    "amd.com": _documents_of_operator("AMD's GPU Operator"),
    "deviceplugin.intel.com": {
        "": OtherDocument("of Intel's Device Plugins Operator, without a driver", _FROM_SOURCE)
    },
    "sro.openshift.io": {
        "": OtherDocument(
            "of the Special Resource Operator",
            "see docs/special-resource-operator.md",
        )
    },
    "nfd.k8s-sigs.io": {
        "": OtherDocument(
            "of Node Feature Discovery, which labels nodes",
            "select them by their labels: spec.hardware of a Driver",
        )
    },
    API_GROUP: {
        "NodeDriver": OtherDocument(
            "which a node writes about a driver", "read them: kubectl get nodedrivers"
        )
    },
}


def other_document(api_version: object, kind: object) -> OtherDocument | None:
    """Return whose kind this is, None if it is a Driver or unknown."""
    if not isinstance(api_version, str) or not isinstance(kind, str):
        return None
    kinds = _BY_GROUP.get(api_version.partition("/")[0], {})
    return kinds.get(kind) or kinds.get("")


_PULL_SECRETS = "install nodeside with it, for all Drivers: --pull-secret NAME"
_ONE_SPEC = "spec is for all kernels: spec.build.variants changes the build, spec.toolkit.images "
_BY_FIELD: Final[Mapping[FieldPath, Mapping[str, str]]] = {
    ("spec",): {
        "selector": "nodes are selected by spec.hardware.nodeSelector and spec.hardware.pci",
        "nodeSelector": "nodes are selected by spec.hardware.nodeSelector",
        "nodeAffinity": "nodes are selected by spec.hardware.nodeSelector",
        "moduleLoader": "a Module is made a Driver of by: nodeside-cluster import FILE",
        "kernelMappings": f"{_ONE_SPEC}the toolkit image",
        "containerImage": "the image that has the driver's source is spec.image",
        "repository": "spec.image has all of it: REGISTRY/REPOSITORY:TAG",
        "registry": "spec.image has all of it: REGISTRY/REPOSITORY:TAG",
        "tag": "spec.image has all of it: REGISTRY/REPOSITORY:TAG",
        "usePrecompiled": "modules that are built elsewhere come from spec.prebuilt.sources",
        "imageRepoSecret": _PULL_SECRETS,
        "imagePullSecret": _PULL_SECRETS,
        "imagePullSecrets": _PULL_SECRETS,
        "devicePlugin": "devices are offered by spec.devices, or by a plugin in spec.stages",
        "dra": "devices are offered by spec.devices, or by a DRA driver in spec.stages",
        "sign": "keys are named by spec.signing",
        "firmwarePath": "its directory in the image is spec.firmware.path",
        "blacklist": "modules that must not be loaded are in spec.conflicts.modules",
        "inTreeModuleToRemove": "modules that must not be loaded are in spec.conflicts.modules",
        "inTreeModulesToRemove": "modules that must not be loaded are in spec.conflicts.modules",
        "moduleName": "modules are named in spec.modules",
        "modulesLoadingOrder": "the order of spec.modules is that in which they are loaded",
        "parameters": "parameters belong to a module: spec.modules.parameters",
        "upgradePolicy": "spec.upgrade says if a running driver changes, spec.rollout how many",
        "maxUnavailable": "it is spec.rollout.maxUnavailable",
        "maxParallelUpgrades": "it is spec.rollout.maxUnavailable",
        "drain": "pods that use a device are evicted by spec.rollout.evict",
        "podDeletion": "pods that use a device are evicted by spec.rollout.evict",
        "enabled": "a Driver that is there is enabled; to stop changes, spec.rollout.paused",
        "enable": "a Driver that is there is enabled; to stop changes, spec.rollout.paused",
        "kernelVersion": "nodes are asked for their kernels; others are tried by spec.preflight",
    },
    ("spec", "modules"): {
        "moduleName": "it is name",
        "args": "write parameters: {NAME: VALUE}",
        "options": "write parameters: {NAME: VALUE}",
        "params": "write parameters: {NAME: VALUE}",
        "firmwarePath": "its directory in the image is spec.firmware.path",
        "inTreeModulesToRemove": "modules that must not be loaded are in spec.conflicts.modules",
    },
    ("spec", "build"): {
        "dockerfileConfigMap": "the source is in spec.image, and is built on the node by its make",
        "buildArgs": "arguments of make are spec.build.makeArguments",
        "baseImageRegistryTLS": "a registry without TLS is one of spec.prebuilt.sources.insecure",
    },
    ("spec", "signing"): {
        "keySecret": "the Secret is mounted: spec.signing.key is the path of a file of it",
        "certSecret": "the Secret is mounted: spec.signing.certificate is the path of a file of it",
        "filesToSign": "all modules that are built are signed",
    },
}


def other_field(path: FieldPath, key: str) -> str:
    """Return what to write instead of a field of another tool, "" if it is unknown."""
    place = tuple(step for step in path if isinstance(step, str))
    return _BY_FIELD.get(place, {}).get(key, "")


def list_mentioned_fields() -> frozenset[str]:
    """Return the fields of a Driver that the hints here name, such as `rollout.paused`."""
    hints = [hint for hints in _BY_FIELD.values() for hint in hints.values()]
    return frozenset(found[1:] for hint in hints for found in _FIELD.findall(hint))
