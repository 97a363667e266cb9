from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from bench.cluster import report
from bench.cluster.looks import Looks
from bench.cluster.looks import measure as measure_looks
from bench.cluster.report import RIVAL
from bench.cluster.scenario import Idle, Measured, Rollout
from bench.cluster.usage import Usage, calls_of, served_of
from bench.page import Section, render, render_part, with_machine, with_part
from bench.samples import Samples


def measured(size: int, *, calls: int, cpu: float = 1.0, peak: float = 100.0) -> Measured:
    used = Usage(cpu, peak, Counter({"patch nodes": calls, "watch nodes": 7, "update leases": 9}))
    idle = Usage(0.1, peak, Counter({"update leases": 100}))
    nodes = Counter({"patch nodes": size, "patch nodedrivers": size, "create events": size})
    return Measured(
        size,
        Rollout(1.0, 10.0, used, calls, nodes, 5.0, Counter({"PATCH": calls, "LIST": 3})),
        Idle(300.0, idle, Counter({"PUT": 6 * 5 * size})),
        Usage(0.5, peak, Counter({"list nodes": 10})),
        2.0,
        3.0,
        Usage(0.6, peak),
        Samples.of([0.2, 0.4, 0.3]),
        full_rollout=20.0 if size == 1000 else None,
        full_calls=used if size == 1000 else None,
    )


def goal(found: Section, what: str) -> tuple[str, bool]:
    return next((g.measured, g.reached) for g in found.goals if what in g.what)


EVERY = [measured(1000, calls=1000, cpu=4.0), measured(5000, calls=4950, cpu=21.0)]
LOOKS = [
    Looks(10, 5000, 1.1, 0.02, 0.07, 0.06, 0.4, 58.0, 80.0),
    Looks(50, 5000, 6.0, 0.1, 0.3, 0.2, 2.2, 160.0, 210.0),
    Looks(10, 5000, 1.4, 0.04, 0.09, 0.08, 0.9, 59.0, 82.0, "devices"),
    Looks(10, 5000, 1.3, 0.03, 0.09, 0.08, 0.9, 59.0, 82.0, "evict"),
]


def section(every: Sequence[Measured]) -> Section:
    return report.section(every, LOOKS)


def test_watches_and_the_lease_are_no_calls_of_a_node() -> None:
    found = section(EVERY)

    assert goal(found, "of these, the controller's") == ("0.99", True)
    assert goal(found, "calls a node") == ("3.99", True)
    assert goal(found, "5 min: calls") == ("0", True)


def test_a_call_more_for_each_node_misses_the_goal() -> None:
    found = section([measured(1000, calls=2020), measured(5000, calls=10_040)])

    assert goal(found, "of these, the controller's") == ("2.01", False)


def test_a_goal_that_is_missed_by_little_is_missed() -> None:
    found = section([measured(1000, calls=1050), measured(5000, calls=5085)])

    assert goal(found, "of these, the controller's") == ("1.02", False)
    assert goal(found, "calls a node") == ("4.02", False)


def test_growth_is_by_node_between_the_two_largest_sizes() -> None:
    assert goal(section(EVERY), "growth") == ("calls 0.99, CPU 1.05", True)
    assert not goal(section([measured(100, calls=100), measured(1000, calls=5000)]), "growth")[1]
    assert not goal(section(EVERY[:1]), "growth")[1]


def test_the_page_names_a_size_that_could_not_be_measured() -> None:
    found = report.section(EVERY, LOOKS, ["9,000 nodes: waited 60 s for all nodes to speak"])

    words = "**Not measured**: 9,000 nodes: waited 60 s for all nodes to speak."
    assert found.after == f"{words}\n\n{RIVAL}"
    assert section(EVERY).after == RIVAL


def test_sizes_stand_side_by_side_with_their_ratios() -> None:
    table = section([measured(100, calls=120), *EVERY]).table

    assert "| nodes | 100 | 1,000 | 5,000 | 1,000 / 100 | 5,000 / 1,000 |" in table
    assert "| apply → all nodes labelled ready | 10.0 s | 10.0 s | 10.0 s | 1.0 | 1.0 |" in table
    assert "| **new version to all nodes**, 10 % at a time | - | 20 s | - | - | - |" in table


def test_a_look_is_judged_by_what_concerns_one_driver_and_its_growth_by_what_concerns_all() -> None:
    found = section(EVERY)

    assert goal(found, "a look at 50 Drivers on 5,000 nodes") == ("0.30 s", True)
    assert goal(found, "growth of a look") == ("1.10", True)
    assert goal(found, "costliest option (devices)") == ("2.0 times", True)
    assert goal(found, "what is known and concluded") == ("210 MiB", False)
    assert (
        "| a node is down, which concerns all Drivers | 0.40 s | 0.90 s | 0.90 s | 2.20 s |"
        in found.table
    )


@pytest.mark.slow
def test_looks_are_measured_in_a_process_of_its_own() -> None:
    found = measure_looks(2, 40)

    assert (found.drivers, found.nodes) == (2, 40)
    assert found.memory >= found.known > 0


def test_the_rivals_figures_are_quoted_as_not_measured_here() -> None:
    assert "**not measured here**" in RIVAL
    assert section(EVERY).after == RIVAL


def test_requests_are_read_from_the_metrics_without_what_our_scrapes_cause() -> None:
    text = """\
# TYPE nodeside_api_requests_total counter
nodeside_api_requests_total{code="200",resource="nodes",verb="patch"} 3
nodeside_api_requests_total{code="409",resource="nodes",verb="patch"} 1
nodeside_api_requests_total{code="201",resource="tokenreviews",verb="create"} 5
"""
    assert calls_of(text) == {"patch nodes": 4}


def test_what_the_api_server_counts_is_everybodys_by_verb() -> None:
    text = """\
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",resource="nodes",subresource="status",verb="PATCH"} 3
apiserver_request_total{code="201",resource="pods",subresource="",verb="POST"} 2
apiserver_request_total{code="200",resource="leases",subresource="",verb="PATCH"} 1
apiserver_request_total{code="200",resource="",subresource="/readyz",verb="GET"} 9
apiserver_request_duration_seconds_sum{resource="nodes",verb="GET"} 7
"""
    assert served_of(text) == {"PATCH": 4, "POST": 2}


def test_the_last_table_has_the_requests_of_everybody() -> None:
    table = section(EVERY).table.rpartition("| requests of everybody")[2]

    assert "| PATCH | 1,000 | 4,950 | 0 | 0 |" in table
    assert "| PUT | 0 | 0 | 6,000 | 30,000 |" in table


# --- the part of the page --------------------------------------------------------------------


def test_the_clusters_part_is_replaced_and_the_rest_stays() -> None:
    page = render("make bench", [("CPU", "two cores")], [Section("Builds", "How.", "| t |")])
    first = render_part("cluster", "python -m bench --only cluster", [("CPU", "a")], section(EVERY))
    second = render_part(
        "cluster", "python -m bench --only cluster", [("CPU", "b")], section(EVERY)
    )

    once = with_part(page, "cluster", first)
    twice = with_part(once, "cluster", second)

    assert once.startswith(page.rstrip())
    assert once.endswith(first)
    assert twice == with_part(page, "cluster", second)
    assert twice.count("## The controller at scale") == 1
    assert "| CPU | a |" not in twice


def test_the_rest_is_replaced_and_the_clusters_part_stays() -> None:
    first = render("make bench", [("CPU", "a")], [Section("Builds", "How.", "| t |")])
    second = render("make bench", [("CPU", "b")], [Section("Builds", "How.", "| u |")])
    part = render_part("cluster", "python -m bench --only cluster", [("CPU", "c")], section(EVERY))

    assert with_machine(with_part(first, "cluster", part), second) == with_part(
        second, "cluster", part
    )
    assert with_machine("", first) == first
