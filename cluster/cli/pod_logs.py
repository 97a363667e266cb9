"""`nodeside-cluster logs`: the log of a container of a driver pod, by Driver and node.

The log goes to stdout as the container wrote it, but for control characters; which pod and
container that is goes to stderr.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from typing import Any

from cluster.cli import image_pulls
from cluster.cli.status import NoSuchObject, no_driver
from cluster.driver.nodes import CANNOT_PULL
from cluster.kube.client import Api
from cluster.kube.errors import ApiError, Forbidden, NotFound
from cluster.kube.resources import DRIVERS, NODES, PODS
from cluster.model.json_fields import condition_of, make_printable, part, text
from cluster.model.names import DRIVER_CONTAINER, DRIVER_LABEL, OURS
from cluster.model.parse_pods import pod_from, skip_mirror_pods
from cluster.model.snapshot import Document, DriverPod
from nodeside.errors import ExitCode, NodesideError
from nodeside.log import escape_controls

_WHOLE = 600.0  # seconds to read a log to its end
_STARTING = ("", "ContainerCreating", "PodInitializing")
_FOLLOWED = 86400.0  # seconds to follow one; a kubelet closes it after four hours of silence


class NoLogYet(NodesideError):
    """The container has not run, so it has no log."""

    exit_code = ExitCode.NOT_READY
    reason = "NoLogYet"


@dataclass(frozen=True)
class Container:
    """A container of a driver pod, by the kubelet's report.

    `waiting` is why it does not run, "" if it runs or has ended.
    """

    name: str
    is_running: bool = False
    waiting: str = ""
    message: str = ""
    exit_code: int | None = None
    has_ended_before: bool = False

    @property
    def has_log(self) -> bool:
        return self.is_running or self.exit_code is not None or self.has_ended_before

    @property
    def has_failed(self) -> bool:
        """Whether it has ended with an error and does not run again yet."""
        return not self.is_running and bool(self.exit_code)


@dataclass(frozen=True)
class PodLog:
    """A log that can be read: of a container that runs or has run."""

    pod: str
    namespace: str
    container: str
    node: str
    previous: bool = False

    @property
    def title(self) -> str:
        which = "the previous run of container" if self.previous else "container"
        return f"log of {which} {self.container} of pod {self.pod} on {self.node}"

    def read_lines(self, api: Api, *, follow: bool) -> Iterator[str]:
        """Yield the lines, with control characters escaped; with `follow`, until it ends.

        Raises ApiError.
        """
        lines = api.stream_log(
            self.pod,
            self.container,
            namespace=self.namespace,
            seconds=_FOLLOWED if follow else _WHOLE,
            follow=follow,
            previous=self.previous,
        )
        try:
            for line in lines:
                yield escape_controls(line.removesuffix("\r"))
        except ApiError as error:
            if error.status >= 500:  # the API server asks the kubelet for it
                error.hint = error.hint or f"is the node ready? kubectl get node {self.node}"
            raise


def find_log(
    api: Api,
    namespace: str,
    driver: str,
    node: str,
    container: str = "",
    *,
    previous: bool = False,
) -> PodLog:
    """Return the log of the driver pod on a node.

    Without `container`, that of the container that failed, else of the driver. Raises NoSuchObject
    and NoLogYet.
    """
    document = _find_pod(api, namespace, driver, node)
    pod = text(part(document, "metadata"), "name")
    containers = _read_containers(document)
    words = f"nodeside-cluster logs {driver} {node}"
    if container and container not in containers:
        names = ", ".join(containers)
        raise NoSuchObject(
            f"pod {pod} has no container {container!r}; it has {names}",
            hint=f"{words} --container {DRIVER_CONTAINER}",
        )
    chosen = containers[container or _choose_container(containers)]
    if previous and not chosen.has_ended_before:
        raise NoLogYet(
            f"container {chosen.name} of pod {pod} has not run before: it was never restarted",
            hint=f"its present run: {words} --container {chosen.name}",
        )
    if not chosen.has_log:
        raise _not_started(document, chosen, driver, node)
    return PodLog(pod, namespace, chosen.name, node, previous)


def _find_pod(api: Api, namespace: str, driver: str, node: str) -> Document:
    """Return the youngest driver pod of a node, one that stays before one that is being deleted."""
    pods = [
        *_list_pods(api, namespace, driver, node, f"spec.nodeName={node}"),
        *_list_pods(api, namespace, driver, node, "spec.nodeName="),  # not scheduled yet
    ]
    if pods:
        return max(pods, key=lambda each: (not each[0].deleting, each[0].created))[1]
    try:
        api.get(DRIVERS, driver)
    except NotFound:
        names = api.list(DRIVERS, _name_of).items
        raise no_driver(driver, names) from None
    _check_node(api, node)
    raise NoSuchObject(
        f"driver {driver} has no pod on node {node!r}",
        hint=f"why: nodeside-cluster explain {driver} {node}",
    )


def _list_pods(
    api: Api, namespace: str, driver: str, node: str, fields: str
) -> list[tuple[DriverPod, Document]]:
    def read(document: Document) -> tuple[DriverPod, Document] | None:
        pod = pod_from(document)
        if not isinstance(pod, DriverPod) or pod.node != node:
            return None
        return pod, document

    ours = f"{OURS},{DRIVER_LABEL}={driver}"
    return api.list(
        PODS, skip_mirror_pods(read), namespace=namespace, selector=ours, fields=fields
    ).items


def _check_node(api: Api, node: str) -> None:
    """Raise NoSuchObject if the cluster has no such node; who may not list nodes is not told."""
    try:
        names = api.list(NODES, _name_of).items
    except Forbidden:
        return
    if node not in names:
        near = get_close_matches(node, names, n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        raise NoSuchObject(f"no node {node!r}", hint=f"{guess}kubectl get nodes")


def _name_of(document: dict[str, Any]) -> str:
    return text(part(document, "metadata"), "name")


def _read_containers(pod: Document) -> Mapping[str, Container]:
    """Return the containers in the order in which they start."""
    spec, status = part(pod, "spec"), part(pod, "status")
    listed = chain(spec.get("initContainers") or (), spec.get("containers") or ())
    found = {name: Container(name) for name in (text(each, "name") for each in listed)}
    for kind in ("initContainerStatuses", "containerStatuses"):
        for each in status.get(kind) or ():
            if (name := text(each, "name")) in found:
                found[name] = _read_container(name, each)
    return found


def _read_container(name: str, status: Document) -> Container:
    state, last = part(status, "state"), part(part(status, "lastState"), "terminated")
    waiting, ended = part(state, "waiting"), part(state, "terminated")
    code = (ended or (last if waiting else {})).get("exitCode")
    return Container(
        name,
        is_running="running" in state,
        waiting=make_printable(text(waiting, "reason")),
        message=make_printable(text(waiting, "message")),
        exit_code=code if isinstance(code, int) else None,
        has_ended_before=bool(last),
    )


def _choose_container(containers: Mapping[str, Container]) -> str:
    """Return the name of the container to look at: one that failed, else the driver.

    If the driver has not started, that is one that keeps it from that.
    """
    names = sorted(containers, key=lambda name: name != DRIVER_CONTAINER)  # the driver comes first
    troubles: Sequence[Callable[[Container], bool]] = (
        lambda each: each.has_failed,
        lambda each: each.name == DRIVER_CONTAINER and each.has_log,
        lambda each: each.waiting not in _STARTING,
    )
    found = (name for holds in troubles for name in names if holds(containers[name]))
    return next(found, names[0])


def _not_started(pod: Document, container: Container, driver: str, node: str) -> NoLogYet:
    metadata, status = part(pod, "metadata"), part(pod, "status")
    name, namespace = text(metadata, "name"), text(metadata, "namespace")
    explain = f"nodeside-cluster explain {driver} {node}"
    scheduled = condition_of(status, "PodScheduled")
    if scheduled.get("status") == "False":
        words = _join((text(scheduled, "reason"), text(scheduled, "message")))
        return NoLogYet(
            f"pod {name} is not scheduled on {node} yet: {make_printable(words)}", hint=explain
        )
    if container.waiting in CANNOT_PULL:
        words = _join((container.waiting, container.message))
        return NoLogYet(
            f"container {container.name} of pod {name} has not started: {words}",
            hint=image_pulls.remedy(container.message),
        )
    if container.waiting:
        words = _join((container.waiting, container.message))
        return NoLogYet(
            f"container {container.name} of pod {name} has not started: {words}",
            hint=f"its events: kubectl -n {namespace} describe pod {name}",
        )
    phase = make_printable(text(status, "phase")) or "Pending"
    return NoLogYet(
        f"pod {name} is {phase}, and {node} has not reported its containers yet", hint=explain
    )


def _join(words: Sequence[str]) -> str:
    return ": ".join(filter(None, words))
