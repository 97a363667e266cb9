"""The policy for replacing and unloading a driver on a node: `upgrade` and `unload` of a Driver.

The policy is not part of the revision: `onReboot` means that nothing is touched, and a new revision
touches every node. The controller keeps the policy in a file beside the revision and updates that
file in place; a node reads both. Without such a file, the policy in driver.yaml applies.

The same file has orders to nodes: to try a load again, although it crashed their kernel:

    {"retry": {"worker-3": "2026-11-28T12:00:00Z", "*": "2026-11-27T09:00:00Z"}}

An order lets a node repeat a load once: a node remembers the time of the newest order that it knew
when it began the load, and only a later one counts. `*` is for all nodes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from nodeside.errors import SpecError
from nodeside.protocol.timestamps import parse_rfc3339
from nodeside.spec.document import SIZE_LIMIT, node_parse, to_document
from nodeside.spec.model import Driver, DriverSpec, Unload, Upgrade

FIELDS: Final = ("upgrade", "unload")
RETRY: Final = "retry"
EVERY_NODE: Final = "*"


def without_policy(spec: DriverSpec) -> DriverSpec:
    """Return a spec with the policy fields set to their defaults."""
    return replace(spec, upgrade=Upgrade.LIVE, unload=Unload())


def policy_of(driver: Driver) -> dict[str, Any]:
    """Return the policy fields that differ from their defaults."""
    spec = to_document(driver)["spec"]
    return {field: spec[field] for field in FIELDS if field in spec}


def with_policy(driver: Driver, text: str, where: str) -> Driver:
    """Return a driver with its policy replaced by this one. Raises SpecError."""
    try:
        policy = json.loads(text)
    except ValueError as exc:
        raise SpecError(f"{where}: not JSON: {exc}") from exc
    if not isinstance(policy, Mapping):
        raise SpecError(f"{where}: expected a mapping with {' and '.join(FIELDS)}")
    document = to_document(replace(driver, spec=without_policy(driver.spec)))
    document["spec"] |= {field: policy[field] for field in FIELDS if field in policy}
    return node_parse(document, where=where)


def retry_time(path: Path, node: str) -> float:
    """Return the time of the newest order to this node in the controller's file; 0.0 for none.

    The time is in seconds since the epoch. A file that cannot be read has no order, and an order
    whose time is malformed does not count.
    """
    try:
        with open(path, encoding="utf-8") as file:
            policy = json.loads(file.read(SIZE_LIMIT))
    except (OSError, ValueError, RecursionError):
        return 0.0
    orders = policy.get(RETRY) if isinstance(policy, Mapping) else None
    if not isinstance(orders, Mapping):
        return 0.0
    newest = 0.0
    for word in (orders.get(name) for name in (EVERY_NODE, node)):
        with suppress(ValueError):
            newest = max(newest, parse_rfc3339(word) if isinstance(word, str) else 0.0)
    return newest


def with_policy_of_file(driver: Driver, path: Path) -> Driver:
    """Return a driver with the policy from the controller's file. Raises SpecError."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(SIZE_LIMIT)
    except (OSError, UnicodeDecodeError) as exc:
        raise SpecError(
            f"cannot read {path}: {exc}",
            hint="the controller keeps it in the ConfigMap <driver>-node-policy",
        ) from exc
    return with_policy(driver, text, str(path))
