"""Pull specs of images: their parts, and which image belongs to the controller's. Pure."""

from __future__ import annotations

import re
from typing import Final

from nodeside.spec.image_names import DIGEST, PLAIN, TAG

_CONTROLLER: Final = "nodeside-cluster"
_AGENT: Final = "nodeside-agent"
_PULL_SPEC: Final = re.compile(
    f"(?P<repository>{PLAIN.repository})(:(?P<tag>{TAG}))?(@(?P<digest>{DIGEST}))?"
)


def split_pull_spec(pull_spec: str) -> dict[str, str]:
    """Return repository, tag and digest, "" for what is missing.

    A colon before a slash separates a port, not a tag.
    """
    match = _PULL_SPEC.fullmatch(pull_spec)
    return {name: (match and match[name]) or "" for name in ("repository", "tag", "digest")}


def agent_image_beside(image: str) -> str:
    """Return the pull spec of the device agent beside the controller's, with the same tag.

    Returns "" if it cannot be known: the controller's image has a digest or another name.
    """
    found = split_pull_spec(image)
    directory, _, name = found["repository"].rpartition("/")
    if name != _CONTROLLER or found["digest"]:
        return ""
    agent = f"{directory}/{_AGENT}" if directory else _AGENT
    return f"{agent}:{found['tag']}" if found["tag"] else agent
