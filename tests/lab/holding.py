"""What the cluster and its nodes say when a wait has met its deadline: who held what, and where.

`waited` is what every wait of the lab goes through. The deadline's error then ends with each pod as
the API server has it; and for pods that are being deleted or not ready, with their processes on the
node, what its kubelet says of them, and which processes of the node hang in the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from nodeside.errors import DeadlinePassed, NodesideError
from nodeside.system.process import Completed
from tests.controlplane.api_server import Answer
from tests.patience import patience

_SECONDS = patience(120.0)  # for a question to a node that may be why it took so long
_LINES = 30
_OF_KUBELET = 10  # lines about a pod; a probe that fails has one every two seconds
_OWNERS = "/apis/apps/v1/replicasets"
# In the kernel, and deaf to signals: with the function that they wait in.
_STUCK = """
for each in /proc/[0-9]*; do
  state=$(sed -n 's/^State:[[:space:]]*//p' $each/status 2>/dev/null)
  case $state in [DZ]*) echo "${each#/proc/} $state $(cat $each/comm) in $(cat $each/wchan)";; esac
done
true
"""
# By their control group, which has the uid of the pod, with _ where systemd makes it.
_PROCESSES = """
for each in /proc/[0-9]*; do
  if tr _ - <$each/cgroup 2>/dev/null | grep -q "$1"; then
    state=$(sed -n 's/^State:[[:space:]]*//p' $each/status)
    echo "${each#/proc/} $state $(cat $each/comm) in $(cat $each/wchan)"
  fi
done 2>/dev/null
true
"""


class Plane(Protocol):
    """The API server, as far as it is asked."""

    def request(self, method: str, path: str) -> Answer: ...

    def wait_for(self, holds: Callable[[], object], what: str, *, timeout: float) -> None: ...


class Node(Protocol):
    """A node, as far as it is asked."""

    @property
    def name(self) -> str: ...

    @property
    def is_on(self) -> bool: ...

    def run(self, *argv: str, check: bool = True, timeout: float = 600.0) -> Completed: ...


def waited(
    plane: Plane,
    nodes: Iterable[Node],
    holds: Callable[[], object],
    what: str,
    *,
    timeout: float = 0.0,
) -> None:
    """Look until something is so. Raises DeadlinePassed, with who held what.

    Without a `timeout`, the API server's own.
    """
    try:
        plane.wait_for(holds, what, timeout=timeout)
    except DeadlinePassed as error:
        raise DeadlinePassed(f"{error}\n{who_holds(plane, nodes)}") from error


def who_holds(plane: Plane, nodes: Iterable[Node]) -> str:
    """All that was asked; what cannot be asked any more is said, too."""
    by_name = {node.name: node for node in nodes}
    pods = _listed(plane, "/api/v1/pods")
    lines = [_pod(pod) if isinstance(pod, Mapping) else pod for pod in pods]
    lines += [_owner(each) for each in _listed(plane, _OWNERS) if _is_going(each)]
    for pod in pods:
        node = by_name.get(_of_spec(pod, "nodeName"))
        if node is not None and (_is_going(pod) or not _is_ready(pod)):
            lines += _said_of(node, pod)
    for node in by_name.values():
        lines += _asked(node, "stuck processes", "sh", "-c", _STUCK)
    return "\n".join(lines)


# --- the API server


def _listed(plane: Plane, path: str) -> Sequence[Any]:
    try:
        answer = plane.request("GET", path)
    except (NodesideError, OSError) as error:
        return [f"{path} cannot be asked: {error}"]
    found = answer.document.get("items", [])
    return found if answer.status == 200 else [f"{path} cannot be asked: {answer.status}"]


def _is_going(item: Any) -> bool:
    return isinstance(item, str) or "deletionTimestamp" in item["metadata"]


def _is_ready(pod: Any) -> bool:
    if isinstance(pod, str) or pod["status"].get("phase") == "Succeeded":
        return True
    conditions = pod["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _of_spec(pod: Any, field: str) -> str:
    return "" if isinstance(pod, str) else str(pod["spec"].get(field, ""))


def _pod(pod: Mapping[str, Any]) -> str:
    meta, status = pod["metadata"], pod["status"]
    head = f"pod {meta['namespace']}/{meta['name']} on {pod['spec'].get('nodeName', 'no node')}"
    facts = [str(status.get("phase", "no phase")), *_leave(meta)]
    if "terminationGracePeriodSeconds" in pod["spec"]:
        facts.append(f"grace {pod['spec']['terminationGracePeriodSeconds']} s")
    facts += [f"{status[key]}" for key in ("reason", "message") if status.get(key)]
    return f"{head}: {', '.join([*facts, *_containers(status)])}"


def _owner(item: Any) -> str:
    if isinstance(item, str):
        return item
    meta = item["metadata"]
    return f"replicaset {meta['namespace']}/{meta['name']}: {', '.join(_leave(meta))}"


def _leave(meta: Mapping[str, Any]) -> Iterator[str]:
    if "deletionTimestamp" in meta:
        yield f"deleted {meta['deletionTimestamp']}"
    if meta.get("finalizers"):
        yield f"finalizers {' '.join(meta['finalizers'])}"


def _containers(status: Mapping[str, Any]) -> Iterator[str]:
    for key in ("initContainerStatuses", "containerStatuses"):
        for each in status.get(key, ()):
            for state, more in each.get("state", {}).items():
                told = " ".join(f"{name}={value}" for name, value in sorted(more.items()))
                ready = "ready" if each.get("ready") else "not ready"
                yield f"{each['name']} {state} ({told}), {ready}, {each['restartCount']} restarts"


# --- a node


def _said_of(node: Node, pod: Mapping[str, Any]) -> Iterator[str]:
    """What runs of a pod, and what the kubelet says of it."""
    meta = pod["metadata"]
    title = f"{meta['namespace']}/{meta['name']}"
    uid = str(meta["uid"])
    yield from _asked(node, f"processes of {title}", "sh", "-c", _PROCESSES, "sh", uid)
    journal = ("journalctl", "--no-pager", "--unit=kubelet", "--output=short-iso")
    words = (f"--grep={uid}|{meta['name']}", f"--lines={_OF_KUBELET}")
    yield from _asked(node, f"kubelet about {title}", *journal, *words)


def _asked(node: Node, title: str, *argv: str) -> Iterator[str]:
    if not node.is_on:
        yield f"{node.name}: {title}: it is off"
        return
    try:
        done = node.run(*argv, check=False, timeout=_SECONDS)
    except (NodesideError, OSError) as error:
        yield f"{node.name}: {title}: cannot be asked: {error}"
        return
    yield from (f"{node.name}: {title}: {line}" for line in _rows(done))


def _rows(done: Completed) -> list[str]:
    return [*done.output.splitlines(), *done.errors.splitlines()][-_LINES:] or ["nothing"]
