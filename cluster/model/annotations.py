"""State stored in annotations: images that could not be pulled."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from nodeside.protocol.timestamps import parse_rfc3339, rfc3339

FALLBACK_LASTS: Final = 6 * 3600.0  # seconds


@dataclass(frozen=True, slots=True)
class ImageFallback:
    """Since when a pool falls back to building, and why; `annotation` is how a
    DaemonSet keeps both."""

    since: float
    why: str

    @property
    def annotation(self) -> str:
        return json.dumps({"since": rfc3339(self.since), "why": self.why}, sort_keys=True)

    @property
    def until(self) -> float:
        return self.since + FALLBACK_LASTS

    def holds(self, now: float) -> bool:
        return now < self.until


def decode_fallback(text: str) -> ImageFallback:
    """Parse the annotation; an invalid one, edited by hand, counts as expired."""
    with suppress(ValueError, RecursionError, TypeError, KeyError):
        fallback = json.loads(text)
        return ImageFallback(parse_rfc3339(str(fallback["since"])), str(fallback["why"]))
    return ImageFallback(0.0, text)
