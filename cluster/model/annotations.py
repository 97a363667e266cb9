"""State stored in annotations: images that could not be pulled, toolkits that were refused."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final

from cluster.model.snapshot import EMPTY
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


_MOST_WORDS = 1000  # characters of a reason


_MOST = 64  # images in an annotation


_NOTE_LIMIT = 64 << 10  # bytes of an annotation


_LONGEST = 1024  # characters of an image reference, as in driver.yaml


_COUNT = re.compile(r"^(\d{1,6}) nodes refuse it")


def _refused_by(why: str) -> int:
    count = _COUNT.match(why)
    return int(count[1]) if count else 1


def encode_refusals(refused: Mapping[str, str]) -> str:
    """Return the annotation text, "" if empty; images that most nodes refuse go first.

    Images beyond the size limit are dropped: all annotations of an object are limited to 256 KiB
    in total, and one character of a node's report may take 12 bytes.
    """
    order = sorted(refused.items(), key=lambda each: (-_refused_by(each[1]), each[0]))
    entries = dict(order[:_MOST])
    while len(text := json.dumps(entries, sort_keys=True)) > _NOTE_LIMIT:
        entries.popitem()
    return text if entries else ""


def decode_refusals(text: str) -> Mapping[str, str]:
    """Parse the annotation; one that was edited by hand counts as far as it can be read."""
    with suppress(ValueError, RecursionError):
        refused = json.loads(text or "{}")
        if isinstance(refused, dict) and refused:
            entries = ((image, why) for image, why in refused.items() if len(image) <= _LONGEST)
            return {image: str(why)[:_MOST_WORDS] for image, why in islice(entries, _MOST)} or EMPTY
    return EMPTY
