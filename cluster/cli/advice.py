"""What to type, which `explain` ends with: the commands of remedies.py for a Driver or a node."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from cluster.cli.options import ARCHITECTURES
from cluster.cli.remedies import Remedy, Step
from cluster.driver.nodes import DriverNode
from cluster.model.names import DRIVER_CONTAINER, NAMESPACE, TOOLKIT_CONTAINER, daemonset_name
from cluster.model.snapshot import DriverObject, DriverPod, Pool, Snapshot
from cluster.model.states import BuildProgress, Health
from cluster.options.unload.nodes import DriverUnload
from cluster.plan.context.context import DriverContext
from nodeside.log import escape_controls
from nodeside.text.table import table

_OURS: Final = "nodeside-cluster"
_INDENT: Final = " " * 12  # of a command; it is never wrapped, so that it can be copied
# What a kubelet or a node says may be anything: it is an argument only if it cannot be an option.
_SAFE: Final = re.compile(r"[^\s\x00-\x1f\x7f-\x9f-][^\x00-\x1f\x7f-\x9f]{0,252}")


@dataclass(frozen=True)
class Subject:
    """What commands are about; what is not known is "".

    `container` is the one of the pod that cannot start, else the driver container; `toolkit` is the
    toolkit container if the pod has one, `image` the toolkit image of the pool. `job` is the build
    for the pool, `unload` the pod that unloads. `architecture` is "" for the usual one. With
    `has_way_back`, there is a version to go back to.
    """

    namespace: str
    driver: str
    node: str = ""
    pod: str = ""
    container: str = ""
    toolkit: str = ""
    daemonset: str = ""
    job: str = ""
    unload: str = ""
    image: str = ""
    kernel: str = ""
    os_version: str = ""
    architecture: str = ""
    has_way_back: bool = False


@dataclass(frozen=True)
class Advice:
    """A command to type and what for, or a page of the documents to read."""

    why: str
    command: str = ""
    page: str = ""


def advise(remedies: Iterable[Remedy], subject: Subject) -> tuple[Advice, ...]:
    """Return the steps of all remedies, each once, and then the pages."""
    known = {name: value for name, value in asdict(subject).items() if value and _is_safe(value)}
    found = list(remedies)
    wanted = {step for remedy in found for step in remedy.steps}
    pages = dict.fromkeys(remedy.page for remedy in found if remedy.page)
    commands = ((step, _command(step, known)) for step in Step if step in wanted)
    return (
        *(Advice(step.why, command) for step, command in commands if command),
        *(Advice("read", page=page) for page in pages),
    )


def format_advice(section: str, advice: Sequence[Advice]) -> Iterator[str]:
    """Yield the lines of a section: what for, and below it the command on a line of its own."""
    for number, each in enumerate(advice):
        name = "" if number else section
        words = f"{each.why}: {each.page}" if each.page else f"{each.why}:"
        yield table([(name.ljust(len("wanted")), words)])
        if each.command:
            yield _INDENT + escape_controls(each.command)


def _is_safe(value: object) -> bool:
    return not isinstance(value, str) or _SAFE.fullmatch(value) is not None


def _command(step: Step, known: dict[str, object]) -> str:
    """Return the command of a step, "" if something that it needs is not known."""
    if step is Step.UNDO and not known.get("has_way_back"):
        return ""
    words = []
    for word in step.command.split():
        is_optional = word.startswith("[")
        try:
            words.append(word.strip("[]").format_map(known))
        except KeyError:
            if not is_optional:
                return ""
    if words[0] == _OURS and known["namespace"] != NAMESPACE:
        words += ["--namespace", str(known["namespace"])]
    return shlex.join(words)


# --- what a command is about ----------------------------------------------------------------------


def driver_subject(snapshot: Snapshot, observed: DriverObject) -> Subject:
    """Return the subject of commands about a Driver: where it failed, or else waits."""
    bare = _bare_subject(snapshot, observed)
    if observed.deleting:
        leavers = DriverUnload(snapshot, observed, (), snapshot.now).leavers
        held = (each.node.name for each in leavers if each.phase.is_obstacle)
        return replace(bare, node=next(held, ""))
    if observed.driver is None:
        return bare
    context = DriverContext(snapshot, observed, observed.driver)
    members = [decision.member for decision in context.rollout.decisions]
    stuck = {
        pool
        for pool, state in context.supply.newest_builds.items()
        if state.progress is BuildProgress.REFUSED or state.is_unscheduled
    }
    failed = context.rollout.state.failed
    for suspects in (
        (member for member in members if member.node.name in failed),
        (member for member in members if member.pool in stuck),
        (member for member in members if member.health is Health.BROKEN),
        (member for member in members if member.pool not in context.supply.served_pools),
    ):
        if member := next(suspects, None):
            return member_subject(context, member)
    return bare


def member_subject(context: DriverContext, member: DriverNode) -> Subject:
    """Return the subject of commands about a node of a Driver."""
    pool, name = member.pool, member.node.name
    bare = _bare_subject(context.snapshot, context.resource)
    build = context.supply.newest_builds.get(pool)
    job = build.build.name if build else ""
    subject = replace(
        _with_pool(bare, pool),
        node=name,
        job=job if job in context.snapshot.build_jobs else "",
        image=context.toolkits.resolutions[pool].image,
        daemonset=daemonset_name(bare.driver, member.assigned) if member.assigned else "",
    )
    pod = member.stuck_pod or _newest_pod(context.snapshot, bare.driver, name)
    return _with_pod(subject, pod, member) if pod else subject


def node_subject(snapshot: Snapshot, observed: DriverObject, node: str, unload: str) -> Subject:
    """Return the subject of commands about a node that is none of a Driver, or that it leaves."""
    return replace(_bare_subject(snapshot, observed), node=node, unload=unload)


def _bare_subject(snapshot: Snapshot, observed: DriverObject) -> Subject:
    return Subject(
        snapshot.settings.namespace,
        observed.name,
        has_way_back=_has_way_back(snapshot, observed),
    )


def _has_way_back(snapshot: Snapshot, observed: DriverObject) -> bool:
    """Return whether `undo` finds the last good revision, and it is not the newest one."""
    good = str(observed.status.get("lastGoodRevision") or "")
    if not good:
        return False
    if observed.driver is not None:
        revisions = DriverContext(snapshot, observed, observed.driver).revisions
        return revisions.good not in ("", revisions.newest)
    own = (each for each in snapshot.revisions.values() if each.driver == observed.name)
    return any(each.revision == good for each in own)


def _with_pool(subject: Subject, pool: Pool) -> Subject:
    unusual = pool.architecture in ARCHITECTURES and pool.architecture != ARCHITECTURES[0]
    return replace(
        subject,
        kernel=pool.kernel,
        os_version=pool.os_version,
        architecture=pool.architecture if unusual else "",
    )


def _newest_pod(snapshot: Snapshot, driver: str, node: str) -> DriverPod | None:
    pods = (each for each in snapshot.driver_pods_of(driver) if each.node == node)
    return max(pods, key=lambda pod: (not pod.deleting, pod.created), default=None)


def _with_pod(subject: Subject, pod: DriverPod, member: DriverNode) -> Subject:
    """Return the subject with a pod of the node and the container that a log is wanted of."""
    waiting = dict(pod.waiting)
    scheduled = waiting.pop("pod", None) is None
    crashed = (name for name, why in waiting.items() if why.crash is not None)
    container = next(crashed, next(iter(waiting), DRIVER_CONTAINER))
    has_toolkit = member.last_report is not None and bool(member.last_report.toolkit)
    return replace(
        subject,
        pod=pod.name,
        container=container if scheduled else "",
        toolkit=TOOLKIT_CONTAINER if has_toolkit and scheduled else "",
    )
