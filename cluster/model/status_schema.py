"""The schema of a Driver's status, for the CRD and for `limits`, which trims a status to it."""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

DEVICE_LIMIT = 128  # device ids in a status: those of the spec and some earlier ones
RESOURCE_LIMIT = 16  # entries of spec.devices
DRAIN_LIMIT = 64  # rows in a status
CASUALTY_LIMIT = 256  # rows in a status
POOL_LIMIT = 256  # rows in a status; a cluster has a pool for each kernel
STAGE_LIMIT = 32  # stages of the spec, and stages just removed from it
WORD_LIMIT = 253  # characters of a name, a kernel, a version
TEXT_LIMIT = 4096  # characters of a message


def _driver_status() -> Schema:
    return {
        "type": "object",
        "description": "The observed state of the Driver, written by the controller.",
        "properties": {
            "observedGeneration": _count_schema(
                "Generation of the spec that this status describes."
            ),
            "revision": _text_schema("The newest revision: a hash of what nodes see of the spec."),
            "lastGoodRevision": _text_schema("The revision that new and moved nodes get."),
            "previousGoodRevision": _text_schema("The one that was the last good one before."),
            "nodes": _nodes_schema("All nodes with the hardware."),
            "leaving": _count_schema(
                "Nodes that the Driver no longer selects but has not left yet."
            ),
            "devices": {
                "type": "array",
                "description": "PCI ids that the Driver selects, and those it selected before.",
                "items": _text_schema("vendor or vendor:device."),
                "maxItems": DEVICE_LIMIT,
                "x-kubernetes-list-type": "atomic",
            },
            "resources": {
                "type": "array",
                "description": "What the kubelets offer of spec.devices.",
                "items": _resource_schema(),
                "maxItems": RESOURCE_LIMIT,
                "x-kubernetes-list-type": "atomic",
            },
            "conditions": _conditions_schema(),
            "draining": {
                "type": "array",
                "description": "Nodes that are cordoned until their driver is replaced.",
                "items": _drain_schema(),
                "maxItems": DRAIN_LIMIT,
                "x-kubernetes-list-type": "atomic",
            },
            "casualties": {
                "type": "array",
                "description": "Nodes that failed or went down while they changed to `revision`.",
                "items": _casualty_schema(),
                "maxItems": CASUALTY_LIMIT,
                "x-kubernetes-list-type": "atomic",
            },
            "pools": {
                "type": "array",
                "description": "The nodes by kernel: each pool needs its own modules.",
                "items": _pool_schema(),
                "maxItems": POOL_LIMIT,
                "x-kubernetes-list-type": "atomic",
            },
            "stages": {
                "type": "array",
                "description": "The stages that follow the driver, in the order of the spec.",
                "items": _stage_schema(),
                "maxItems": STAGE_LIMIT,
                "x-kubernetes-list-type": "atomic",
            },
            "preflight": {
                "type": "array",
                "description": "The answers to spec.preflight.",
                "items": _preflight_schema(),
                "maxItems": 64,
                "x-kubernetes-list-type": "atomic",
            },
        },
    }


def _resource_schema() -> Schema:
    return {
        "type": "object",
        "description": "The devices of one resource, on all nodes of the Driver.",
        "properties": {
            "name": _text_schema("The resource, as pods ask for it."),
            "devices": _count_schema("Devices that the kubelets know; shares count."),
            "healthy": _count_schema("Those that pods can be given, or have."),
            "message": _text_schema("Where devices do not work.", TEXT_LIMIT),
        },
    }


def _stage_schema() -> Schema:
    return {
        "type": "object",
        "description": "A stage after the driver.",
        "properties": {
            "name": _text_schema("Name of the stage."),
            "state": _text_schema("Ready, or one word for what it lacks."),
            "nodes": {
                "type": "object",
                "description": "Nodes of this stage.",
                "properties": {
                    "wanted": _count_schema("Nodes where the driver works."),
                    "ready": _count_schema("Nodes where the stage is ready too."),
                },
            },
            "message": _text_schema("The state in a sentence.", TEXT_LIMIT),
        },
    }


def _preflight_schema() -> Schema:
    return {
        "type": "object",
        "description": "Whether the driver builds for a kernel.",
        "properties": {
            "osVersion": _text_schema("Version of the operating system, if the entry names one."),
            "kernel": _text_schema("Kernel release."),
            "architecture": _text_schema("As printed by `uname -m`."),
            "toolkit": _text_schema("Pull spec of the toolkit image.", TEXT_LIMIT),
            "verdict": _text_schema(
                "Builds, DoesNotBuild, Building, or Unknown if it could not run."
            ),
            "message": _text_schema("The first error, or the result.", TEXT_LIMIT),
        },
    }


def _nodes_schema(description: str) -> Schema:
    return {
        "type": "object",
        "description": description,
        "properties": {
            "wanted": _count_schema("Nodes with the hardware."),
            "assigned": _count_schema("Nodes that have a driver pod assigned."),
            "updated": _count_schema("Nodes that are assigned the newest revision."),
            "ready": _count_schema("Nodes where the driver works."),
            "failed": _count_schema("Nodes where it failed, or needs a reboot."),
        },
    }


def _pool_schema() -> Schema:
    return {
        "type": "object",
        "description": "Nodes of one architecture, operating system version and kernel.",
        "properties": {
            "architecture": _text_schema("As printed by `uname -m`."),
            "osVersion": _text_schema("Version of the operating system."),
            "kernel": _text_schema("Kernel release."),
            "nodes": _nodes_schema("The nodes of this pool."),
            "toolkit": _text_schema("Pull spec of the toolkit image.", TEXT_LIMIT),
            "link": _text_schema("The rule that found the toolkit image."),
            "reason": _text_schema("One word for what keeps the pool from being ready."),
            "message": _text_schema("The reason in a sentence.", TEXT_LIMIT),
        },
    }


def _drain_schema() -> Schema:
    return {
        "type": "object",
        "description": "A node that is held, and what it waits for.",
        "properties": {
            "node": _text_schema("Name of the node."),
            "since": _text_schema("When its drain began."),
            "message": _text_schema("What it waits for.", TEXT_LIMIT),
        },
    }


def _casualty_schema() -> Schema:
    return {
        "type": "object",
        "description": "A node that failed or went down while it changed to `revision`.",
        "properties": {
            "node": _text_schema("Name of the node; it may be gone."),
            "state": _text_schema("Failed, Lost, or Down, which does not count yet."),
            "since": _text_schema("When that was first observed."),
            "bootId": _text_schema("The boot in which it went down."),
            "message": _text_schema("What happened to it.", TEXT_LIMIT),
        },
    }


def _conditions_schema() -> Schema:
    """Return the schema of metav1.Condition entries."""
    return {
        "type": "array",
        "description": "Ready, Available, Progressing, Degraded, StagesReady, each with a reason.",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "maxItems": 16,
        "items": {
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": _text_schema("Name of the condition."),
                "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                "observedGeneration": _count_schema("Generation of the spec that it describes."),
                "lastTransitionTime": {"type": "string", "format": "date-time"},
                "reason": {
                    "type": "string",
                    "maxLength": 1024,
                    "minLength": 1,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "message": _text_schema("What is the case, on which nodes, and what to do.", 32768),
            },
        },
    }


def _text_schema(description: str, limit: int = WORD_LIMIT) -> Schema:
    return {"type": "string", "description": description, "maxLength": limit}


def _count_schema(description: str) -> Schema:
    return {"type": "integer", "format": "int64", "minimum": 0, "description": description}


STATUS: Final = _driver_status()
