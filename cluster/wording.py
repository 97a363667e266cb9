"""Words that several messages have in common: a few of many nodes, causes, versions. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.limits import clipped
from cluster.members import Member
from cluster.toolkit import Resolution

_NAMED = 3  # nodes or tags that a message names
_MESSAGE_LIMIT = 2000  # bytes


def toolkit_message(resolution: Resolution) -> str:
    tags = some(reversed(resolution.tags_seen), of="tags")
    seen = f"; tags seen: {tags}" if tags else ""
    return f"no toolkit image: {resolution.why}{seen}; {resolution.remedy}"


def untold(members: Iterable[Member]) -> str:
    """Nodes whose kernel nobody knows, as right after they joined; "" if there is none."""
    names = [member.node.name for member in members]
    have = "has not told its" if len(names) == 1 else "have not told their"
    return f"{nodes(len(names))} {have} kernel yet: {some(names)}" if names else ""


def cause(member: Member) -> str:
    """Why the driver does not work on a node, in the node's own words if it said anything."""
    report = member.report
    if member.trouble or report is None:
        return member.trouble or "no report"
    words = ": ".join(part for part in (report.reason, report.message) if part)
    return words or report.state


def some(names: Iterable[str], of: str = "nodes", shown: int = _NAMED) -> str:
    """A few names, and how many more: `n1, n2, n3 and 7 more nodes`."""
    every = list(names)
    rest = len(every) - shown
    first = ", ".join(every[:shown])
    more = of.removesuffix("s") if rest == 1 else of
    return f"{first} and {rest} more {more}" if rest > 0 else first


def called(revision: str, version: str) -> str:
    return f"{version} ({revision})" if version and revision else revision or "none"


def cut(message: str) -> str:
    return clipped(message, _MESSAGE_LIMIT)


def nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"
