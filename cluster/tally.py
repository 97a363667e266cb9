"""How many requests went to the API server, by what they asked and what came of it.

Counted where they are made (exchange.py); read by metrics.py, and in the log's last line.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

from cluster.apierror import Asked

NO_ANSWER = "none"  # the code of a request that was not answered


@dataclass
class Tally:
    """`requests` by verb, resource and code; `repeats` by verb and resource."""

    requests: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    repeats: Counter[tuple[str, str]] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, asked: Asked, status: int) -> None:
        """One request; `status` is the HTTP status, 0 for no answer."""
        with self._lock:
            self.requests[asked.verb, asked.plural, str(status or NO_ANSWER)] += 1

    def repeat(self, asked: Asked) -> None:
        """A request is about to be made again."""
        with self._lock:
            self.repeats[asked.verb, asked.plural] += 1

    def read(self) -> tuple[dict[tuple[str, str, str], int], dict[tuple[str, str], int]]:
        """Both as they are now."""
        with self._lock:
            return dict(self.requests), dict(self.repeats)

    @property
    def verbs(self) -> dict[str, int]:
        """How many requests of each verb."""
        found: Counter[str] = Counter()
        for (verb, _, _), number in self.read()[0].items():
            found[verb] += number
        return dict(found)
