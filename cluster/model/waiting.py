"""Why the containers of a pod do not start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a container does not start, as the kubelet says it; or why a pod is not scheduled."""

    reason: str
    message: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason


def waiting_message(waiting: Mapping[str, Waiting]) -> str:
    """Return why containers do not start, each with its name."""
    return "; ".join(f"{container}: {why}" for container, why in waiting.items())
