"""The judge says what OpenShift's own API server said of the same pods, and can refuse every field.

AFTER_A_STAGE, RUNTIME and NO_RANGE are what an API server of OpenShift answered to such pods.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from cluster.driver.pod import TOOLKIT_USER
from tests.cluster.openshift import pods
from tests.cluster.openshift.admission import Document, Namespace, Refused, admit
from tests.cluster.openshift.cluster import RESTRICTED_V2, Openshift, openshift

AFTER_A_STAGE = (
    "unable to validate against any security context constraint: provider nodeside-device-agent: "
    '.spec.volumes[11]: Invalid value: "downwardAPI": '
    "downwardAPI volumes are not allowed to be used"
)
RUNTIME = """\
unable to validate against any security context constraint: [
provider restricted-v2: .spec.volumes[0]: Invalid value: "hostPath": \
hostPath volumes are not allowed to be used,
.initContainers[0].runAsUser: Invalid value: 65532: must be in the ranges: \
[1000607000, 1000616999],
seLinuxOptions.level: Invalid value: "": must be s0:c8,c9,
seLinuxOptions.type: Invalid value: "spc_t": must be ,
provider restricted-v3: .spec.hostUsers: Invalid value: null: Host Users must be set to false,
""".splitlines()  # what stood between them was not kept
NO_RANGE = (
    'error fetching namespace "nodeside": unable to find annotation openshift.io/sa.scc.uid-range'
)
LEVEL = {"level": "s0:c26,c8"}


def without_downward_api() -> Openshift:
    found = copy.deepcopy(openshift())
    for scc in found.constraints().values():
        scc["volumes"] = [each for each in scc["volumes"] if each != "downwardAPI"]
    return found


# --- what the server admitted --------------------------------------------------------------------


def test_the_controller_runs_with_the_user_of_its_namespace() -> None:
    by, pod = openshift().create(pods.controller())

    [container] = pod["containers"]
    assert by == "restricted-v2"
    assert container["securityContext"]["runAsUser"] == 1000670000
    assert pod["securityContext"]["fsGroup"] == 1000670000
    assert pod["securityContext"]["seLinuxOptions"] == LEVEL


def test_a_driver_pod_has_its_capabilities_and_its_type() -> None:
    made = dict(pods.of_a_driver())["driver"]

    by, pod = openshift().create(made)

    driver, toolkit = (each["securityContext"] for each in pod["containers"])
    assert by == "nodeside-driver"
    assert (driver["runAsUser"], len(driver["capabilities"]["add"])) == (0, 4)
    assert driver["seLinuxOptions"] == {"type": "spc_t", "level": "s0"}
    assert (toolkit["runAsUser"], toolkit["capabilities"]) == (TOOLKIT_USER, {"drop": ["ALL"]})


@pytest.mark.parametrize("what", ["build", "preflight"])
def test_a_build_runs_with_the_user_of_its_namespace(what: str) -> None:
    by, pod = openshift().create(dict(pods.of_a_driver())[what])

    each = [*pod["initContainers"], *pod["containers"]]
    assert by == "restricted-v2"
    assert {container["securityContext"]["runAsUser"] for container in each} == {1000670000}


def test_the_first_stage_may_be_the_device_agent() -> None:
    by, _ = openshift().create(pods.agent([pods.DEVICES["plain"]]))

    assert by == "nodeside-device-agent"


# --- what it refused -----------------------------------------------------------------------------


def test_without_downward_api_the_agent_after_a_stage_is_refused_as_it_was() -> None:
    with pytest.raises(Refused) as refused:
        without_downward_api().create(dict(pods.stack())["devices"])

    assert str(refused.value) == AFTER_A_STAGE
    without_downward_api().create(pods.agent([pods.DEVICES["labels"]]))  # before all others


def test_the_stage_runtime_of_the_example_is_refused_without_an_account_of_its_own() -> None:
    cluster = Openshift(openshift().installed, Namespace(1000607000, 10000, "s0:c8,c9"))

    with pytest.raises(Refused) as refused:
        cluster.create(dict(pods.stack())["runtime"])

    assert re.match(".*".join(map(re.escape, RUNTIME)), str(refused.value)), refused.value


def test_in_a_namespace_without_a_range_no_pod_is_admitted() -> None:
    with pytest.raises(Refused) as refused:
        Namespace.of({"metadata": {"name": "nodeside"}})

    assert str(refused.value) == NO_RANGE
    notes = {
        "openshift.io/sa.scc.uid-range": "1000670000/10000",
        "openshift.io/sa.scc.mcs": "s0:c26,c8",
    }
    given = Namespace.of({"metadata": {"name": "nodeside", "annotations": notes}})
    assert given == openshift().namespace


def test_constraints_that_an_account_may_not_use_do_not_admit_its_pod() -> None:
    made = dict(pods.of_a_driver())["driver"]
    made["spec"]["serviceAccountName"] = "somebody"

    words = 'provider "nodeside-driver": Forbidden: not usable by user or serviceaccount'
    with pytest.raises(Refused, match=re.escape(words)):
        openshift().create(made)


# --- every field, with constraints that allow nothing more than they must ------------------------

NARROW: Document = {
    **RESTRICTED_V2,
    "metadata": {"name": "narrow"},
    "readOnlyRootFilesystem": True,
    "allowedCapabilities": [],
    "supplementalGroups": {"type": "MustRunAs"},
    "volumes": ["configMap"],
}
POD: Any = {
    "volumes": [{"name": "a", "configMap": {"name": "a"}}],
    "containers": [{"name": "main"}],
}


def pod(**fields: Any) -> Document:
    return {**copy.deepcopy(POD), **fields}


def container(**fields: Any) -> Document:
    return pod(containers=[{"name": "main", "securityContext": fields}])


@pytest.mark.parametrize(
    ("asks", "words"),
    [
        (
            pod(volumes=[{"name": "a", "hostPath": {}}]),
            '.spec.volumes[0]: Invalid value: "hostPath"',
        ),
        (
            pod(volumes=[{"name": "a", "emptyDir": {}}]),
            '.spec.volumes[0]: Invalid value: "emptyDir"',
        ),
        (pod(hostNetwork=True), "Host network is not allowed to be used"),
        (pod(hostPID=True), "Host PID is not allowed to be used"),
        (pod(hostIPC=True), "Host IPC is not allowed to be used"),
        (pod(securityContext={"fsGroup": 5}), ".spec.securityContext.fsGroup: Invalid value: [5]"),
        (
            pod(securityContext={"supplementalGroups": [6]}),
            ".spec.securityContext.supplementalGroups: Invalid value: [6]",
        ),
        (
            pod(securityContext={"seLinuxOptions": {"level": "s0"}}),
            '.spec.securityContext.seLinuxOptions.level: Invalid value: "s0": must be s0:c26,c8',
        ),
        (
            pod(securityContext={"seccompProfile": {"type": "Unconfined"}}),
            "unconfined is not an allowed seccomp profile",
        ),
        (
            pod(containers=[{"name": "main", "ports": [{"containerPort": 1, "hostPort": 2}]}]),
            ".containers[0].hostPort: Invalid value: 2: Host ports are not allowed to be used",
        ),
        (
            container(runAsUser=0),
            ".containers[0].runAsUser: Invalid value: 0: must be in the ranges",
        ),
        (container(privileged=True), "Privileged containers are not allowed"),
        (
            container(allowPrivilegeEscalation=True),
            "Allowing privilege escalation for containers is not allowed",
        ),
        (
            container(capabilities={"add": ["SYS_MODULE"]}),
            '.containers[0].capabilities.add: Invalid value: "SYS_MODULE": capability may not be',
        ),
        (
            container(readOnlyRootFilesystem=False),
            ".containers[0].readOnlyRootFilesystem: Invalid value: false: ReadOnlyRootFilesystem",
        ),
        (
            container(seLinuxOptions={"type": "spc_t", "level": "s0:c26,c8"}),
            '.containers[0].seLinuxOptions.type: Invalid value: "spc_t": must be ',
        ),
        (
            container(seccompProfile={"type": "Localhost", "localhostProfile": "x.json"}),
            "localhost/x.json is not an allowed seccomp profile",
        ),
        (
            pod(initContainers=[{"name": "a", "securityContext": {"runAsUser": 1}}]),
            ".initContainers[0].runAsUser: Invalid value: 1",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_field_that_the_constraints_do_not_allow_is_named(asks: Document, words: str) -> None:
    namespace = openshift().namespace
    admit(POD, NARROW, namespace)

    with pytest.raises(Refused) as refused:
        admit(asks, NARROW, namespace)

    assert str(refused.value).startswith(("provider narrow: ", "[provider narrow: "))
    assert words in str(refused.value)


def test_what_a_pod_does_not_say_is_completed() -> None:
    made = admit(POD, NARROW, openshift().namespace)

    assert made["securityContext"] == {
        "fsGroup": 1000670000,
        "supplementalGroups": [1000670000],
        "seLinuxOptions": LEVEL,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert made["containers"][0]["securityContext"] == {
        "runAsUser": 1000670000,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
    }
