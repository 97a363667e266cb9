"""What a build needs of the builds of the drivers that it comes after. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from cluster.model.states import BuildProgress
from cluster.options.build_once.builds import BuildState
from cluster.options.build_once.job_manifest import SharedBuild
from nodeside.protocol.build_job import BuildOutcome

Find = Callable[[SharedBuild], BuildState | None]
"""Returns the build of another driver for the same kernel; None if nodes build it themselves."""


def with_symbols(
    build: SharedBuild, before: Sequence[tuple[str, Find]]
) -> SharedBuild | BuildState | None:
    """Return the build with the bundles of the drivers before it.

    Returns a state while a bundle is still to come, and None if there will be none: then the nodes
    build, where the other driver is loaded. `before` has the name of each driver before it that has
    modules, and the function that finds its build.
    """
    bundles = []
    for driver, find in before:
        state = find(build)
        if state is None or not state.build.publish:
            return None
        match state.progress:
            case BuildProgress.DONE if state.outcome is not None:
                bundles.append(_bundle_address(state.build.publish, state.outcome))
            case BuildProgress.RUNNING:
                words = f"waits for the build of driver {driver}, which it comes after"
                return BuildState(build, BuildProgress.RUNNING, words, is_next=False)
            case _:
                return None
    return replace(build, symbols_of=tuple(bundles))


def _bundle_address(store: str, outcome: BuildOutcome) -> str:
    """Return the address of a bundle as `--symbols-of` takes it."""
    return f"{store}:{outcome.tag}@{outcome.digest}"
