"""The policy for replacing and unloading a driver on a node: `upgrade` and `unload` of a Driver.

The policy is not part of the revision: `onReboot` means that nothing is touched, and a new revision
touches every node. The controller keeps the policy in a file beside the revision and updates that
file in place; a node reads both. Without such a file, the policy in driver.yaml applies.

The same file has the orders to nodes to try a load again in which their kernel died:

    {"retry": {"worker-3": "1795866000", "*": "tuesday"}, "upgrade": "onReboot"}

A word is an order once: a node remembers the word that was there when it began a load, and only
another one lets it repeat that load. `*` is for all nodes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from nodeside.errors import SpecError
from nodeside.spec.document import SIZE_LIMIT, node_parse, to_document
from nodeside.spec.model import Driver, DriverSpec, Unload, Upgrade

FIELDS: Final = ("upgrade", "unload")
RETRY: Final = "retry"
EVERY_NODE: Final = "*"

_WORD: Final = re.compile(r"[A-Za-z0-9._:+-]{1,64}")


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


def retry_order(path: Path, node: str) -> str:
    """Return the words of the orders to this node in the controller's file; "" if there are none.

    A file that cannot be read orders nothing.
    """
    try:
        with open(path, encoding="utf-8") as file:
            policy = json.loads(file.read(SIZE_LIMIT))
    except (OSError, ValueError):
        return ""
    orders = policy.get(RETRY) if isinstance(policy, Mapping) else None
    if not isinstance(orders, Mapping):
        return ""
    words = (orders.get(name) for name in (EVERY_NODE, node))
    return " ".join(word for word in words if isinstance(word, str) and _WORD.fullmatch(word))


def node_policy(driver: Driver, path: Path) -> Driver:
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
