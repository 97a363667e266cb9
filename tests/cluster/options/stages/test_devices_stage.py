"""The stage `devices`, which the controller makes itself for a Driver with `spec.devices`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.cache.stage_logs import logs_to_read
from cluster.cli.explain import explain_node
from cluster.cli.leader_status import LeaderStatus
from cluster.cli.status import overview
from cluster.model.names import closed_label, stage_label
from cluster.model.snapshot import Settings
from cluster.model.stages import StageObject
from cluster.options.devices.agent_manifests import COMMAND
from nodeside.protocol.node_status import State
from nodeside.spec import load
from tests.cluster.fakes.drains import DRAINING
from tests.cluster.fakes.model import Model
from tests.cluster.fakes.stagedriver import (
    CLOSED,
    FIRST,
    SECOND,
    TWO,
    objects,
    patches,
    pods,
    round_,
    row,
    speak,
    up,
    with_stages,
)

LEADS = LeaderStatus(True)
AGENT = "registry.example.com/nodeside-agent:1.0"
DEVICES = stage_label("edu", "devices")
DECLARED = [{"resource": "example.com/edu", "discover": {"pci": [{"vendor": "1234"}]}}]
MORE = [*DECLARED, {"resource": "example.com/unit", "discover": {"count": 4}}]
OURS = {"ConfigMap edu-devices", "DaemonSet edu-devices", "PodMonitor edu-devices"}


def with_devices(
    count: int = 1, stages: Any = (), settings: Settings | None = None, **spec: Any
) -> Model:
    """Nodes, and a Driver that declares devices; nothing is done yet."""
    model = with_stages(count, list(stages), **{"devices": DECLARED, **spec})
    model.settings = settings or Settings(agent_image=AGENT)
    return model


def found(model: Model, kind: str, name: str = "edu-devices") -> StageObject:
    assert model.stages is not None
    return model.stages.objects[kind, name]


def agent_pod(model: Model) -> dict[str, Any]:
    template: dict[str, Any] = found(model, "DaemonSet").document["spec"]["template"]
    return template


# --- its place -----------------------------------------------------------------------------------


def test_it_follows_the_driver_though_no_stage_is_listed() -> None:
    model = with_devices()
    model.settle()
    assert objects(model) == set(), "the driver works nowhere yet"

    up(model)

    assert objects(model) == OURS
    assert pods(model) == {"edu-devices-n0"}
    assert model.nodes["n0"].labels[DEVICES] == "ready"
    assert row(model, "devices") == {
        "name": "devices",
        "state": "Ready",
        "nodes": {"wanted": 1, "ready": 1},
        "message": "",
    }
    assert model.condition("StagesReady")["message"] == "1 stage is ready"


def test_its_metrics_are_scraped_where_there_is_a_prometheus_operator() -> None:
    model = up(with_devices())
    spec = found(model, "PodMonitor").document["spec"]
    labels = found(model, "DaemonSet").document["spec"]["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    [endpoint] = spec["podMetricsEndpoints"]
    [port] = agent_pod(model)["spec"]["containers"][0]["ports"]
    assert endpoint["port"] == port["name"]

    assert model.stages is not None
    model.stages = replace(model.stages, absent=frozenset(["PodMonitor"]))
    up(model)
    assert objects(model) == OURS - {"PodMonitor edu-devices"}
    assert row(model, "devices")["message"] == "", "who has no such kind need not know"


def test_it_is_the_first_stage_unless_it_is_listed() -> None:
    model = up(with_devices(stages=TWO))

    assert [each["name"] for each in model.drivers["edu"].status["stages"]] == [
        *("devices", "first", "second")
    ]
    first = found(model, "DaemonSet", "plugin").document["spec"]["template"]["spec"]
    assert first["nodeSelector"][DEVICES] == "ready"


def test_a_listed_entry_gives_it_its_place() -> None:
    model = up(with_devices(stages=[TWO[0], {"name": "devices"}, TWO[1]]))

    assert [each["name"] for each in model.drivers["edu"].status["stages"]] == [
        *("first", "devices", "second")
    ]
    assert agent_pod(model)["spec"]["nodeSelector"] == {
        "nodeside.io/edu.state": "ready",
        FIRST: "ready",
    }
    second = found(model, "DaemonSet", "monitor").document["spec"]["template"]["spec"]
    assert second["nodeSelector"][DEVICES] == "ready"


def test_it_is_ready_when_the_kubelet_knows_the_resources() -> None:
    model = with_devices(devices=MORE)
    model.registers = False
    up(model)
    assert row(model, "devices")["message"] == "n0: the kubelet offers no example.com/edu yet"
    assert DEVICES not in model.nodes["n0"].labels

    offered = {"example.com/edu": 0, "example.com/unit": 4}
    model.nodes["n0"] = replace(model.nodes["n0"], allocatable=offered)
    up(model)
    assert model.nodes["n0"].labels[DEVICES] == "ready", "a node may have none of the devices"


def test_the_status_counts_devices_and_names_the_nodes_where_some_do_not_work() -> None:
    model = up(with_devices(2))
    name = "example.com/edu"
    assert model.drivers["edu"].status["resources"] == [
        {"name": name, "devices": 2, "healthy": 2, "message": ""}
    ]

    model.nodes["n1"] = replace(model.nodes["n1"], capacity={name: 2}, allocatable={name: 1})
    up(model)
    words = "n1: not all devices work"
    assert model.drivers["edu"].status["resources"] == [
        {"name": name, "devices": 3, "healthy": 2, "message": words}
    ]
    shown = overview(model.drivers, LEADS, "edu").table()
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "RESOURCE DEVICES HEALTHY WHY" in lines
    assert f"{name} 3 2 {words}" in lines
    assert f"{name}: 1 of 2 devices work" in explain_node(model.snapshot, "edu", "n1").wanted


def test_it_does_not_wait_for_the_kubelet_to_count_what_claims_are_for() -> None:
    model = with_devices(devices=[DECLARED[0] | {"expose": "dra"}])
    model.registers = False
    up(model)
    assert model.nodes["n0"].labels[DEVICES] == "ready"
    assert model.drivers["edu"].status["resources"] == []


def test_a_listed_entry_may_wait_for_so_many() -> None:
    wait = {"resource": {"name": "example.com/edu", "atLeast": 2}}
    model = up(with_devices(stages=[{"name": "devices", "waitFor": wait}]))
    assert row(model, "devices")["message"] == (
        "n0: the kubelet offers 1 of example.com/edu, at least 2 are awaited"
    )


def test_a_listed_entry_may_wait_for_a_line_of_the_agent() -> None:
    model = with_devices(stages=[{"name": "devices", "waitFor": {"log": "registered"}}])
    model.settle()
    speak(model, "n0")
    round_(model)
    model.play_stages()
    round_(model)

    assert DEVICES not in model.nodes["n0"].labels
    [wanted] = logs_to_read(model.snapshot)
    assert (wanted.pod, wanted.pattern) == ("edu-devices-n0", "registered")


def test_a_driver_without_devices_has_no_such_stage() -> None:
    model = up(with_devices(devices=[], stages=TWO))

    assert not objects(model) & OURS
    assert [each["name"] for each in model.drivers["edu"].status["stages"]] == ["first", "second"]


def test_without_devices_its_objects_and_its_label_go() -> None:
    model = up(with_devices(stages=TWO))

    model.apply_driver(stages=TWO, rollout={"paused": True})
    up(model)

    assert objects(model) == {"DaemonSet plugin", "DaemonSet monitor"}
    assert DEVICES not in model.nodes["n0"].labels
    assert model.nodes["n0"].labels[SECOND] == "ready"


def test_it_ends_with_the_driver_after_the_stages_behind_it() -> None:
    model = up(with_devices(stages=TWO[:1]))
    model.delete_driver()

    ended: list[set[str]] = []
    for _ in range(6):
        model.settle_deleting()
        ended.append(objects(model))
        model.play_stages()

    assert ended[:2] == [OURS, set()]
    assert DEVICES not in model.nodes["n0"].labels


# --- its objects ---------------------------------------------------------------------------------


def test_its_objects_are_marked_and_gated_as_those_of_every_stage() -> None:
    model = up(with_devices(settings=Settings(agent_image=AGENT, pull_secrets=("pull",))))

    template = agent_pod(model)
    marks = {
        "app.kubernetes.io/managed-by": "nodeside-stages",
        "nodeside.io/driver": "edu",
        "nodeside.io/stage": "devices",
    }
    assert template["metadata"]["labels"] == marks
    selector = found(model, "DaemonSet").document["spec"]["selector"]["matchLabels"]
    assert selector.items() <= marks.items()
    pod = template["spec"]
    assert pod["nodeSelector"] == {"nodeside.io/edu.state": "ready"}
    away = {"key": closed_label("edu"), "operator": "NotIn", "values": ["closed"]}
    assert pod["affinity"]["nodeAffinity"] == {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [away]}]
        }
    }
    assert [each["name"] for each in pod["initContainers"]] == ["nodeside-wait"]
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert (found(model, "ConfigMap").driver, found(model, "ConfigMap").stage) == ("edu", "devices")


def test_the_agent_can_write_only_where_it_registers() -> None:
    pod = agent_pod(up(with_devices()))["spec"]
    [container] = pod["containers"]

    assert (container["image"], tuple(container["command"])) == (AGENT, COMMAND)
    assert pod["serviceAccountName"] == "nodeside-device-agent"
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
        "seLinuxOptions": {"type": "spc_t"},
    }
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    assert {at for at, each in mounts.items() if not each.get("readOnly")} == {
        "/var/lib/kubelet/device-plugins",
        "/var/lib/nodeside-devices",
        "/tmp",
    }
    assert host_paths(pod) == {
        "/host/sys": "/sys",
        "/host/dev": "/dev",
        "/host/run/nodeside": "/run/nodeside",
        "/var/lib/kubelet/device-plugins": "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet/pod-resources": "/var/lib/kubelet/pod-resources",
        "/var/lib/nodeside-devices": "/var/lib/nodeside-devices",
    }
    assert not any("projected" in each for each in pod["volumes"]), "it has no token"
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert environment.pop("NODESIDE_REVISION")
    assert environment == {
        "NODE_NAME": None,
        "NODESIDE_DRIVER": "/etc/nodeside/driver.yaml",
        "NODESIDE_HOST": "/host",
        "NODESIDE_LOG_FORMAT": "json",
        "NODESIDE_METRICS_PORT": "9402",
    }


@pytest.mark.parametrize(
    ("devices", "more"),
    [
        (
            [DECLARED[0] | {"expose": "dra"}],
            {
                "/var/lib/kubelet/plugins/edu.nodeside.io",
                "/var/lib/kubelet/plugins_registry",
                "/var/run/cdi",
            },
        ),
        (
            [DECLARED[0] | {"attributes": [{"name": "a", "path": "a", "label": True}]}],
            {"/etc/kubernetes/node-feature-discovery"},
        ),
    ],
    ids=["dra", "labels"],
)
def test_what_takes_the_api_server_has_a_token_of_the_pod_and_its_directories(
    devices: Any, more: set[str]
) -> None:
    bare = agent_pod(up(with_devices()))["spec"]
    pod = agent_pod(up(with_devices(devices=devices)))["spec"]
    [container], [without] = pod["containers"], bare["containers"]

    assert host_paths(pod) == host_paths(bare) | {path: path for path in more}
    assert pod["automountServiceAccountToken"] is False
    [token] = [each["projected"] for each in pod["volumes"] if "projected" in each]
    source = token["sources"][0]["serviceAccountToken"]
    assert source == {"path": "token", "expirationSeconds": 3607}
    at = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}["token"]
    assert {"name": "NODESIDE_TOKEN_DIR", "value": at} in container["env"]
    assert "token" not in {each["name"] for each in pod["initContainers"][0]["volumeMounts"]}
    assert container["securityContext"] == without["securityContext"]


def host_paths(pod: dict[str, Any]) -> dict[str, str]:
    """The directories of the host that the agent has, by where they are mounted."""
    volumes = {each["name"]: each.get("hostPath", {}).get("path") for each in pod["volumes"]}
    mounts = pod["containers"][0]["volumeMounts"]
    found = {each["mountPath"]: volumes[each["name"]] for each in mounts}
    return {at: path for at, path in found.items() if path}


def test_no_node_has_two_agents_of_a_driver_at_once() -> None:
    spec = found(up(with_devices()), "DaemonSet").document["spec"]

    assert spec["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": "10%", "maxSurge": 0},
    }


@pytest.mark.parametrize(
    ("scc", "required"),
    [("", ""), ("nodeside-driver", "nodeside-device-agent"), ("their-own", "their-own")],
)
def test_on_openshift_the_pod_names_what_admits_it(scc: str, required: str) -> None:
    model = up(with_devices(settings=Settings(agent_image=AGENT, scc=scc)))

    notes = agent_pod(model)["metadata"]["annotations"]
    assert notes.get("openshift.io/required-scc", "") == required


def test_the_agents_driver_yaml_can_be_read_and_declares_the_devices(tmp_path: Path) -> None:
    model = up(with_devices(stages=[{"name": "devices"}]))
    path = tmp_path / "driver.yaml"
    path.write_text(found(model, "ConfigMap").document["data"]["driver.yaml"])

    driver = load(path)

    assert driver.name == "edu"
    assert [device.resource for device in driver.spec.devices] == ["example.com/edu"]


def test_a_change_of_the_devices_replaces_the_agents_pods() -> None:
    model = up(with_devices())
    before = agent_pod(model)["spec"]
    model.apply_driver(devices=MORE)
    up(model)

    after = agent_pod(model)["spec"]

    assert '"example.com/unit"' in found(model, "ConfigMap").document["data"]["driver.yaml"]
    assert after["containers"][0].pop("env") != before["containers"][0].pop("env")
    assert after == before


def test_a_change_of_the_rollout_replaces_no_pod() -> None:
    model = up(with_devices())
    before = agent_pod(model)
    model.apply_driver(devices=DECLARED, rollout={"canary": 2})
    up(model)

    assert agent_pod(model) == before


def test_while_a_version_rolls_out_the_agents_keep_the_devices_of_the_good_one() -> None:
    model = up(with_devices(2))
    model.apply_driver(devices=MORE, version="2.0.0")
    round_(model)

    assert "example.com/unit" not in found(model, "ConfigMap").document["data"]["driver.yaml"]


def test_devices_of_a_version_that_is_the_first_to_declare_some_are_offered_at_once() -> None:
    model = up(with_devices(2, devices=[]))
    model.apply_driver(devices=DECLARED, rollout={"paused": True})
    up(model)

    assert "example.com/edu" in found(model, "ConfigMap").document["data"]["driver.yaml"]


def test_an_edit_of_its_objects_is_undone() -> None:
    model = up(with_devices())
    assert model.stages is not None
    theirs = replace(found(model, "ConfigMap"), document={"data": {"driver.yaml": "{}"}})
    changed = {**model.stages.objects, ("ConfigMap", "edu-devices"): theirs}
    model.stages = replace(model.stages, objects=changed)

    up(model)

    assert "example.com/edu" in found(model, "ConfigMap").document["data"]["driver.yaml"]


# --- before the driver changes -------------------------------------------------------------------


def test_the_agent_leaves_a_node_before_its_driver_changes() -> None:
    model = up(with_devices())
    model.apply_driver(devices=DECLARED, version="2.0.0")

    [changed] = patches(round_(model), "n0")
    assert changed[CLOSED] == "closed"
    assert changed[DEVICES] is None
    assert DRAINING in changed
    model.play_stages()
    assert pods(model) == set()

    up(model)
    assert model.nodes["n0"].labels[DEVICES] == "ready"
    assert CLOSED not in model.nodes["n0"].labels


def test_feature_labels_stay_while_the_driver_changes() -> None:
    feature = "feature.nodeside.io/edu.version"
    model = up(with_devices())
    model.relabel("n0", {feature: "1.0.0"})
    model.apply_driver(devices=DECLARED, version="2.0.0")
    up(model)
    assert model.nodes["n0"].labels[feature] == "1.0.0"


def test_where_the_driver_fails_the_agent_ends() -> None:
    model = up(with_devices())
    speak(model, "n0", State.FAILED)

    assert patches(round_(model), "n0") == [{DEVICES: None}]


# --- what is wrong -------------------------------------------------------------------------------


def test_without_an_image_of_the_agent_the_stage_says_what_to_do() -> None:
    model = up(with_devices(settings=Settings()))

    assert objects(model) == set()
    assert row(model, "devices")["state"] == "Invalid"
    words = (
        "the controller knows no image of the device agent: give it --agent-image IMAGE "
        "(nodeside-cluster install --agent-image IMAGE)"
    )
    assert row(model, "devices")["message"] == words
    assert model.condition("Degraded")["reason"] == "StageInvalid"
    ready = model.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("True", "StageInvalid")
    assert explain_node(model.snapshot, "edu", "n0").blocks == (f"stage devices: {words}",)


def test_a_controller_that_has_lost_the_image_ends_nothing() -> None:
    model = up(with_devices(stages=TWO))
    model.settings = Settings()
    up(model)

    assert objects(model) == {*OURS, "DaemonSet plugin", "DaemonSet monitor"}
    assert model.nodes["n0"].labels[SECOND] == "ready"


def test_an_object_that_somebody_else_has_under_its_name_is_not_overwritten() -> None:
    model = with_devices()
    assert model.stages is not None
    theirs = StageObject("ConfigMap", "edu-devices")
    model.stages = replace(model.stages, objects={("ConfigMap", "edu-devices"): theirs})
    up(model)

    assert row(model, "devices")["message"] == (
        "ConfigMap edu-devices exists already and is in no stage; rename that one"
    )
    assert found(model, "ConfigMap") == theirs
