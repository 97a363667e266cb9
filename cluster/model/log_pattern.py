"""Matches log lines against a stage's pattern with RE2, in time linear in the text.

The expression is untrusted. Python's own engine can take hours for a short line and blocks every
other thread meanwhile; RE2 does neither. This is the only module that uses RE2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from nodeside.errors import ExitCode, NodesideError
from nodeside.spec.expressions import EXPECTED

_SIZE = 1000  # RE2 instructions; a search takes at most this many steps per character
_MEMORY = 1 << 20  # bytes for one expression


class PatternRefused(NodesideError):
    """An expression that RE2 does not support or that is too large."""

    exit_code = ExitCode.SPEC
    reason = "StageInvalid"


@lru_cache(maxsize=256)
def compile_pattern(pattern: str) -> Callable[[str], object]:
    """Return a function that searches a line for the expression. Raises PatternRefused."""
    import re2

    options = re2.Options()
    options.log_errors, options.max_mem = False, _MEMORY
    try:
        compiled = re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as exc:
        raise PatternRefused(f"{EXPECTED}: {_error_words(exc)}") from exc
    if compiled.programsize > _SIZE:
        raise PatternRefused(f"{EXPECTED}: it is too large after its repetitions are expanded")
    search: Callable[[str], object] = compiled.search
    return search


def _error_words(exc: Exception) -> str:
    message = exc.args[0] if exc.args else exc
    return message.decode(errors="replace") if isinstance(message, bytes) else str(message)
