"""How a driver may be replaced and unloaded on a node: `upgrade` and `unload` of a Driver.

It is no part of the revision: who says `onReboot` wants nothing to be touched, and a new revision
touches every node. The controller keeps it in a file beside the revision, which changes in place;
a node reads both. Without such a file a driver.yaml has its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from nodeside.errors import SpecError
from nodeside.spec.document import SIZE_LIMIT, node_parse, to_document
from nodeside.spec.model import Driver, DriverSpec, Unload, Upgrade

FIELDS: Final = ("upgrade", "unload")


def without_policy(spec: DriverSpec) -> DriverSpec:
    """The rest of a driver."""
    return replace(spec, upgrade=Upgrade.LIVE, unload=Unload())


def policy_of(driver: Driver) -> dict[str, Any]:
    """The fields of it that differ from their defaults."""
    spec = to_document(driver)["spec"]
    return {field: spec[field] for field in FIELDS if field in spec}


def with_policy(driver: Driver, text: str, where: str) -> Driver:
    """A driver with this policy, and nothing left of its own. Raises SpecError."""
    try:
        policy = json.loads(text)
    except ValueError as exc:
        raise SpecError(f"{where}: not JSON: {exc}") from exc
    if not isinstance(policy, Mapping):
        raise SpecError(f"{where}: expected a mapping with {' and '.join(FIELDS)}")
    document = to_document(replace(driver, spec=without_policy(driver.spec)))
    document["spec"] |= {field: policy[field] for field in FIELDS if field in policy}
    return node_parse(document, where=where)


def node_policy(driver: Driver, path: Path) -> Driver:
    """A driver with the policy that the controller keeps in a file. Raises SpecError."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(SIZE_LIMIT)
    except (OSError, UnicodeDecodeError) as exc:
        raise SpecError(
            f"cannot read {path}: {exc}",
            hint="the controller keeps it in the ConfigMap <driver>-node-policy",
        ) from exc
    return with_policy(driver, text, str(path))
