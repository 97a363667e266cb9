"""Test builds of `spec.preflight`: whether a driver would build for a kernel, and their state.

Pure. A test build publishes nothing. If the build for a coming kernel answers the same question, it
is not built twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from cluster.model.snapshot import Pool, Snapshot, Tag
from cluster.model.states import Progress
from cluster.plan.builds.builds import BuildState, build_of, standing
from cluster.plan.builds.toolkit_evidence import Evidence
from cluster.plan.builds.toolkit_image import asked, resolve
from cluster.plan.objects.build_job import Build, publish_target
from nodeside.spec import Driver
from nodeside.spec.fleet import Preflight, Toolkit

USUAL_ARCHITECTURE = "x86_64"  # default if there are no nodes

_VERDICTS = {
    Progress.RUNNING: "Building",
    Progress.DONE: "Builds",
    Progress.REFUSED: "DoesNotBuild",
    Progress.BROKEN: "Unknown",
}


@dataclass(frozen=True, slots=True)
class PreflightAnswer:
    """A preflight entry for one architecture. If `found` is None, `why` says why none is built."""

    place: Preflight
    architecture: str
    found: BuildState | None
    why: str = ""

    @property
    def verdict(self) -> str:
        return _VERDICTS[self.found.progress] if self.found else "Unknown"

    def row(self) -> dict[str, Any]:
        """Returns the row for the Driver's status."""
        outcome = self.found.outcome if self.found else None
        return {
            "osVersion": self.place.os_version,
            "kernel": self.place.kernel or (outcome.kernel if outcome else ""),
            "toolkit": self.found.build.toolkit if self.found else self.place.toolkit,
            "architecture": self.architecture,
            "verdict": self.verdict,
            "message": (self.found.words if self.found else self.why)[:1000],
        }


def answers(
    driver: Driver,
    revision: str,
    snapshot: Snapshot,
    regular: Collection[str],
    used: Collection[Pool],
) -> Iterator[PreflightAnswer]:
    """Yields the answer to every preflight entry, for each architecture in use.

    `regular` are the names of Jobs that are desired anyway.
    """
    publish = publish_target(driver)
    architectures = sorted({pool.architecture for pool in used}) or [USUAL_ARCHITECTURE]
    for place in driver.spec.preflight:
        for architecture in architectures:
            build, why = build_for(place, driver, revision, snapshot, architecture)
            if build is None:
                yield PreflightAnswer(place, architecture, None, why)
                continue
            published = replace(build, publish=publish)
            build = published if published.name in regular else build
            yield PreflightAnswer(place, architecture, standing(build, snapshot))


def build_for(
    place: Preflight, driver: Driver, revision: str, snapshot: Snapshot, architecture: str
) -> tuple[Build | None, str]:
    """Returns the build for a preflight entry, or None and the reason.

    A kernel's variant is part of its name. An OS version or a toolkit builds for the plain kernel.
    """
    if place.toolkit:
        return Build(driver, revision, place.toolkit, architecture), ""
    chain, known = _chain(place, driver.spec.toolkit), Evidence(snapshot.toolkit_labels)
    found = resolve(_pool(place, architecture), chain, snapshot.image_streams, known)
    if found.image:
        return build_of(driver, revision, _pool(place, architecture), found, ""), ""
    return None, "no toolkit image: " + "; ".join(w for w in (found.why, found.remedy) if w)


def tags(
    driver: Driver,
    places: Iterable[Preflight],
    snapshot: Snapshot,
    architectures: Collection[str] = (),
) -> Iterator[Tag]:
    """Yields the tags whose image labels are needed to answer these entries."""
    chain, known = driver.spec.toolkit, Evidence(snapshot.toolkit_labels)
    for place in places:
        for each in () if place.toolkit else architectures or (USUAL_ARCHITECTURE,):
            yield from asked(_pool(place, each), chain, snapshot.image_streams, known)


def _pool(place: Preflight, architecture: str) -> Pool:
    return Pool(architecture, place.os_version, place.kernel)


def _chain(place: Preflight, chain: Toolkit) -> Toolkit:
    """Returns the toolkit spec for an entry.

    With only an OS version, a template that contains the kernel cannot be used.
    """
    if place.os_version and "{kernel}" in chain.image_template:
        return replace(chain, image_template="")
    return chain
