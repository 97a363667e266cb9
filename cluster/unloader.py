"""The pod that unloads a driver on one node, for one boot of it: its name, and what became of it.

Pure. unloadpod.py makes the pod; documents.py reads it into the `DriverPod` that it is a part of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.model.names import REVISION_LABEL, UNLOAD_LABEL
from cluster.world import Unloader
from nodeside.contract import REPORT_TEXT


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
