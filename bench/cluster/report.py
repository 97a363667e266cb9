"""What was measured on the cluster side, as goals and tables. Pure.

Kubernetes' own cost stands on the same two processors; what is ours is told apart by processor time
and by requests, which no neighbour changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

from bench.cluster.looks import Looks
from bench.cluster.scenario import Idle, Measured
from bench.page import Goal, Section, markdown_table

Row = tuple[str, Callable[[Measured], float | None], str]

# The rival's figures, as they were measured on this very set-up at another time.
RIVAL = (
    "For comparison, quoted and **not measured here**: Kernel Module Management (main branch of "
    "July 2026) on KWOK nodes on a machine of this size, one Module, prebuilt images. 1,000 nodes: "
    "all labelled 170 s after its images were verified, 13,800 API calls (14 a node), 122 s of "
    "CPU, 135 MiB; a restart with nothing to do: 2,700 calls and 80 s of CPU until quiet, then 0 "
    "calls idle. 5,000 nodes: 16 min 19 s from apply, 49,000 calls (10 a node), 678 s of CPU, "
    "511 MiB at its peak. These are its controller's calls alone."
)


def section(
    every: Sequence[Measured], looks: Sequence[Looks], missing: Sequence[str] = ()
) -> Section:
    """Goals of the largest size, and all sizes side by side. `missing`: sizes, and why."""
    largest = max(every, key=lambda found: found.size)
    note = [f"**Not measured**: {'; '.join(missing)}."] if missing else []
    return Section(
        "The controller at scale",
        _before(every),
        "\n\n".join(
            (_main(every), _looks_table(looks), _calls_table(largest), _served_table(every))
        ),
        "\n\n".join([*note, RIVAL]),
        (*_goals(every), *_goals_of_looks(looks)),
    )


def _goals_of_looks(looks: Sequence[Looks]) -> Sequence[Goal]:
    """Linear in Drivers: a look in which a node went down, which concerns all of them."""
    few, many = sorted(
        (found for found in looks if found.option == "none"), key=lambda found: found.drivers
    )
    idle = max((found for found in looks if found.option != "none"), key=lambda found: found.rest)
    size = f"{many.drivers} Drivers on {many.nodes:,} nodes"
    slowest = max(many.rest, many.word, many.label)
    growth = _ratio(many.down, few.down) / _ratio(many.drivers, few.drivers)
    return [
        Goal(f"a look at {size}, one Driver's object changed: CPU", "≤ 1 s",
             f"{slowest:.2f} s", slowest <= 1),
        Goal(f"a look in which nothing changed at {few.drivers} Drivers with the costliest option "
             f"({idle.option}), against those without one", "≤ 3 times",
             f"{_ratio(idle.rest, few.rest):.1f} times", _ratio(idle.rest, few.rest) <= 3),
        Goal("growth of a look at all of them, by Driver", "linear (≤ 1.5)",
             f"{growth:.2f}", growth <= 1.5),
        Goal(f"what is known and concluded of {size}", "≤ 200 MiB",
             f"{many.memory:.0f} MiB", many.memory <= 200),
    ]  # fmt: skip


def _looks_table(looks: Sequence[Looks]) -> str:
    """The planner alone, without an API server."""
    ordered = sorted(looks, key=lambda found: (found.drivers, found.option != "none"))
    header = [
        f"a look at {ordered[-1].nodes:,} nodes, CPU",
        *(
            f"{found.drivers} Drivers" + (f", {found.option}" if found.option != "none" else "")
            for found in ordered
        ),
    ]
    rows: list[tuple[str, Callable[[Looks], float], str]] = [
        ("the first one", lambda found: found.first, "{:.2f} s"),
        ("nothing changed", lambda found: found.rest, "{:.3f} s"),
        ("a node said something of one Driver", lambda found: found.word, "{:.2f} s"),
        ("a label of one Driver on a node", lambda found: found.label, "{:.2f} s"),
        ("a node is down, which concerns all Drivers", lambda found: found.down, "{:.2f} s"),
        ("memory: what is known", lambda found: found.known, "{:.0f} MiB"),
        ("memory: that, and what was concluded", lambda found: found.memory, "{:.0f} MiB"),
    ]
    cells = [[what, *(form.format(of(found)) for found in ordered)] for what, of, form in rows]
    return markdown_table(header, cells)


def _goals(every: Sequence[Measured]) -> Sequence[Goal]:
    largest = max(every, key=lambda found: found.size)
    thousand = min(every, key=lambda found: abs(found.size - 1000))
    size, controller, rollout = f"{largest.size:,}", largest.rollout.controller, largest.rollout
    ours = controller.requests / largest.size
    both = ours + rollout.nodes.total() / largest.size
    restart, idle = thousand.restart, largest.idle
    peak = max(found.peak for found in (largest.start, largest.restart, controller))
    growth = _growth(every)
    return [
        Goal(f"start, {size} nodes → DaemonSets applied", "≤ 10 s",
             f"{largest.start_seconds:.1f} s", largest.start_seconds <= 10),
        Goal(f"peak memory of the controller, {size} nodes", "≤ 150 MiB",
             f"{peak:.0f} MiB", peak <= 150),
        Goal(f"first rollout, {size} nodes: calls a node", "≤ 4", f"{both:.2f}", both <= 4),
        Goal("of these, the controller's", "≤ 1", f"{ours:.2f}", ours <= 1),
        Goal("growth of the controller's calls and CPU a node", "linear (≤ 1.2)",
             growth[0], growth[1]),
        Goal(f"first rollout, {size} nodes: CPU of the controller", "≤ 60 s",
             f"{controller.cpu:.1f} s", controller.cpu <= 60),
        Goal(f"idle, {size} nodes, {idle.seconds / 60:.1g} min: calls", "0",
             f"{idle.controller.requests}", idle.controller.requests == 0),
        Goal(f"restart with nothing to do, {thousand.size:,} nodes: CPU", "≤ 3 s",
             f"{restart.cpu:.1f} s", restart.cpu <= 3),
        Goal(f"restart with nothing to do, {thousand.size:,} nodes: calls", "≤ 50",
             f"{restart.calls.total()}", restart.calls.total() <= 50),
    ]  # fmt: skip


def _growth(every: Sequence[Measured]) -> tuple[str, bool]:
    """From the last but one size to the last, by node: smaller sizes are mostly the start."""
    ordered = sorted(every, key=lambda found: found.size)
    if len(ordered) < 2:
        return "one size only", False
    small, large = ordered[-2:]
    more = large.size / small.size
    calls = _ratio(large.rollout.controller.requests, small.rollout.controller.requests) / more
    cpu = _ratio(large.rollout.controller.cpu, small.rollout.controller.cpu) / more
    return f"calls {calls:.2f}, CPU {cpu:.2f}", max(calls, cpu) <= 1.2


def _before(every: Sequence[Measured]) -> str:
    sizes = " and ".join(f"{found.size:,}" for found in every)
    return (
        f"{sizes} nodes in 20 pools, each size on a control plane of its own: etcd, API server, "
        "controller manager and scheduler, and KWOK in the place of the kubelets, which renews a "
        "lease for each node every ten seconds. A node has 40 labels and 20 images. **All of this "
        "shares the processors of this machine with the controller**: "
        "seconds on the wall are those of the whole cluster in two cores, and most of them are "
        "Kubernetes'. Processor time, memory and calls are the controller's own. The node side is "
        "the announcing code of `nodeside driver run` for every node, in one process, with a "
        "token bound to each pod, for drivers that become ready within seconds; its connections "
        "are shared, as no real node's are. Calls are counted on our side, the controller's by "
        "its own metrics, since the API server's do not say whose a request was. Its audit log "
        "does, and counts the controller's writes (Events aside) a second time; its own metrics, "
        "in the last table, count everybody's: KWOK, the controller manager, the scheduler, the "
        "bench's own looks and ours. The first rollout has no canary (`rollout.canary: 0`). Left "
        "out "
        "of the sums: watches, which stay open, and the lease, renewed every 3 s. Rollouts are "
        "measured by looking every 0.1 to 0.5 s. Processor time grows faster than the nodes where "
        "Kubernetes makes a rollout last longer: looks at the cluster go on meanwhile, and take "
        "a fiftieth of a processor."
    )


_ROWS: tuple[Row, ...] = (
    ("**first rollout**: apply → 20 DaemonSets", lambda m: m.rollout.daemonsets, "{:.1f} s"),
    ("apply → all nodes labelled ready", lambda m: m.rollout.ready, "{:.1f} s"),
    ("controller: CPU", lambda m: m.rollout.controller.cpu, "{:.2f} s"),
    ("controller: calls", lambda m: float(m.rollout.controller.requests), "{:,.0f}"),
    ("of these, writes in the API server's audit log", lambda m: float(m.rollout.audited),
     "{:,.0f}"),
    ("controller: calls a node", lambda m: m.rollout.controller.requests / m.size, "{:.2f}"),
    ("nodes: calls a node", lambda m: m.rollout.nodes.total() / m.size, "{:.2f}"),
    ("controller: peak memory", lambda m: m.rollout.controller.peak, "{:.0f} MiB"),
    ("**idle**, heartbeats only: minutes", lambda m: m.idle.seconds / 60, "{:.1f}"),
    ("controller: calls", lambda m: float(m.idle.controller.requests), "{:,.0f}"),
    ("controller: CPU a minute", lambda m: m.idle.controller.cpu / m.idle.seconds * 60, "{:.2f} s"),
    ("**restart**, nothing to do: start → first plan", lambda m: m.restart_seconds, "{:.1f} s"),
    ("controller: calls, all of them", lambda m: float(m.restart.calls.total()), "{:,.0f}"),
    ("controller: CPU", lambda m: m.restart.cpu, "{:.2f} s"),
    ("controller: peak memory", lambda m: m.restart.peak, "{:.0f} MiB"),
    ("**start**, 20 DaemonSets of a second Driver to make: start → applied",
     lambda m: m.start_seconds, "{:.1f} s"),
    ("controller: CPU", lambda m: m.start.cpu, "{:.2f} s"),
    ("controller: peak memory", lambda m: m.start.peak, "{:.0f} MiB"),
    ("**a node changes its kernel** → pod bound, median", lambda m: m.moves.median, "{:.2f} s"),
    ("the slowest of five", lambda m: m.moves.high, "{:.2f} s"),
    ("**new version to all nodes**, 10 % at a time", lambda m: m.full_rollout, "{:.0f} s"),
    ("controller: calls a node",
     lambda m: m.full_calls.requests / m.size if m.full_calls else None, "{:.2f}"),
    ("controller: CPU", lambda m: m.full_calls.cpu if m.full_calls else None, "{:.2f} s"),
)  # fmt: skip


def _main(every: Sequence[Measured]) -> str:
    ordered = sorted(every, key=lambda found: found.size)
    pairs = list(pairwise(ordered))
    header = ["nodes", *(f"{found.size:,}" for found in ordered)]
    header += [f"{large.size:,} / {small.size:,}" for small, large in pairs]
    rows = []
    for words, value, form in _ROWS:
        numbers = [value(found) for found in ordered]
        cells = ["-" if number is None else form.format(number) for number in numbers]
        cells += [_grown(value(small), value(large)) for small, large in pairs]
        rows.append([words, *cells])
    return markdown_table(header, rows)


def _grown(small: float | None, large: float | None) -> str:
    return f"{large / small:.1f}" if small and large is not None else "-"


def _served_table(every: Sequence[Measured]) -> str:
    """Everybody's requests, by the API server's own metrics."""
    ordered = sorted(every, key=lambda found: found.size)
    columns = [(f"{m.size:,}, first rollout", m.rollout.served) for m in ordered]
    columns += [(f"{m.size:,}, idle, a minute", _a_minute(m.idle)) for m in ordered]
    verbs = sorted({verb for _, served in columns for verb in served})
    rows = [[verb, *(f"{served[verb]:,}" for _, served in columns)] for verb in verbs]
    return markdown_table(["requests of everybody", *(name for name, _ in columns)], rows)


def _a_minute(idle: Idle) -> Counter[str]:
    return Counter({verb: round(n / idle.seconds * 60) for verb, n in idle.served.items()})


def _ratio(large: float, small: float) -> float:
    return large / small if small else float("inf")


def _calls_table(found: Measured) -> str:
    """Who asked what, at the largest size."""
    columns: list[tuple[str, Counter[str]]] = [
        ("controller, first rollout", found.rollout.controller.calls),
        ("nodes, first rollout", found.rollout.nodes),
        ("controller, idle", found.idle.controller.calls),
        ("controller, restart", found.restart.calls),
    ]
    if found.full_calls:
        columns.append(("controller, new version", found.full_calls.calls))
    asked = sorted({what for _, calls in columns for what in calls})
    rows = [[what, *(f"{calls[what]:,}" for _, calls in columns)] for what in asked]
    header = [f"calls, {found.size:,} nodes", *(name for name, _ in columns)]
    return markdown_table(header, rows)
