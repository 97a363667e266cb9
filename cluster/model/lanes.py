"""Lanes: sequences of dependent actions, in which a failure stops the remaining actions.

Each Driver has a lane. Its stages, its status, its cordons, and each node with a failed action have
lanes of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

_STAGES: Final = "stages"


@dataclass(frozen=True, slots=True, order=True)
class LanePart:
    """The part of a Driver that a lane is for. `MAIN`, without a name, is what is in no other part.

    `content` is a hash of what is written, so that changed content is tried at once.
    """

    name: str = ""
    content: str = ""

    def __str__(self) -> str:
        return ".".join(filter(None, (self.name, self.content)))


MAIN: Final = LanePart()
CORDONS: Final = LanePart("cordons")  # the end of our cordons; nothing else depends on it
STATUS: Final = LanePart("status")  # failed status updates, which block only what is `of_status`


@dataclass(frozen=True, slots=True, order=True)
class Lane:
    """The lane of a part of a Driver; with `node`, for failures on this node only."""

    driver: str
    part: LanePart = MAIN
    node: str = ""

    def __str__(self) -> str:
        return "/".join(filter(None, (self.driver, str(self.part), self.node)))

    def on_node(self, node: str) -> Lane:
        return replace(self, node=node)

    @property
    def is_of_stages(self) -> bool:
        return self.part.name == _STAGES

    @property
    def is_retried_on_change(self) -> bool:
        """Whether a failure in this lane is retried at once when the Driver changes."""
        return self.part in (MAIN, STATUS)


def stages_part(content: str) -> LanePart:
    """Return the part for writing stage objects; a failure in it does not stop a rollout."""
    return LanePart(_STAGES, content)
