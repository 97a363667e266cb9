"""The build pods of a test: what their last step says, as a kubelet passes it on.

KWOK runs pods of build Jobs and never ends them; this does. How a build ends is decided by
`outcome`, which a test sets; `built` counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.model.names import BUILDER, MANAGED_BY, NAMESPACE, PREFLIGHT
from nodeside.errors import ExitCode
from nodeside.protocol.build_job import BuildOutcome, BuildVerdict, termination_message
from tests.controlplane.api_server import MERGE_PATCH
from tests.controlplane.controlplane import ControlPlane

Ending = tuple[ExitCode, BuildOutcome]

_LOOK = 0.1  # seconds between two looks at the pods
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
BUILD_PODS = f"{_PODS}?labelSelector={MANAGED_BY}+in+({BUILDER},{PREFLIGHT})"
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"


def works(toolkit: str) -> Ending:
    """A build whose toolkit image is named by its kernel."""
    return ExitCode.OK, BuildOutcome(BuildVerdict.PUBLISHED, kernel=toolkit.rpartition(":")[2])


@dataclass
class Builders:
    """Use as a context manager. While `held` is set, builds go on and do not end."""

    control_plane: ControlPlane
    outcome: Callable[[str], Ending] = works
    held: threading.Event = field(default_factory=threading.Event)
    built: list[str] = field(default_factory=list)  # toolkit images
    _end: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Builders:
        self._thread = threading.Thread(target=self._run, name="builders", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(30)

    def jobs(self) -> list[dict[str, Any]]:
        return list(self.control_plane.do("GET", JOBS)["items"])

    def _run(self) -> None:
        while not self._end.wait(_LOOK):
            if not self.held.is_set():
                for pod in self._running():
                    self._finish(pod)

    def _running(self) -> Iterator[Mapping[str, Any]]:
        for pod in self.control_plane.do("GET", BUILD_PODS)["items"]:
            if pod["status"].get("phase") == "Running":
                yield pod

    def _finish(self, pod: Mapping[str, Any]) -> None:
        image = next(c["image"] for c in pod["spec"]["initContainers"] if c["name"] == "answer")
        code, outcome = self.outcome(image)
        state = {"exitCode": int(code), "message": termination_message(outcome)}
        status = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [
                {
                    "name": "finish",
                    "image": "x",
                    "imageID": "x",
                    "ready": False,
                    "restartCount": 0,
                    "state": {"terminated": state},
                }
            ],
        }
        path = f"{_PODS}/{pod['metadata']['name']}/status"
        self.built.append(image)
        self.control_plane.do("PATCH", path, {"status": status}, content_type=MERGE_PATCH)
