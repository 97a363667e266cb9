"""What `spec.pods` asks for is in every pod, and in no revision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.driver.daemonset import daemonset_document
from cluster.driver.pod_policy import container_resources
from cluster.driver.revisions import revision_text
from cluster.kube.quantity import canonical_quantity
from cluster.model.actions import Apply
from cluster.model.parse import driver_from, node_from
from cluster.model.snapshot import Node, Settings, Taint
from cluster.options.build_once.job_manifest import (
    SharedBuild,
    build_job,
    job_spec,
    tolerations_for,
)
from cluster.options.devices.agent_manifests import device_agent
from cluster.options.stages.manifests import Frame, frame_documents
from cluster.options.unload.pod import unload_pod
from cluster.plan.planner import plan
from nodeside.device_agent.cli import device_agent as device_agent_command
from nodeside.spec import Driver
from nodeside.spec.pods import Pods, Resources
from tests.cluster.fakes.daemonsets import POLICY, POOL, wanted
from tests.cluster.fakes.model import Model, document

LABEL, NOTE = ("example.com/cost-centre", "4711"), ("example.com/owner", "storage, night shift")
STORE = {"sources": [{"oci": "registry.example.com/bundles/edu", "publish": True}]}
DEVICES = [{"resource": "example.com/edu", "discover": {"pci": [{"vendor": "1234"}]}}]
TOOLKIT = "registry.example.com/toolkit:1"
SETTINGS = Settings(scc="nodeside-driver", agent_image="registry.example.com/agent:1")


def driver(**spec: Any) -> Driver:
    found = driver_from(document(**spec))
    assert found.driver is not None, found.mistakes
    return found.driver


def every_pod() -> dict[str, dict[str, Any]]:
    """Each kind of pod that the controller makes, with its metadata, by what it is for."""
    want = wanted(SETTINGS, pods=POLICY, devices=DEVICES)
    node = Node("n1", kernel=POOL.kernel, boot_id="c0ffee")
    build = SharedBuild(want.driver, want.revision, TOOLKIT, "x86_64")
    return {
        "driver": daemonset_document(want)["spec"]["template"],
        "unload": unload_pod(want.owner, want.driver, want.revision, node, SETTINGS),
        "build": build_job(build, want.owner, SETTINGS)["spec"]["template"],
        "agent": device_agent(want.driver, SETTINGS)[1]["spec"]["template"],
    }


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


@pytest.mark.parametrize("kind", every_pod())
def test_every_pod_has_what_the_policy_asks_for_besides_its_own(kind: str) -> None:
    pod = every_pod()[kind]

    assert LABEL in pod["metadata"]["labels"].items()
    assert NOTE in pod["metadata"]["annotations"].items()
    assert pod["metadata"]["labels"]["nodeside.io/driver"] == "edu"
    assert "openshift.io/required-scc" in pod["metadata"]["annotations"]
    assert pod["spec"]["priorityClassName"] == "system-cluster-critical"
    assert {each["imagePullPolicy"] for each in containers(pod)} == {"Always"}


def test_what_makes_pods_has_the_labels_too() -> None:
    want = wanted(pods=POLICY, devices=DEVICES)
    build = SharedBuild(want.driver, want.revision, TOOLKIT, "x86_64")
    agent = device_agent(want.driver, SETTINGS)[1]
    for made in (daemonset_document(want), build_job(build, want.owner, SETTINGS), agent):
        assert LABEL in made["metadata"]["labels"].items()


def test_every_container_has_resources_of_its_own_kind() -> None:
    pods = every_pod()
    of_driver = {
        "requests": {"cpu": "250m", "memory": "1Gi", "ephemeral-storage": "2G"},
        "limits": {"cpu": "1", "memory": "2Gi"},
    }
    found = {
        (kind, each["name"]): each["resources"]
        for kind, pod in pods.items()
        for each in containers(pod)
    }

    for of in (
        ("driver", "driver"),
        ("driver", "provide"),
        ("unload", "driver"),
        ("build", "order"),
    ):
        assert found[of] == of_driver
    assert found["driver", "toolkit"] == {
        "requests": {"cpu": "10m", "memory": "32Mi"},
        "limits": {"memory": "8Gi", "ephemeral-storage": "17Gi", "cpu": "4"},
    }
    assert found["build", "answer"] == {
        "requests": {"cpu": "2", "memory": "256Mi", "ephemeral-storage": "1500"},
        "limits": {"memory": "8Gi"},
    }
    assert found["agent", "device-agent"] == {
        "requests": {"cpu": "5m", "memory": "32Mi"},  # the usual 40Mi are more than the limit
        "limits": {"memory": "32Mi", "cpu": "100m"},
    }


def test_the_container_that_waits_in_a_stage_has_those_of_the_driver_image() -> None:
    owner = driver_from(document(pods=POLICY))
    assert owner.driver is not None
    plain = driver()  # an earlier revision knows no policy
    workload = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "x"},
        "spec": {"template": {"spec": {"containers": [{"name": "x", "image": "x"}]}}},
    }
    frame = Frame(owner, plain, "x", "", Settings())
    [made], _ = frame_documents(frame, "x", [("x.yaml", workload)], frozenset())
    [gate] = made["spec"]["template"]["spec"]["initContainers"]

    assert gate["resources"]["limits"] == {"cpu": "1", "memory": "2Gi"}


def test_the_device_agent_finds_a_kubelet_with_another_root() -> None:
    root = "/var/snap/microk8s/common/var/lib/kubelet"
    declared = driver(devices=[DEVICES[0] | {"expose": "dra"}])
    usual, moved = (
        device_agent(declared, replace(SETTINGS, kubelet_root=each))[1]["spec"]["template"]["spec"]
        for each in ("/var/lib/kubelet", root)
    )
    places = {v["name"]: v["hostPath"]["path"] for v in moved["volumes"] if "hostPath" in v}
    [agent] = moved["containers"]
    mounts = {m["name"]: m["mountPath"] for m in agent["volumeMounts"]}
    given = {each["name"]: each.get("value") for each in agent["env"]}

    assert "microk8s" not in str(usual)
    assert "NODESIDE_POD_RESOURCES" not in str(usual)
    for name, below in (
        ("pod-resources", "pod-resources"),
        ("plugin", "plugins/edu.nodeside.io"),
        ("plugins-registry", "plugins_registry"),
    ):
        assert places[name] == mounts[name] == f"{root}/{below}"
    assert places["device-plugins"] == "/var/lib/kubelet/device-plugins", "kubelets never move it"
    assert given["NODESIDE_POD_RESOURCES"] == f"{root}/pod-resources/kubelet.sock"
    assert given["NODESIDE_PLUGINS_DIRECTORY"] == f"{root}/plugins"
    assert given["NODESIDE_PLUGINS_REGISTRY"] == f"{root}/plugins_registry"
    assert given.keys() - {"NODE_NAME", "NODESIDE_REVISION", "NODESIDE_TOKEN_DIR"} <= {
        parameter.envvar for parameter in device_agent_command.params
    }


def test_a_preflight_of_a_person_has_no_labels_and_no_priority_of_others() -> None:
    with_policy = driver(pods=POLICY)
    build = SharedBuild(with_policy, "0123456789ab", TOOLKIT, "x86_64")
    spec = job_spec(build, SETTINGS, with_policy.spec.pods)["template"]

    assert LABEL not in spec["metadata"]["labels"].items()
    assert "priorityClassName" not in spec["spec"]
    assert spec["spec"]["nodeSelector"]["example.com/pool"] == "builders"
    assert spec["spec"]["tolerations"] == [
        {"key": "example.com/pool", "operator": "Equal", "value": "builders"},
        {"operator": "Exists", "effect": "NoExecute"},
    ]


# --- taints --------------------------------------------------------------------------------------


def test_jobs_tolerate_the_taints_of_the_nodes_that_the_driver_selects() -> None:
    model = Model()
    model.add(["n1", "n2", "n3"])
    taints = (Taint("gpu", "only", "NoSchedule"), Taint("night", "", "NoExecute"))
    model.nodes["n1"] = replace(model.nodes["n1"], taints=taints)
    model.nodes["n2"] = replace(model.nodes["n2"], taints=taints[:1])
    model.apply_driver(prebuilt=STORE)

    actions = plan(model.snapshot, model.snapshot.now).actions
    applied = [each for each in actions if isinstance(each, Apply)]
    [made] = [each.document for each in applied if each.document["kind"] == "Job"]
    assert made["spec"]["template"]["spec"]["tolerations"] == [
        {"key": "gpu", "operator": "Equal", "value": "only", "effect": "NoSchedule"},
        {"key": "night", "operator": "Exists", "effect": "NoExecute"},
    ]


def test_what_the_driver_asks_to_tolerate_replaces_that_also_if_it_is_nothing() -> None:
    tainted = [Node("n1", taints=(Taint("gpu", "only", "NoSchedule"),))]
    for asked, made in (([], None), ([{"operator": "Exists"}], [{"operator": "Exists"}])):
        owner = driver_from(document(pods={"buildJobs": {"tolerations": asked}}))
        assert owner.driver is not None
        build = SharedBuild(owner.driver, "0123456789ab", TOOLKIT, "x86_64")
        spec = build_job(build, owner, SETTINGS, tolerations_for(tainted))["spec"]["template"][
            "spec"
        ]
        assert spec.get("tolerations") == made


def test_a_control_plane_builds_only_for_control_planes() -> None:
    plane = Taint("node-role.kubernetes.io/control-plane", "", "NoSchedule")
    gpu = Taint("gpu", "only", "NoSchedule")

    mixed = tolerations_for([Node("n1", taints=(gpu, plane)), Node("n2", taints=(gpu,))])
    master = Taint("node-role.kubernetes.io/master", "", "NoSchedule")
    alone = tolerations_for([Node("n1", taints=(gpu, plane)), Node("n2", taints=(plane,))])
    old_and_new = tolerations_for([Node("n1", taints=(master,)), Node("n2", taints=(plane,))])

    assert [each.key for each in mixed] == ["gpu"]
    assert [each.key for each in alone] == ["gpu", plane.key]
    assert [each.key for each in old_and_new] == [plane.key, master.key]


@pytest.mark.parametrize(
    "label", ["pod-template-hash", "app.kubernetes.io/name", "statefulset.kubernetes.io/pod-name"]
)
def test_a_label_that_would_hand_a_pod_to_another_owner_is_refused(label: str) -> None:
    found = driver_from(document(pods={"labels": {label: "nodeside-controller"}}))

    assert "nodeside or Kubernetes sets this label itself" in found.mistakes


def test_taints_that_come_and_go_with_the_state_of_a_node_are_not_tolerated() -> None:
    states = (
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/unschedulable",
        "node.cloudprovider.kubernetes.io/uninitialized",
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
        "node.cilium.io/agent-not-ready",
        "ebs.csi.aws.com/agent-not-ready",
        "example.com/startup-taint",
    )
    taints: list[Any] = [{"key": key, "effect": "NoSchedule"} for key in states]
    taints += [
        {"key": "UpdateInProgress", "effect": "PreferNoSchedule"},  # keeps nobody away
        {"key": "node-role.kubernetes.io/infra", "value": "x", "effect": "NoExecute"},
        {"key": "node-role.kubernetes.io/infra", "effect": "Unheard"},
        {"key": "team-startup/dedicated", "effect": "NoSchedule"},
    ]
    node = node_from({"metadata": {"name": "n1"}, "spec": {"taints": taints}})

    assert node.taints == (
        Taint("node-role.kubernetes.io/infra", "x", "NoExecute"),
        Taint("team-startup/dedicated", "", "NoSchedule"),
    )


# --- what a change of it does --------------------------------------------------------------------


def test_a_policy_makes_no_revision() -> None:
    assert revision_text(driver(pods=POLICY)) == revision_text(driver())


def test_a_change_of_policy_replaces_pods_and_changes_no_node() -> None:
    model = Model()
    model.add(["n1", "n2"])
    model.apply_driver()
    model.settle_ready()
    labels, before = {n.name: n.labels for n in model.nodes.values()}, dict(model.daemonsets)

    model.apply_driver(pods=POLICY)
    model.settle()

    assert {n.name: n.labels for n in model.nodes.values()} == labels
    assert model.daemonsets.keys() == before.keys()
    [after] = model.daemonsets.values()
    assert after.spec["template"]["spec"]["priorityClassName"] == "system-cluster-critical"
    assert model.condition("Ready")["status"] == "True"


def test_pods_of_the_last_good_revision_get_it_too() -> None:
    model = Model()
    model.add(["n1", "n2"])
    model.apply_driver()
    model.settle_ready()

    model.apply_driver(version="2.0.0", rollout={"paused": True}, pods=POLICY)
    model.settle()

    priorities = {
        each.spec["template"]["spec"]["priorityClassName"] for each in model.daemonsets.values()
    }
    assert priorities == {"system-cluster-critical"}


# --- quantities ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quantity", "written"),
    [
        ("1000m", "1"),
        ("0.5", "500m"),
        ("1.50", "1500m"),
        ("007", "7"),
        ("1024Mi", "1Gi"),
        ("1000Mi", "1000Mi"),
        ("1048576Mi", "1Ti"),
        ("1024Ti", "1Pi"),
        ("2000M", "2G"),
        ("2048", "2048"),
        ("1000000", "1M"),
        ("0Gi", "0"),
        ("0", "0"),
    ],
)
def test_a_quantity_is_written_as_the_api_server_writes_it(quantity: str, written: str) -> None:
    assert canonical_quantity(quantity) == written


def test_a_usual_request_is_not_above_a_limit_that_is_asked_for() -> None:
    asked = Resources(limits={"cpu": "5m"})
    assert container_resources(asked, {"cpu": "10m", "memory": "64Mi"}) == {
        "requests": {"cpu": "5m", "memory": "64Mi"},
        "limits": {"cpu": "5m"},
    }
    assert container_resources(Pods().resources.driver, {"cpu": "10m"}) == {
        "requests": {"cpu": "10m"}
    }
