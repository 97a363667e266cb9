"""What earlier attempts of one process did in vain, so that later ones do not repeat it."""

from __future__ import annotations

from dataclasses import dataclass, field

from nodeside import log
from nodeside.driver.kernel.sequence import RollBack, SequenceFailed
from nodeside.errors import NodesideError


@dataclass
class Attempts:
    """`stuck` are modules that were waited for until the deadline, and are still loading or going.

    A replacement that the kernel refuses takes the working modules away for a moment. It is
    remembered if it will fail again, and if the previous modules work again.
    """

    stuck: set[str] = field(default_factory=set)
    _replacement: object = None
    _failure: tuple[NodesideError, RollBack] | None = None

    def failed(self, replacement: object, error: SequenceFailed) -> None:
        """Remember a failed replacement, unless it may succeed later."""
        if error.retryable or error.rolled_back.problems or not error.rolled_back.restored:
            return
        self._replacement, self._failure = replacement, (error.cause, error.rolled_back)
        log.fact("this is tried again only if an input changes, or after a restart")

    def refuse_repetition(self, replacement: object) -> None:
        """Raise the SequenceFailed of the same replacement, if it failed."""
        if self._failure is not None and self._replacement == replacement:
            log.detail("the same replacement failed earlier; the loaded modules stay")
            raise SequenceFailed(*self._failure)
