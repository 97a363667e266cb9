"""What the status says of nodes that the Driver no longer selects. Pure."""

from __future__ import annotations

from cluster.driver.status.messages import nodes_in_words
from cluster.driver.status.part import StatusPart
from cluster.options.unload.nodes import DriverUnload, UnloadPhase


def status_part(leaving: DriverUnload) -> StatusPart:
    """Return the progress of unloading; the Driver is ready meanwhile."""
    if not leaving.node_count:
        return StatusPart()
    held, rest = leaving.obstacle_message, (phase for phase in UnloadPhase if not phase.is_obstacle)
    words = "; ".join(part for part in (held, leaving.summarize_phases(*rest)) if part)
    words = f"no longer selects {nodes_in_words(leaving.node_count)}: {words}"
    return StatusPart(
        {"leaving": leaving.node_count}, progress={"NodesLeaving": words}, notes=(words,)
    )
