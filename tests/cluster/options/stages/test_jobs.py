"""Jobs of stages: once or on each node, again after a reboot, and out of the way of the driver."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.cache.stage_logs import logs_to_read
from cluster.cli.explain import explain_node
from cluster.model.actions import Annotate, Create, Delete
from cluster.model.parse import job_from
from cluster.model.parse_stages import stage_pod_from
from cluster.model.snapshot import BuildJob
from cluster.model.stages import StagePod
from cluster.options.stages import job_changes, job_runs
from nodeside.protocol.labels import assigned_label
from nodeside.protocol.node_status import State
from tests.cluster.fakes.model import pod_of
from tests.cluster.fakes.stagedriver import (
    CLOSED,
    FIRST,
    SECOND,
    STATE,
    TWO,
    daemonset,
    patches,
    pods,
    round_,
    row,
    speak,
    up,
    with_stages,
)
from tests.cluster.fakes.stagejobs import complete, job, of_node, running, with_job

ASSIGNED = assigned_label("edu")
_SLOW: dict[str, Any] = {"rollout": {"maxUnavailable": 1, "canary": 1}}


def created(actions: tuple[Any, ...]) -> list[Any]:
    return [a.document for a in actions if isinstance(a, Create)]


def ended(actions: tuple[Any, ...]) -> list[str]:
    return [a.name for a in actions if isinstance(a, Delete) and a.resource.kind == "Job"]


# --- on each node --------------------------------------------------------------------------------


def test_a_job_per_node_runs_where_the_driver_works_and_opens_the_next_stage_there() -> None:
    model = with_job()
    model.settle()
    speak(model, "n0")

    [made] = created(round_(model))
    assert len(made["metadata"]["name"]) <= 63
    assert made["metadata"]["name"].startswith("selftest-")
    affinity = made["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["n0"]}]
    assert term["matchExpressions"][0]["operator"] == "NotIn"
    up(model)
    assert set(running(model)) == {"n0", "n1"}
    assert row(model, "first")["message"] == "n0, n1: Job selftest runs there"
    assert row(model, "second")["message"] == "waits for stage first"

    model.end_job(of_node(model, "n0").name)
    assert patches(round_(model), "n0") == [{FIRST: "ready"}]
    up(model)
    assert {p for p in pods(model) if p.startswith("monitor")} == {"monitor-n0"}
    first = row(model, "first")
    assert (first["state"], first["nodes"]) == ("Progressing", {"wanted": 2, "ready": 1})
    assert first["message"] == "n1: Job selftest runs there"
    blocks = explain_node(model.snapshot, "edu", "n1").blocks
    assert blocks == ("stage first: Job selftest runs there",)
    complete(model)
    assert row(model, "first")["state"] == row(model, "second")["state"] == "Ready"


def test_it_runs_again_after_a_reboot_and_until_then_the_node_has_not_the_label() -> None:
    model = complete(with_job())
    before = of_node(model, "n0").name
    model.reboot("n0")
    speak(model, "n0")  # before any controller saw it down: its labels are those of the last boot

    actions = round_(model)

    assert patches(actions, "n0") == [{FIRST: None, SECOND: None}]
    assert ended(actions) == [before]
    assert not [a for a in actions if isinstance(a, Annotate)], "no gate opens by that label"
    up(model)
    assert set(running(model)) == {"n0"}
    assert of_node(model, "n0").name != before
    complete(model)
    assert model.nodes["n0"].labels[SECOND] == "ready"
    assert model.stages is not None
    assert model.stages.pods["monitor-n0"].admitted == model.nodes["n0"].boot_id


def test_a_node_that_is_down_keeps_its_job() -> None:
    model = up(with_job())
    model.change("n0", ready=False)
    assert ended(round_(model)) == []
    assert set(running(model)) == {"n0", "n1"}


def test_a_job_whose_node_is_gone_or_left_goes_too() -> None:
    model = with_job(3, hardware={"nodeSelector": {"edu": "yes"}})
    for name in model.nodes:
        model.relabel(name, {"edu": "yes"})
    complete(model)
    gone = [of_node(model, "n0").name, of_node(model, "n1").name]
    del model.nodes["n0"]
    model.relabel("n1", {"edu": None})

    assert sorted(ended(round_(model))) == sorted(gone)


def test_a_failed_job_says_where_and_why_and_runs_again_when_it_is_deleted() -> None:
    model = up(with_job())
    name = of_node(model, "n1").name
    why = "BackoffLimitExceeded: Job has reached the specified backoff limit"
    model.end_job(name, why, "main: Error, exit code 3: LED 2 is dark")
    model.end_job(of_node(model, "n0").name)
    up(model)

    said = (
        f"Job selftest failed there: {why}; main: Error, exit code 3: LED 2 is dark: "
        f"kubectl -n nodeside logs job/{name}; to run it again, delete that Job"
    )
    assert (row(model, "first")["state"], row(model, "first")["message"]) == (
        "Failed",
        f"n1: {said}",
    )
    assert model.condition("Degraded")["reason"] == "StageFailed"
    assert explain_node(model.snapshot, "edu", "n1").blocks == (f"stage first: {said}",)
    assert FIRST not in model.nodes["n1"].labels
    assert model.plan().actions == (), "it is not tried for ever"

    del model.jobs[name]
    complete(model)
    assert model.nodes["n1"].labels[FIRST] == "ready"


def test_a_try_that_failed_is_said_while_the_next_one_runs() -> None:
    model = up(with_job(1))
    assert model.stages is not None
    found = of_node(model, "n0")
    pod = replace(model.stages.pods[pod_of(found)], name="y", over=True, failure="main: Error")
    model.stages = replace(model.stages, pods={**model.stages.pods, "y": pod})
    round_(model)
    assert row(model, "first")["message"] == (
        "n0: Job selftest runs there, again after main: Error"
    )


def test_a_node_selector_of_its_own_decides_for_which_nodes_it_is() -> None:
    text = job().replace("      restartPolicy", "      nodeSelector: {a: b}\n      restartPolicy")
    model = with_job(text=text)
    model.relabel("n0", {"a": "b"})
    up(model)
    assert set(running(model)) == {"n0"}
    assert "monitor-n1" in pods(model)

    model.relabel("n0", {"a": None})
    up(model)
    assert running(model) == {}
    assert "monitor-n0" in pods(model)


def test_another_manifest_is_another_job_and_meanwhile_the_next_stage_stays() -> None:
    model = complete(with_job())
    old = {each.name for each in model.jobs.values()}
    model.config_map("one", job_yaml=job().replace("selftest:1", "selftest:2"))

    up(model)

    assert set(running(model)) == {"n0", "n1"}
    assert old <= model.jobs.keys(), "the record of what was passed"
    assert "monitor-n0" in pods(model)
    assert row(model, "first")["state"] == "Progressing"
    complete(model)
    assert not old & model.jobs.keys()
    assert row(model, "first")["state"] == "Ready"


def test_two_of_a_job_are_never_at_work_on_a_node() -> None:
    model = up(with_job(1))
    assert model.stages is not None
    old = of_node(model, "n0")
    model.config_map("one", job_yaml=job().replace("selftest:1", "selftest:2"))

    actions = round_(model)
    assert (ended(actions), created(actions)) == ([old.name], [])
    assert created(round_(model)) == [], "its pod ends"
    model.play_stages()
    assert len(created(round_(model))) == 1


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> int:
    """So many Jobs per node of a Driver may run at once."""
    for module in (job_changes, job_runs):
        monkeypatch.setattr(module, "AT_ONCE", 10)
    return 10


def test_so_many_run_at_once_and_the_others_have_their_turn(at_once: int) -> None:
    count = at_once + 5
    model = up(with_job(count))
    assert len(running(model)) == at_once
    late = min(set(model.nodes) - set(running(model)))
    assert explain_node(model.snapshot, "edu", late).blocks == (
        f"stage first: Job selftest has not begun there yet: {at_once} run already",
    )
    complete(model)
    assert row(model, "second")["nodes"] == {"wanted": count, "ready": count}
    assert len(model.made) == count


# --- once ----------------------------------------------------------------------------------------


def test_jobs_on_nodes_that_are_down_take_no_turn_of_others(at_once: int) -> None:
    model = up(with_job(at_once + 3, rollout={"maxUnavailable": "100%", "canary": 0}))
    lost = set(running(model))
    assert len(lost) == at_once
    for name in lost:
        model.change(name, ready=False)

    assert len(created(round_(model))) == 3
    assert len(set(running(model)) - lost) == 3


def test_old_job_pod_blocks_only_its_own_run() -> None:
    ghost = StagePod(
        name="old-x",
        uid="ghost",
        driver="edu",
        stage="first",
        node="n0",
        job="gone",
        run_of="selftest",
        run_on="n0",
        deleting=True,
    )
    both = f"{job()}---{job('licence', run='once')}"
    model = with_job(2, both, rollout={"canary": 0})
    model.settle()
    for name in model.nodes:
        speak(model, name)
    for _ in range(3):
        assert model.stages is not None
        model.stages = replace(model.stages, pods={**model.stages.pods, "old-x": ghost})
        round_(model)

    assert {(each.run.job, each.run.node) for each in model.stage_jobs()} == {
        ("selftest", "n1"),
        ("licence", ""),
    }
    model.play_stages()
    model.end_job(running(model)[""])
    assert model.stages is not None
    model.stages = replace(model.stages, pods={**model.stages.pods, "old-x": ghost})
    words = (
        "stage first: Job selftest has not begun there yet: pod old-x of an earlier run does not "
        "end on n0: kubectl -n nodeside describe pod old-x"
    )
    assert explain_node(model.snapshot, "edu", "n0").blocks == (words,)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("nodeSelector: {edu: true}", "nodeSelector: edu: expected text: write the value in"),
        ("nodeSelector: {tier: 1}", "nodeSelector: tier: expected text: write the value in"),
        ("tolerations: 5", "spec.template is not a valid pod template"),
    ],
)
def test_what_the_api_server_would_never_see_is_refused(field: str, words: str) -> None:
    text = job().replace("      containers:", f"      {field}\n      containers:")
    model = with_job(1, text)
    model.settle()
    speak(model, "n0")
    round_(model)

    found = row(model, "first")
    assert found["state"] == "Invalid"
    assert words in found["message"]


def test_a_job_runs_once_for_a_revision_and_the_next_stage_waits_for_it() -> None:
    model = up(with_job(text=job("register", "once")))
    assert set(running(model)) == {""}
    [first] = model.jobs
    assert row(model, "first")["message"] == "Job register runs on n0"
    assert row(model, "second")["state"] == "Waiting"
    complete(model)
    assert row(model, "second")["state"] == "Ready"
    assert FIRST not in model.nodes["n0"].labels
    assert model.nodes["n0"].labels[SECOND] == "ready"

    model.apply_driver(stages=TWO, version="2.0.0")
    complete(model)
    assert first not in model.jobs
    assert len(model.jobs) == 1
    assert len(model.made) == 2


def test_what_is_not_annotated_runs_once() -> None:
    text = job().replace("  annotations: {nodeside.io/run: perNode}\n", "")
    assert set(running(up(with_job(text=text)))) == {""}


def test_one_that_failed_for_all_fails_its_stage() -> None:
    model = up(with_job(text=job("register", "once")))
    [name] = model.jobs
    model.end_job(name, "DeadlineExceeded: Job was active longer than specified deadline")
    up(model)
    assert row(model, "first")["state"] == "Failed"
    assert row(model, "first")["message"].startswith("Job register failed: DeadlineExceeded: ")
    assert "monitor-n0" not in pods(model)


# --- before the driver changes -------------------------------------------------------------------


@pytest.mark.parametrize("run", ["perNode", "once"])
def test_a_job_that_runs_ends_before_its_node_gets_another_revision(run: str) -> None:
    model = up(with_job(text=job(run=run), **_SLOW))
    assert model.stages is not None
    before = model.nodes["n0"].labels[ASSIGNED]
    [name] = [n for node, n in running(model).items() if node in ("n0", "")]
    pod = model.stages.pods[pod_of(model.jobs[name])]
    model.apply_driver(stages=TWO, version="2.0.0", **_SLOW)

    actions = round_(model)
    assert patches(actions, "n0")[0][CLOSED] == "closed"
    assert ended(actions) == [name]
    pod = replace(pod, deleting=True)
    model.stages = replace(model.stages, pods={**model.stages.pods, pod.name: pod})
    actions = round_(model)
    assert model.nodes["n0"].labels[ASSIGNED] == before, "its pod is still there"
    assert not any(d["metadata"]["name"] == name for d in created(actions))
    left = {n: each for n, each in model.stages.pods.items() if n != pod.name}
    model.stages = replace(model.stages, pods=left)

    round_(model)
    assert model.nodes["n0"].labels[ASSIGNED] != before
    complete(model)
    assert {model.revision("n0"), model.revision("n1")} == {model.drivers["edu"].status["revision"]}
    assert row(model, "second")["state"] == "Ready"


def test_one_that_has_ended_holds_nothing_up() -> None:
    model = with_job(stages=TWO[:1], **_SLOW)
    complete(model)
    model.apply_driver(stages=TWO[:1], version="2.0.0", **_SLOW)

    [changed] = patches(round_(model), "n0")

    assert CLOSED not in changed
    assert changed[ASSIGNED]


def test_where_the_driver_fails_or_the_stage_before_does_a_job_ends() -> None:
    model = with_stages(2, [TWO[1], TWO[0]])  # the DaemonSet goes first
    model.config_map("one", job_yaml=job())
    up(model)
    assert set(running(model)) == {"n0", "n1"}
    name = of_node(model, "n0").name
    speak(model, "n0", State.FAILED)
    assert ended(round_(model)) == [name]
    assert STATE in model.nodes["n0"].labels


# --- what is left --------------------------------------------------------------------------------


@pytest.mark.parametrize("done", [True, False])
def test_a_stage_that_leaves_the_spec_and_a_job_that_leaves_its_manifests_go(done: bool) -> None:
    model = (complete if done else up)(with_job())
    jobs = set(model.jobs)
    model.config_map("one", ds_yaml=daemonset("plugin"))
    assert set(ended(round_(model))) == jobs

    model = (complete if done else up)(with_job())
    model.apply_driver(stages=TWO[1:])
    assert set(ended(round_(model))) == set(model.made)


def test_what_cannot_be_read_keeps_its_jobs() -> None:
    model = complete(with_job())
    model.config_map("one", job_yaml="{{ no.such }}")
    assert ended(round_(model)) == []
    assert row(model, "first")["state"] == "Invalid"
    assert model.nodes["n0"].labels[FIRST] == "ready"


def test_a_deleted_driver_takes_its_jobs_with_it_and_waits_for_their_pods() -> None:
    model = with_job(1, stages=TWO[:1])
    up(model)
    [name] = model.jobs
    model.delete_driver()

    assert ended(model.settle_deleting()) == [name]
    assert model.drivers["edu"].status["conditions"][0]["message"].endswith("pods on n0")
    assert model.serving("n0") is not None, "the driver stays under it"
    model.play_stages()
    for _ in range(5):
        model.settle_deleting()
    assert model.serving("n0") is None


def test_a_build_job_and_a_job_of_a_stage_are_told_apart() -> None:
    model = complete(with_job())
    kept = set(model.jobs)
    for _ in range(3):
        round_(model)
    assert set(model.jobs) == kept, "no build wants them, and none is deleted for that"
    found = job_from({"metadata": {"labels": {"app.kubernetes.io/managed-by": "nodeside"}}})
    assert isinstance(found, BuildJob)


def test_no_log_of_a_job_is_waited_for() -> None:
    model = with_job(stages=[{**TWO[0], "waitFor": {"log": "x"}}, TWO[1]])
    up(model)
    assert list(logs_to_read(model.snapshot)) == []
    complete(model)
    assert row(model, "second")["state"] == "Ready"


# --- what a pod says -----------------------------------------------------------------------------


def test_the_last_line_of_the_container_that_failed_is_kept_and_no_more() -> None:
    ends = {
        "exitCode": 3,
        "reason": "Error",
        "message": "x" * 100_000 + "\nfirst\nLED 2\x1b[31m " + "y" * 999,
    }
    owner = {"kind": "Job", "name": "selftest-1", "uid": "u1"}
    pod = stage_pod_from(
        {
            "metadata": {"name": "p", "ownerReferences": [owner]},
            "status": {
                "phase": "Failed",
                "containerStatuses": [{"name": "main", "state": {"terminated": ends}}],
            },
        }
    )
    assert (pod.job, pod.over, pod.may_use_device) == ("u1", True, False)
    assert pod.failure.startswith("main: Error, exit code 3: LED 2\ufffd[31m yyy")
    assert len(pod.failure) < 400


@pytest.mark.parametrize("status", [{}, {"containerStatuses": [{}]}, {"initContainerStatuses": []}])
def test_a_pod_that_says_nothing_has_no_last_words(status: Any) -> None:
    assert stage_pod_from({"metadata": {}, "status": status}).failure == ""


def test_a_pod_that_its_node_evicted_says_so() -> None:
    status = {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}
    assert stage_pod_from({"metadata": {}, "status": status}).failure == "Evicted: low on memory"
