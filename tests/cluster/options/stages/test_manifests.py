"""What a stage's ConfigMap gives: rendered, refused in words, marked as ours, and gated."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.kube.comparison import has_drifted
from cluster.model.names import CONTROLLER, DEVICE_AGENT
from cluster.model.parse import driver_from
from cluster.model.snapshot import Settings
from cluster.options.stages.job_runs import JobManifest
from cluster.options.stages.manifests import Frame, frame_documents
from cluster.render.templates import StageInvalid, render_to_documents
from tests import TOP
from tests.cluster.fakes.model import EDU, document
from tests.cluster.fakes.stagedriver import daemonset
from tests.cluster.fakes.stagejobs import job
from tests.console import nodeside
from tests.images import containerfile
from tests.tries import tries

VALUES: dict[str, Any] = {
    "driver": {"name": "edu", "version": "1.0.0", "image": EDU["image"]},
    "pools": [{"name": "a1", "kernel": "6.1.0"}, {"name": "b2", "kernel": "6.12.0"}],
}
PODLESS = "apiVersion: v1\nkind: {kind}\nmetadata: {{name: x}}\n"


SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
FIELDS = (
    *("affinity", "initContainers", "volumes", "imagePullSecrets", "nodeSelector", "metadata"),
    "tolerations",
)


def frame(after: str = "", **settings: Any) -> Frame:
    found = driver_from(document())
    assert found.driver is not None
    return Frame(found, found.driver, "second", after, Settings(**settings))


def made(text: str, *, after: str = "", absent: str = "", **settings: Any) -> Any:
    found = render_to_documents("one", {"ds.yaml": text}, VALUES)
    return frame_documents(
        frame(after, **settings), "one", found, frozenset(filter(None, (absent,)))
    )


def refused(text: str) -> str:
    with pytest.raises(StageInvalid) as caught:
        made(text)
    return str(caught.value).removeprefix("ConfigMap one, ds.yaml")


# --- what is added -------------------------------------------------------------------------------


def test_a_daemonset_is_gated_by_labels_and_by_the_ready_file_without_privilege() -> None:
    [found], _ = made(daemonset("plugin"), after="first", pull_secrets=("pull",))

    pod = found["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {
        "nodeside.io/edu.state": "ready",
        "stage.nodeside.io/edu.first": "ready",
    }
    away = {"key": "nodeside.io/edu.stages", "operator": "NotIn", "values": ["closed"]}
    assert pod["affinity"]["nodeAffinity"] == {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [away]}]
        }
    }
    assert pod["initContainers"] == [
        {
            "name": "nodeside-wait",
            "image": "registry.example.com/drivers/edu:1.0.0",
            "command": [
                *("nodeside", "driver", "wait", "edu"),
                *("--host-root", "/", "--timeout", "3600"),
            ],
            "securityContext": {
                "runAsUser": 65532,
                "runAsGroup": 65532,
                "runAsNonRoot": True,
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
                "seLinuxOptions": {"type": "spc_t"},
            },
            "resources": {"requests": {"cpu": "5m", "memory": "32Mi"}},
            "env": [{"name": "NODESIDE_ADMITTED", "value": "/etc/nodeside-admitted/boot"}],
            "volumeMounts": [
                {"name": "nodeside-run", "mountPath": "/run/nodeside", "readOnly": True},
                {
                    "name": "nodeside-admitted",
                    "mountPath": "/etc/nodeside-admitted",
                    "readOnly": True,
                },
            ],
        }
    ]
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    run, admitted = pod["volumes"]
    assert run["hostPath"]["path"] == "/run/nodeside"
    [item] = admitted["downwardAPI"]["items"]
    assert item["path"] == "boot"
    assert item["fieldRef"] == {"fieldPath": "metadata.annotations['nodeside.io/admitted-in-boot']"}


def test_the_first_stage_waits_for_the_driver_only() -> None:
    [found], _ = made(daemonset("plugin"))

    pod = found["spec"]["template"]["spec"]
    assert "env" not in pod["initContainers"][0]
    assert [volume["name"] for volume in pod["volumes"]] == ["nodeside-run"]


def test_the_gate_looks_where_its_volume_is_whatever_the_image_says_of_the_host() -> None:
    [found], _ = made(daemonset("plugin"))
    [gate] = found["spec"]["template"]["spec"]["initContainers"]
    image = containerfile.settings(TOP / "images" / "driver.Containerfile")
    env = dict(each.split("=", 1) for each in image["Env"])
    assert env["NODESIDE_HOST"] == "/host"

    program, *words = [word.replace("edu", "never-there") for word in gate["command"]]
    done = nodeside(*words, "--timeout", "0", env=env)

    assert program == image["Entrypoint"][0]
    ready = f"{gate['volumeMounts'][0]['mountPath']}/never-there/ready"
    assert f" {ready} does not exist" in done.errors


def test_a_job_is_gated_has_a_deadline_and_says_why_it_fails() -> None:
    [found], _ = made(job("selftest"), after="first")

    spec = found["spec"]
    pod = spec["template"]["spec"]
    assert pod["nodeSelector"]["stage.nodeside.io/edu.first"] == "ready"
    assert [each["name"] for each in pod["initContainers"]] == ["nodeside-wait"]
    assert spec["activeDeadlineSeconds"] == 3600
    assert pod["containers"][0]["terminationMessagePolicy"] == "FallbackToLogsOnError"
    own = job("selftest").replace("backoffLimit: 0", "activeDeadlineSeconds: 60")
    [found], _ = made(own)
    assert found["spec"]["activeDeadlineSeconds"] == 60


def test_the_hash_of_a_job_covers_only_what_its_author_wrote() -> None:
    [one], _ = made(job("selftest"))
    [other], _ = made(job("selftest"), after="first", pull_secrets=("pull",))
    [new], _ = made(job("selftest").replace("backoffLimit: 0", "backoffLimit: 1"))

    hashes = [each["metadata"]["annotations"]["nodeside.io/applied"] for each in (one, other, new)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_what_is_made_is_marked_as_the_drivers_and_not_as_other_objects_of_ours() -> None:
    [found], _ = made(daemonset("plugin"))

    marks = {
        "app.kubernetes.io/managed-by": "nodeside-stages",
        "nodeside.io/driver": "edu",
        "nodeside.io/stage": "second",
    }
    assert found["metadata"]["labels"] == marks
    assert found["spec"]["template"]["metadata"]["labels"] == {"app": "plugin", **marks}
    assert found["metadata"]["namespace"] == "nodeside"
    assert found["metadata"]["ownerReferences"][0]["kind"] == "Driver"
    assert "nodeside.io/applied" in found["metadata"]["annotations"]


def test_a_deployment_is_not_bound_to_nodes() -> None:
    [found], _ = made(daemonset("board").replace("DaemonSet", "Deployment"))

    assert {"nodeSelector", "affinity", "initContainers"}.isdisjoint(
        found["spec"]["template"]["spec"]
    )


def test_objects_come_in_the_order_in_which_they_need_each_other() -> None:
    text = f"{daemonset('plugin')}\n---\n{PODLESS.format(kind='ServiceAccount')}---\n"

    found, _ = made(text + PODLESS.format(kind="ConfigMap"))

    assert [each["kind"] for each in found] == ["ServiceAccount", "ConfigMap", "DaemonSet"]


def test_a_kind_that_the_cluster_does_not_have_is_left_out_and_said() -> None:
    text = "apiVersion: monitoring.coreos.com/v1\nkind: ServiceMonitor\nmetadata: {name: x}\n"

    assert made(text, absent="ServiceMonitor") == (
        (),
        ("ServiceMonitor x: this cluster has no such kind",),
    )
    assert len(made(text)[0]) == 1


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: x}\n",
            (
                "Role of rbac.authorization.k8s.io/v1 is not a kind that a stage may have "
                "(ServiceAccount, ConfigMap, Service, DaemonSet, Deployment, Job, ServiceMonitor, "
                "PodMonitor, PrometheusRule): apply it yourself, once, beside the Driver"
            ),
        ),
        ("apiVersion: v1\nkind: Service\nmetadata: {}\n", "metadata.name is missing"),
        (
            "apiVersion: v1\nkind: Service\nmetadata: {name: x, namespace: kube-system}\n",
            "Service x: a stage's objects are in namespace nodeside, not kube-system",
        ),
        (
            "apiVersion: v1\nkind: Service\nmetadata: {name: x, finalizers: [a]}\n",
            "Service x: metadata.finalizers is not allowed in a stage",
        ),
        ("apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: x}\n", "valid pod template"),
        (
            daemonset("x").replace(
                "containers:", f"serviceAccountName: {CONTROLLER}\n      containers:"
            ),
            "DaemonSet x: the service account nodeside-controller is nodeside's own",
        ),
        (
            daemonset("x").replace(
                "containers:", f"serviceAccountName: {DEVICE_AGENT}\n      containers:"
            ),
            "DaemonSet x: the service account nodeside-device-agent is nodeside's own",
        ),
        (
            daemonset("x").replace(
                "containers:",
                f'serviceAccountName: ""\n      serviceAccount: {CONTROLLER}\n      containers:',
            ),
            "DaemonSet x: the service account nodeside-controller is nodeside's own",
        ),
        (
            daemonset("x").replace(
                "containers:",
                "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {}}}\n"
                "      containers:",
            ),
            "DaemonSet x: select nodes by nodeSelector: nodeside sets the required nodeAffinity",
        ),
        (
            daemonset("x").replace("image: ", "image: https://"),
            "team/image:tag; write it without https:// or another scheme",
        ),
        (daemonset("x") + "---\n" + daemonset("x"), "DaemonSet x is defined twice"),
        (job("x", "often"), "Job x: annotation nodeside.io/run: expected once or perNode"),
        (job("x", "[]"), "expected once or perNode, found []"),
        *(
            (job("x").replace("backoffLimit: 0", field), f"Job x: spec.{words}")
            for field, words in (
                ("ttlSecondsAfterFinished: 9", "ttlSecondsAfterFinished is not allowed in a stage"),
                ("selector: {}", "selector is not allowed in a stage: the Job controller sets it"),
                ("manualSelector: true", "manualSelector is not allowed"),
                ("managedBy: x.org/y", "managedBy is not allowed"),
                ("suspend: true", "suspend is not allowed"),
                ("completions: 2", "completions: with nodeside.io/run: perNode, a node has one"),
                ("parallelism: 0", "parallelism: with nodeside.io/run: perNode, a node has one"),
            )
        ),
        (
            job("x").replace("restartPolicy", "nodeName: n0\n      restartPolicy"),
            "Job x: spec.template.spec.nodeName is not allowed in a stage: use nodeSelector",
        ),
        (
            job("x").replace(
                "restartPolicy", f"serviceAccountName: {CONTROLLER}\n      restartPolicy"
            ),
            "Job x: the service account nodeside-controller is nodeside's own",
        ),
        (
            job("x").replace(
                "restartPolicy",
                "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {}}}\n"
                "      restartPolicy",
            ),
            "Job x: select nodes by nodeSelector: nodeside sets the required nodeAffinity",
        ),
        ("a: [", "rendered line 2: did not find expected node content"),
        ("- a\n", "expected a mapping, got ['a']"),
        ("a: 2026-01-02\n", "write dates and the like in quotes"),
        ("a: {{ nothing }}\n", ", line 1: 'nothing' is undefined"),
        ("a: b\nc: {% if %}\n", ", line 2: "),
        ("a: b\nc: {{ 1 / 0 }}\n", ", line 2: division by zero"),
        ("a: {{ ''.__class__.__mro__ }}\n", ", line 1: access to attribute '__class__'"),
        ("a: {{ 'x' * 1000000000 }}\n", "the operator * takes numbers only"),
        ("{% for i in range(100) %}{% for j in range(1000) %}{% endfor %}{% endfor %}", "10000"),
        (
            "{% for i in range(9000) %}" + "x" * 99 + "{% endfor %}",
            "the rendered files of the stage have more than 512 KiB",
        ),
        (
            "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
            + "".join(
                f"{b}: &{b} [{','.join([f'*{a}'] * 10)}]\n" for a, b in ("ab", "bc", "cd", "de")
            ),
            "more than 20000 values",
        ),
    ],
)
def test_what_cannot_be_applied_is_refused_with_its_place(text: str, words: str) -> None:
    assert words in refused(text)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("kind: DaemonSet", "kind: [DaemonSet]", "['DaemonSet'] of apps/v1 is not a kind"),
        ("apiVersion: apps/v1", "apiVersion: {v: 1}", "is not a kind that a stage may have"),
        ("containers:", "initContainers: {a: b}\n      containers:", "valid pod template"),
        ("containers:", "imagePullSecrets: 5\n      containers:", "valid pod template"),
        ("containers:", "affinity: {nodeAffinity: 1}\n      containers:", "valid pod template"),
        ("containers:", "serviceAccountName: [a]\n      containers:", "Name: expected a string"),
        ("labels: {app: plugin}", "labels: [1]", "valid pod template"),
        ("name: main", "name: !!int 08x", "; write dates and the like in quotes"),
        ("name: main", "name: 2025-02-30", "; write dates and the like in quotes"),
        ("name: main", "name: !!bool x", "; write dates and the like in quotes"),
        ("name: main", "name: .nan", "; write dates and the like in quotes"),
        ("name: main", "name: " + "[" * 65 + "]" * 65, "line 14: nested deeper than 64 levels"),
        ("name: main", "name: &a {b: *a}", "nested deeper than 64 levels"),
    ],
)
def test_a_value_of_another_type_is_refused_and_is_no_error_of_ours(
    old: str, new: str, words: str
) -> None:
    assert old in daemonset("plugin")
    assert words in refused(daemonset("plugin").replace(old, new, 1))


def test_aliases_that_give_more_than_fits_into_memory_are_refused() -> None:
    long = "a: &a " + "x" * 100_000 + "\nb: [" + ", ".join(["*a"] * 200) + "]\n"

    assert refused(long) == "ConfigMap one: its documents have more than 768 KiB"


@given(st.data())
@settings(max_examples=tries(300))
def test_whatever_stands_in_a_manifest_it_is_taken_or_refused(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([daemonset("plugin"), job()]))
    [(_, whole)] = render_to_documents("one", {"ds.yaml": text}, VALUES)
    document_ = data.draw(mutated(whole))

    with suppress(StageInvalid):
        [found], _ = frame_documents(frame(), "one", [("ds.yaml", document_)], frozenset())
        has_drifted(found, whole)
        assert found["spec"]["template"]["spec"]["initContainers"][0]["name"] == "nodeside-wait"
        if found["kind"] == "Job":
            JobManifest("first", found).job_of_run("name", "mark", "n0")


@st.composite
def mutated(draw: st.DrawFn, whole: Any) -> Any:
    """The same with one value, however deep, as something else."""
    key = draw(st.sampled_from([*whole, "more"] if isinstance(whole, dict) else ["more"]))
    inner = whole.get(key) if isinstance(whole, dict) else None
    if isinstance(inner, dict) and draw(st.booleans()):
        return {**whole, key: draw(mutated(inner))}
    key = draw(st.sampled_from([*FIELDS, key]))
    return {**whole, key: draw(JSON)} if isinstance(whole, dict) else draw(JSON)


# --- templates -----------------------------------------------------------------------------------


def test_a_template_makes_an_object_for_each_pool() -> None:
    text = (
        "{% for pool in pools %}\n---\nkind: ConfigMap\nname: {{ driver.name }}-{{ pool.name }}\n"
        "kernel: {{ pool.kernel | tojson }}\n{% endfor %}"
    )

    found = [each for _, each in render_to_documents("one", {"a.yaml": text}, VALUES)]

    assert [(each["name"], each["kernel"]) for each in found] == [
        ("edu-a1", "6.1.0"),
        ("edu-b2", "6.12.0"),
    ]


def test_only_files_of_manifests_are_read() -> None:
    assert render_to_documents("one", {"README.md": "{{ nothing }}", "a.yaml": ""}, VALUES) == ()


# --- drift ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "found", "expected"),
    [
        ({"spec": {"a": 1}}, {"spec": {"a": 1, "defaulted": True}}, False),
        ({"spec": {"a": 1}}, {"spec": {"a": 2}}, True),
        ({"spec": {"cpu": 0.1}}, {"spec": {"cpu": "100m"}}, False),
        ({"spec": {"memory": "1024Mi"}}, {"spec": {"memory": "1Gi"}}, False),
        ({"spec": {"memory": "1G"}}, {"spec": {"memory": "1Gi"}}, True),
        ({"spec": {"args": [], "env": {}}}, {"spec": {}}, False),
        ({"spec": {"args": ["a"]}}, {"spec": {"args": ["a", "b"]}}, True),
        ({"spec": {"gone": "x"}}, {"spec": {}}, True),
        ({"metadata": {"a": 1}}, {}, False),
    ],
)
def test_a_difference_is_what_somebody_made_and_not_the_servers_spelling(
    wanted: Any, found: Any, expected: bool
) -> None:
    assert has_drifted(wanted, found) is expected
