"""What the status says of builds that are made once for all nodes of a pool.

Pure; called by conditions.py, in the same words for a pool and for the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cluster.builds import Found
from cluster.model.states import Place, Progress
from cluster.turns import Verdict
from cluster.world import Pool


def pool_reason(build: Found, verdicts: Sequence[Verdict]) -> tuple[str, str] | None:
    """Why nodes of a pool wait for a build, None if they do not."""
    if all(verdict.place is Place.NEWEST for verdict in verdicts):
        return None
    if build.progress is Progress.REFUSED:
        return "BuildFailed", f"the driver does not build for it: {build.words}"
    return ("Building", build.words) if build.progress is Progress.RUNNING else None


def refused(builds: Mapping[Pool, Found], verdicts: Sequence[Verdict]) -> str:
    """The first build that says no, "" if none does."""
    found = sorted(_of(Progress.REFUSED, builds, verdicts), key=lambda each: each[0].kernel)
    if not found:
        return ""
    pool, build = found[0]
    more = f" (and {len(found) - 1} more kernels)" if found[1:] else ""
    return (
        f"version {build.build.driver.spec.version} does not build for kernel {pool.kernel}{more}: "
        f"{build.words}; no node was changed for it"
    )


def running(builds: Mapping[Pool, Found], verdicts: Sequence[Verdict]) -> str:
    """The builds that nodes wait for, "" if there are none."""
    found = [build.words for _, build in _of(Progress.RUNNING, builds, verdicts)]
    more = f" and {len(found) - 1} more" if found[1:] else ""
    return f"{found[0]}{more}" if found else ""


def _of(
    progress: Progress, builds: Mapping[Pool, Found], verdicts: Sequence[Verdict]
) -> Iterator[tuple[Pool, Found]]:
    found = [(pool, build) for pool, build in builds.items() if build.progress is progress]
    if found:
        waiting = {v.member.pool for v in verdicts if v.place is not Place.NEWEST}
        yield from ((pool, build) for pool, build in found if pool in waiting)
