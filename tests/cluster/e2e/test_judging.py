"""The judges of the end-to-end tests see what they are there for."""

from __future__ import annotations

from typing import Any

from cluster.model.names import KERNEL_NOTE
from tests.cluster.e2e import judging
from tests.cluster.e2e.fleet import Spell
from tests.cluster.e2e.watching import Seen

OLD, NEW = "old-kernel", "new-kernel"


def seen(version: int, kind: str, document: dict[str, Any], *, deleted: bool = False) -> Seen:
    return Seen(version, float(version), kind, deleted, document)


def node(version: int, kernel: str = OLD, *, assigned: str = "a", cordoned: bool = False) -> Seen:
    labels = {"nodeside.io/edu.assigned": assigned}
    info = {"kernelVersion": kernel, "bootID": f"boot of {kernel}"}
    spec = {"unschedulable": True} if cordoned else {}
    document = {"metadata": {"name": "n", "labels": labels}, "spec": spec}
    return seen(version, "Node", {**document, "status": {"nodeInfo": info}})


def daemonset(version: int, assignment: str, kernel: str = OLD, revision: str = "r1") -> Seen:
    meta = {
        "name": f"edu-{assignment}",
        "labels": {"nodeside.io/revision": revision},
        "annotations": {KERNEL_NOTE: kernel},
    }
    return seen(version, "DaemonSet", {"metadata": meta})


def pod(
    version: int, name: str, kernel: str = OLD, *, ending: bool = False, gone: bool = False
) -> Seen:
    meta = {"name": name} | ({"deletionTimestamp": "now"} if ending else {})
    env = [{"name": "NODESIDE_KERNEL", "value": kernel}]
    spec = {"nodeName": "n", "containers": [{"env": env}]}
    document = {"metadata": meta, "spec": spec, "status": {"phase": "Running"}}
    return seen(version, "Pod", document, deleted=gone)


def report(version: int, kernel: str = OLD, revision: str = "r1") -> Seen:
    status = {"state": "ready", "kernel": kernel, "bootId": f"boot of {kernel}"}
    document = {"metadata": {"name": "edu.n"}, "status": status | {"revision": revision}}
    return seen(version, "NodeDriver", document)


def spell(began: float, ended: float, kernel: str = OLD) -> Spell:
    return Spell("n", "pod", kernel, f"boot of {kernel}", began, ended)


def test_two_pods_that_act_at_a_time_are_seen() -> None:
    events = [node(1)]
    assert judging.wrong_acts([spell(1, 2), spell(2, 3)], events) == []
    assert "two at a time" in judging.wrong_acts([spell(1, 3), spell(2, 4)], events)[0]


def test_an_act_for_a_kernel_or_a_boot_that_is_not_the_nodes_is_seen() -> None:
    assert "did not have" in judging.wrong_acts([spell(1, 2, NEW)], [node(1)])[0]
    late = [spell(1, 2, NEW), spell(3, 4, OLD)]
    assert "boot that was over" in judging.wrong_acts(late, [node(1), node(2, NEW)])[0]


def test_pods_of_one_kernel_contend_and_those_of_another_do_not() -> None:
    events = [node(1), pod(2, "a"), pod(3, "b", NEW)]
    assert judging.most_contenders(events) == 1
    assert judging.most_contenders([*events, pod(4, "c", ending=True)]) == 2


def test_a_report_for_the_kernel_before_the_reboot_is_seen() -> None:
    assert judging.wrong_reports([node(1), report(2), node(3, NEW), report(4, NEW)]) == []
    assert judging.wrong_reports([node(1), node(2, NEW), report(3, OLD)]) != []


def test_a_cordon_that_the_upgrade_did_not_make_is_seen() -> None:
    events = [node(1), node(2, cordoned=True), node(3)]
    assert judging.wrong_cordons(events, {2, 3}) == []
    assert judging.wrong_cordons(events, {2}) == ["n at 3: unschedulable=False"]


def test_a_node_is_settled_from_the_last_time_that_it_came_to_have_its_one_pod() -> None:
    events = [node(1), pod(2, "a"), node(3, NEW), pod(4, "b", NEW), pod(5, "a", ending=True)]
    assert judging.settling(events, {"n": 3.0}) == {"n": 2.0}
    assert judging.settling([*events, pod(6, "c", NEW)], {"n": 3.0}) == {}
    assert judging.settling([*events, pod(6, "b", NEW, gone=True)], {"n": 3.0}) == {}


def test_a_node_is_taken_down_by_another_revision_and_not_by_another_kernel() -> None:
    before = [daemonset(0, "a"), daemonset(0, "b", revision="r2"), daemonset(0, "c", NEW), node(0)]
    relabelled = [*before, report(1), node(2, assigned="b")]
    assert judging.most_taken_down(relabelled) == 1
    assert judging.most_taken_down([*before, report(1), node(2, NEW, assigned="c")]) == 0
    came_back = judging.most_taken_down([*relabelled, report(3, revision="r2"), node(4)])
    assert came_back == 1, "and then it was taken down again: still one at a time"
