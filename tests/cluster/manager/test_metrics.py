"""What Prometheus is told, and where each number comes from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster.kube.errors import RequestInfo, Unreachable
from cluster.kube.reflector import WatchHealth
from cluster.kube.transport import RequestCounts
from cluster.manager.metrics import FAMILIES, HISTOGRAMS, Metrics
from cluster.model.actions import Plan, SetStatus
from cluster.model.states import Phase
from cluster.plan.planner import plan
from cluster.reconcile.executor import ExecutionResult
from cluster.reconcile.loop import ReconcileResult
from nodeside.protocol.node_status import State
from tests import TOP
from tests.cluster.fakes.model import Model

DOCUMENT = TOP / "docs" / "cluster.md"
LINES_LIMIT = 2000  # of an answer about a Driver on 5,000 nodes in 20 pools
KINDS = [WatchHealth("Node", True, 1.0, watches=3), WatchHealth("Pod", False, 1.0, "no rule")]


class Told:
    """Metrics that were told of rounds, and what they say: a number for each name and labels."""

    def __init__(self, *, leads: bool = True, kinds: Sequence[WatchHealth] = KINDS) -> None:
        self.leads = leads
        self.tally = RequestCounts()
        self.metrics = Metrics(
            tally=self.tally,
            leads=lambda: self.leads,
            kinds=lambda: kinds,
            answers={200: 2},
            wall=lambda: 1000.0,
        )

    def of(self, made: Model, *, outcome: ExecutionResult | None = None) -> Told:
        found = plan(made.snapshot, 0.0)
        self.metrics.record_round(
            ReconcileResult(made.snapshot, found, outcome or ExecutionResult(), 0.5, 0.25)
        )
        return self

    @property
    def text(self) -> str:
        return self.metrics.encode_samples("")[1].decode()

    def value(self, name: str, **labels: str) -> float | None:
        for family in text_string_to_metric_families(self.text):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return sample.value
        return None

    def labels(self, name: str) -> list[dict[str, str]]:
        families = text_string_to_metric_families(self.text)
        return [s.labels for family in families for s in family.samples if s.name == name]


@pytest.fixture
def model() -> Model:
    """Three nodes, one of which works, one failed, one is silent."""
    made = Model()
    made.add(["n1", "n2", "n3"])
    made.apply_driver("edu", rollout={"canary": 0})
    made.settle()
    return made


def test_nodes_are_counted_by_what_their_pods_said_in_this_boot(model: Model) -> None:
    model.report("n1")
    model.report("n2", State.FAILED)
    told = Told().of(model)

    assert told.value("nodeside_nodes", driver="edu", state="ready") == 1
    assert told.value("nodeside_nodes", driver="edu", state="failed") == 1
    assert told.value("nodeside_nodes", driver="edu", state="silent") == 1
    assert told.value("nodeside_nodes", driver="edu", state="building") == 0


def test_report_of_older_boot_is_ignored(model: Model) -> None:
    model.report("n1")
    model.reboot("n1")

    assert Told().of(model).value("nodeside_nodes", driver="edu", state="silent") == 3


def test_places_phase_pools_and_conditions_are_those_of_the_plan(model: Model) -> None:
    model.report("n1")
    model.settle()
    told = Told().of(model)

    assert told.value("nodeside_nodes_by_place", driver="edu", place="newest") == 3
    assert told.value("nodeside_nodes_by_place", driver="edu", place="moved") == 0
    assert told.value("nodeside_rollout_phase", driver="edu", phase="settled") == 1
    phases = [found["phase"] for found in told.labels("nodeside_rollout_phase")]
    assert phases == [phase.name.lower() for phase in Phase]
    assert told.value("nodeside_pools", driver="edu") == 1
    [pool] = told.labels("nodeside_pool_nodes")
    assert pool["link"]
    assert told.value("nodeside_pool_nodes", **pool) == 3
    assert told.value("nodeside_driver_condition", driver="edu", condition="Ready") == 0


def test_builds_are_counted_by_how_they_stand() -> None:
    made = Model()
    made.add(["n1"])
    store = {"oci": "registry.example.com/bundles/edu", "publish": True}
    made.apply_driver("edu", prebuilt={"sources": [store]})
    told = Told().of(made)
    assert told.value("nodeside_builds", driver="edu", progress="running") == 1
    assert told.value("nodeside_builds", driver="edu", progress="refused") == 0


def test_a_kind_that_is_watched_twice_has_one_series(model: Model) -> None:
    told = Told(kinds=[WatchHealth("Pod", True, 0.0), WatchHealth("Pod", True, 0.0, "gone")])
    assert [each["kind"] for each in told.labels("nodeside_up_to_date")] == ["Pod"]
    assert told.value("nodeside_up_to_date", kind="Pod") == 0


def test_throttle_counts_a_planned_status(model: Model) -> None:
    status = {"conditions": [{"type": "Degraded", "status": "True"}]}
    told = Told()
    planned = Plan((SetStatus("edu", status), SetStatus("gone", status)))
    told.metrics.record_round(ReconcileResult(model.snapshot, planned, ExecutionResult(), 0.0, 0.0))

    assert told.value("nodeside_driver_condition", driver="edu", condition="Degraded") == 1
    assert told.value("nodeside_driver_condition", driver="gone", condition="Degraded") is None


def test_who_does_not_lead_any_more_tells_of_no_driver(model: Model) -> None:
    told = Told().of(model)
    assert told.value("nodeside_leader") == 1
    told.leads = False

    assert told.value("nodeside_leader") == 0
    assert "edu" not in told.text
    assert told.value("nodeside_up_to_date", kind="Node") == 1


def test_rounds_are_timed_and_the_last_good_one_is_dated(model: Model) -> None:
    told = Told()
    assert told.value("nodeside_last_successful_round_timestamp_seconds") is None
    told.of(model, outcome=ExecutionResult(outage=Unreachable("no answer")))
    assert told.value("nodeside_last_successful_round_timestamp_seconds") is None
    told.of(model)

    assert told.value("nodeside_last_successful_round_timestamp_seconds") == 1000
    assert told.value("nodeside_round_duration_seconds_count") == 2
    assert told.value("nodeside_round_duration_seconds_sum") == 1.5
    assert told.value("nodeside_plan_duration_seconds_bucket", le="0.5") == 2


def test_requests_repeats_watches_and_answers_are_counted() -> None:
    told = Told()
    told.tally.count_request(RequestInfo("patch", "nodes", "n1"), 200)
    told.tally.count_request(RequestInfo("patch", "nodes", "n2"), 200)
    told.tally.count_request(RequestInfo("patch", "drivers/status", "edu"), 0)
    told.tally.count_retry(RequestInfo("patch", "drivers/status", "edu"))

    name = "nodeside_api_requests_total"
    assert told.value(name, verb="patch", resource="nodes", code="200") == 2
    assert told.value(name, verb="patch", resource="drivers/status", code="none") == 1
    repeats = {"verb": "patch", "resource": "drivers/status"}
    assert told.value("nodeside_api_retries_total", **repeats) == 1
    assert told.value("nodeside_watch_restarts_total", kind="Node") == 2
    assert told.value("nodeside_watch_restarts_total", kind="Pod") == 0
    assert told.value("nodeside_up_to_date", kind="Pod") == 0
    assert told.value("nodeside_metrics_answers_total", code="200") == 2


@pytest.mark.slow
def test_an_answer_stays_small_in_a_large_cluster() -> None:
    made = Model()
    for pool in range(20):
        kernel, image = f"6.1.0-{pool}-amd64", f"Debian GNU/Linux {pool}"
        made.add([f"n{pool}-{i}" for i in range(250)], kernel=kernel, os_image=image)
    made.apply_driver("edu")
    made.settle()
    text = Told().of(made).text

    assert len(made.snapshot.nodes) == 5000
    assert len(text.splitlines()) < LINES_LIMIT
    assert "n1-1" not in text


def test_the_format_is_the_one_that_is_asked_for() -> None:
    told = Told()

    assert told.metrics.encode_samples("")[0].startswith("text/plain; version=")
    kind, body = told.metrics.encode_samples("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_a_plan_carries_a_census_of_each_driver_that_can_be_planned(model: Model) -> None:
    model.apply_driver("other", modules=[{"name": "other"}])
    found = plan(model.snapshot, 0.0)
    assert sorted(found.node_counts) == ["edu", "other"]

    bad = replace(model.snapshot.drivers["other"], driver=None, mistakes="a typo")
    snapshot = replace(model.snapshot, drivers={**model.snapshot.drivers, "other": bad})
    assert sorted(plan(snapshot, 0.0).node_counts) == ["edu"]


def test_the_document_lists_every_metric_with_its_labels() -> None:
    section = DOCUMENT.read_text().partition("\n## Watching the controller\n")[2]
    table = section.partition("\n## ")[0]
    said = {
        name: tuple(re.findall(r"`(\w+)`", labels))
        for name, labels in re.findall(r"^\| `(nodeside_\w+)` \|([^|]*)\|", table, re.MULTILINE)
    }

    assert said == {f.name: f.labels for f in FAMILIES} | dict.fromkeys(HISTOGRAMS, ())
