"""What a stage waits for in a log, as RE2 judges it: never for longer than the text is long.

The expression is somebody else's program. Python's own engine can take hours for a short line, and
keeps every other thread from running meanwhile; RE2 can do neither. The one module that uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from nodeside.errors import ExitCode, NodesideError
from nodeside.spec.expressions import EXPECTED

_SIZE = 1000  # instructions of RE2; a search takes at most as many steps for each character
_MEMORY = 1 << 20  # bytes for one expression


class PatternRefused(NodesideError):
    """An expression that RE2 does not have, or that is too large."""

    exit_code = ExitCode.SPEC
    reason = "StageInvalid"


def refusal(pattern: str) -> str:
    """Why logs cannot be judged by an expression, or ""."""
    try:
        search(pattern)
    except PatternRefused as error:
        return str(error)
    return ""


@lru_cache(maxsize=256)
def search(pattern: str) -> Callable[[str], object]:
    """What says of a line whether the expression matches somewhere in it. Raises PatternRefused."""
    import re2

    options = re2.Options()
    options.log_errors, options.max_mem = False, _MEMORY
    try:
        compiled = re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as exc:
        raise PatternRefused(f"{EXPECTED}: {_words(exc)}") from exc
    if compiled.programsize > _SIZE:
        raise PatternRefused(f"{EXPECTED}: it is too large once its repeats are written out")
    found: Callable[[str], object] = compiled.search
    return found


def _words(exc: Exception) -> str:
    said = exc.args[0] if exc.args else exc
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)
