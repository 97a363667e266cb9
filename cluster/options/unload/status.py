"""What the status says of nodes that the Driver no longer selects. Pure."""

from __future__ import annotations

from cluster.driver.status.messages import nodes_in_words
from cluster.driver.status.part import StatusPart
from cluster.options.unload.nodes import DriverUnload, UnloadPhase


def status_part(leaving: DriverUnload) -> StatusPart:
    """Return the progress of unloading; it does not affect readiness."""
    if not leaving.count:
        return StatusPart()
    held, rest = leaving.obstacle, (phase for phase in UnloadPhase if not phase.is_obstacle)
    words = "; ".join(part for part in (held, leaving.summary(*rest)) if part)
    words = f"no longer selects {nodes_in_words(leaving.count)}: {words}"
    return StatusPart({"leaving": leaving.count}, progress={"NodesLeaving": words}, notes=(words,))
