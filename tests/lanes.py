"""Which tests `make test` runs side by side.

With `--numprocesses 2` one process begins with the throwaway machines, file by file, and the other
with all the rest, which shares a control plane, a registry and a toolkit's root file system. Who is
done first helps with the machines that are left: each file of theirs boots its own.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

MACHINES = "tests/vm/"


def lane(nodeid: str) -> str:
    """What must run in one process, in order: a file of tests/vm, or all that is elsewhere."""
    path = nodeid.partition("::")[0]
    return path if path.startswith(MACHINES) else "others"


class Lanes(LoadScopeScheduling):  # type: ignore[misc]  # it has no stubs
    """Gives lanes away in the order of their tests, so none that lasts long is left for the end."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return lane(nodeid)
