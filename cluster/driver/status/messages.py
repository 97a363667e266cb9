"""Phrases that several messages share: shortened lists of names, causes, versions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from cluster.driver.nodes import DriverNode, failure_message
from cluster.driver.status.part import PoolBuild
from cluster.driver.toolkit_image import Resolution
from cluster.driver.update import NodeDecision
from cluster.model.limits import truncate
from cluster.model.names import NAMESPACE
from cluster.model.snapshot import EMPTY, Pool
from cluster.model.states import BuildProgress, Place
from nodeside.protocol.node_status import State
from nodeside.text.shortlist import shortlist

WHERE_BUILDS_RUN = "spec.pods.buildJobs says where builds run"
_NAMED = 3  # nodes or tags listed in a message
_MESSAGE_LIMIT = 2000  # bytes


def our_command(words: str, namespace: str) -> str:
    """Return a command of `nodeside-cluster`, as it is typed for this installation."""
    return f"nodeside-cluster {words}" + (
        "" if namespace == NAMESPACE else f" --namespace {namespace}"
    )


def toolkit_message(resolution: Resolution) -> str:
    tags = few_of(reversed(resolution.tags_seen), of="tags")
    seen = f"; tags seen: {tags}" if tags else ""
    return f"no toolkit image: {resolution.why}{seen}; {resolution.remedy}"


def failures_message(broken: Sequence[DriverNode]) -> str:
    """Return failed nodes, and why the first of them failed; "" if there are none."""
    return f"{few_of(m.node.name for m in broken)}: {failure_message(broken[0])}" if broken else ""


def toolkit_refused_message(
    broken: Sequence[DriverNode], resolutions: Mapping[Pool, Resolution]
) -> str:
    """Return which failed nodes refuse the toolkit image of their pool, and what to add.

    The other failed nodes follow. Returns "" if no node refuses its image.
    """
    refusing = [
        member
        for member in broken
        if member.refused_toolkit and not member.trouble
        if member.refused_toolkit == resolutions[member.pool].image
    ]
    if not refusing:
        return ""
    first = refusing[0]
    these = {member.node.name: None for member in refusing if member.pool == first.pool}
    words = f"{few_of(these)}: {wrong_toolkit_message(first)}"
    report = first.current_report.message.partition("\n")[0] if first.current_report else ""
    rest = [member for member in broken if member.node.name not in these]
    return "; ".join(
        filter(None, (words, f"{first.node.name} reports: {report}", failures_message(rest)))
    )


def wrong_toolkit_message(member: DriverNode) -> str:
    """Return which image is not for the kernel of a node that refuses it, and what to add."""
    kernel = member.node.kernel
    return (
        f"toolkit image {member.refused_toolkit} is not for kernel {kernel}; put the image of this "
        f'kernel in the Driver, spec.toolkit.images: {{"{kernel}": IMAGE}}'
    )


def kernel_unknown_message(members: Iterable[DriverNode]) -> str:
    """Return nodes whose kernel is unknown, as right after they joined; "" if there are none."""
    names = [member.node.name for member in members]
    have = "has not reported its" if len(names) == 1 else "have not reported their"
    return f"{nodes_in_words(len(names))} {have} kernel yet: {few_of(names)}" if names else ""


def few_of(names: Iterable[str], of: str = "nodes", shown: int = _NAMED) -> str:
    """Return a few names, and how many more: `n1, n2, n3 and 7 more nodes`."""
    return shortlist(names, shown, of)


def and_more(rest: Sequence[object], of: str) -> str:
    """Return how many more there are, such as ` (and 2 more pools)`; "" for none."""
    return f" (and {len(rest)} more {of if rest[1:] else of.removesuffix('s')})" if rest else ""


def revision_name(revision: str, version: str) -> str:
    return f"{version} ({revision})" if version and revision else revision or "none"


_ACTIVITY = {
    State.REBOOT_REQUIRED.value: "waiting for a reboot",
    State.WAITING.value: "waiting",
    State.FAILED.value: "trying again",  # a node that keeps failing is BROKEN, not in progress
}
_NO_REPORT = "starting"


def node_activities(
    members: Iterable[DriverNode],
    unassigned: str = _NO_REPORT,
    *,
    creating: Mapping[str, str] = EMPTY,
    total: int = 0,
) -> str:
    """Return what nodes in progress do by their own reports: `building: n1, n2; starting: n3`.

    `unassigned` is what a node without a revision is doing. `creating` says what a node's kubelet
    does before its pod starts; many nodes where it does the same are counted, out of `total`.
    """
    by_state: dict[str, list[str]] = {}
    for member in members:
        state = member.current_report.state if member.current_report is not None else ""
        silent = _NO_REPORT if member.assigned else unassigned
        activity, name = _ACTIVITY.get(state, state) or silent, member.node.name
        if creating and member.assigned and state in ("", State.WAITING.value):
            activity = creating.get(name, activity)
        by_state.setdefault(activity, []).append(name)
    kubelets = {*creating.values()}
    return "; ".join(
        f"{activity} on {len(names)} of {nodes_in_words(total)}"
        if activity in kubelets and len(names) > _NAMED
        else f"{activity}: {few_of(names)}"
        for activity, names in sorted(by_state.items())
    )


def cut_message(message: str) -> str:
    return truncate(message, _MESSAGE_LIMIT)


def nodes_in_words(count: int) -> str:
    """Return `1 node`, `2 nodes`."""
    return f"{count} node" if count == 1 else f"{count} nodes"


def build_reason(build: PoolBuild, decisions: Sequence[NodeDecision]) -> tuple[str, str] | None:
    """Return why a build keeps nodes of a pool waiting, as (reason, message); None if not."""
    if all(decision.place is Place.NEWEST for decision in decisions):
        return None
    if build.progress is BuildProgress.REFUSED:
        return "BuildFailed", f"the driver does not build for this kernel: {build.words}"
    if build.progress is not BuildProgress.RUNNING:
        return None
    if build.is_unscheduled:
        return "Unschedulable", f"{build.words}; {WHERE_BUILDS_RUN}"
    return "Building", build.words


def refused_builds_message(
    builds: Mapping[Pool, PoolBuild], decisions: Sequence[NodeDecision]
) -> str:
    """Return a message about the first build that was refused, "" if none was."""
    pairs = sorted(
        _awaited_builds(BuildProgress.REFUSED, builds, decisions), key=lambda each: each[0].kernel
    )
    if not pairs:
        return ""
    pool, build = pairs[0]
    return (
        f"version {build.version} does not build for kernel {pool.kernel}"
        f"{and_more(pairs[1:], 'kernels')}: {build.words}; no node was changed for it"
    )


def unscheduled_builds_message(
    builds: Mapping[Pool, PoolBuild], decisions: Sequence[NodeDecision]
) -> str:
    """Return a message about awaited builds whose pods have no node, "" if each has one."""
    awaited = _awaited_builds(BuildProgress.RUNNING, builds, decisions)
    words = [build.words for _, build in awaited if build.is_unscheduled]
    return f"{words[0]}{and_more(words[1:], 'builds')}; {WHERE_BUILDS_RUN}" if words else ""


def running_builds_message(
    builds: Mapping[Pool, PoolBuild], decisions: Sequence[NodeDecision]
) -> str:
    """Return a message about the builds that nodes wait for, "" if there are none."""
    words = [build.words for _, build in _awaited_builds(BuildProgress.RUNNING, builds, decisions)]
    rest = f" and {len(words) - 1} more" if words[1:] else ""
    return f"{words[0]}{rest}" if words else ""


def _awaited_builds(
    progress: BuildProgress, builds: Mapping[Pool, PoolBuild], decisions: Sequence[NodeDecision]
) -> Iterator[tuple[Pool, PoolBuild]]:
    matching = [(pool, build) for pool, build in builds.items() if build.progress is progress]
    if matching:
        waiting = {each.member.pool for each in decisions if each.place is not Place.NEWEST}
        yield from ((pool, build) for pool, build in matching if pool in waiting)
