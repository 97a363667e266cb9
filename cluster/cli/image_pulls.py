"""What to do about an image that a kubelet cannot pull, according to the kubelet's message."""

from __future__ import annotations

import re

_NAMES = re.compile(r'"[^"]*"|\S*/\S*')  # of images and registries, which may have any word in them
_NO_ACCESS = "may the nodes pull it? nodeside-cluster install --pull-secret"
# The first that fits. A registry that asks for a password does not say whether it has an image.
_REMEDIES = (
    (
        re.compile(r"x509|certificate|tls:", re.IGNORECASE),
        "the nodes must trust the registry: its CA, in the container runtime of each",
    ),
    (
        re.compile(r"no match for platform", re.IGNORECASE),
        "it is not for the architecture of the node: build it for that too",
    ),
    (
        re.compile(
            r"\b40[13]\b|unauthorized|denied|forbidden|authoriz|authenticat|basic auth",
            re.IGNORECASE,
        ),
        _NO_ACCESS,
    ),
    (
        re.compile(r"not found|unknown|does not exist|\b404\b", re.IGNORECASE),
        "the registry has no such image: push it, or correct its name",
    ),
)


def remedy(message: str) -> str:
    """Return what to do; `message` is the kubelet's."""
    words = _NAMES.sub("", message)
    found = (what_to_do for said, what_to_do in _REMEDIES if said.search(words))
    return next(found, f"is it pushed, and {_NO_ACCESS}")
