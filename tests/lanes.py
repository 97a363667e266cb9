"""Which tests `make test` runs side by side.

With `--numprocesses 2` one process begins with the throwaway machines, file by file, and the other
with all the rest, which shares a control plane, a registry and a toolkit's root file system. Who is
done first helps with the machines that are left: each file of theirs boots its own.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

MACHINES = "tests/vm/"


def lane(nodeid: str) -> str:
    """What must run in one process, in order: a file of tests/vm, or all that is elsewhere."""
    path = nodeid.partition("::")[0]
    return path if path.startswith(MACHINES) else "others"


class Lanes(LoadScopeScheduling):  # type: ignore[misc]  # it has no stubs
    """The largest lane is given away first: the scheduler sorts them by number of tests."""

    def _split_scope(self, nodeid: str) -> str:
        return lane(nodeid)
