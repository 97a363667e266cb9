"""Which pods are consumers, what is kept of them, and what became of asking them to leave."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.cache.drain_pods import ConsumerCache, list_consumers
from cluster.kube.errors import ApiError, Conflict, NotFound
from cluster.model.actions import Cordon, EvictPod, Plan, merge_plans
from cluster.model.names import CORDONED, NAMESPACE
from cluster.model.parse_claims import claim_from, with_claims
from cluster.model.parse_pods import consumer_from
from cluster.model.pod_demand import PodDemand
from cluster.model.snapshot import Occupancy, Snapshot
from cluster.options.drain.pods import consumers_by_node, demand_of, eviction_policy, policy_matches
from cluster.reconcile.drain_requests import change_cordon, evict_pod
from cluster.reconcile.eviction_backoff import EvictionBackoff
from nodeside.spec.document import parse
from nodeside.spec.fleet import Evict as Policy
from tests.cluster.fakes.scripted import Asked, Said, ScriptedServer
from tests.patience import patience
from tests.spec.documents import document

GPU = Policy(resources=("example.com/edu",))
LABELLED = Policy(selector={"uses": "edu", "tier": "batch"})
BOTH = demand_of(GPU) | demand_of(LABELLED)
LONG = patience(30.0)  # seconds: a deadline that only a broken test meets


def limit() -> dict[str, float]:
    return {"deadline": 5.0}


def pod(name: str = "train-0", *, device: str = "1", **parts: Any) -> dict[str, Any]:
    requests = {"requests": {"cpu": "1", **({"example.com/edu": device} if device else {})}}
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return {
        "metadata": metadata | parts.get("metadata", {}),
        "spec": {
            "nodeName": "n1",
            "containers": [{"resources": requests}],
            **parts.get("spec", {}),
        },
        "status": {"phase": "Running", **parts.get("status", {})},
    }


OURS = {"namespace": NAMESPACE, "labels": {"app.kubernetes.io/managed-by": "nodeside"}}
JOB_OF_A_STAGE = {
    "namespace": NAMESPACE,
    "ownerReferences": [{"kind": "Job", "controller": True}],
    "labels": {"app.kubernetes.io/managed-by": "nodeside-stages", "uses": "edu"},
}


def test_of_a_consumer_only_what_somebody_asks_for_is_kept() -> None:
    labels = {"uses": "edu", "tier": "batch", "pod-template-hash": "1"}

    found = consumer_from(pod(metadata={"labels": labels}), BOTH)

    assert found is not None
    assert (found.name, found.uid, found.node) == ("default/train-0", "uid-train-0", "n1")
    assert found.resources == {"example.com/edu"}
    assert found.labels == {"uses": "edu", "tier": "batch"}
    assert policy_matches(found, GPU)
    assert policy_matches(found, LABELLED)
    assert not policy_matches(found, Policy(resources=("example.com/edu",), namespaces=("batch",)))


def test_without_more_words_the_consumers_are_those_of_the_declared_devices() -> None:
    units = {"resource": "example.com/unit", "discover": {"count": 2}}
    for policy, resources in (
        ({"timeoutSeconds": 60}, ("example.com/unit",)),
        ({"selector": {"uses": "edu"}}, ()),
        ({"resources": ["example.com/edu"]}, ("example.com/edu",)),
    ):
        driver = parse(document(devices=[units], rollout={"evict": policy}))
        found = eviction_policy(driver)
        assert found is not None
        assert found.resources == resources


def test_a_driver_whose_devices_are_claimed_is_asked_for_by_its_name() -> None:
    units = {"resource": "example.com/unit", "discover": {"count": 2}, "expose": "dra"}
    edu = {"resource": "example.com/edu", "discover": {"count": 2}}
    for policy, resources in (
        ({"timeoutSeconds": 60}, ("example.com/unit", "example.com/edu", "edu.nodeside.io")),
        ({"selector": {"uses": "edu"}}, ()),
        ({"resources": ["example.com/edu"]}, ("example.com/edu",)),
        ({"resources": ["example.com/unit"]}, ("example.com/unit", "edu.nodeside.io")),
    ):
        found = eviction_policy(parse(document(devices=[units, edu], rollout={"evict": policy})))
        assert found is not None
        assert found.resources == resources


CLAIMED = Policy(resources=("example.com/edu", "edu.nodeside.io"))


def claim(name: str = "train", *, pods: int = 1, driver: str = "edu.nodeside.io") -> dict[str, Any]:
    """A claim that so many pods `train-<n>` use."""
    result = {"request": "device", "driver": driver, "pool": "n1", "device": "d0"}
    users = [
        {"resource": "pods", "name": f"train-{n}", "uid": f"uid-train-{n}"} for n in range(pods)
    ]
    return {
        "metadata": {"name": name, "namespace": "default"},
        "status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": users},
    }


def claimant(name: str = "train-0", **parts: Any) -> dict[str, Any]:
    claims = [{"name": "device", "resourceClaimTemplateName": "edu"}]
    return pod(name, device="", **{"spec": {"resourceClaims": claims}, **parts})


def joined(pods: list[dict[str, Any]], claims: list[dict[str, Any]]) -> dict[str, frozenset[str]]:
    """What is known of each consumer: what it requests, by its name."""
    demand = demand_of(CLAIMED)
    consumers = {pod.name: pod for each in pods if (pod := consumer_from(each, demand))}
    said = {claim.name: claim for each in claims if (claim := claim_from(each, demand))}
    made = with_claims(consumers, said)
    assert all(policy_matches(each, CLAIMED) for each in made.values())
    return {name: each.resources for name, each in made.items()}


def test_pods_that_use_a_claim_with_a_device_of_the_driver_are_consumers() -> None:
    pods = [claimant(f"train-{n}") for n in range(3)]
    assert joined(pods, [claim(pods=2)]) == {
        "default/train-0": {"edu.nodeside.io"},
        "default/train-1": {"edu.nodeside.io"},
    }


def test_a_pod_of_an_extended_resource_that_is_given_by_a_claim_is_one() -> None:
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "train"}}
    assert joined([pod(device="", status=status)], [claim()]) == {
        "default/train-0": {"edu.nodeside.io"}
    }
    assert joined([pod(status=status)], [claim()]) == {
        "default/train-0": {"example.com/edu", "edu.nodeside.io"}
    }


@pytest.mark.parametrize(
    "odd",
    [
        claim(driver="gpu.example.com"),
        claim(pods=0),
        {"metadata": {"name": "new", "namespace": "default"}},
        {"metadata": {"name": "odd"}, "status": {"allocation": None, "reservedFor": None}},
        {"metadata": {"name": "odd"}, "status": {"allocation": {"devices": {"results": None}}}},
    ],
    ids=["of another driver", "of nobody", "not given yet", "nothing in it", "no results"],
)
def test_claim_of_other_driver_is_not_a_consumer(odd: dict[str, Any]) -> None:
    assert joined([claimant()], [odd]) == {}


def test_a_pod_with_claims_is_not_kept_unless_somebody_asks_for_claims() -> None:
    assert consumer_from(claimant(), BOTH) is None
    daemon = {"ownerReferences": [{"kind": "DaemonSet", "controller": True}]}
    assert consumer_from(claimant(metadata=daemon), demand_of(CLAIMED)) is None


@pytest.mark.parametrize(
    "parts",
    [
        {"device": "0"},
        {"device": ""},
        {"device": "", "metadata": {"labels": {"uses": "edu"}}},
        {"spec": {"nodeName": ""}},
        {"status": {"phase": "Succeeded"}},
        {"status": {"phase": "Failed"}},
        {"metadata": {"ownerReferences": [{"kind": "DaemonSet", "controller": True}]}},
        {"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}},
        {"metadata": OURS},
        {"metadata": JOB_OF_A_STAGE},
    ],
    ids=lambda parts: str(parts)[:60],
)
def test_nothing_is_kept_of_a_pod_that_is_none_or_is_never_evicted(parts: dict[str, Any]) -> None:
    assert consumer_from(pod(**parts), BOTH) is None


@pytest.mark.parametrize("metadata", [OURS, JOB_OF_A_STAGE], ids=["of ours", "of a stage"])
def test_a_label_of_ours_is_believed_in_our_namespace_only(metadata: dict[str, Any]) -> None:
    """Anybody may label a pod in a namespace of his own."""
    assert consumer_from(pod(metadata=metadata), BOTH, "drivers") is not None
    theirs = metadata | {"namespace": "default"}
    assert consumer_from(pod(metadata=theirs), BOTH) is not None
    assert consumer_from(pod(metadata=theirs), BOTH, "default") is None


def test_a_job_of_somebody_is_evicted() -> None:
    owner = {"kind": "Job", "controller": True}
    assert consumer_from(pod(metadata={"ownerReferences": [owner]}), BOTH) is not None


def test_an_init_container_and_a_pod_that_is_leaving_count() -> None:
    container = {"resources": {"requests": {"example.com/edu": "1"}}}
    spec = {"initContainers": [container]}

    found = consumer_from(
        pod(device="", spec=spec, metadata={"deletionTimestamp": "2026-01-02T03:04:05Z"}), BOTH
    )

    assert found is not None
    assert found.deleting


def test_demands_of_several_drivers_are_one() -> None:
    here, there = Policy(resources=("a/b",), namespaces=("x",)), Policy(selector={"c": "d"})

    def merged(*demands: PodDemand | None) -> PodDemand | None:
        return merge_plans([Plan(demand=each) for each in demands]).demand

    assert merged(demand_of(here), None, demand_of(here)) == demand_of(here)
    assert merged(demand_of(here), demand_of(there)) == PodDemand(
        frozenset({"a/b"}), frozenset({frozenset({("c", "d")})}), frozenset()
    )
    assert merged(None) is None


def test_unknown_pods_are_not_no_pods() -> None:
    assert consumers_by_node(Snapshot(), [GPU]) is None
    assert consumers_by_node(Snapshot(occupancy=Occupancy(known=True)), [GPU]) == {}
    assert consumers_by_node(Snapshot(), []) == {}


# --- the watch on them ---------------------------------------------------------------------------


def test_a_pod_that_is_no_consumer_any_more_is_forgotten(tmp_path: Path) -> None:
    items = [pod("train-0"), pod("train-1"), pod("other", device="")]
    listed = json.dumps({"metadata": {"resourceVersion": "7"}, "items": items})
    later = pod("train-1", device="")
    later["metadata"]["resourceVersion"] = "8"
    changed = json.dumps({"type": "MODIFIED", "object": later}) + "\n"
    first, last = threading.Event(), threading.Event()
    script = [Said(body=listed), Said(body=changed, hold=first), Said(body="", hold=last)]
    with ScriptedServer(*script) as server:
        roll_call = ConsumerCache(server.api(tmp_path), lambda: None)
        assert roll_call.occupancy() == Occupancy()
        roll_call.watch_pods(demand_of(GPU))
        _until(
            lambda: set(roll_call.occupancy().consumers) == {"default/train-0", "default/train-1"}
        )
        first.set()
        _until(lambda: set(roll_call.occupancy().consumers) == {"default/train-0"})
        assert roll_call.occupancy().known
        roll_call.stop()
        last.set()

    assert "fieldSelector=spec.nodeName%21%3D" in server.asked[0].path
    assert roll_call.occupancy() == Occupancy()


def test_pods_that_are_asked_for_now_and_then_are_listed_once(tmp_path: Path) -> None:
    """Root on one node can make every other plan ask for them."""
    listed = json.dumps({"metadata": {"resourceVersion": "7"}, "items": [pod()]})
    now, last = [0.0], threading.Event()
    with ScriptedServer(Said(body=listed), Said(body="", hold=last)) as server:
        roll_call = ConsumerCache(server.api(tmp_path), lambda: None, now=lambda: now[0])
        for demand in (demand_of(GPU), None) * 5:
            roll_call.watch_pods(demand)
        _until(lambda: roll_call.occupancy().known)
        now[0] = 299.0
        roll_call.watch_pods(None)
        assert (roll_call.occupancy().known, roll_call.expires_in()) == (True, 1.0)
        now[0] = 300.0
        roll_call.watch_pods(None)
        last.set()

    assert (roll_call.occupancy(), roll_call.expires_in()) == (Occupancy(), None)
    assert sum("watch=true" not in asked.path for asked in server.asked) == 1


def test_the_pods_that_one_driver_asks_for_are_not_all_that_another_needs(tmp_path: Path) -> None:
    every = json.dumps({"metadata": {"resourceVersion": "7"}, "items": []})
    with ScriptedServer() as server:
        server.always = lambda asked: Said(body="" if "watch=" in asked.path else every)
        roll_call = ConsumerCache(server.api(tmp_path), lambda: None)
        roll_call.watch_pods(demand_of(GPU))
        _until(lambda: roll_call.occupancy().known)
        first = Snapshot(occupancy=roll_call.occupancy())
        roll_call.watch_pods(demand_of(LABELLED))
        _until(lambda: roll_call.occupancy().known)
        both = Snapshot(occupancy=roll_call.occupancy())
        roll_call.stop()

    assert (consumers_by_node(first, [GPU]), consumers_by_node(first, [LABELLED])) == ({}, None)
    assert (consumers_by_node(both, [GPU]), consumers_by_node(both, [LABELLED])) == ({}, {})


def by_kind(pods: Said, claims: Said) -> Callable[[Asked], Said]:
    """An API server with these lists, on which nothing changes."""

    def answer(asked: Asked) -> Said:
        if "watch=" in asked.path:
            return Said(body="")
        return claims if "/resourceclaims" in asked.path else pods

    return answer


def listed(*items: dict[str, Any]) -> Said:
    return Said(body=json.dumps({"metadata": {"resourceVersion": "7"}, "items": items}))


def watched(server: ScriptedServer, directory: Path, demand: PodDemand) -> Occupancy:
    """What is known in the end, or what keeps it from being known."""
    roll_call = ConsumerCache(server.api(directory), lambda: None)
    roll_call.watch_pods(demand)
    _until(lambda: roll_call.occupancy().known or bool(roll_call.occupancy().trouble))
    found = roll_call.occupancy()
    assert roll_call.occupancy().consumers is found.consumers, "joined once"
    roll_call.stop()
    return found


@pytest.mark.parametrize(
    "read", [watched, lambda server, *rest: list_consumers(server.api(rest[0]), rest[1])]
)
@pytest.mark.parametrize(
    ("claims", "consumers", "trouble"),
    [
        (listed(claim()), {"default/train-0"}, ""),
        (Said(404, body='{"message": "no such kind"}'), set(), ""),
        (Said(403, body='{"message": "no"}'), set(), "no permission to list resourceclaims"),
    ],
    ids=["served", "not served", "forbidden"],
)
def test_claims_are_read_too_if_somebody_asks_for_them(
    tmp_path: Path, read: Any, claims: Said, consumers: set[str], trouble: str
) -> None:
    with ScriptedServer() as server:
        server.always = by_kind(listed(claimant(), pod("other", device="")), claims)
        found = read(server, tmp_path, demand_of(CLAIMED))
    assert set(found.consumers) == consumers
    assert found.known is not bool(trouble)
    assert trouble in found.trouble


def test_claims_are_not_read_if_nobody_asks_for_them(tmp_path: Path) -> None:
    with ScriptedServer() as server:
        server.always = by_kind(listed(pod()), Said(500))
        assert watched(server, tmp_path, demand_of(GPU)).known
    assert not any("resourceclaims" in asked.path for asked in server.asked)


def _until(holds: Callable[[], bool]) -> None:
    pause = threading.Event()
    assert any(holds() or pause.wait(0.01) for _ in range(int(LONG / 0.01)))


def test_one_look_says_what_keeps_it_from_being_known(tmp_path: Path) -> None:
    with ScriptedServer(Said(403, body='{"message": "pods is forbidden"}')) as server:
        found = list_consumers(server.api(tmp_path), demand_of(GPU))

    assert not found.known
    assert "no permission to list pods" in found.trouble


# --- the requests --------------------------------------------------------------------------------

EVICT = EvictPod("edu", "n1", "default", "train-0", "uid-0")


def refused(status: int, error: type[ApiError] = ApiError, **more: Any) -> Any:
    class Refusing:
        def evict(self, *_: Any, **__: Any) -> None:
            raise error("said no", status=status, **more)

    return Refusing()


def test_a_refusal_of_a_budget_is_told_in_its_own_words(tmp_path: Path) -> None:
    cause = '{"reason": "DisruptionBudget", "message": "The disruption budget train needs 1"}'
    body = '{"message": "Cannot evict pod", "details": {"causes": [' + cause + "]}}"
    with ScriptedServer(Said(429, body=body)) as server:
        said = evict_pod(server.api(tmp_path), EVICT, limit)

    assert said == "the disruption budget train needs 1"
    assert len(server.asked) == 1, "the next plan asks again, not this one"
    assert server.asked[0].path == "/api/v1/namespaces/default/pods/train-0/eviction"


@pytest.mark.parametrize("error", [NotFound, Conflict])
def test_a_pod_that_is_gone_or_another_one_has_left(error: type[ApiError]) -> None:
    assert evict_pod(refused(404, error), EVICT, limit) is None


def test_what_is_refused_for_one_pod_only_is_no_trouble_for_the_driver() -> None:
    assert evict_pod(refused(500, retryable=True), EVICT, limit) == "said no"
    assert evict_pod(refused(403), EVICT, limit) == "said no"


@pytest.mark.parametrize("status", [0, 401, 429, 503])
def test_an_api_server_that_is_gone_or_overloaded_concerns_everybody(status: int) -> None:
    with pytest.raises(ApiError):
        evict_pod(refused(status, retryable=True), EVICT, limit)


class FakeApi:
    """A node, and the patch that was sent for it."""

    def __init__(self, *, closed: bool) -> None:
        self.node = {"metadata": {"resourceVersion": "7"}, "spec": {"unschedulable": closed}}
        self.patch: dict[str, Any] = {}

    def get(self, *_: Any, **__: Any) -> dict[str, Any]:
        return self.node

    def merge_patch(self, _kind: Any, _name: str, patch: Any, **_: Any) -> dict[str, Any]:
        self.patch = patch
        return self.node


@pytest.mark.parametrize("closed", [False, True])
def test_existing_cordon_is_not_marked_as_ours(closed: bool) -> None:
    api: Any = FakeApi(closed=closed)

    change_cordon(api, Cordon("edu", "n1", {"a": "b"}), limit)

    assert api.patch["metadata"]["resourceVersion"] == "7", "nobody came in between"
    assert (CORDONED in api.patch["metadata"]["labels"]) is not closed
    assert ("spec" in api.patch) is not closed


def test_a_node_that_somebody_else_holds_by_now_is_not_cordoned() -> None:
    api: Any = FakeApi(closed=False)
    api.node["metadata"]["labels"] = {"nodeside.io/edu.hold": "of another leader"}
    action = Cordon("edu", "n1", {"nodeside.io/edu.hold": "ours"})

    with pytest.raises(Conflict, match="not what they were"):
        change_cordon(api, action, limit, {})

    assert not api.patch


# --- what is remembered --------------------------------------------------------------------------


def snapshot(*names: str) -> Snapshot:
    made = [consumer_from(pod(name), BOTH) for name in names]
    consumers = {each.name: each for each in made if each is not None}
    return Snapshot(occupancy=Occupancy(consumers, known=True))


def test_a_pod_that_was_refused_is_asked_later_and_later() -> None:
    memory, waits = EvictionBackoff(jitter=lambda: 1.0), []
    for _ in range(6):
        memory.record_answers({"uid-train-0": "no"}, now=0.0)
        plan = memory.with_retry_time(Plan(demand=BOTH), now=0.0)
        waits.append(plan.requeue_after)

    assert waits == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    [answer] = memory.add_answers(snapshot("train-0"), now=29.0).occupancy.answers.values()
    assert (answer.refusal, answer.resting) == ("no", True)
    [answer] = memory.add_answers(snapshot("train-0"), now=30.0).occupancy.answers.values()
    assert not answer.resting


def test_a_pod_that_may_go_is_not_asked_again_while_it_goes() -> None:
    memory = EvictionBackoff(jitter=lambda: 1.0)
    memory.record_answers({"uid-train-0": None}, now=0.0)

    [answer] = memory.add_answers(snapshot("train-0"), now=9.0).occupancy.answers.values()
    assert (answer.refusal, answer.resting) == (None, True)


def test_what_was_said_of_a_pod_that_is_gone_is_forgotten() -> None:
    memory = EvictionBackoff()
    memory.record_answers({"uid-train-0": "no"}, now=0.0)

    assert memory.add_answers(snapshot("train-1"), now=1.0).occupancy.answers == {}
    assert memory.with_retry_time(Plan(demand=BOTH), now=1.0).requeue_after is None
