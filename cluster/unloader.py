"""The pod that unloads a driver on one node, for one boot of it: its name, and what became of it.

Pure. unloadpod.py makes the pod; documents.py reads it into the `DriverPod` that it is a part of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from cluster.world import REVISION_LABEL, Unloader
from nodeside.contract import API_GROUP, REPORT_TEXT

UNLOAD_LABEL: Final = f"{API_GROUP}/unload"  # its value is the mark of the boot
LEAVE_MODULES: Final = f"{API_GROUP}/leave-modules"  # annotation of a Driver: unload nothing


def mark(node: str, boot_id: str) -> str:
    """12 hex digits for a boot of a node: what a pod was to unload there is gone after a reboot."""
    return hashlib.sha256(f"{node}\n{boot_id}".encode()).hexdigest()[:12]


def unloader_name(driver: str, marked: str) -> str:
    """At most 40 + 8 + 12 characters. One name for one boot: no second pod can be made for it."""
    return f"{driver}-unload-{marked}"


def unloader_from(data: Mapping[str, Any]) -> Unloader | None:
    """Of a pod; None if it is another kind of pod."""
    metadata, status = data.get("metadata") or {}, data.get("status") or {}
    marked = (metadata.get("labels") or {}).get(UNLOAD_LABEL)
    if not marked:
        return None
    phase, ended = str(status.get("phase") or ""), _terminated(status)
    code = ended.get("exitCode")
    return Unloader(
        mark=str(marked),
        revision=str(metadata["labels"].get(REVISION_LABEL) or ""),
        phase=phase,
        code=int(code) if code is not None else None,
        ended=_why(status, ended) if phase == "Failed" else "",
    )


def _terminated(status: Mapping[str, Any]) -> Mapping[str, Any]:
    for container in status.get("containerStatuses") or ():
        found: Mapping[str, Any] = (container.get("state") or {}).get("terminated") or {}
        return found
    return {}


def _why(status: Mapping[str, Any], ended: Mapping[str, Any]) -> str:
    """The kubelet's own reason (an eviction), else how the container ended."""
    told = [str(status[key]) for key in ("reason", "message") if status.get(key)]
    if not told and "exitCode" in ended:
        told = [f"exit code {ended['exitCode']}"]
    return ": ".join(told)[:REPORT_TEXT] or "nobody says why"
