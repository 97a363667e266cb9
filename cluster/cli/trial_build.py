"""The trial build of `nodeside-cluster preflight`.

It creates one Job, which the controller ignores, shows the compiler's log until the build ends, and
removes the Job, also on Ctrl-C and SIGTERM. If the command is killed, the Job ends at its deadline
and Kubernetes removes it ten minutes later. Nothing is signed, fetched or published, so the Job
mounts no Secret: users who may try a build need not be trusted with a key.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from cluster.cache.image_labels import TagLabels
from cluster.cli.resolve import image_streams
from cluster.cli.status import NoSuchObject
from cluster.driver.hardware import match_hardware
from cluster.driver.revisions import revision_of, revision_text
from cluster.kube.client import Api
from cluster.kube.errors import ApiError, NotFound
from cluster.kube.resources import DRIVERS, JOBS, NODES, PODS
from cluster.model.names import DRIVER_LABEL, MANAGED_BY, PREFLIGHT
from cluster.model.parse import driver_from, node_from
from cluster.model.parse_pods import build_pod_from, skip_mirror_pods
from cluster.model.snapshot import Settings, Snapshot
from cluster.model.waiting import waiting_message
from cluster.options.build_once.job_manifest import (
    ANSWER_CONTAINER,
    SharedBuild,
    job_spec,
    tolerations_for,
)
from cluster.options.preflight import build_for, tags_for
from nodeside.errors import DeadlinePassed, ExitCode, NodesideError
from nodeside.protocol.build_job import BuildOutcome, BuildVerdict
from nodeside.spec import Driver
from nodeside.spec.fleet import Preflight
from nodeside.spec.model import Prebuilt
from nodeside.spec.pods import Toleration
from nodeside.text.table import table

_KEPT = 600  # seconds that Kubernetes keeps a finished Job that was not removed
_LOOK = 1.0  # seconds between two reads of the pod

Say = Callable[[str], None]


class NoToolkit(NodesideError):
    """There is no toolkit image for the requested build."""

    exit_code = ExitCode.NOT_READY
    reason = "ToolkitMissing"


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial build. `exit_code` is that of the build."""

    driver: str
    version: str
    toolkit: str
    outcome: BuildOutcome
    exit_code: int

    def text(self) -> str:
        outcome = self.outcome
        rows = [
            ("driver", f"{self.driver} {self.version}"),
            ("kernel", outcome.kernel or "unknown"),
            ("toolkit", self.toolkit),
            ("verdict", _WORDS[outcome.verdict]),
        ]
        rows += [("first error", outcome.first_error)] if outcome.first_error else []
        if self.exit_code:
            rows.append(("why", f"{outcome.reason}: {outcome.message}"))
        return table(rows)

    def json(self) -> str:
        outcome = asdict(self.outcome) | {"verdict": self.outcome.verdict.value}
        return json.dumps(asdict(self) | {"outcome": outcome}, indent=2)


_WORDS = {
    BuildVerdict.BUILT: "it builds",
    BuildVerdict.PUBLISHED: "it builds",
    BuildVerdict.PRESENT: "it builds",
    BuildVerdict.REFUSED: "it does not build",
    BuildVerdict.BROKEN: "unknown: it could not be tried",
}


def trial_of(api: Api, name: str, entry: Preflight, architecture: str) -> SharedBuild:
    """Return the trial build of a Driver of the cluster. Raises NoSuchObject, NoToolkit."""
    try:
        observed = driver_from(api.get(DRIVERS, name))
    except NotFound as error:
        if error.hint:  # the kind itself does not exist
            raise
        raise NoSuchObject(
            f"no Driver {name!r} in this cluster", hint="see which there are: kubectl get drivers"
        ) from None
    if observed.driver is None or not observed.driver.spec.image:
        raise NoSuchObject(
            f"driver {name} cannot be used: {observed.mistakes or 'it has no image'}"
        )
    driver, snapshot = observed.driver, Snapshot(image_streams=image_streams(api))
    revision = revision_of(revision_text(driver))
    labels = TagLabels(api).read_labels(
        lambda known: tags_for(
            driver, [entry], replace(snapshot, toolkit_labels=known), [architecture]
        )
    )
    snapshot = replace(snapshot, toolkit_labels=labels)
    build, why = build_for(entry, driver, revision, snapshot, architecture)
    if build is None:
        raise NoToolkit(why, hint="name one: --toolkit IMAGE")
    # Without signing and prebuilt sources, the compiled result is the same.
    spec = replace(build.driver.spec, signing=None, prebuilt=Prebuilt())
    return replace(build, driver=replace(build.driver, spec=spec))


def tolerated_taints(api: Api, driver: Driver) -> list[Toleration]:
    """Return tolerations for the nodes that a Driver selects; none if nodes cannot be read."""
    hardware, nodes = driver.spec.hardware, []
    if driver.spec.pods.build_jobs.tolerations is None:
        with suppress(ApiError):
            nodes = api.list(NODES, node_from).items
    return tolerations_for(
        node for node in nodes if match_hardware(node, hardware, assigned=False).is_selected
    )


@dataclass
class TrialBuild:
    """One build, from its Job to its outcome.

    `say` receives the progress, `show_line` the lines of the compiler's log. `tolerated` are the
    taints of the Driver's nodes.
    """

    api: Api
    settings: Settings
    build: SharedBuild
    say: Say
    show_line: Say
    timeout: float
    tolerated: Collection[Toleration] = ()
    now: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep

    def run(self) -> TrialResult:
        """Run the build to its end. Raises DeadlinePassed, ApiError."""
        ends = self.now() + self.timeout
        with self._created_job() as name:
            pod = self._await_pod(name, ends, self._has_begun)
            self._follow_log(pod, ends)
            pod = self._await_pod(name, ends, _has_ended)
        return self._read_result(pod)

    @contextmanager
    def _created_job(self) -> Iterator[str]:
        """Create the Job and a ConfigMap with its driver.yaml, and yield the Job's name.

        The Job owns the ConfigMap, and stays suspended until both exist. It is deleted at the end.
        """
        name = f"{self.build.driver.name}-preflight-{secrets.token_hex(4)}"
        namespace = self.settings.namespace
        try:
            made = self.api.create(self._job_document(name))
            owner = {**_JOB_OWNER, "name": name, "uid": made["metadata"]["uid"]}
            self.api.create(self._config_map(name, owner))
            self.api.merge_patch(JOBS, name, {"spec": {"suspend": False}}, namespace=namespace)
            self.say(f"Job {name}: {self.build.description}")
            yield name
        finally:
            with suppress(NotFound):
                self.api.delete(JOBS, name, namespace=namespace)

    def _job_document(self, name: str) -> dict[str, Any]:
        # Nothing is fetched, so it needs no CA: its users may mount no ConfigMap but its own.
        settings = replace(self.settings, ca_config_map="")
        pods = self.build.driver.spec.pods
        spec = job_spec(self.build, settings, pods, self.tolerated, config_map=name)
        spec |= {"suspend": True, "backoffLimit": 0, "ttlSecondsAfterFinished": _KEPT}
        spec["activeDeadlineSeconds"] = max(1, int(self.timeout))
        spec["template"]["metadata"]["labels"][MANAGED_BY] = PREFLIGHT
        metadata = {"name": name, "namespace": self.settings.namespace, "labels": self._labels}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}

    def _config_map(self, name: str, owner: dict[str, Any]) -> dict[str, Any]:
        metadata = {
            "name": name,
            "namespace": self.settings.namespace,
            "labels": self._labels,
            "ownerReferences": [owner],
        }
        data = {"driver.yaml": revision_text(self.build.driver)}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

    @property
    def _labels(self) -> dict[str, str]:
        return {MANAGED_BY: PREFLIGHT, DRIVER_LABEL: self.build.driver.name}

    def _await_pod(
        self, name: str, ends: float, holds: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any]:
        """Wait until `holds` is true of the pod of a Job, and return the pod.

        What the pod waits for is reported whenever it changes. Raises DeadlinePassed.
        """
        reported = ""
        while True:
            pod = self._read_pod(name)
            if pod is not None and holds(pod):
                return pod
            words = waiting_message(build_pod_from(pod).waiting) if pod is not None else ""
            if words and words != reported:
                self.say(f"waiting: {words}")
            reported = words
            if self.now() > ends:
                raise DeadlinePassed(
                    f"the build did not end within {self.timeout:g} s"
                    + (f"; it waits: {words}" if words else ""),
                    hint="allow more time: --timeout SECONDS",
                )
            self.pause(_LOOK)

    def _read_pod(self, name: str) -> dict[str, Any] | None:
        selector = f"batch.kubernetes.io/job-name={name}"
        pods = self.api.list(
            PODS,
            skip_mirror_pods(dict),
            namespace=self.settings.namespace,
            selector=selector,
        )
        return pods.items[0] if pods.items else None

    def _has_begun(self, pod: dict[str, Any]) -> bool:
        """Return whether the compiler has started, or the pod has ended before that."""
        return _has_ended(pod) or any(
            each["name"] == ANSWER_CONTAINER
            and each.get("state", {}).keys() & {"running", "terminated"}
            for each in pod.get("status", {}).get("initContainerStatuses", ())
        )

    def _follow_log(self, pod: dict[str, Any], ends: float) -> None:
        """Follow the compiler's log to its end. An unreadable log does not stop the build."""
        name = pod["metadata"]["name"]
        try:
            for line in self.api.stream_log(
                name, ANSWER_CONTAINER, namespace=self.settings.namespace, seconds=ends - self.now()
            ):
                self.show_line(_log_message(line))
        except ApiError as error:
            self.say(f"cannot read the log of the build: {error}")

    def _read_result(self, pod: dict[str, Any]) -> TrialResult:
        build_pod = build_pod_from(pod)
        lost = build_pod.ended or "its pod reported nothing"
        outcome = build_pod.outcome or BuildOutcome(
            BuildVerdict.BROKEN, reason="BuildLost", message=lost
        )
        code = _exit_code(pod) if outcome.verdict in _FAILED else ExitCode.OK
        driver = self.build.driver
        return TrialResult(driver.name, driver.spec.version, self.build.toolkit, outcome, code)


_FAILED = (BuildVerdict.REFUSED, BuildVerdict.BROKEN)
_JOB_OWNER = {"apiVersion": "batch/v1", "kind": "Job", "controller": True}


def _has_ended(pod: dict[str, Any]) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def _exit_code(pod: dict[str, Any]) -> int:
    """Return the exit code of the failed container; SYSTEM for a signal or an unknown code."""
    status = pod.get("status", {})
    every = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
    codes = (each.get("state", {}).get("terminated", {}).get("exitCode", 0) for each in every)
    code = next((code for code in codes if code), int(ExitCode.SYSTEM))
    return code if code in {int(known) for known in ExitCode} else int(ExitCode.SYSTEM)


def _log_message(line: str) -> str:
    """Return the message of a JSON log line of the toolkit; other lines unchanged."""
    with suppress(ValueError, RecursionError):
        record = json.loads(line)
        if isinstance(record, dict) and "message" in record:
            return str(record["message"])
    return line
