"""One size after the other: what is done on a stage, and what was measured of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bench.cluster.stage import FIRST_OF_POOL, POOLS, Controller, Stage, system
from bench.cluster.usage import Usage
from bench.samples import Samples
from tests.controlplane.audit import Audit
from tests.controlplane.nodes import Nodes

_AT_REST = 5.0  # seconds without a round, after which a controller has nothing to do
_BUDGET = "10%"
_MOVES = 5  # nodes that change their kernel, one after the other


@dataclass(frozen=True)
class Rollout:
    """The first rollout to all nodes, without a canary. Seconds from `kubectl apply` on."""

    daemonsets: float
    ready: float
    controller: Usage
    audited: int  # the controller's writes, counted by the API server
    nodes: Counter[str]
    nodes_cpu: float
    served: Counter[str]  # everybody's requests by verb, as the API server counts them


@dataclass(frozen=True)
class Idle:
    seconds: float
    controller: Usage
    served: Counter[str]


@dataclass(frozen=True)
class Measured:
    """Everything of one size. `start` is from the start of the process to DaemonSets applied."""

    size: int
    rollout: Rollout
    idle: Idle
    restart: Usage
    restart_seconds: float
    start_seconds: float
    start: Usage
    moves: Samples
    full_rollout: float | None
    full_calls: Usage | None


def measure(size: int, idle: float, *, full: bool, say: Callable[[str], None]) -> Measured:
    """Everything at one size, on a control plane of its own. `full`: also a whole rollout."""
    with Stage(size, say) as stage:
        controller = _warm(stage)
        rollout = _first_rollout(stage, controller)
        say(f"{size} nodes: ready after {rollout.ready:.1f} s; idle for {idle:g} s")
        quiet = _idle(stage, controller, idle)
        say(f"{size} nodes: nodes that change their kernel")
        moves = _moves(stage)
        _until_at_rest(stage, controller)
        whole = _full_rollout(stage, controller, say) if full else (None, None)
        controller.stop()
        controller, seconds, restart = _restart(stage)
        say(f"{size} nodes: restarted in {seconds:.1f} s")
        controller.stop()
        start_seconds, start = _start_with_work(stage)
        return Measured(size, rollout, quiet, restart, seconds, start_seconds, start, moves, *whole)


def _warm(stage: Stage) -> Controller:
    """A controller that leads, and has nothing to do yet."""
    controller = stage.start_controller()
    stage.wait_leading()
    stage.wait_for(
        lambda: controller.rounds, "the controller's first round", lambda: "none", look=0.5
    )
    return controller


def _first_rollout(stage: Stage, controller: Controller) -> Rollout:
    before, spoken = controller.usage(), stage.heard()
    audit = Audit(stage.control_plane.place.directory)
    mark, served = audit.mark(), stage.served()
    began = time.monotonic()
    stage.apply_driver(rollout={"canary": 0})
    daemonsets = stage.wait_for(
        lambda: stage.daemonsets() >= POOLS, f"{POOLS} DaemonSets", stage.daemonsets, look=0.1
    )
    stage.wait_for(
        lambda: len(stage.heard().nodes) == stage.size,
        "all to speak",
        lambda: stage.heard().words,
        look=0.5,
    )
    heard = stage.heard()
    _until_settled(stage, "the status to say so", look=0.5)
    _until_at_rest(stage, controller)
    stage.wait_for(
        lambda: stage.heard().at_rest, "all to be silent", lambda: stage.heard().words, look=0.5
    )
    after = stage.heard()
    return Rollout(
        daemonsets - began,
        max(heard.nodes.values()) - began,
        controller.usage().since(before),
        len(audit.writes(mark)),
        after.calls - spoken.calls,
        after.cpu - spoken.cpu,
        stage.served() - served,
    )


def _until_settled(stage: Stage, what: str, look: float) -> None:
    stage.wait_for(lambda: _is_settled(stage), what, stage.driver, look=look)


def _is_settled(stage: Stage) -> bool:
    status = stage.driver()
    ready = {c["type"]: c["status"] for c in status.get("conditions", ())}.get("Ready")
    return ready == "True" and status["nodes"]["ready"] == stage.size


def _until_at_rest(stage: Stage, controller: Controller) -> None:
    """No round for a while."""
    seen, since = controller.rounds, time.monotonic()

    def rests() -> bool:
        nonlocal seen, since
        if (now := controller.rounds) != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since > _AT_REST

    stage.wait_for(
        rests, "the controller to have nothing to do", lambda: f"{seen} rounds so far", look=1.0
    )


def _idle(stage: Stage, controller: Controller, seconds: float) -> Idle:
    before, served, began = controller.usage(), stage.served(), time.monotonic()
    time.sleep(seconds)
    asked = stage.served() - served
    return Idle(time.monotonic() - began, controller.usage().since(before), asked)


def _moves(stage: Stage) -> Samples:
    """From the patch of a node's kernel to the pod of that kernel, bound to the node."""
    found = []
    for number in range(_MOVES):
        name, (kernel, version) = f"node-{POOLS + number:04}", system(number + 1)
        image = f"Red Hat Enterprise Linux CoreOS {version}"
        began = time.monotonic()
        Nodes(stage.control_plane).reboot(name, kernel=kernel, os_image=image)
        bound = stage.wait_for(
            partial(stage.pod_bound, name, kernel),
            f"a pod for {kernel} on {name}",
            partial(stage.kernels_of_pods, name),
        )
        found.append(bound - began)
        _until_settled(stage, f"{name} to be ready again", look=0.2)
    return Samples.of(found)


def _full_rollout(
    stage: Stage, controller: Controller, say: Callable[[str], None]
) -> tuple[float, Usage]:
    """A new version to all nodes, a tenth of them at a time."""
    before, began = controller.usage(), time.monotonic()
    say(f"{stage.size} nodes: a new version, {_BUDGET} at a time")
    rollout = {"maxUnavailable": _BUDGET, "canary": 1}
    old = stage.driver()["revision"]
    stage.apply_driver(version="2.0.0", rollout=rollout)

    def done() -> bool:
        status = stage.driver()
        good = status.get("lastGoodRevision")
        return good not in ("", old) and _is_settled(stage)

    ended = stage.wait_for(done, "the rollout to end", stage.driver, look=0.2)
    _until_at_rest(stage, controller)
    return ended - began, controller.usage().since(before)


def _restart(stage: Stage) -> tuple[Controller, float, Usage]:
    """A new process with nothing to do, until it knows that."""
    controller = stage.start_controller()
    stage.wait_leading()
    first = stage.wait_for(lambda: controller.rounds, "the first round", lambda: "none", look=0.1)
    _until_at_rest(stage, controller)
    return controller, first - controller.started, controller.usage()


def _start_with_work(stage: Stage) -> tuple[float, Usage]:
    """A new process that finds a second Driver, for one node of each pool: 20 DaemonSets to make,
    with every node and the first Driver to be listed and planned before."""
    hardware = {"nodeSelector": {FIRST_OF_POOL: "true"}}
    modules, rollout = [{"name": "other"}], {"canary": 0}
    stage.apply_driver("other", hardware=hardware, modules=modules, rollout=rollout)
    controller = stage.start_controller()
    applied = stage.wait_for(
        lambda: stage.daemonsets("other") >= POOLS,
        f"{POOLS} DaemonSets of the second Driver",
        partial(stage.daemonsets, "other"),
        look=0.1,
    )
    found = controller.usage()
    controller.stop()
    return applied - controller.started, found
