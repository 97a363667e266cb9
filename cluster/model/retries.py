"""The annotations of a Driver by which failures are forgotten and modules built anew. Pure.

`nodeside.io/retry` says since when failures no longer count:

    2026-11-28T12:00:00Z                failures of all nodes before that time are forgotten
    *=2026-11-28T12:00:00Z              the same
    n1=2026-11-28T12:00:00Z,n2=2026-…   failures of these nodes before these times are forgotten

`nodeside-cluster retry` writes it, and so may anybody who may change the Driver. The part that
nodes see is in the ConfigMap of the Driver's policy, under the key `retry` (revisions.py): a node
whose kernel died in a load repeats that load once for each new time.

`nodeside.io/rebuild` is one time, for all nodes. For each new one the modules are built anew, also
those that a store has, with images that are pulled again: for a toolkit image that was repaired
under the same tag. No module that is loaded is touched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from nodeside.protocol.labels import API_GROUP
from nodeside.protocol.timestamps import parse_rfc3339, rfc3339

RETRY_NOTE: Final = f"{API_GROUP}/retry"
REBUILD_NOTE: Final = f"{API_GROUP}/rebuild"
EVERY_NODE: Final = ""
_LIMIT: Final = 256
_NAME: Final = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?")

Retries = tuple[tuple[str, float], ...]  # node, or EVERY_NODE, and seconds; sorted


def parse_retries(text: str) -> Retries:
    """Parse the annotation, which anybody may write.

    Entries without a valid name or time are left out, and so are those beyond the first 256.
    """
    found: dict[str, float] = {}
    for word in text.split(",", _LIMIT)[:_LIMIT]:
        node, _, time = word.strip().rpartition("=")
        node = node.removeprefix("*")
        if not _NAME.fullmatch(node):
            continue
        try:
            found[node] = parse_rfc3339(time)
        except ValueError:
            continue
    return tuple(sorted(found.items()))


def format_retries(retries: Mapping[str, float]) -> str:
    """Return the value of the annotation."""
    return ",".join(
        f"{node}={rfc3339(time)}" if node else rfc3339(time)
        for node, time in sorted(retries.items())
    )


def parse_rebuild(text: str) -> str:
    """Return the time of the annotation as RFC 3339 has it, "" if it is none."""
    try:
        return rfc3339(parse_rfc3339(text.strip())) if text else ""
    except ValueError:
        return ""


def retried_at(retries: Retries, node: str) -> float:
    """Return the time before which failures of a node do not count; 0 if all of them count."""
    return max((time for each, time in retries if each in (EVERY_NODE, node)), default=0.0)
