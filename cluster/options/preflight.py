"""Test builds of `spec.preflight`: whether a driver would build for a kernel, and their state.

Pure. A test build publishes nothing. If the build for a coming kernel answers the same question, it
is not built twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from cluster.driver.toolkit_image import Evidence, resolve_toolkit_image, tags_to_read
from cluster.model.snapshot import Pool, Snapshot, Tag
from cluster.model.states import BuildProgress
from cluster.options.build_once.builds import BuildState, build_of, build_state
from cluster.options.build_once.job_manifest import SharedBuild, publish_target
from nodeside.spec import Driver
from nodeside.spec.fleet import Preflight, Toolkit

AddDependencies = Callable[[SharedBuild], SharedBuild | BuildState | None]

USUAL_ARCHITECTURE = "x86_64"  # default if there are no nodes

_VERDICTS = {
    BuildProgress.RUNNING: "Building",
    BuildProgress.DONE: "Builds",
    BuildProgress.REFUSED: "DoesNotBuild",
    BuildProgress.BROKEN: "Unknown",
}


@dataclass(frozen=True, slots=True)
class PreflightAnswer:
    """The answer to a preflight entry for one architecture.

    If `state` is None, `why` says why nothing is built.
    """

    entry: Preflight
    architecture: str
    state: BuildState | None
    why: str = ""

    @property
    def verdict(self) -> str:
        return _VERDICTS[self.state.progress] if self.state else "Unknown"

    def to_row(self) -> dict[str, Any]:
        """Return the row for the Driver's status."""
        outcome = self.state.outcome if self.state else None
        return {
            "osVersion": self.entry.os_version,
            "kernel": self.entry.kernel or (outcome.kernel if outcome else ""),
            "toolkit": self.state.build.toolkit if self.state else self.entry.toolkit,
            "architecture": self.architecture,
            "verdict": self.verdict,
            "message": (self.state.words if self.state else self.why)[:1000],
        }


def preflight_answers(
    driver: Driver,
    revision: str,
    snapshot: Snapshot,
    desired: Collection[str],
    used: Collection[Pool],
    *,
    add_dependencies: AddDependencies = lambda build: build,
    rebuild: str = "",
) -> Iterator[PreflightAnswer]:
    """Yield the answer to every preflight entry, for each architecture in use.

    `desired` are the names of Jobs that nodes need anyway. `add_dependencies` adds what a build
    needs of the builds before it. `rebuild` is the time of an order to build anew.
    """
    publish = publish_target(driver)
    architectures = sorted({pool.architecture for pool in used}) or [USUAL_ARCHITECTURE]
    for entry in driver.spec.preflight:
        for architecture in architectures:
            build, why = build_for(entry, driver, revision, snapshot, architecture)
            if build is None:
                yield PreflightAnswer(entry, architecture, None, why)
                continue
            found = add_dependencies(replace(build, rebuild=rebuild))
            if not isinstance(found, SharedBuild):
                words = "a driver that it comes after has no published build for this kernel"
                yield PreflightAnswer(entry, architecture, found, "" if found else words)
                continue
            published = replace(found, publish=publish)
            build = published if published.name in desired else found
            yield PreflightAnswer(entry, architecture, build_state(build, snapshot))


def build_for(
    entry: Preflight, driver: Driver, revision: str, snapshot: Snapshot, architecture: str
) -> tuple[SharedBuild | None, str]:
    """Return the build for a preflight entry, or None and the reason.

    A kernel's variant is part of its name. An OS version or a toolkit builds for the plain kernel.
    """
    if entry.toolkit:
        return SharedBuild(driver, revision, entry.toolkit, architecture), ""
    toolkit, evidence = _toolkit_for(entry, driver.spec.toolkit), Evidence(snapshot.toolkit_labels)
    resolution = resolve_toolkit_image(
        _pool_of(entry, architecture), toolkit, snapshot.image_streams, evidence
    )
    if resolution.image:
        return build_of(driver, revision, _pool_of(entry, architecture), resolution, ""), ""
    words = "; ".join(filter(None, (resolution.why, resolution.remedy)))
    return None, f"no toolkit image: {words}"


def tags_for(
    driver: Driver,
    entries: Iterable[Preflight],
    snapshot: Snapshot,
    architectures: Collection[str] = (),
) -> Iterator[Tag]:
    """Yield the tags whose image labels are needed to answer these entries."""
    toolkit, evidence = driver.spec.toolkit, Evidence(snapshot.toolkit_labels)
    for entry in entries:
        for architecture in () if entry.toolkit else architectures or (USUAL_ARCHITECTURE,):
            yield from tags_to_read(
                _pool_of(entry, architecture), toolkit, snapshot.image_streams, evidence
            )


def _pool_of(entry: Preflight, architecture: str) -> Pool:
    return Pool(architecture, entry.os_version, entry.kernel)


def _toolkit_for(entry: Preflight, toolkit: Toolkit) -> Toolkit:
    """Return the toolkit spec for an entry.

    A template that contains the kernel cannot be filled in if the entry has only an OS version.
    """
    if entry.os_version and "{kernel}" in toolkit.image_template:
        return replace(toolkit, image_template="")
    return toolkit
