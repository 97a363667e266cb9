"""What follows a driver: in which order, on which nodes, and what ends before it changes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from cluster.cache.stage_logs import logs_to_read
from cluster.cli.explain import explain_driver, explain_node
from cluster.model.actions import Annotate, Apply, Delete, EmitEvent, LabelNode, SetStatus, lane_of
from cluster.model.problems import Problem, ProblemKind
from cluster.model.stages import (
    LogMatch,
    LogWanted,
    SecretData,
    ServiceAddress,
    StageObject,
    Stages,
)
from cluster.model.waiting import Waiting
from cluster.options.drain.labels import timestamp_value
from cluster.plan.planner import plan
from nodeside.protocol.labels import assigned_label
from nodeside.protocol.node_status import State
from tests.cluster.fakes.drains import DRAINING
from tests.cluster.fakes.model import KERNEL, Model
from tests.cluster.fakes.problems import with_problems
from tests.cluster.fakes.stagedriver import (
    CLOSED,
    FIRST,
    SECOND,
    STATE,
    TWO,
    daemonset,
    objects,
    patches,
    pods,
    round_,
    row,
    speak,
    up,
    with_stages,
)

ASSIGNED = assigned_label("edu")
_ENDS = {CLOSED: "closed", FIRST: None, SECOND: None, DRAINING: timestamp_value(0.0)}
DEPLOYMENT = daemonset("dashboard").replace("DaemonSet", "Deployment")


def applied(actions: Any) -> list[str]:
    return [a.words for a in actions if isinstance(a, Apply) and lane_of(a).is_of_stages]


# --- in order, and on each node ------------------------------------------------------------------


def test_nothing_of_a_stage_is_applied_before_the_driver_works_somewhere() -> None:
    model = with_stages(1)
    model.settle()
    assert objects(model) == set()
    assert row(model, "first") == {
        "name": "first",
        "state": "Waiting",
        "nodes": {"wanted": 0, "ready": 0},
        "message": "the driver works on no node yet",
    }

    speak(model, "n0")

    assert applied(round_(model)) == ["apply DaemonSet plugin"]


def test_each_stage_opens_on_a_node_when_the_one_before_is_ready_there() -> None:
    model = with_stages(2)
    model.settle()
    speak(model, "n0")
    round_(model)
    model.play_stages()
    assert pods(model) == {"plugin-n0"}

    actions = round_(model)
    assert patches(actions, "n0") == [{FIRST: "ready"}]
    assert patches(actions, "n1") == []
    round_(model)
    model.play_stages()
    assert pods(model) == {"plugin-n0", "monitor-n0"}

    speak(model, "n1")
    round_(model)
    model.play_stages()
    assert pods(model) == {"plugin-n0", "monitor-n0", "plugin-n1"}
    up(model)
    assert model.condition("StagesReady")["message"] == "2 stages are ready"
    assert row(model, "second")["nodes"] == {"wanted": 2, "ready": 2}


def test_a_mistake_in_the_driver_hides_neither_its_stages_nor_their_condition() -> None:
    model = with_stages(1)
    up(model)
    before = model.condition("StagesReady"), row(model, "first")

    model.apply_driver(version="")
    model.settle()

    assert model.condition("Degraded")["reason"] == "InvalidSpec"
    assert (model.condition("StagesReady"), row(model, "first")) == before


def test_a_node_costs_one_request_for_each_stage() -> None:
    model = with_stages(3)
    labelled: list[LabelNode] = []
    for _ in range(12):
        actions = round_(model)
        labelled += [a for a in actions if isinstance(a, LabelNode) and a.node == "n1"]
        for name in model.nodes:
            speak(model, name)
        model.play_stages()

    assert [dict(a.labels) for a in labelled[1:]] == [{FIRST: "ready"}, {SECOND: "ready"}]
    assert model.plan().actions == ()


def test_a_pod_that_is_not_ready_holds_the_next_stage_and_says_why() -> None:
    model = with_stages(1)
    model.settle()
    speak(model, "n0")
    round_(model)
    model.play_stages(ready=False, main=Waiting("CrashLoopBackOff", "back-off 10s"))
    actions = round_(model)

    assert patches(actions, "n0") == []
    assert row(model, "first")["state"] == "Failed"
    assert row(model, "first")["message"] == "n0: main: CrashLoopBackOff: back-off 10s"
    assert row(model, "second")["message"] == "waits for stage first"
    assert model.condition("Degraded")["reason"] == "StageFailed"
    ready = model.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("True", "StageFailed")
    said = explain_node(model.snapshot, "edu", "n0")
    assert said.blocks == (
        "stage first: pod plugin-n0 is not ready: main: CrashLoopBackOff: back-off 10s",
    )


def test_a_pod_that_restarts_ends_nothing_behind_it() -> None:
    model = up(with_stages(1))
    model.play_stages(ready=False)

    actions = round_(model)

    assert patches(actions, "n0") == []
    assert row(model, "first")["state"] == "Progressing"


def test_where_the_driver_fails_its_stages_end() -> None:
    model = up(with_stages(2))
    speak(model, "n0", State.FAILED)

    assert patches(round_(model), "n0") == [{FIRST: None, SECOND: None}]

    model.play_stages()
    assert pods(model) == {"plugin-n1", "monitor-n1"}


def test_a_node_that_is_down_keeps_its_labels_and_one_that_rebooted_begins_again() -> None:
    model = up(with_stages(2))
    model.change("n0", ready=False)
    assert patches(round_(model), "n0") == []

    model.reboot("n0", ready=True)
    assert patches(round_(model), "n0") == [{FIRST: None, SECOND: None}]
    model.play_stages()
    assert "plugin-n0" in pods(model), "its init container waits for the ready file of this boot"
    up(model)
    assert model.nodes["n0"].labels[SECOND] == "ready"


def test_a_stage_without_pods_on_nodes_waits_for_its_deployments() -> None:
    stages = [{"name": "dashboard", "manifests": "board"}, *TWO]
    model = with_stages(1, stages)
    model.config_map("board", d_yaml=DEPLOYMENT)
    model.settle()
    speak(model, "n0")
    for _ in range(3):
        round_(model)

    assert objects(model) == {"Deployment dashboard"}
    assert row(model, "dashboard")["message"] == "Deployment dashboard: 0 of 1"
    assert row(model, "first")["message"] == "waits for stage dashboard"
    assert model.stages is not None
    done = {k: replace(each, rolled_out=True) for k, each in model.stages.objects.items()}
    model.stages = replace(model.stages, objects=done)
    up(model)
    assert objects(model) == {"Deployment dashboard", "DaemonSet plugin", "DaemonSet monitor"}


def test_a_daemonset_for_some_nodes_is_not_waited_for_on_others() -> None:
    model = with_stages(2)
    text = daemonset("plugin").replace("    spec:\n", "    spec:\n      nodeSelector: {a: b}\n")
    model.config_map("one", ds_yaml=text)
    model.relabel("n0", {"a": "b"})
    up(model)

    assert pods(model) == {"plugin-n0", "monitor-n0", "monitor-n1"}


# --- what pods say -------------------------------------------------------------------------------


def listening() -> Model:
    """A stage that waits for a line; its pod is ready."""
    wait = {"log": "registered", "timeoutSeconds": 60}
    model = with_stages(1, [{**TWO[0], "waitFor": wait}, TWO[1]])
    model.settle()
    speak(model, "n0")
    round_(model)
    model.play_stages()
    return model


def test_a_ready_pod_that_has_not_said_it_yet_holds_the_next_stage() -> None:
    model = listening()
    assert patches(round_(model), "n0") == []
    words = "no line in the log of pod plugin-n0 matches 'registered' yet"
    assert row(model, "first")["message"] == f"n0: {words}"
    assert explain_node(model.snapshot, "edu", "n0").blocks == (f"stage first: {words}",)
    [wanted] = logs_to_read(model.snapshot)
    assert wanted == LogWanted("uid-plugin-n0", "plugin-n0", "main", "registered", 60)

    _sees(model, LogMatch(matched=True))

    assert patches(round_(model), "n0") == [{FIRST: "ready"}]
    assert list(logs_to_read(model.snapshot)) == [], "nobody asks again"
    _sees(model)
    assert patches(round_(model), "n0") == [], "and another controller need not"
    up(model)
    assert row(model, "first")["state"] == "Ready"


def offers(model: Model, count: int) -> None:
    """What the kubelet says that it can give."""
    offered = {"example.com/edu": count}
    model.nodes["n0"] = replace(model.nodes["n0"], allocatable=offered)


def test_a_resource_that_the_kubelet_does_not_offer_yet_holds_the_next_stage() -> None:
    wait = {"resource": {"name": "example.com/edu", "atLeast": 2}}
    model = up(with_stages(1, [{**TWO[0], "waitFor": wait}, TWO[1]]))

    assert row(model, "first")["state"] == "Progressing"
    assert row(model, "first")["message"] == "n0: the kubelet offers no example.com/edu yet"
    assert FIRST not in model.nodes["n0"].labels
    offers(model, 1)
    up(model)
    assert row(model, "first")["message"] == (
        "n0: the kubelet offers 1 of example.com/edu, at least 2 are awaited"
    )

    offers(model, 2)
    up(model)
    assert row(model, "second")["state"] == "Ready"
    offers(model, 0)
    up(model)
    assert row(model, "second")["state"] == "Ready", "a device that fails later ends no stage"


def test_where_no_pod_of_the_stage_is_meant_to_be_no_resource_is_awaited() -> None:
    wait = {"resource": {"name": "example.com/edu"}}
    model = with_stages(1, [{**TWO[0], "waitFor": wait}, TWO[1]])
    plugin = daemonset("plugin").replace(
        "      containers:", "      nodeSelector: {example/zone: a}\n      containers:"
    )
    model.config_map("one", ds_yaml=plugin)
    up(model)
    assert row(model, "second")["state"] == "Ready"


def test_invalid_log_pattern_fails_only_its_stage() -> None:
    wait = {"log": "(x{30}y{30}){30}"}
    model = up(with_stages(1, [TWO[0], {**TWO[1], "waitFor": wait}]))

    assert row(model, "first")["state"] == "Ready"
    assert row(model, "second")["state"] == "Invalid"
    assert (
        "waitFor.log: expected a regular expression in RE2 syntax"
        in row(model, "second")["message"]
    )


def test_a_pod_that_never_says_it_fails_its_stage() -> None:
    model = listening()
    _sees(model, LogMatch(late=True, error="no permission to get pods/log"))

    round_(model)

    assert row(model, "first")["state"] == "Failed"
    assert row(model, "first")["message"] == (
        "n0: no line in the log of pod plugin-n0 matches 'registered' after 60 s: "
        "no permission to get pods/log"
    )


def _sees(model: Model, *sights: LogMatch) -> None:
    assert model.stages is not None
    logs = dict.fromkeys(["uid-plugin-n0"], *sights) if sights else {}
    model.stages = replace(model.stages, logs=logs)


# --- after a reboot ------------------------------------------------------------------------------


def admissions(model: Model) -> list[tuple[str, str]]:
    return [(a.name, a.value) for a in model.plan().actions if isinstance(a, Annotate)]


def test_a_pod_is_told_that_the_stage_before_is_ready_in_this_boot() -> None:
    model = up(with_stages(2))
    assert model.stages is not None
    told = {name: pod.admitted for name, pod in model.stages.pods.items()}
    boots = {name: node.boot_id for name, node in model.nodes.items()}
    assert told == {
        "plugin-n0": "",
        "plugin-n1": "",
        "monitor-n0": boots["n0"],
        "monitor-n1": boots["n1"],
    }
    assert admissions(model) == [], "and not again"


def test_after_a_reboot_no_pod_is_told_so_before_the_stage_is_ready_again() -> None:
    model = up(with_stages(1))
    model.nodes["n0"] = replace(model.nodes["n0"], boot_id="boot-2")
    assert model.nodes["n0"].labels[FIRST] == "ready", "of the boot before"

    assert admissions(model) == []
    round_(model)
    assert FIRST not in model.nodes["n0"].labels
    speak(model, "n0")
    model.play_stages(ready=False)
    assert pods(model) == {"plugin-n0"}
    assert admissions(model) == []

    up(model)
    assert model.stages is not None
    assert model.stages.pods["monitor-n0"].admitted == "boot-2"


# --- before the driver changes -------------------------------------------------------------------


def test_a_node_ends_its_stages_before_it_gets_another_revision() -> None:
    model = up(with_stages(2, rollout={"maxUnavailable": 1, "canary": 1}))
    before = model.nodes["n0"].labels[ASSIGNED]
    model.apply_driver(stages=TWO, version="2.0.0", rollout={"maxUnavailable": 1, "canary": 1})

    actions = round_(model)
    assert patches(actions, "n0") == [_ENDS]
    assert patches(actions, "n1") == []
    assert patches(round_(model), "n0") == [], "its pods are still there"
    assert len(model.daemonsets) == 1, "and so is what they rest on"
    model.play_stages()
    assert pods(model) == {"plugin-n1", "monitor-n1"}

    [changed] = patches(round_(model), "n0")
    assert changed[ASSIGNED] not in (None, before)
    assert changed[DRAINING] is None
    round_(model)
    model.play_stages()
    assert pods(model) == {"plugin-n1", "monitor-n1"}, "the old label ready opens nothing"
    assert model.nodes["n0"].labels[STATE] == "ready"

    model.report("n0")
    [opened] = patches(round_(model), "n0")
    assert opened == {CLOSED: None}
    up(model)
    assert {model.nodes[n].labels[SECOND] for n in ("n0", "n1")} == {"ready"}
    assert not [n for n in model.nodes.values() if CLOSED in n.labels]


def test_a_node_whose_turn_passes_opens_again() -> None:
    model = up(with_stages(1))
    model.apply_driver(stages=TWO, version="2.0.0")
    assert patches(round_(model), "n0") == [_ENDS]

    model.apply_driver(stages=TWO, version="2.0.0", rollout={"paused": True})

    model.play_stages()
    assert patches(round_(model), "n0") == [{CLOSED: None, DRAINING: None}]


def test_a_node_opens_again_if_the_spec_becomes_invalid_before_its_change() -> None:
    model = up(with_stages(1))
    model.apply_driver(stages=TWO, version="2.0.0")
    assert patches(round_(model), "n0") == [_ENDS]

    model.apply_driver(stages=TWO, version="2.0.0", modules=[])

    model.play_stages()
    assert patches(round_(model), "n0") == [{CLOSED: None, DRAINING: None}]
    model.play_stages()
    assert pods(model) == {"plugin-n0"}
    assert patches(round_(model), "n0") == []


def test_a_node_opens_when_its_new_driver_works_though_the_spec_is_invalid_by_then() -> None:
    model = up(with_stages(1))
    model.apply_driver(stages=TWO, version="2.0.0")
    round_(model)
    model.play_stages()
    [given] = patches(round_(model), "n0")
    assert ASSIGNED in given

    model.apply_driver(stages=TWO, version="2.0.0", modules=[])

    assert patches(round_(model), "n0") == [], "the old driver was ready, not this one"
    speak(model, "n0")
    assert patches(round_(model), "n0") == [{CLOSED: None}]


def test_an_invalid_driver_says_what_it_said_of_its_stages_before_nodes_were_unreadable() -> None:
    model = up(with_stages(1))
    before = model.condition("StagesReady")
    model.apply_driver(stages=TWO, modules=[])
    unreadable = Problem(ProblemKind.UNREADABLE, "NodesUnreadable", "cannot watch nodes")
    model.carry_out(plan(with_problems(model.snapshot, ("edu", unreadable)), 0.0).actions)
    assert model.condition("StagesReady")["status"] == "Unknown"

    model.settle()

    after = model.condition("StagesReady")
    assert (after["status"], after["message"]) == (before["status"], before["message"])


def test_a_node_that_the_driver_leaves_ends_its_stages_first() -> None:
    model = up(_selected())
    model.relabel("n0", {"pool": "other"})

    assert patches(round_(model), "n0") == [{CLOSED: "closed", FIRST: None, SECOND: None}]
    assert patches(round_(model), "n0") == []
    model.play_stages()
    [gone] = patches(round_(model), "n0")
    assert gone == {ASSIGNED: None}
    for _ in range(4):
        round_(model)
        model.play_stages()
        if "n0" in model.unloads():
            model.end_unload("n0")
    assert not [key for key in model.nodes["n0"].labels if "nodeside" in key]
    assert pods(model) == {"plugin-n1", "monitor-n1"}


def _selected() -> Model:
    model = with_stages(2, hardware={"nodeSelector": {"pool": "edu"}})
    for name in ("n0", "n1"):
        model.relabel(name, {"pool": "edu"})
    return model


def test_stages_are_of_the_good_revision_until_a_new_one_is_good() -> None:
    model = up(with_stages(2))
    model.apply_driver(stages=TWO, version="2.0.0", image="registry.example.com/drivers/edu:2")

    for _ in range(2):
        round_(model)
        model.play_stages()
    assert _gate_image(model) == "registry.example.com/drivers/edu:1.0.0"

    up(model)
    assert _gate_image(model) == "registry.example.com/drivers/edu:2"


def _gate_image(model: Model) -> str:
    assert model.stages is not None
    found = model.stages.objects["DaemonSet", "plugin"].document
    return str(found["spec"]["template"]["spec"]["initContainers"][0]["image"])


# --- what is wrong, changes, or goes --------------------------------------------------------------


def test_a_template_that_cannot_be_rendered_changes_nothing_and_names_file_and_line() -> None:
    model = up(with_stages(1))
    before = objects(model)
    model.config_map("one", ds_yaml=daemonset("plugin") + "# {{ driver.nmae }}\n")

    actions = round_(model)

    assert [type(a) for a in actions] == [SetStatus, EmitEvent]
    assert objects(model) == before
    message = "stage first: ConfigMap one, ds.yaml, line 17: 'dict object' has no attribute 'nmae'"
    found = model.condition("StagesReady")
    assert (found["status"], found["reason"], found["message"]) == (
        "False",
        "StageInvalid",
        message,
    )
    assert model.condition("Degraded")["reason"] == "StageInvalid"
    assert (
        message.replace("first:", "first: Invalid:") in explain_driver(model.snapshot, "edu").blocks
    )


def test_the_manifest_that_the_documents_convert_is_one_object_for_each_pool() -> None:
    text = Path("docs/special-resource-operator.md").read_text()
    [converted] = re.findall(r"```yaml\n(\{% for.*?)```", text, re.DOTALL)
    model = with_stages(1)
    core = "Red Hat Enterprise Linux CoreOS 418.94.202501221327-0"
    model.add(["n1"], kernel="5.14.0-427.el9.x86_64", os_image=core)
    model.config_map("one", ds_yaml=converted)
    up(model)

    assert model.stages is not None
    images = [
        each.document["spec"]["template"]["spec"]["containers"][0]["image"]
        for (kind, name), each in model.stages.objects.items()
        if name.startswith("edu-exporter-")
    ]
    assert sorted(images) == [
        f"registry.example.com/exporter:rhel-{KERNEL}",
        "registry.example.com/exporter:rhel9.4-5.14.0-427.el9.x86_64",
    ]
    assert row(model, "first")["nodes"] == {"wanted": 2, "ready": 2}


def test_the_version_of_openshift_and_the_hardware_can_be_named() -> None:
    model = with_stages(1)
    assert model.stages is not None
    model.stages = replace(model.stages, cluster_version="4.18.3")
    text = "image: registry.example.com/{{ cluster.version }}/{{ driver.pci[0].vendor }}"
    model.config_map("one", ds_yaml=re.sub("image: .*", text, daemonset("plugin")))
    up(model)

    found = model.stages.objects["DaemonSet", "plugin"].document
    [container] = found["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.com/4.18.3/1234"


def test_while_a_template_is_being_rendered_its_stage_stays_as_it_is() -> None:
    model = up(with_stages(1))
    snapshot = model.snapshot
    assert snapshot.stages is not None

    made = plan(replace(snapshot, stages=replace(snapshot.stages, rendered={})), 0.0)

    assert [type(a) for a in made.actions] == [SetStatus]
    [status] = [a.status for a in made.actions if isinstance(a, SetStatus)]
    [first, _] = status["stages"]
    assert (first["state"], first["message"]) == (
        "Progressing",
        "its templates are being rendered",
    )
    assert {each.config_map for each in made.templates} == {"one", "two"}
    assert plan(snapshot, 0.0).templates == made.templates, "who asks for it keeps it"


def test_a_config_map_that_is_missing_is_named_and_waited_for() -> None:
    model = with_stages(1, [{"name": "first", "manifests": "absent"}])
    model.settle()

    message = row(model, "first")["message"]

    assert message == "there is no ConfigMap absent in namespace nodeside"
    model.config_map("absent", ds_yaml=daemonset("plugin"))
    up(model)
    assert row(model, "first")["state"] == "Ready"


def test_a_changed_config_map_is_applied_and_what_it_lacks_goes() -> None:
    model = up(with_stages(1))
    model.config_map("one", ds_yaml=daemonset("plugin").replace("plugin:1", "plugin:2"))
    assert applied(round_(model)) == ["apply DaemonSet plugin"]

    model.config_map("one", ds_yaml=daemonset("renamed"))
    assert applied(round_(model)) == ["apply DaemonSet renamed"]
    assert objects(model) == {"DaemonSet renamed", "DaemonSet monitor"}


def test_a_hand_edit_is_reverted_and_the_servers_own_words_are_not_one() -> None:
    model = up(with_stages(1))
    known = model.stages
    assert known is not None
    found = known.objects["DaemonSet", "plugin"]

    def edited(old: str, new: str) -> Stages:
        text = json.dumps(found.document)
        assert old in text
        document = json.loads(text.replace(old, new))
        edit = replace(found, document=document)
        return replace(known, objects={**known.objects, ("DaemonSet", "plugin"): edit})

    model.stages = edited('"cpu": 0.1, "memory": "1024Mi"', '"cpu": "100m", "memory": "1Gi"')
    assert model.plan().actions == ()
    model.stages = edited("plugin:1", "evil:1")
    assert applied(model.plan().actions) == ["apply DaemonSet plugin"]


def test_an_object_of_somebody_else_is_not_overwritten() -> None:
    model = with_stages(1)
    assert model.stages is not None
    theirs = StageObject("DaemonSet", "plugin")
    model.stages = replace(model.stages, objects={("DaemonSet", "plugin"): theirs})
    model.settle()
    speak(model, "n0")
    round_(model)

    assert row(model, "first")["message"] == (
        "ConfigMap one: DaemonSet plugin exists already and is in no stage; choose another name"
    )


def test_a_stage_that_leaves_the_spec_takes_its_objects_and_labels_along() -> None:
    model = up(with_stages(1))
    model.apply_driver(stages=TWO[1:])

    actions = round_(model)
    assert patches(actions, "n0") == [{FIRST: None}]
    assert objects(model) == {"DaemonSet monitor"}
    up(model)

    model.apply_driver()
    for _ in range(3):
        round_(model)
        model.play_stages()
    assert objects(model) == set()
    assert "stages" not in model.drivers["edu"].status
    assert not [key for key in model.nodes["n0"].labels if "stage" in key]
    conditions = [c["type"] for c in model.drivers["edu"].status["conditions"]]
    assert conditions == ["Ready", "Available", "Progressing", "Degraded"]


def test_a_node_that_was_down_when_the_stages_went_keeps_no_label_of_them() -> None:
    model = up(with_stages(2))
    model.change("n0", ready=False)
    model.apply_driver(stages=[])
    for _ in range(4):
        round_(model)
        model.play_stages()

    model.change("n0", ready=True)
    round_(model)

    assert not [key for key in model.nodes["n0"].labels if "stage" in key]


def test_a_node_that_rebooted_changes_without_the_end_of_stages_that_never_began() -> None:
    model = up(with_stages(2))
    model.apply_driver(stages=TWO, upgrade="onReboot", version="2.0.0")
    round_(model)
    before = model.nodes["n0"].labels[assigned_label("edu")]

    model.reboot("n0")
    round_(model)

    assert model.nodes["n0"].labels[assigned_label("edu")] != before


def test_a_driver_is_deleted_from_its_last_stage_to_the_first_and_then_itself() -> None:
    model = up(with_stages(1))
    model.drivers["edu"] = replace(model.drivers["edu"], deleting=True)
    order: list[str] = []
    for _ in range(12):
        actions = round_(model)
        order += [a.words for a in actions if isinstance(a, Delete)]
        if "n0" in model.unloads():
            model.end_unload("n0")
        if actions and isinstance(actions[0], Delete) and actions[0].name == "monitor":
            assert model.condition("Ready")["message"] == "stage second ends: pods on n0"
            assert [a.words for a in round_(model)] == [], "its pod is not gone"
        model.play_stages()
        if "edu" not in model.drivers:
            break

    assert order[:2] == ["delete DaemonSet monitor", "delete DaemonSet plugin"]
    assert order[2].startswith("delete DaemonSet edu-")
    assert not [key for key in model.nodes["n0"].labels if "nodeside" in key]


# --- what is not known ---------------------------------------------------------------------------


def test_while_stages_cannot_be_read_no_node_changes_and_nothing_goes() -> None:
    model = up(with_stages(1))
    known = model.stages
    model.stages = Stages(unknown="no permission to list deployments")
    model.apply_driver(stages=TWO, version="2.0.0")

    actions = round_(model)

    assert patches(actions, "n0") == []
    assert not [a for a in actions if isinstance(a, Delete)]
    assert model.condition("StagesReady")["reason"] == "StagesUnknown"
    model.stages = known
    assert patches(round_(model), "n0") == [_ENDS]


def test_a_driver_without_stages_says_nothing_of_them() -> None:
    model = Model()
    model.add(["n0"])
    model.apply_driver()
    model.settle_ready()

    status = model.drivers["edu"].status
    assert "stages" not in status
    assert model.snapshot.stages is None
    assert explain_node(model.snapshot, "edu", "n0").blocks == ()


def test_a_template_reads_objects_of_the_namespace() -> None:
    reads = [{"service": "collector"}, {"configMap": "site"}, {"secret": "token"}]
    model = with_stages(1, stages=[{"name": "first", "manifests": "one", "reads": reads}])
    text = (
        "image: registry.example.com/{{ reads.services['collector'].host }}/"
        "{{ reads.services['collector'].ports.web }}-{{ reads.configMaps['site']['name.txt'] }}-"
        "{{ reads.secrets['token'].value }}"
    )
    model.config_map("one", ds_yaml=re.sub("image: .*", text, daemonset("plugin")))

    def says(words: str) -> None:
        up(model)
        assert row(model, "first")["message"] == words

    says("there is no Service collector in nodeside")
    assert model.stages is not None
    address = ServiceAddress("10.0.0.1", 80, {"web": 8080})
    model.stages = replace(model.stages, services={"collector": address})
    says("there is no ConfigMap site in nodeside")
    model.config_map("site", name_txt="here")
    says("its Secrets are being read")
    model.stages = replace(model.stages, secrets={"token": SecretData(error="no right")})
    says("no right")
    model.stages = replace(model.stages, secrets={"token": SecretData({"value": "s3"})})
    up(model)
    found = model.stages.objects["DaemonSet", "plugin"].document
    [container] = found["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.com/collector.nodeside.svc/8080-here-s3"
    assert "s3" not in repr(model.plan().templates)
