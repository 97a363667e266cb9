"""An API server that answers as it is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cluster.kube.election import Leadership
from cluster.model.actions import Action, Plan
from cluster.reconcile.executor import ExecutionResult, Executor
from tests.cluster.fakes.model import Model


@dataclass
class FakeApi:
    """Notes what is asked, and fails where a test says so."""

    fails: dict[str, Exception] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    versions: int = 100
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def apply(self, document: dict[str, Any], **limits: Any) -> dict[str, Any]:
        return self._ask(f"apply {document['metadata']['name']}", document, limits)

    def merge_patch(
        self, resource: Any, name: str, patch: Any, *, subresource: str = "", **limits: Any
    ) -> dict[str, Any]:
        words = f"patch {resource.plural}{'/' if subresource else ''}{subresource} {name}"
        return self._ask(words, patch, limits)

    def json_patch(self, resource: Any, name: str, patch: Any, **limits: Any) -> dict[str, Any]:
        return self._ask(f"patch {resource.plural} {name}", patch, limits)

    def get(self, resource: Any, name: str, **limits: Any) -> dict[str, Any]:
        return self._ask(f"get {resource.plural} {name}", None, limits)

    def delete(self, resource: Any, name: str, *, namespace: str, uid: str, **limits: Any) -> None:
        self._ask(f"delete {resource.plural} {name}", (namespace, uid), limits)

    def create(self, document: dict[str, Any], **limits: Any) -> dict[str, Any]:
        return self._ask(f"create {document['kind']}", document, limits)

    def _ask(self, words: str, body: Any, limits: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self.asked.append(words)
            self.bodies.append(body)
            self.versions += 1
            if words in self.fails:
                raise self.fails[words]
            assert 0 < limits["deadline"] <= 10
            return {"metadata": {"resourceVersion": str(self.versions)}}


def model() -> Model:
    made = Model()
    made.apply_driver("edu")
    return made


@contextmanager
def leading(seconds: float = 60.0) -> Iterator[Leadership]:
    leadership = Leadership(now=lambda: 0.0)
    leadership.begin(seconds)
    yield leadership


def carry_out(api: FakeApi, *actions: Action, seconds: float = 60.0) -> ExecutionResult:
    with Executor(api, instance="me", wall=lambda: 0.0) as executor, leading(seconds) as lead:  # type: ignore[arg-type]
        return executor.carry_out(Plan(actions), model().snapshot, lead)
