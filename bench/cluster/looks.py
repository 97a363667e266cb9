"""What a look costs where there are many Drivers: processor time and memory of the planner alone.

No API server and no process but this one: the snapshot is made, as the reflectors would have it, of
a few nodes that a model brought to rest and copies of them. Runs as a program of its own, so that
memory is of this and nothing else: `python -m bench.cluster.looks DRIVERS NODES OPTION`, where an
option is one of `OPTIONS`.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import psutil

from cluster.model.actions import EmitEvent, LabelNode, Plan, SetStatus
from cluster.model.labelmap import labels_of, with_changes
from cluster.model.names import daemonset_name
from cluster.model.snapshot import DriverPod, NodeReport, Settings, Snapshot
from cluster.plan.planner import Planner
from nodeside.protocol.labels import assigned_label, node_driver_name, state_label
from nodeside.system import process
from tests.cluster.fakes.model import PCI, Model

_KERNELS = 20
_DEADLINE = 900.0  # seconds; the first look takes some ten
_NOW = 1_700_000_000.0
_REPEATS = 3
_ROUNDS = 8  # until nothing is to be done: what is labelled in one is told in the next

OPTIONS: dict[str, Callable[[str], dict[str, Any]]] = {  # the spec of a Driver of this name
    "none": lambda _: {},
    "devices": lambda name: {
        "devices": [{"resource": f"example.com/{name}", "discover": {"count": 1}}]
    },
    "build once": lambda name: {
        "prebuilt": {"sources": [{"oci": f"registry.example.com/{name}", "publish": True}]}
    },
    "evict": lambda name: {"rollout": {"evict": {"selector": {"uses": name}}}},
}


@dataclass(frozen=True)
class Looks:
    """Seconds of processor time, and MiB. `rest`: nothing changed; `word`: one NodeDriver did;
    `label`: one Driver's label on a node; `down`: a node, which concerns all Drivers. `known` is
    the snapshot, `memory` all of it. `option`: what each of the Drivers uses."""

    drivers: int
    nodes: int
    first: float
    rest: float
    word: float
    label: float
    down: float
    known: float
    memory: float
    option: str = "none"


def measure(drivers: int, nodes: int, option: str = "none") -> Looks:
    """In a process of its own."""
    argv = [sys.executable, "-m", "bench.cluster.looks", str(drivers), str(nodes), option]
    return Looks(**json.loads(process.run(argv, timeout=_DEADLINE).output))


def _main(drivers: int, nodes: int, option: str) -> Looks:
    snapshot = _world([f"d{number:02}" for number in range(drivers)], nodes, option)
    gc.collect()
    known, planner = _resident(), Planner()
    began = time.process_time()
    made = planner(snapshot, _NOW)
    first = time.process_time() - began
    snapshot = _brought_to_rest(planner, snapshot, made)
    found = {what: _repeated(planner, snapshot, change) for what, change in _CHANGES.items()}
    gc.collect()
    return Looks(drivers, nodes, first, known=known, memory=_resident(), option=option, **found)


def _world(names: list[str], count: int, option: str) -> Snapshot:
    """Every Driver works on every node, and there is nothing to do."""
    model = _at_rest(names, option)
    spread = {f"x{number}": f"example.com/l{number}" for number in range(40)}
    nodes, reports, pods = {}, {}, {}
    patterns = list(model.nodes.values())
    for number in range(count):
        like, node = patterns[number % len(patterns)], sys.intern(f"n{number:05}")
        own = {**like.labels, **{state_label(each): "ready" for each in names}}
        labels = labels_of({**own, **spread})
        nodes[node] = replace(like, name=node, uid=f"u{node}", boot_id=f"{node}-1", labels=labels)
        for driver in names:
            serving = model.daemonsets[daemonset_name(driver, like.labels[assigned_label(driver)])]
            word = NodeReport(
                node_driver_name(driver, node), driver, node, "ready", nodes[node].boot_id,
                like.kernel, serving.revision, "1.0.0", "built", serving.toolkit, time=_NOW,
            )  # fmt: skip
            pod = DriverPod(
                f"{serving.name}-{node}", "nodeside", "u", driver, node,
                daemonset=serving.name, created=_NOW,
            )  # fmt: skip
            reports[word.name], pods[pod.name] = word, pod
    return replace(model.snapshot, nodes=nodes, node_drivers=reports, pods=pods)


def _brought_to_rest(planner: Planner, snapshot: Snapshot, made: Plan) -> Snapshot:
    """All that is left to do is to say of how many nodes each status is, and to label nodes."""
    for _ in range(_ROUNDS):
        if not made.actions:
            return snapshot
        drivers, nodes = dict(snapshot.drivers), dict(snapshot.nodes)
        for action in made.actions:
            match action:
                case SetStatus():
                    drivers[action.driver] = replace(drivers[action.driver], status=action.status)
                case LabelNode():
                    node = nodes[action.node]
                    nodes[node.name] = replace(
                        node, labels=with_changes(node.labels, action.labels)
                    )
                case _:
                    assert isinstance(action, EmitEvent), action.words
        snapshot = replace(snapshot, drivers=drivers, nodes=nodes)
        made = planner(snapshot, _NOW)
    raise AssertionError([action.words for action in made.actions][:5])


def _at_rest(names: list[str], option: str) -> Model:
    """One node for each kernel."""
    model = Model(settings=Settings(agent_image="registry.example.com/agent:1"))
    for name in names:
        model.apply_driver(name, modules=[{"name": f"m_{name}"}], **OPTIONS[option](name))
    for number in range(_KERNELS):
        labels = labels_of({PCI: "true"})
        model.add([f"n{number:05}"], kernel=f"6.1.0-{number}", labels=labels)
    planner = Planner()
    while actions := planner(model.snapshot, _NOW).actions:
        model.carry_out(actions)
        for job in [job.name for job in model.jobs.values() if not job.finished]:
            model.end_build(name=job)
        for name in names:
            model.report_all(driver=name)
            for node in model.nodes:
                model.relabel(node, {state_label(name): "ready"})
    return model


def _a_word(snapshot: Snapshot, turn: int) -> Snapshot:
    key = next(iter(snapshot.node_drivers))
    said = replace(snapshot.node_drivers[key], message=f"for the {turn}. time")
    return replace(snapshot, node_drivers={**snapshot.node_drivers, key: said})


def _a_label(snapshot: Snapshot, turn: int) -> Snapshot:
    name = next(iter(snapshot.nodes))
    node, key = snapshot.nodes[name], state_label(next(iter(snapshot.drivers)))
    labels = labels_of({**node.labels, key: f"state-{turn}"})
    return replace(snapshot, nodes={**snapshot.nodes, name: replace(node, labels=labels)})


def _a_node_down(snapshot: Snapshot, turn: int) -> Snapshot:
    name = list(snapshot.nodes)[turn]
    return replace(
        snapshot, nodes={**snapshot.nodes, name: replace(snapshot.nodes[name], ready=False)}
    )


_CHANGES: dict[str, Callable[[Snapshot, int], Snapshot]] = {
    "rest": lambda snapshot, _: snapshot,
    "word": _a_word,
    "label": _a_label,
    "down": _a_node_down,
}


def _repeated(
    planner: Planner, snapshot: Snapshot, change: Callable[[Snapshot, int], Snapshot]
) -> float:
    """The shortest of some: a neighbour on the processor only adds."""
    planner(snapshot, _NOW)
    changed = [change(snapshot, turn) for turn in range(_REPEATS)]
    return min(_seconds(partial(planner, each, _NOW)) for each in changed)


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _resident() -> float:
    return psutil.Process().memory_info().rss / (1 << 20)


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[3] not in OPTIONS:
        raise SystemExit(f"usage: looks DRIVERS NODES OPTION; an option is one of {list(OPTIONS)}")
    print(json.dumps(asdict(_main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))))  # noqa: T201
