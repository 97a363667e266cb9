"""What earlier attempts of one process did or found, so that later ones do not repeat it."""

from __future__ import annotations

from dataclasses import dataclass, field

from nodeside import log
from nodeside.driver.bringup.hooks import HookFailed
from nodeside.driver.kernel.errors import LoadFailed
from nodeside.driver.kernel.sequence import RollBack, SequenceFailed
from nodeside.errors import NodesideError

_AGAIN = "the driver container tries it again if an input changes, or if it is restarted"


@dataclass
class EarlierAttempts:
    """What later attempts of this process need not find out again.

    `stuck` are modules that were waited for until the deadline, and are still loading or going.
    `digests` are those of files of the image, which do not change while this process runs.

    A replacement that the kernel or a hook refuses takes the working modules away for a moment. It
    is remembered if it would fail again, and if the previous modules work again.
    """

    stuck: set[str] = field(default_factory=set)
    digests: dict[object, str] = field(default_factory=dict)
    _replacement: object = None
    _failure: tuple[NodesideError, RollBack] | None = None

    def remember_failure(self, replacement: object, error: SequenceFailed) -> SequenceFailed:
        """Return the error to raise. Remember the replacement, unless it may succeed later."""
        rolled, is_for_good = error.rolled_back, not error.retryable
        if not (is_for_good and isinstance(error.cause, LoadFailed | HookFailed)):
            return error
        if rolled.problems or not rolled.restored:
            return error
        cause = error.cause.with_traceback(None)  # its frames hold all that was read of the modules
        cause.__cause__ = cause.__context__ = None
        self._replacement, self._failure = replacement, (cause, rolled)
        return _final_error(cause, rolled)

    def forget_failure(self) -> None:
        """Forget the failure: a replacement may succeed now."""
        self._replacement = self._failure = None

    def refuse_repetition(self, replacement: object) -> None:
        """Raise the SequenceFailed of the same replacement, if it failed."""
        if self._failure is not None and self._replacement == replacement:
            log.detail("the same replacement failed earlier; the loaded modules stay")
            raise _final_error(*self._failure)


def _final_error(cause: NodesideError, rolled: RollBack) -> SequenceFailed:
    """Return a failure that says when the replacement is tried again."""
    failed = SequenceFailed(cause, rolled)
    failed.hint = "; ".join(words for words in (cause.hint, _AGAIN) if words)
    return failed
