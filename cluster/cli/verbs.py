"""What a person orders in a rollout. Each order is one request, and the same as a kubectl command.

`undo`, `pause`, `resume`, `retry` and `rebuild` patch the Driver; `restart` deletes a driver pod.
Nothing is decided here about nodes: the controller does that, as after any change of a Driver.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cluster.cli.near_names import did_you_mean
from cluster.cli.status import NoSuchObject, no_driver
from cluster.driver.revisions import read_revision, revision_of, revision_text
from cluster.driver.status.messages import revision_name
from cluster.kube.client import Api
from cluster.kube.errors import Conflict, NotFound
from cluster.kube.merge_patch import apply_merge_patch, make_merge_patch
from cluster.kube.resources import CONFIG_MAPS, DAEMON_SETS, DRIVERS, NODE_DRIVERS, PODS
from cluster.model.json_fields import part, text
from cluster.model.names import DRIVER_LABEL, OURS, REVISION_LABEL
from cluster.model.parse import driver_from, node_driver_from, revision_from
from cluster.model.parse_pods import pod_from, skip_mirror_pods
from cluster.model.retries import (
    EVERY_NODE,
    REBUILD_NOTE,
    RETRY_NOTE,
    format_retries,
    parse_retries,
    retried_at,
)
from cluster.model.snapshot import Document, DriverObject, DriverPod
from cluster.options.build_once.job_manifest import publish_target
from nodeside.errors import ExitCode, NodesideError
from nodeside.protocol.timestamps import rfc3339
from nodeside.text.table import table

_TRIES = 5  # of an order, while the status changes
_ORDERS = 200  # that are kept in the annotation; retries.py reads 256
_IN_GIT = (
    "a tool that keeps this Driver as it is in Git, or Helm, puts it back: make the change there"
)


class NoWayBack(NodesideError):
    """A Driver cannot go back to a revision by a patch."""

    exit_code = ExitCode.USAGE
    reason = "NoWayBack"


@dataclass(frozen=True)
class Order:
    """One request, what it does, and the command that makes the same request.

    `send` is None if all is already as it would be.
    """

    what: str
    command: str = ""
    note: str = ""
    send: Callable[[Api], object] | None = None

    def text(self) -> str:
        return "\n".join(filter(None, (self.what, self.command, self.note)))


# --- history -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredRevision:
    """A revision in the cluster. `nodes` is how many nodes are assigned to it."""

    revision: str
    version: str
    image: str
    created: str
    nodes: int
    newest: bool = False
    good: bool = False
    was_good: bool = False
    spec: Document | None = None

    def row(self) -> Sequence[str]:
        marks = {"newest": self.newest, "last good": self.good, "good before": self.was_good}
        words = ", ".join(mark for mark, holds in marks.items() if holds)
        return self.revision, self.version, self.created, str(self.nodes), words, self.image


def history(api: Api, namespace: str, driver: str) -> tuple[StoredRevision, ...]:
    """Return the revisions of a Driver that are in the cluster, oldest first."""
    return _history(api, namespace, driver_from(_read_driver(api, driver)))


def history_text(revisions: Sequence[StoredRevision]) -> str:
    if not revisions:
        return "no revision yet: no controller has seen this Driver"
    header = ("REVISION", "VERSION", "CREATED", "NODES", "IS", "IMAGE")
    return table([each.row() for each in revisions], header=header)


def history_json(revisions: Sequence[StoredRevision]) -> str:
    rows = [{k: v for k, v in asdict(each).items() if k != "spec"} for each in revisions]
    return json.dumps(rows, indent=2)


def _history(api: Api, namespace: str, found: DriverObject) -> tuple[StoredRevision, ...]:
    ours = f"{OURS},{DRIVER_LABEL}={found.name}"
    counts: Counter[str] = Counter()
    for revision, count in api.list(
        DAEMON_SETS, _nodes_of, namespace=namespace, selector=ours
    ).items:
        counts[revision] += count
    newest = revision_of(revision_text(found.driver)) if found.driver else ""
    good = str(found.status.get("lastGoodRevision") or "")
    before = str(found.status.get("previousGoodRevision") or "")

    def read(data: dict[str, Any]) -> StoredRevision | None:
        stored = revision_from(data)
        driver = read_revision(stored)
        if driver is None:  # the ConfigMap of the policy, or one that somebody has changed
            return None
        return StoredRevision(
            stored.revision,
            driver.spec.version,
            driver.spec.image,
            text(part(data, "metadata"), "creationTimestamp"),
            counts[stored.revision],
            stored.revision == newest,
            stored.revision == good,
            stored.revision == before,
            json.loads(stored.document)["spec"],
        )

    listed = api.list(
        CONFIG_MAPS, read, namespace=namespace, selector=f"{ours},{REVISION_LABEL}"
    ).items
    return tuple(sorted(listed, key=lambda each: (each.created, each.newest, each.revision)))


def _nodes_of(daemonset: dict[str, Any]) -> tuple[str, int]:
    labels = part(part(daemonset, "metadata"), "labels")
    count = part(daemonset, "status").get("desiredNumberScheduled")
    return text(labels, REVISION_LABEL), count if isinstance(count, int) else 0


# --- orders --------------------------------------------------------------------------------------


def pause(api: Api, driver: str, *, paused: bool) -> Order:
    """Return the order to pause a rollout, or to resume it."""
    document = _read_driver(api, driver)
    rollout = part(part(document, "spec"), "rollout")
    if bool(rollout.get("paused")) == paused:
        return Order(f"the rollout of {driver} is {'' if paused else 'not '}paused already")
    what = (
        f"{driver} is paused: no node changes, and new nodes get the last good version"
        if paused
        else f"the rollout of {driver} goes on"
    )
    return _patch(driver, {"spec": {"rollout": {"paused": paused}}}, what, _IN_GIT)


def retry(api: Api, driver: str, node: str = "") -> Order:
    """Return the order to forget the failures of a Driver up to now, on all nodes or on one."""
    document = _read_driver(api, driver)
    found = driver_from(document)
    if node and node not in (known := _nodes_with_driver(api, found)):
        raise NoSuchObject(
            f"driver {driver} has neither a pod nor a remembered failure on node {node!r}",
            hint=f"{did_you_mean(node, known)}nodeside-cluster explain {driver} {node}",
        )
    now = float(int(api.now()))
    before = found.retries if node else ()  # one for all nodes replaces every other
    # That for all nodes stays, and with it nothing that is older.
    of_all = retried_at(before, EVERY_NODE)
    kept = sorted((each for each in before if each[1] > of_all), key=lambda each: each[1])
    every = {EVERY_NODE: of_all} if of_all else {}
    value = format_retries(every | dict(kept[-_ORDERS:]) | {node or EVERY_NODE: now})
    where = f"on {node}" if node else "on all nodes"
    what = f"failures of {driver} {where} until now are forgotten"
    if retried_at(parse_retries(value), node or EVERY_NODE) < now:
        raise NoSuchObject(
            f"the orders of driver {driver} leave no room for one about node {node!r}",
            hint=f"nodeside-cluster retry {driver}: for all nodes",
        )
    patch = {"metadata": {"annotations": {RETRY_NOTE: value}}}
    return _patch(driver, patch, what, read_at=document)


def rebuild(api: Api, driver: str) -> Order:
    """Return the order to build anew for all kernels, with images as they are by now."""
    found = driver_from(_read_driver(api, driver)).driver
    patch = {"metadata": {"annotations": {REBUILD_NOTE: rfc3339(api.now())}}}
    is_once = found is not None and publish_target(found) and not found.spec.prebuilt.image
    anew = (
        f"{driver} is built anew for all of its kernels"
        if is_once
        else f"nodes build {driver} where they have it neither loaded nor in their caches"
    )
    what = (
        f"{anew}; its pods are replaced and, if spec.pods.imagePullPolicy allows it, pull their "
        "images again, now and later, until: "
        f"kubectl annotate driver {driver} {REBUILD_NOTE}-; modules that are loaded stay loaded"
    )
    note = f"if failures have stopped its rollout, also: nodeside-cluster retry {driver}"
    return _patch(driver, patch, what, note)


def undo(api: Api, namespace: str, driver: str, to: str = "") -> Order:
    """Return the order to go back to an earlier revision, by default the last good one.

    Raises NoWayBack.
    """
    document = _read_driver(api, driver)
    found = driver_from(document)
    revisions = _history(api, namespace, found)
    target = _find_target(driver, revisions, to)
    if target.newest:
        return Order(f"{driver} has {revision_name(target.revision, target.version)} already")
    patch = {"spec": _way_back(document, found, target)}
    changed = driver_from(apply_merge_patch(document, patch))
    if changed.driver is None or revision_of(revision_text(changed.driver)) != target.revision:
        raise NoWayBack(
            f"no patch gives driver {driver} the revision {target.revision} again"
            + (f": {changed.mistakes}" if changed.mistakes else ""),
            hint="apply its old driver.yaml",
        )
    version = found.driver.spec.version if found.driver else ""
    newest = revision_of(revision_text(found.driver)) if found.driver else ""
    before = revision_name(newest, version) if found.driver else "a document with mistakes"
    what = f"{driver} goes from {before} to {revision_name(target.revision, target.version)}"
    if part(part(document, "spec"), "rollout").get("paused"):
        what += f"; it is paused, so also: nodeside-cluster resume {driver}"
    return _patch(driver, patch, what, _IN_GIT, read_at=document)


def restart(api: Api, namespace: str, driver: str, node: str) -> Order:
    """Return the order to replace the driver pod of a node; its modules stay loaded."""
    _read_driver(api, driver)
    pods = [each for each in _driver_pods(api, namespace, driver, node) if not each.deleting]
    if not pods:
        raise NoSuchObject(
            f"driver {driver} has no pod on node {node!r}",
            hint=f"nodeside-cluster explain {driver} {node}",
        )
    pod = max(pods, key=lambda each: each.created)

    def send(api: Api) -> None:
        api.delete(PODS, pod.name, namespace=namespace, uid=pod.uid)

    what = f"{driver} gets a new pod on {node}; its modules stay loaded meanwhile"
    return Order(what, f"kubectl -n {namespace} delete pod {pod.name}", send=send)


# --- shared --------------------------------------------------------------------------------------


def _patch(
    driver: str, patch: Document, what: str, note: str = "", *, read_at: Document | None = None
) -> Order:
    """Return the order of a merge patch. With `read_at`, it is refused if that has changed since.

    The status does not count, which changes all the time while a rollout fails. The command is in
    ASCII: what a stored revision has in it moves no cursor.
    """
    words = json.dumps(patch, separators=(",", ":"))
    command = f"kubectl patch driver {driver} --type=merge -p {shlex.quote(words)}"

    def send(api: Api) -> None:
        if read_at is None:
            api.merge_patch(DRIVERS, driver, patch)
        else:
            _send_unless_changed(api, driver, patch, read_at)

    return Order(what, command, note, send)


def _send_unless_changed(api: Api, driver: str, patch: Document, read_at: Document) -> None:
    """Send a merge patch for the Driver as it was read. Raises Conflict if that has changed."""
    now = read_at
    for last in (*[False] * (_TRIES - 1), True):
        version = text(part(now, "metadata"), "resourceVersion")
        pinned = {"metadata": {"resourceVersion": version}} if version else {}
        try:
            api.merge_patch(DRIVERS, driver, apply_merge_patch(patch, pinned))
            return
        except Conflict:
            now = api.get(DRIVERS, driver)
            if last or _wishes(now) != _wishes(read_at):
                raise


def _wishes(document: Document) -> tuple[object, object]:
    """Return what a person may have changed of a Driver: not its status."""
    metadata = part(document, "metadata")
    return metadata.get("generation"), metadata.get("annotations")


def _read_driver(api: Api, name: str) -> dict[str, Any]:
    try:
        return api.get(DRIVERS, name)
    except NotFound:
        names = api.list(DRIVERS, lambda each: text(part(each, "metadata"), "name")).items
        raise no_driver(name, names) from None


def _find_target(driver: str, revisions: Sequence[StoredRevision], to: str) -> StoredRevision:
    """Return the revision to go back to: `to` or, without it, the last good or the one before.

    The one before is that which was good before it, if it is known, rather than one that was tried.
    """
    at = next((i for i, each in enumerate(revisions) if each.newest), len(revisions))
    if to:
        found = [each for each in revisions if each.revision.startswith(to)]
    else:
        found = _earlier_revision(revisions, at)
    if len(found) == 1:
        return found[0]
    if to:
        which = "several revisions begin" if found else "no revision in the cluster begins"
        raise NoWayBack(f"{which} with {to!r}", hint=f"nodeside-cluster history {driver}")
    raise NoWayBack(
        f"the cluster has no earlier revision of driver {driver}",
        hint=f"apply its old driver.yaml, or choose one: nodeside-cluster history {driver}",
    )


def _earlier_revision(revisions: Sequence[StoredRevision], at: int) -> list[StoredRevision]:
    """Return the revision that `undo` brings again, if there is one; `at` is that of the newest.

    After an `undo`, the one that was good before is the newest, or is younger than that. A second
    `undo` brings back neither what the first has undone, nor one that was only tried.
    """
    earlier = revisions[:at]
    if not any(each.was_good for each in revisions):  # by their ages, then
        return [each for each in earlier if each.good] or list(earlier[-1:])
    if any(each.newest and each.was_good for each in revisions):
        return []
    good = [each for each in revisions if each.good and not each.newest]
    return good or [each for each in earlier if each.was_good]


def _way_back(document: Document, found: DriverObject, target: StoredRevision) -> dict[str, Any]:
    """Return the patch of the spec: only fields of the revision that differ from the newest."""
    assert target.spec is not None
    now, then = part(document, "spec"), dict(target.spec)
    current: Document = now
    if found.driver is not None:
        current = json.loads(revision_text(found.driver))["spec"]
        differing = {key for key in {*current, *then} if current.get(key) != then.get(key)}
    else:  # fields that the old revision lacks stay: what they are to mean is not known
        differing = set(then)
    then = _with_publishing(then, now)
    return make_merge_patch(
        {key: now[key] for key in differing if key in now},
        {key: then[key] for key in differing if key in then},
    )


def _with_publishing(then: dict[str, Any], now: Document) -> dict[str, Any]:
    """Return the old spec with `publish` as it is now, since no revision has it."""
    sources = part(then, "prebuilt").get("sources")
    present = part(now, "prebuilt").get("sources")
    if not isinstance(sources, list) or not isinstance(present, list):
        return then

    def as_now(source: Any) -> Any:
        bare = {key: value for key, value in dict(source).items() if key != "publish"}
        same = (
            each
            for each in present
            if isinstance(each, Mapping)
            and {key: value for key, value in each.items() if key != "publish"} == bare
        )
        return next(same, source)

    return then | {"prebuilt": {**then["prebuilt"], "sources": [as_now(s) for s in sources]}}


def _driver_pods(api: Api, namespace: str, driver: str, node: str) -> list[DriverPod]:
    ours, there = f"{OURS},{DRIVER_LABEL}={driver}", f"spec.nodeName={node}"
    read = skip_mirror_pods(pod_from)
    found = api.list(PODS, read, namespace=namespace, selector=ours, fields=there).items
    return [each for each in found if isinstance(each, DriverPod)]


def _nodes_with_driver(api: Api, found: DriverObject) -> frozenset[str]:
    """Return nodes that have reported or are remembered to have failed."""
    reports = api.list(NODE_DRIVERS, node_driver_from).items
    failed = (str(row.get("node")) for row in found.status.get("casualties") or ())
    return frozenset({each.node for each in reports if each.driver == found.name}.union(failed))
