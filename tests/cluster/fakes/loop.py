"""What the controller's loop works with, without threads and without an API server."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cluster.kube.election import Leadership
from cluster.kube.reflector import WatchHealth
from cluster.model.actions import Plan
from cluster.model.snapshot import Snapshot
from cluster.reconcile.executor import ExecutionResult
from cluster.reconcile.timings import LoopTimings
from tests.cluster.fakes.model import Model
from tests.patience import patience

LONG = patience(30.0)  # seconds: a deadline that only a broken test meets


QUICK = LoopTimings(
    settle=0.0,
    between=0.0,
    longest=0.0,
    echo=0.0,
    counts=0.0,
    first_retry=0.01,
    longest_retry=0.02,
    sync=0.01,
    refresh=0.5,
)


@dataclass
class FakeView:
    """A model as what the reflectors know."""

    model: Model
    kinds: list[WatchHealth] = field(default_factory=list)
    renewed: list[float] = field(default_factory=list)

    def wait_synced(self, _timeout: float) -> bool:
        return True

    def renew_lists(self, since: float) -> None:
        self.renewed.append(since)

    def refresh_watches(self, timeout: float, *, optional: bool) -> bool:
        if fresh := not any(kind.trouble for kind in self.kinds):
            return fresh
        time.sleep(timeout)
        return fresh

    def make_snapshot(self) -> Snapshot:
        return self.model.snapshot

    def health(self) -> list[WatchHealth]:
        return self.kinds

    def watch_pods(self, _demand: object) -> None:
        pass

    def stop_watching_pods(self) -> None:
        pass

    def learn_labels(self, _tags: object) -> bool:
        return False

    def render_templates(self, _templates: object) -> bool:
        return False

    def requeue_after(self) -> float | None:
        return None

    def wait_written(self, *_: object) -> bool:
        return True

    def wait_gone(self, *_: object) -> bool:
        return True


@dataclass
class FakeApplier:
    """Carries plans out in the model; `fails` may answer an outcome instead."""

    model: Model
    fails: Callable[[Plan], ExecutionResult | None] = lambda _: None
    plans: list[Plan] = field(default_factory=list)

    def carry_out(self, plan: Plan, _world: Snapshot, _leadership: Leadership) -> ExecutionResult:
        self.plans.append(plan)
        failed = self.fails(plan)
        if failed is not None:
            return failed
        self.model.carry_out(plan.actions)
        return ExecutionResult(done=len(plan.actions))
