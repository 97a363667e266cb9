"""What a person may have meant by a name that is not there."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(name: str, existing: Iterable[str]) -> str:
    """Return a question with the name that is most like it, "" if none is; a hint goes on."""
    from difflib import get_close_matches  # late: only a mistake needs it

    near = get_close_matches(name, list(existing), n=1)
    return f"did you mean {near[0]}? " if near else ""
