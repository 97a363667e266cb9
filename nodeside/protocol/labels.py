"""The keys of labels, and the names of objects, by which node and cluster know each other.

Stdlib only.
"""

from __future__ import annotations

import re

API_GROUP = "nodeside.io"
API_VERSION = f"{API_GROUP}/v1alpha1"
# Labels of a NodeDriver object.
DRIVER_LABEL = f"{API_GROUP}/driver"
STATE_LABEL = f"{API_GROUP}/state"
LABEL_VALUE = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")


# Feature labels that a driver has on a node at most: 16 attributes of 16 entries, and two more.
FEATURE_LIMIT = 258


# The environment variable with the file that says in which boot the stage before became ready.
ADMITTED_VARIABLE = "NODESIDE_ADMITTED"


def make_dns_label(name: str) -> str:
    """Return a package name as a DNS label of at most 40 characters."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].rstrip("-") or "driver"


def state_label(driver: str) -> str:
    """Return the key of the node label that holds a `State`."""
    return f"{API_GROUP}/{driver}.state"


def assigned_label(driver: str) -> str:
    """Return the key of the node label by which the controller assigns a node to a DaemonSet."""
    return f"{API_GROUP}/{driver}.assigned"


def feature_prefix(driver: str) -> str:
    """Return how the keys of a driver's feature labels begin; the device agent sets them.

    A driver's name has no dot, so none of them is a label of another driver.
    """
    return f"feature.{API_GROUP}/{driver}."


def driver_of_feature(key: str) -> str:
    """Return the driver whose feature label this is, "" if it is another label."""
    prefix, _, name = key.partition("/")
    return name.partition(".")[0] if prefix == f"feature.{API_GROUP}" else ""


def dra_driver(driver: str) -> str:
    """Return the name under which devices are exposed by dynamic resource allocation.

    https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
    """
    return f"{driver}.{API_GROUP}"


def node_driver_name(driver: str, node: str) -> str:
    """Return the name of the NodeDriver object of a driver on a node."""
    return f"{driver}.{node}"


def parse_node_driver_name(name: str) -> tuple[str, str]:
    """Return the driver and the node of a NodeDriver; a driver's name has no dot."""
    driver, _, node = name.partition(".")
    return driver, node
