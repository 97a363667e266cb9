"""Search texts for a regular expression of driver.yaml, with a deadline.

An expression such as (a+)+$ may take time that grows as 2 to the power of the text's length. A
child process searches, since a thread cannot be killed. An attribute has up to 4 KiB; a reasonable
expression needs a millisecond for it.
"""

from __future__ import annotations

import re

from nodeside.errors import DeadlinePassed, SystemRefused
from nodeside.system.child import ChildDied, ChildLimits, ChildRaised, run_in_child

SECONDS = 5.0
_MEMORY = 128 << 20
_PROCESSOR = 5  # seconds
_MOST = 4096  # texts


def search_texts(pattern: str, *texts: str, timeout: float = 0.0) -> tuple[bool, ...]:
    """Return for each text whether the expression matches somewhere in it.

    Takes at most 4,096 texts. Raises SystemRefused after `timeout` seconds (default: 5).
    """
    limits = ChildLimits(memory=_MEMORY, processor=_PROCESSOR, answer=_MOST)
    seconds = timeout or SECONDS
    try:
        found = run_in_child(lambda: _match_each(pattern, texts), seconds, limits=limits)
    except (ChildDied, ChildRaised, DeadlinePassed) as exc:
        raise SystemRefused(
            f"the regular expression did not finish within {seconds:g} s; it may contain nested "
            "repeats such as (a+)+"
        ) from exc
    return tuple(each == 1 for each in found)


def _match_each(pattern: str, texts: tuple[str, ...]) -> bytes:
    expression = re.compile(pattern)
    return bytes(expression.search(text) is not None for text in texts)
