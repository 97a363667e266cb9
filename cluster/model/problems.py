"""Problems that the controller met with a Driver, which the Driver's status reports.

A plan sees what is wrong on nodes. It cannot see these problems: they come from carrying out plans,
and from watching the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from nodeside.errors import NodesideError


class ProblemKind(IntEnum):
    """The kinds of problems, the worst last."""

    CONTESTED = 1  # another program keeps changing our objects
    ON_NODES = 2  # actions on some nodes, which nothing else waits for
    FAILED = 3  # another action, or the plan itself
    UNREADABLE = 4  # objects of a kind cannot be read, so nothing is certain


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a Driver; `of_stages`: the problem is about its stages."""

    kind: ProblemKind
    reason: str
    message: str
    of_stages: bool = False


def problem_of(error: Exception, doing: str) -> Problem:
    """Return the problem that reports an exception to users; an unexpected one is a bug of ours."""
    if isinstance(error, NodesideError):
        hint = f" ({error.hint})" if error.hint else ""
        return Problem(ProblemKind.FAILED, error.reason, f"cannot {doing}: {error}{hint}")
    return Problem(
        ProblemKind.FAILED,
        "InternalError",
        f"a bug in nodeside, please report it with the controller's log: cannot {doing}: {error!r}",
    )
