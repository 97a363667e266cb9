"""What to do about an image that a kubelet cannot pull, by what its registry answered."""

from __future__ import annotations

import re

# A registry that asks for a password does not say whether it has an image.
_REFUSED = re.compile(r"\b40[13]\b|unauthorized|denied|forbidden|auth", re.IGNORECASE)
_ABSENT = re.compile(r"not found|unknown|does not exist|\b404\b", re.IGNORECASE)
_MAY_PULL = "may the nodes pull it? nodeside-cluster install --pull-secret"


def remedy(message: str) -> str:
    """Return what to do; `message` is the kubelet's, "" if there is nothing to do."""
    if not message:
        return ""
    if _REFUSED.search(message):
        return _MAY_PULL
    if _ABSENT.search(message):
        return "the registry has no such image: push it, or correct its name"
    return f"is it pushed, and {_MAY_PULL}"
