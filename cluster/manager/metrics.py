"""The Prometheus metrics of the controller; `FAMILIES` lists them, docs/cluster.md documents them.

All values are already in memory: the counts of the last plan, the tally of requests, the health of
the watches. A scrape sends no request to the API server and iterates over no nodes. No series is
per node, so an answer stays small in any cluster. A replica that does not lead has made no plan, so
it reports only about itself.

To add a metric, add an entry to `FAMILIES` with a function that reads it from a `MetricInputs`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client import (
    CollectorRegistry,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.kube.reflector import WatchHealth
from cluster.kube.transport import RequestCounts
from cluster.model.actions import NodeCounts, SetStatus
from cluster.model.names import SILENT
from cluster.model.states import BuildProgress, Phase, Place
from cluster.reconcile.loop import ReconcileResult
from nodeside import __version__
from nodeside.protocol.node_status import State

Sample = tuple[tuple[str, ...], float]
Status = Mapping[str, Any]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True)
class MetricInputs:
    """The data for one scrape. Per-Driver mappings are empty if this replica does not lead."""

    leads: bool
    kinds: Sequence[WatchHealth]
    tally: RequestCounts
    answers: Mapping[int, int]
    node_counts: Mapping[str, NodeCounts] = field(default_factory=dict)
    statuses: Mapping[str, Status] = field(default_factory=dict)
    last_success: float = 0.0


@dataclass(frozen=True)
class Family:
    """One metric; `samples` reads its label values and numbers from a `MetricInputs`."""

    name: str
    metric_class: type[GaugeMetricFamily] | type[CounterMetricFamily]
    help: str
    labels: tuple[str, ...]
    samples: Callable[[MetricInputs], Iterable[Sample]]


# --- samples ---------------------------------------------------------------------------------


def _sample_requests(inputs: MetricInputs) -> Iterator[Sample]:
    yield from ((labels, count) for labels, count in inputs.tally.copy_counts()[0].items())


def _sample_repeats(inputs: MetricInputs) -> Iterator[Sample]:
    yield from ((labels, count) for labels, count in inputs.tally.copy_counts()[1].items())


def _sample_restarts(inputs: MetricInputs) -> Iterator[Sample]:
    for kind, watched in _by_kind(inputs).items():
        yield (kind,), sum(max(0, each.watches - 1) for each in watched)


def _sample_current(inputs: MetricInputs) -> Iterator[Sample]:
    for kind, watched in _by_kind(inputs).items():
        yield (kind,), all(each.synced and not each.trouble for each in watched)


def _by_kind(inputs: MetricInputs) -> Mapping[str, Sequence[WatchHealth]]:
    """Group the watches by kind. Some kinds, such as pods, have two watches but only one series."""
    kinds: dict[str, list[WatchHealth]] = {}
    for each in inputs.kinds:
        kinds.setdefault(each.kind, []).append(each)
    return kinds


def _last_success(inputs: MetricInputs) -> Iterator[Sample]:
    if inputs.last_success:
        yield (), inputs.last_success


def _sample_answers(inputs: MetricInputs) -> Iterator[Sample]:
    yield from (((str(code),), count) for code, count in dict(inputs.answers).items())


def _sample_conditions(inputs: MetricInputs) -> Iterator[Sample]:
    for driver, status in inputs.statuses.items():
        for condition in status.get("conditions") or ():
            yield (driver, str(condition.get("type"))), condition.get("status") == "True"


def _sample_phases(inputs: MetricInputs) -> Iterator[Sample]:
    for driver, counts in inputs.node_counts.items():
        yield from (((driver, phase.name.lower()), phase is counts.phase) for phase in Phase)


def _sample_places(inputs: MetricInputs) -> Iterator[Sample]:
    for driver, counts in inputs.node_counts.items():
        yield from (((driver, p.name.lower()), counts.places.get(p, 0)) for p in Place)


def _sample_states(inputs: MetricInputs) -> Iterator[Sample]:
    states = (*(state.value for state in State), SILENT)
    for driver, counts in inputs.node_counts.items():
        yield from (((driver, state), counts.states.get(state, 0)) for state in states)


def _sample_pools(inputs: MetricInputs) -> Iterator[Sample]:
    yield from (((driver,), len(counts.pools)) for driver, counts in inputs.node_counts.items())


def _pool_nodes(inputs: MetricInputs) -> Iterator[Sample]:
    for driver, counts in inputs.node_counts.items():
        for row in counts.pools:
            where = (row.pool.architecture, row.pool.os_version, row.pool.kernel)
            yield (driver, *where, row.link), row.nodes


def _sample_builds(inputs: MetricInputs) -> Iterator[Sample]:
    for driver, counts in inputs.node_counts.items():
        yield from (((driver, p.name.lower()), counts.builds.get(p, 0)) for p in BuildProgress)


def _sample_unavailable(inputs: MetricInputs) -> Iterator[Sample]:
    yield from (((driver,), counts.unavailable) for driver, counts in inputs.node_counts.items())


def _sample_allowed(inputs: MetricInputs) -> Iterator[Sample]:
    yield from (((driver,), counts.allowed) for driver, counts in inputs.node_counts.items())


GAUGE, COUNTER = GaugeMetricFamily, CounterMetricFamily

FAMILIES: Final = (
    Family("nodeside_build_info", GAUGE, "Always 1; the version of nodeside.", ("version",),
           lambda _: [((__version__,), 1)]),
    Family("nodeside_leader", GAUGE, "1 if this replica leads.", (),
           lambda inputs: [((), inputs.leads)]),
    Family("nodeside_last_successful_round_timestamp_seconds", GAUGE,
           "When the leader last carried out a plan, or found nothing to do.", (), _last_success),
    Family("nodeside_up_to_date", GAUGE, "1 if the cache of a kind is up to date.",
           ("kind",), _sample_current),
    Family("nodeside_watch_restarts_total", COUNTER, "Watches that were restarted.",
           ("kind",), _sample_restarts),
    Family("nodeside_api_requests_total", COUNTER, "Requests to the API server; code none: no "
           "answer.", ("verb", "resource", "code"), _sample_requests),
    Family("nodeside_api_retries_total", COUNTER, "Requests that were retried.",
           ("verb", "resource"), _sample_repeats),
    Family("nodeside_metrics_answers_total", COUNTER, "Answers to scrapes, by HTTP status.",
           ("code",), _sample_answers),
    Family("nodeside_driver_condition", GAUGE, "1 if a condition of a Driver is true.",
           ("driver", "condition"), _sample_conditions),
    Family("nodeside_rollout_phase", GAUGE, "1 for the current phase of a Driver's rollout.",
           ("driver", "phase"), _sample_phases),
    Family("nodeside_rollout_unavailable_nodes", GAUGE, "Nodes without a working driver that count "
           "against maxUnavailable.", ("driver",), _sample_unavailable),
    Family("nodeside_rollout_allowed_nodes", GAUGE, "maxUnavailable of a Driver, in nodes.",
           ("driver",), _sample_allowed),
    Family("nodeside_nodes", GAUGE, "Nodes of a Driver by the state that their pods reported in "
           "this boot.", ("driver", "state"), _sample_states),
    Family("nodeside_nodes_by_place", GAUGE, "Nodes of a Driver by what they are assigned to.",
           ("driver", "place"), _sample_places),
    Family("nodeside_pools", GAUGE, "Pools of a Driver.", ("driver",), _sample_pools),
    Family("nodeside_pool_nodes", GAUGE, "Nodes of a pool, and how its toolkit image was found.",
           ("driver", "architecture", "os_version", "kernel", "link"), _pool_nodes),
    Family("nodeside_builds", GAUGE, "Shared builds of the newest version, by progress.",
           ("driver", "progress"), _sample_builds),
)  # fmt: skip

HISTOGRAMS: Final = {
    "nodeside_round_duration_seconds": "A round: take a snapshot, plan, carry out the plan.",
    "nodeside_plan_duration_seconds": "Planning for all Drivers.",
}


# --- collector -------------------------------------------------------------------------------


class Metrics(Collector):
    """The collector. The main loop updates it after every round; other threads read it."""

    def __init__(
        self,
        *,
        tally: RequestCounts,
        leads: Callable[[], bool],
        kinds: Callable[[], Sequence[WatchHealth]],
        answers: Mapping[int, int],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._tally, self._leads, self._kinds, self._answers = tally, leads, kinds, answers
        self._wall = wall
        self._last: tuple[Mapping[str, NodeCounts], Mapping[str, Status]] = ({}, {})
        self._success = 0.0
        self._registry = CollectorRegistry(auto_describe=False)
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._rounds, self._plans = (
            Histogram(name, text, buckets=_SECONDS, registry=self._registry)
            for name, text in HISTOGRAMS.items()
        )
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def record_round(self, result: ReconcileResult) -> None:
        """Store the results of the last round. The cost does not grow with the number of nodes."""
        self._rounds.observe(result.planning + result.doing)
        self._plans.observe(result.planning)
        new = {a.driver: a.status for a in result.plan.actions if isinstance(a, SetStatus)}
        old = {name: driver.status for name, driver in result.snapshot.drivers.items()}
        self._last = (result.plan.node_counts, old | {n: s for n, s in new.items() if n in old})
        if result.outcome.outage is None and result.outcome.lost is None:
            self._success = self._wall()

    def collect_inputs(self) -> MetricInputs:
        leads = self._leads()
        node_counts, statuses = self._last if leads else ({}, {})
        success = self._success if leads else 0.0
        return MetricInputs(
            leads, self._kinds(), self._tally, self._answers, node_counts, statuses, success
        )  # fmt: skip

    def collect(self) -> Iterator[Metric]:
        inputs = self.collect_inputs()
        for family in FAMILIES:
            metric = family.metric_class(family.name, family.help, labels=family.labels)
            for values, number in family.samples(inputs):
                metric.add_metric(values, float(number))
            yield metric

    def encode_samples(self, accept: str) -> tuple[str, bytes]:
        """Return content type and text in the format that the scraper accepts."""
        encode, content_type = choose_encoder(accept)
        return content_type, encode(self._registry)
