"""The nodes of a Driver, counted in one pass for metrics: where they stand, and what they say.

Pure; plan.py makes one for each Driver out of the verdicts that it has made anyway. There are
numbers in it and no nodes, so it is small however large the cluster is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cluster.actions import Census, PoolCount
from cluster.model.names import SILENT
from cluster.model.states import Boot

if TYPE_CHECKING:
    from cluster.picture import Picture
    from cluster.turns import Verdict


_POOLS = 256  # rows, as in the status of a Driver


def census(picture: Picture) -> Census:
    """Count what a plan has found."""
    verdicts, now = picture.verdicts, picture.standing
    pools = Counter(verdict.member.pool for verdict in verdicts).most_common(_POOLS)
    return Census(
        phase=now.phase,
        places=Counter(verdict.place for verdict in verdicts),
        states=Counter(_states(verdicts)),
        pools=[PoolCount(pool, picture.resolutions[pool].link.value, n) for pool, n in pools],
        builds=Counter(build.progress for build in picture.builds.values()),
        unavailable=len(now.unavailable),
        allowed=now.allowed,
    )


def _states(verdicts: Iterable[Verdict]) -> Iterable[str]:
    """What each node's pod said last in this boot."""
    for verdict in verdicts:
        report, boot = verdict.member.report, verdict.member.boot
        yield SILENT if report is None or boot is Boot.FRESH else report.state or SILENT
