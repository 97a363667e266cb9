"""Lanes: sequences of dependent actions, in which a failure stops the remaining actions.

Each Driver has a lane. Its stages, its status, its cordons, and each node with a failed action have
lanes of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

CORDONS: Final = "cordons"  # the end of our cordons; no other action of the Driver depends on it
STATUS: Final = "status"  # failures of status updates, which block only what is `of_status`


@dataclass(frozen=True, slots=True, order=True)
class Lane:
    """The lane of a Driver, or of a `part` of it; with `node`, for failures on this node only."""

    driver: str
    part: str = ""
    node: str = ""

    def __str__(self) -> str:
        return "/".join(filter(None, (self.driver, self.part, self.node)))

    def on(self, node: str) -> Lane:
        return replace(self, node=node)

    @property
    def is_of_stages(self) -> bool:
        return self.part.startswith("stages.")

    @property
    def has_generation(self) -> bool:
        """Whether a changed Driver is tried at once."""
        return self.part in ("", STATUS)


def stages_part(content: str) -> str:
    """Return the part for writing stage objects; a failure in it does not stop a rollout.

    `content` is a hash of what is written, so that changed content is tried at once.
    """
    return f"stages.{content}"
