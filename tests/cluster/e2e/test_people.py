"""Who is no administrator: what the roles that are handed out allow, and what they do not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster.cli.trial_build import TrialBuild, trial_of
from cluster.install.manifests import InstallSettings, all_manifests
from cluster.kube.client import Api, connect
from cluster.kube.resources import resource_of
from cluster.model.names import CONTROLLER, DRIVER, EXPLAIN, NAMESPACE, PREFLIGHT
from cluster.model.snapshot import Settings
from nodeside.errors import ExitCode
from nodeside.protocol.build_job import BuildOutcome, BuildVerdict
from nodeside.spec.fleet import Preflight
from tests.cluster.e2e.builders import JOBS, Builders
from tests.cluster.e2e.controllers import Replicas
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.people import Person, come
from tests.cluster.e2e.scene import NEW, OLD, Scene
from tests.controlplane.api_server import MERGE_PATCH
from tests.controlplane.controlplane import ControlPlane

pytestmark = pytest.mark.cluster

TOOLKIT = f"quay.example.com/toolkit:{NEW[0]}"
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"


@pytest.fixture
def jane(scene: Scene) -> Iterator[Person]:
    person = come(scene.control_plane, "jane")
    yield person
    person.leave()


@pytest.fixture
def tester(jane: Person) -> Person:
    """With the roles for preflights and nothing else."""
    jane.bind(PREFLIGHT)
    jane.bind(PREFLIGHT, namespace=NAMESPACE)
    jane.until_allowed("create", "preflights.nodeside.io", NAMESPACE)
    jane.until_allowed("get", "drivers.nodeside.io")
    return jane


@pytest.fixture
def builders(control_plane: ControlPlane, scene: Scene) -> Iterator[Builders]:
    with Builders(control_plane) as builders:
        builders.outcome = lambda _: (ExitCode.OK, BuildOutcome(BuildVerdict.BUILT, NEW[0]))
        yield builders


def trial_job(scene: Scene) -> dict[str, Any]:
    """The Job that a preflight makes."""
    api: Api = connect(scene.control_plane.kubeconfig, "")
    build = trial_of(api, "edu", Preflight(toolkit=TOOLKIT), "x86_64")
    trial = TrialBuild(api, Settings(), build, print, print, 60.0)
    return trial._job_document("edu-preflight-0123abcd")


def test_who_has_the_roles_for_it_tries_a_build(
    scene: Scene, tester: Person, builders: Builders
) -> None:
    scene.node("n1")
    scene.toolkits(OLD, NEW)
    scene.driver()
    scene.change({"signing": {"key": "/signing/edu.key", "certificate": "/signing/edu.pem"}})

    for where in (("--os-version", NEW[1]), ("--toolkit", TOOLKIT)):
        asked = tester.cli("preflight", "edu", *where)
        assert asked.exit_code == ExitCode.OK, asked.errors
        assert "verdict  it builds" in asked.output
    assert builders.jobs() == []
    assert builders.built == [TOOLKIT, TOOLKIT]


Change = Callable[[dict[str, Any]], object]


def of_the_pod(**fields: Any) -> Change:
    return lambda job: job["spec"]["template"]["spec"].update(fields)


def of_a_container(**fields: Any) -> Change:
    return lambda job: job["spec"]["template"]["spec"]["initContainers"][0].update(fields)


def of_its_security(**fields: Any) -> Change:
    def change(job: dict[str, Any]) -> None:
        job["spec"]["template"]["spec"]["containers"][0]["securityContext"].update(fields)

    return change


def of_the_users(**fields: Any) -> Change:
    return lambda job: job["spec"]["template"]["spec"]["securityContext"].update(fields)


def of_its_notes(notes: dict[str, str]) -> Change:
    return lambda job: job["spec"]["template"]["metadata"]["annotations"].update(notes)


def of_the_labels(labels: dict[str, str]) -> Change:
    return lambda job: job["spec"]["template"]["metadata"]["labels"].update(labels)


def by_hand(job: dict[str, Any]) -> dict[str, Any]:
    labels = job["spec"]["template"]["metadata"]["labels"]
    return {"manualSelector": True, "selector": {"matchLabels": dict(labels)}}


def volume(source: dict[str, Any]) -> Change:
    return lambda job: job["spec"]["template"]["spec"]["volumes"].append({"name": "mine", **source})


NOTES = "no annotations but its own"
SECRET = {"secretKeyRef": {"name": "edu-signing", "key": "edu.key"}}
FORBIDDEN: list[tuple[Change, str]] = [
    (lambda job: job["metadata"].update(labels={"a": "b"}), "a Job of a preflight is labelled"),
    (
        lambda job: job["spec"]["template"]["metadata"]["labels"].update(
            {"app.kubernetes.io/name": CONTROLLER}
        ),
        "the pod of a preflight passes for no other pod",
    ),
    (of_the_labels({"app.kubernetes.io/managed-by": "nodeside"}), "labelled as its Job is"),
    (of_the_labels({"app.kubernetes.io/managed-by": "nodeside-build"}), "labelled as its Job is"),
    (of_the_labels({"nodeside.io/driver": "other"}), "labelled as its Job is"),
    (
        lambda job: job["metadata"].update(name="edu-build-0123456789ab"),
        "a Job of a preflight is called",
    ),
    (
        lambda job: job["metadata"].update(name="x-preflight-0123abcde"),
        "a Job of a preflight is called",
    ),
    (lambda job: job["spec"].update(by_hand(job)), "has its own pods, and selects no others"),
    (lambda job: job["metadata"].update(finalizers=["example.com/kept"]), "have no finalizers"),
    (
        lambda job: job["spec"]["template"]["metadata"].update(finalizers=["example.com/kept"]),
        "have no finalizers",
    ),
    (of_the_pod(serviceAccountName=DRIVER), "acts for no service account, and has no token"),
    (of_the_pod(automountServiceAccountToken=True), "acts for no service account"),
    (volume({"secret": {"secretName": "edu-signing"}}), "no Secret and nothing of the node"),
    (volume({"hostPath": {"path": "/"}}), "no Secret and nothing of the node"),
    (volume({"configMap": {"name": "rendered-from-a-secret"}}), "no other ConfigMap"),
    (volume({"configMap": {"name": "edu-preflight-0123abce"}}), "no other ConfigMap"),
    (volume({"emptyDir": {"medium": "Memory"}}), "its own ConfigMap and disk space"),
    (lambda job: job["spec"].update(parallelism=2, completions=2), "a preflight has one pod"),
    (lambda job: job["spec"].update(completions=100_000), "a preflight has one pod"),
    (of_the_pod(imagePullSecrets=[{"name": "signing"}]), "pull secrets of the installation"),
    (of_the_pod(imagePullSecrets=[{"name": "pull"}, {"name": "x"}]), "pull secrets of the"),
    (of_its_notes({"container.apparmor.security.beta.kubernetes.io/finish": "unconfined"}), NOTES),
    (of_its_notes({"k8s.v1.cni.cncf.io/networks": "storage"}), NOTES),
    (of_the_pod(hostNetwork=True), "shares nothing of the node: no hostNetwork"),
    (of_the_pod(hostPID=True), "shares nothing of the node: no hostPID"),
    (of_the_pod(hostIPC=True), "shares nothing of the node: no hostIPC"),
    (of_the_pod(nodeName="n1"), "a preflight has no nodeName"),
    (of_the_pod(priorityClassName="system-node-critical"), "has no priorityClassName"),
    (of_the_pod(securityContext={}), "a preflight runs as an ordinary user"),
    (of_the_users(runAsGroup=0), "in no group of root's"),
    (of_the_users(fsGroup=0), "in no group of root's"),
    (of_the_users(supplementalGroups=[1, 0]), "in no group of root's"),
    (of_the_users(appArmorProfile={"type": "Unconfined"}), "has the profiles of the runtime"),
    (of_the_users(seccompProfile={"type": "Unconfined"}), "has the profiles of the runtime"),
    (of_its_security(appArmorProfile={"type": "Unconfined"}), "gain no privilege"),
    (of_its_security(runAsGroup=0), "gain no privilege"),
    (of_its_security(runAsUser=0), "gain no privilege"),
    (of_a_container(resources={"limits": {"example.com/edu": "1"}}), "ask for cpu, memory and"),
    (of_a_container(resources={"limits": {"hugepages-2Mi": "2Mi", "cpu": "1"}}), "ask for cpu,"),
    (of_its_security(privileged=True, allowPrivilegeEscalation=True), "gain no privilege"),
    (of_its_security(runAsNonRoot=False), "gain no privilege"),
    (of_its_security(seccompProfile={"type": "Unconfined"}), "gain no privilege"),
    (of_its_security(capabilities={"add": ["SYS_MODULE"], "drop": ["ALL"]}), "drop all"),
    (of_a_container(env=[{"name": "KEY", "valueFrom": SECRET}]), "read no Secret into their"),
    (of_a_container(envFrom=[{"secretRef": {"name": "x"}}]), "read no Secret into their"),
    (of_a_container(ports=[{"containerPort": 1, "hostPort": 1}]), "no probes, hooks and ports"),
]


def test_a_job_that_is_no_preflight_is_refused(scene: Scene, tester: Person) -> None:
    scene.driver()
    whole = trial_job(scene)
    dry = f"{JOBS}?dryRun=All"
    policy = "nodeside-preflight-jobs"
    scene.control_plane.wait_for(  # it is heeded a moment after it was written
        lambda: policy in tester.ask("POST", dry, without(whole, FORBIDDEN[0][0])).message, policy
    )
    assert tester.ask("POST", dry, whole).status == 201

    for change, words in FORBIDDEN:
        answer = tester.ask("POST", dry, without(whole, change))
        assert answer.status == 403, (words, answer.message)
        assert words in answer.message


def without(job: dict[str, Any], change: Change) -> dict[str, Any]:
    changed = copy.deepcopy(job)
    change(changed)
    return changed


def test_a_preflight_pulls_with_the_pull_secrets_of_the_installation(
    scene: Scene, tester: Person
) -> None:
    """`install --pull-secret` writes their names into the policy."""
    scene.driver()
    plane, names = scene.control_plane, ("pull", "a", "b", "c")
    job = without(trial_job(scene), of_the_pod(imagePullSecrets=[{"name": n} for n in names]))
    [policy] = [
        document
        for document in all_manifests(InstallSettings(pull_secrets=names))
        if document["metadata"]["name"] == "nodeside-preflight-jobs"
        and document["kind"] == "ValidatingAdmissionPolicy"
    ]
    path = resource_of(policy).path("nodeside-preflight-jobs")
    before = plane.do("GET", path)["spec"]["variables"]
    try:
        change = {"spec": {"variables": policy["spec"]["variables"]}}
        plane.do("PATCH", path, change, content_type=MERGE_PATCH)
        plane.wait_for(
            lambda: tester.ask("POST", f"{JOBS}?dryRun=All", job).status == 201, "its Job to pass"
        )
        other = without(job, of_the_pod(imagePullSecrets=[{"name": "pull"}, {"name": "signing"}]))
        refused = tester.ask("POST", f"{JOBS}?dryRun=All", other)
    finally:
        plane.do("PATCH", path, {"spec": {"variables": before}}, content_type=MERGE_PATCH)

    assert "pull secrets of the installation only" in refused.message


def test_what_others_made_is_out_of_reach(scene: Scene, tester: Person) -> None:
    """Above all the controller's own builds, and the ConfigMaps that stages name."""
    scene.driver()
    build = without(trial_job(scene), lambda job: job["metadata"].update(NOT_OURS))
    scene.control_plane.do("POST", JOBS, build)
    path = f"{JOBS}/edu-build-0123456789ab"

    told = tester.ask("DELETE", path)
    assert (told.status, "may not touch other Jobs" in told.message) == (403, True)
    template = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "plugin"},
        "data": {"ds.yaml": "kind: DaemonSet"},
    }
    told = tester.ask("POST", CONFIG_MAPS, template)
    assert (told.status, "may make no other ConfigMaps" in told.message) == (403, True)
    for verb, what, *words in (
        *(("create", each, NAMESPACE) for each in ("pods", "secrets", "daemonsets.apps")),
        *(("get", each, NAMESPACE) for each in ("secrets", "configmaps", "jobs.batch")),
        *((verb, "drivers.nodeside.io") for verb in ("create", "patch", "delete", "list")),
        ("create", "jobs.batch", "default"),
        ("list", "nodes"),
        ("list", "pods", "default"),
    ):
        assert not tester.may(verb, what, *words), (verb, what, words)
    scene.control_plane.do("DELETE", path, {"propagationPolicy": "Background"})


NOT_OURS = {
    "name": "edu-build-0123456789ab",
    "labels": {"app.kubernetes.io/managed-by": "nodeside", "nodeside.io/driver": "edu"},
}


def test_others_make_jobs_and_configmaps_as_ever(scene: Scene) -> None:
    scene.driver()
    job = without(trial_job(scene), of_the_pod(hostNetwork=True))
    answer = scene.control_plane.request("POST", f"{JOBS}?dryRun=All", job)
    assert answer.status == 201, answer.message


def test_who_may_view_the_cluster_reads_the_status_and_with_one_role_more_why(
    scene: Scene, replicas: Replicas, fleet: Fleet, jane: Person
) -> None:
    scene.node("n1")
    scene.toolkits(OLD)
    scene.driver()
    replicas.start()
    scene.until_ready(1)

    refused = jane.cli("status")
    assert refused.exit_code == ExitCode.CLUSTER
    assert "error: no permission to list drivers" in refused.errors
    assert "kubectl auth can-i list drivers.nodeside.io; `status` needs the ClusterRole view" in (
        refused.errors
    )
    watched = jane.cli("status", "--watch")
    assert (watched.exit_code, watched.errors) == (refused.exit_code, refused.errors)

    jane.bind("view")
    jane.until_allowed("list", "drivers.nodeside.io")
    jane.until_allowed("get", "leases.coordination.k8s.io", NAMESPACE, CONTROLLER)
    status = jane.cli("status")
    assert (status.exit_code, status.errors) == (ExitCode.OK, "")
    assert status.output.startswith("driver edu is ready\n"), "whether a controller leads is known"
    listed = jane.cli("nodes", "edu")
    assert (listed.exit_code, listed.output.splitlines()[1].split()[:3]) == (
        ExitCode.OK,
        ["n1", "edu", "ready"],
    )
    assert f"to list nodes takes the ClusterRole {EXPLAIN}" in listed.errors

    for command in (("explain", "edu"), ("explain", "edu", "n1"), ("resolve", OLD[1])):
        refused = jane.cli(*command)
        assert refused.exit_code == ExitCode.CLUSTER
        assert f"`explain`, `diff` and `resolve` also {EXPLAIN}\n" in refused.errors

    jane.bind(EXPLAIN)
    jane.until_allowed("list", "nodes")
    assert jane.cli("nodes", "edu", "--state", "failed").output == (
        "no node of driver edu is failed\n"
    )
    explained = jane.cli("explain", "edu", "n1")
    assert (explained.exit_code, explained.errors) == (ExitCode.OK, "")
    assert "next    nothing: it is as it should be" in explained.output
    assert explained.output.startswith("driver edu on node n1"), "nothing is unknown"
    assert jane.cli("resolve", OLD[1]).exit_code == ExitCode.OK
    assert not jane.may("patch", "drivers.nodeside.io")
