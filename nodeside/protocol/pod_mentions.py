"""How a node names a pod in a message: it knows the start of its uid, and the cluster the name.

Stdlib only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_DIGITS = 8  # of the uid; enough for the pods of a node
_MENTION = re.compile(rf"\bpod ([0-9a-f]{{{_DIGITS}}})…")


def mention_pod(uid: str) -> str:
    """Return the words for a pod with this uid."""
    return f"pod {uid[:_DIGITS]}…"


def mentions_pods(text: str) -> bool:
    return _MENTION.search(text) is not None


def name_pods(text: str, names: Mapping[str, str]) -> str:
    """Return the text with the names of the pods that it mentions, by their uids."""
    by_start = {uid[:_DIGITS]: name for uid, name in names.items()}

    def named(mention: re.Match[str]) -> str:
        name = by_start.get(mention[1])
        return f"pod {name}" if name else mention[0]

    return _MENTION.sub(named, text)
