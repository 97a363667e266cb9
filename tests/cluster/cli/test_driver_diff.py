"""`diff`: what an apply would do is what it then does, and it is said before."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from cluster.cli.driver_diff import (
    Admission,
    DriverDiff,
    FileDiff,
    Presence,
    RevisionKind,
    compare,
    rolled_out,
    wanted_of,
    with_wanted,
)
from cluster.cli.driver_diff_nodes import NodeGroup, Turn
from cluster.cli.driver_diff_text import diff_json, diff_text
from cluster.model.names import LEAVE_MODULES
from cluster.model.parse import driver_from
from cluster.model.snapshot import ImageStream, Occupancy, Settings
from cluster.model.stages import Stages
from nodeside.errors import ExitCode, SpecError
from nodeside.protocol.node_status import State
from tests.cluster.fakes.model import KERNEL, document
from tests.cluster.fakes.recording import Recording

NOW = 1_800_000_000.0
DEVICES = [{"resource": "example.com/edu", "discover": {"count": 2}}]
PUBLISHED = {"sources": [{"oci": "registry.example.com/bundles", "publish": True}]}


def ready(count: int = 4, **spec: Any) -> Recording:
    made = Recording()
    made.add(f"n{number}" for number in range(count))
    made.apply_driver(**spec)
    made.settle_ready()
    return made


def live_driver(made: Recording, name: str = "edu") -> dict[str, Any] | None:
    every = (each for each in made.documents() if each["kind"] == "Driver")
    return next((each for each in every if each["metadata"]["name"] == name), None)


def apply_of(
    made: Recording,
    name: str = "edu",
    *,
    annotations: dict[str, str] | None = None,
    others: dict[str, Any] | None = None,
    occupancy: Occupancy | None = None,
    admission: Admission | None = None,
    **spec: Any,
) -> DriverDiff:
    """What an apply of a Driver would do to a model. `others` is what others set in its spec."""
    file, live = document(name, **spec), live_driver(made, name)
    driver = driver_from(file).driver
    assert driver is not None
    stored = document(name, **{**spec, **(others or {})})
    if live is not None:
        stored["metadata"] = live["metadata"] | (
            {"annotations": annotations} if annotations else {}
        )
    wanted = wanted_of(driver, live, stored, NOW, admission or Admission())
    snapshot = replace(made.snapshot, now=NOW)
    if occupancy is not None:
        snapshot = replace(snapshot, occupancy=occupancy)
    if live is not None:  # as the model has it, with its deletion
        found = made.drivers[name]
        result = replace(wanted.result, status=found.status, deleting=found.deleting)
        wanted = replace(wanted, found=found, result=result)
    after = with_wanted(snapshot, [wanted])
    [made_diff] = compare(snapshot, after, rolled_out(after, [wanted]), [wanted])
    return made_diff


def group(diff: DriverDiff, turn: Turn) -> NodeGroup:
    [found] = [each for each in diff.nodes if each.turn is turn]
    return found


def code(diff: DriverDiff) -> int:
    return FileDiff((diff,)).exit_code


def text(diff: DriverDiff, monkeypatch: pytest.MonkeyPatch, columns: int = 80) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    return diff_text(FileDiff((diff,)))


def words(diff: DriverDiff) -> str:
    return " ".join(diff_text(FileDiff((diff,))).split())


# --- nodes and their order -----------------------------------------------------------------------


def steps_of_rollout(made: Recording, newest: str) -> list[set[str]]:
    """Which nodes the controller gives the newest revision at a time, until all have it."""
    steps: list[set[str]] = []
    for _ in range(20):
        before = {node for node in made.nodes if made.revision(node) == newest}
        made.carry_out(made.plan(NOW).actions)
        changed = {node for node in made.nodes if made.revision(node) == newest}
        steps.append(changed - before)
        for node in changed:
            made.report(node)
    return [each for each in steps if each]


def test_the_order_that_is_said_is_the_one_that_the_controller_then_takes() -> None:
    made = ready(6)
    made.report("n5", State.FAILED)
    spec: dict[str, Any] = {"version": "2.0.0", "rollout": {"maxUnavailable": 2, "canary": 1}}

    diff = apply_of(made, **spec)
    made.apply_driver(**spec)
    assert diff.revision is not None
    steps = steps_of_rollout(made, diff.revision.after)

    assert steps[0] == set(group(diff, Turn.CANARY).nodes) == {"n0"}
    said = [*group(diff, Turn.AFTER_CANARY).nodes, *group(diff, Turn.IN_TURN).nodes]
    assert said == ["n5", "n1", "n2", "n3", "n4"]
    done = 0
    for step in steps[1:]:
        assert step == set(said[done : done + len(step)])
        done += len(step)
    assert done == len(said)


def test_where_a_correction_goes_first_is_said_too() -> None:
    made = ready(4)
    made.apply_driver(version="2.0.0", rollout={"canary": 0, "maxUnavailable": 3})
    made.carry_out(made.plan(NOW).actions)
    made.report_all()
    made.report("n1", State.FAILED)
    made.carry_out(made.plan(NOW).actions)
    spec: dict[str, Any] = {"version": "3.0.0", "rollout": {"canary": 0, "maxUnavailable": 2}}

    diff = apply_of(made, **spec)
    made.apply_driver(**spec)
    assert diff.revision is not None
    steps = steps_of_rollout(made, diff.revision.after)

    said = list(group(diff, Turn.IN_TURN).nodes)
    assert said[0] == "n1"
    assert [sorted(said[: len(steps[0])])] == [sorted(steps[0])]


def test_a_new_driver_goes_to_every_node_as_the_controller_gives_it() -> None:
    made = Recording()
    made.add(["n0", "n1"])

    diff = apply_of(made)
    made.apply_driver()
    made.settle()

    assert (diff.presence, code(diff)) == (Presence.NEW, 1)
    said = {node for each in diff.nodes for node in each.nodes}
    assert said == set(made.nodes)
    assert {node for node in made.nodes if made.revision(node)} <= said
    assert diff.unloads == ()
    assert words(diff).startswith("edu: a new Driver, on 2 nodes")


def test_a_builds_job_comes_first_and_the_order_after_it_is_said_all_the_same() -> None:
    made = ready(prebuilt=PUBLISHED)
    made.end_build()
    made.settle_ready()

    diff = apply_of(made, version="2.0.0", prebuilt=PUBLISHED)

    [build] = diff.builds
    toolkit = f"registry.example.com/toolkits:{KERNEL}"
    assert (build.kernel, build.toolkit, build.how) == (KERNEL, toolkit, "one Job")
    made.apply_driver(version="2.0.0", prebuilt=PUBLISHED)
    made.settle()
    assert build.job in made.jobs
    assert group(diff, Turn.CANARY).nodes == ("n0",)
    assert group(diff, Turn.IN_TURN).nodes == ("n1", "n2", "n3")


def test_without_a_store_each_node_builds() -> None:
    [build] = apply_of(ready(), version="2.0.0").builds
    assert (build.job, build.how) == ("", "on each node that has no such build yet")


def test_a_build_that_is_only_tried_is_told_as_one() -> None:
    diff = apply_of(ready(), preflight=[{"kernel": "6.2.0-1-amd64"}])

    [build] = diff.builds
    assert (build.kernel, build.how) == ("6.2.0-1-amd64", "one Job, a test (spec.preflight)")
    assert diff.nodes == ()


def test_a_driver_with_a_module_of_an_older_one_gets_no_node_and_says_whose_they_are() -> None:
    waiting = group(apply_of(ready(), "two"), Turn.WAITS)

    assert waiting.nodes == ("n0", "n1", "n2", "n3")
    assert waiting.why.startswith("driver edu came first and has a module of the same name; ")


def test_nodes_change_as_they_reboot_if_the_driver_says_so() -> None:
    diff = apply_of(ready(), version="2.0.0", upgrade="onReboot")

    assert group(diff, Turn.AT_REBOOT).nodes == ("n0", "n1", "n2", "n3")
    assert diff.unloads == ("nothing: each node changes at its next reboot",)
    assert "a new revision, on 4 nodes as they reboot" in words(diff)


@pytest.mark.parametrize(
    ("rollout", "why"),
    [
        ({"paused": True}, "the rollout is paused"),
        ({"maxUnavailable": 0, "canary": 0}, "maxUnavailable is 0: "),
    ],
)
def test_what_keeps_nodes_as_they_are_is_said(rollout: dict[str, Any], why: str) -> None:
    diff = apply_of(ready(), version="2.0.0", rollout=rollout)

    waiting = group(diff, Turn.WAITS)
    assert len(waiting.nodes) == 4
    assert waiting.why.startswith(why)
    assert "a new revision, no node changes" in words(diff)
    assert diff.builds == ()


def test_a_node_that_is_down_or_without_a_toolkit_waits_and_says_what_to_do() -> None:
    streams = {"openshift/driver-toolkit": ImageStream("x", {"410.84": "old"})}
    made = Recording(image_streams=streams)
    made.add(["n0"])
    made.change("n0", os_image="Red Hat Enterprise Linux CoreOS 418.94.202501221327-0")

    waiting = group(apply_of(made, toolkit={}), Turn.WAITS)

    assert waiting.why.startswith("no toolkit image: ")
    down = ready()
    down.change("n2", ready=False)
    waiting = group(apply_of(down, version="2.0.0"), Turn.WAITS)
    assert (waiting.nodes, waiting.why) == (("n2",), "the node is not ready")


# --- the revision --------------------------------------------------------------------------------


def test_what_is_the_same_in_other_words_is_no_change() -> None:
    made = ready()
    defaults: dict[str, Any] = {
        "rollout": {"maxUnavailable": "1", "canary": 1, "paused": False, "maxFailed": "10%"},
        "upgrade": "live",
        "unload": {"policy": "whenIdle", "foreign": "replace"},
        "devices": [],
    }

    diff = apply_of(made, **defaults)

    assert (diff.presence, diff.fields, code(diff)) == (Presence.UNCHANGED, (), 0)
    assert words(diff) == "edu: nothing changes"


def test_the_fields_that_nodes_see_make_the_revision_and_the_others_do_not() -> None:
    made = ready()

    diff = apply_of(
        made, version="2.0.0", rollout={"maxUnavailable": 2}, unload={"policy": "never"}
    )

    assert diff.revision is not None
    assert diff.revision.kind is RevisionKind.NEW
    seen = {each.path: each.makes_revision for each in diff.fields}
    assert seen == {
        "spec.version": True,
        "spec.rollout.maxUnavailable": False,
        "spec.unload.policy": False,
    }
    assert "spec.rollout.maxUnavailable: 1 (default) -> 2 (how changes reach the nodes)" in words(
        diff
    )
    made.apply_driver(version="2.0.0", rollout={"maxUnavailable": 2}, unload={"policy": "never"})
    made.settle()
    assert made.drivers["edu"].status["revision"] == diff.revision.after


def test_a_change_that_no_node_sees_leaves_every_node_alone() -> None:
    diff = apply_of(ready(), rollout={"maxUnavailable": 2})

    assert (diff.presence, code(diff), diff.nodes) == (Presence.CHANGED, 1, ())
    assert words(diff).startswith("edu: no new revision, no node changes revision 1.0.0 (")


def test_an_earlier_revision_is_recognized() -> None:
    made = ready()
    made.apply_driver(version="2.0.0")
    made.settle()

    diff = apply_of(made, version="1.0.0")

    assert diff.revision is not None
    assert diff.revision.kind is RevisionKind.EARLIER
    assert words(diff).startswith("edu: an earlier revision again, ")


def test_a_rollout_that_is_under_way_is_no_change_but_is_said() -> None:
    made = ready()
    made.apply_driver(version="2.0.0")
    made.settle()

    diff = apply_of(made, version="2.0.0")

    assert code(diff) == 0
    assert words(diff) == (
        "edu: nothing changes under way 3 nodes yet: nodeside-cluster explain edu"
    )


def test_what_somebody_else_set_stays_and_is_said() -> None:
    made = ready(rollout={"paused": True})

    diff = apply_of(made, version="2.0.0", others={"rollout": {"paused": True}})

    [stays] = diff.stays
    assert (stays.path, stays.after) == ("spec.rollout.paused", True)
    assert "set by another hand: spec.rollout.paused: true" in words(diff)
    assert "before nodeside-cluster resume edu" in words(diff)


def test_a_driver_that_is_being_deleted_stays_so() -> None:
    made = ready()
    made.delete_driver()

    diff = apply_of(made, version="2.0.0")

    assert (diff.presence, diff.nodes, code(diff)) == (Presence.DELETING, (), 1)
    assert "is being deleted" in words(diff)
    assert "kubectl wait --for=delete driver/edu" in words(diff)


def test_a_driver_with_mistakes_is_mended_by_the_file() -> None:
    made = ready()
    made.apply_driver(modules=[{"name": "x", "parametres": {}}])

    diff = apply_of(made)

    assert (diff.presence, code(diff)) == (Presence.CHANGED, 1)
    assert "its document in the cluster has mistakes, which end: " in words(diff)


def test_what_becomes_wrong_by_what_the_cluster_has_is_an_error() -> None:
    driver = driver_from(document()).driver
    assert driver is not None
    stored = document(modules=[{"name": "x", "parametres": {}}])

    with pytest.raises(SpecError, match="with what the cluster has of it, driver edu has mistakes"):
        wanted_of(driver, document(), stored, NOW)


# --- what is unloaded, and what is there ---------------------------------------------------------


def test_nodes_that_the_driver_leaves_are_told_with_what_becomes_of_their_modules() -> None:
    made, hardware = ready(), {"pci": [{"vendor": "dead"}]}

    diff = apply_of(made, hardware=hardware)
    never = apply_of(made, hardware=hardware, unload={"policy": "never"})
    left = apply_of(made, hardware=hardware, annotations={LEAVE_MODULES: "true"})

    leaving = group(diff, Turn.LEAVES)
    assert (leaving.nodes, leaving.why) == (("n0", "n1", "n2", "n3"), "its modules are unloaded")
    assert diff.unloads == ("edu, for good, on the nodes that it leaves",)
    assert "unload.policy is never" in group(never, Turn.LEAVES).why
    assert f"annotation {LEAVE_MODULES}" in group(left, Turn.LEAVES).why
    assert never.unloads == left.unloads == ()
    assert words(diff).startswith("edu: no new revision, it leaves 4 nodes ")


def test_modules_that_are_replaced_and_those_that_go_are_told_apart() -> None:
    made = ready(modules=[{"name": "edu"}, {"name": "old"}])

    diff = apply_of(made, version="2.0.0", modules=[{"name": "edu"}, {"name": "new"}])

    assert diff.unloads == (
        "edu, and loaded again, on each node where it differs",
        "old, for good",
    )


@pytest.mark.parametrize(
    ("rollout", "said"),
    [
        ({}, "held by default/train-0 on n0"),
        ({"evict": {"resources": ["example.com/edu"]}}, "evicted first: default/train-0 on n0"),
    ],
)
def test_the_pods_that_hold_the_device_are_named_where_a_node_changes(
    rollout: dict[str, Any], said: str
) -> None:
    made = ready(devices=DEVICES, rollout=rollout)
    made.consume("n0")
    made.consume("n1", "default/other", resources=frozenset({"example.com/another"}))

    diff = apply_of(made, version="2.0.0", devices=DEVICES, rollout=rollout)

    assert group(diff, Turn.CANARY).pods == {"n0": ("default/train-0",)}
    assert group(diff, Turn.IN_TURN).pods == {}
    assert said in words(diff)


def test_pods_that_may_not_be_read_are_said_to_be_unknown() -> None:
    made = ready(devices=DEVICES)

    unseen = apply_of(
        made, version="2.0.0", devices=DEVICES, occupancy=Occupancy(trouble="no permission")
    )
    undeclared = apply_of(ready(), version="2.0.0")

    assert group(unseen, Turn.CANARY).pods is None
    assert "which pods hold the device is not known: no permission" in words(unseen)
    assert "neither devices nor rollout.evict say so" in words(undeclared)


def test_objects_of_stages_and_of_the_device_agent_are_told_by_stage() -> None:
    made = Recording(settings=Settings(agent_image="registry.example.com/agent:1"), stages=Stages())
    made.add(["n0"])
    made.apply_driver()
    made.settle_ready()

    diff = apply_of(made, devices=DEVICES)

    created = {(each.verb, each.kind) for each in diff.objects if each.stage == "devices"}
    assert ("create", "DaemonSet") in created
    assert "stage devices: create " in words(diff)
    assert ("create", "ConfigMap", "") in {(o.verb, o.kind, o.stage) for o in diff.objects}


def applied(made: Recording) -> dict[tuple[str, str], Any]:
    return {
        key: {**each, "metadata": {k: v for k, v in each["metadata"].items() if k != "uid"}}
        for key, each in made.applied.items()
    }


def test_the_objects_that_are_said_are_those_that_the_controller_then_writes() -> None:
    agent = Settings(agent_image="registry.example.com/agent:1")
    made = Recording(settings=agent, stages=Stages())
    made.add(["n0", "n1"])
    made.apply_driver(devices=DEVICES)
    for _ in range(6):
        made.carry_out(made.plan(NOW).actions)
        made.play_stages()
        made.report_all()
    before = applied(made)

    diff = apply_of(made, version="2.0.0", devices=DEVICES)
    made.apply_driver(version="2.0.0", devices=DEVICES)
    for _ in range(12):
        made.carry_out(made.plan(NOW).actions)
        made.play_stages()
        made.report_all()

    after = applied(made)
    said = {(each.kind, each.name): each.verb for each in diff.objects}
    written = {
        key: "change" if key in before else "create"
        for key, each in after.items()
        if before.get(key) != each
    }
    assert said == written
    assert {each.stage for each in diff.objects if each.verb == "change"} == {"devices"}


def test_what_the_controller_is_to_write_anyway_is_not_told_again() -> None:
    agent = Settings(agent_image="registry.example.com/agent:1")
    made = Recording(settings=agent, stages=Stages())
    made.add(["n0"])
    made.apply_driver()
    made.settle_ready()
    made.apply_driver(version="2.0.0", devices=DEVICES)  # and no plan is made yet

    first = apply_of(made, version="2.0.0", devices=DEVICES, rollout={"maxUnavailable": 2})

    assert first.objects == ()


# --- the output ----------------------------------------------------------------------------------


def test_many_nodes_are_folded_and_no_line_is_longer_than_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Recording()
    made.add([f"worker-{n}" for n in range(41)], kernel="5.14.0-427.13.1.el9_4.x86_64")
    made.apply_driver()
    made.settle_ready()

    said = text(apply_of(made, version="2.0.0"), monkeypatch)

    assert "worker-1, worker-10, worker-11 and 37 more" in " ".join(said.split())
    assert max(map(len, said.splitlines())) <= 80
    assert "\x1b" not in said


def test_a_refused_file_is_said_first_and_has_the_exit_code_of_the_refusal() -> None:
    admission = Admission(refused="denied by policy x")

    diff = apply_of(ready(), version="2.0.0", admission=admission)

    assert code(diff) == ExitCode.CLUSTER
    first, second, *_ = diff_text(FileDiff((diff,))).splitlines()
    assert first.startswith("edu: kubectl apply fails; without that: a new revision")
    assert second.split() == ["refused", "denied", "by", "policy", "x"]


def test_the_document_for_machines_has_every_node() -> None:
    diff = apply_of(ready(), version="2.0.0")

    said = json.loads(diff_json(FileDiff((diff,), ("ConfigMap a (f.yaml:9)",))))

    assert (said["changes"], said["notCompared"]) == (True, ["ConfigMap a (f.yaml:9)"])
    [driver] = said["drivers"]
    assert driver["revision"]["kind"] == "new"
    assert [(each["when"], each["nodes"]) for each in driver["nodes"]] == [
        ("canary", ["n0"]),
        ("in turn", ["n1", "n2", "n3"]),
    ]
    assert driver["fields"] == [
        {
            "path": "spec.version",
            "before": "1.0.0",
            "after": "2.0.0",
            "default": None,
            "makesRevision": True,
        }
    ]


def test_a_password_in_a_field_is_not_shown() -> None:
    diff = apply_of(ready(), annotations={"x": "https://user:secret@registry.example.com/x"})
    assert "registry.example.com/x" in words(diff)
    assert "secret" not in words(diff)
