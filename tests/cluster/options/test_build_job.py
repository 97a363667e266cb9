"""The Job that builds once: a golden file to read, and what must hold of it.

To write the golden files anew: NODESIDE_GOLDEN=write pytest tests/cluster, then read the diff.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from cluster.install.manifests import InstallSettings
from cluster.model.names import NAMESPACE, OURS, TRUSTED_CONTAINERS
from cluster.model.parse import driver_from, job_from
from cluster.model.parse_pods import build_pod_from
from cluster.model.snapshot import Settings
from cluster.options.build_once.job_manifest import SharedBuild, build_job, publish_target
from nodeside.driver.cli import driver as driver_verbs
from nodeside.driver.commands.options import first_existing_path
from nodeside.protocol.shared_directory import SharedDir
from nodeside.spec import Driver
from nodeside.toolkit_sidecar.cli import _make_parser as sidecar_parser
from tests import TOP
from tests import yaml_in_c as yaml
from tests.cluster.fakes.daemonsets import POLICY
from tests.cluster.fakes.model import document
from tests.controlplane.controlplane import ControlPlane
from tests.images.containerfile import settings as image_settings

GOLDEN = TOP / "tests" / "cluster" / "golden"
SIGNED = {"key": "/signing/edu.key", "certificate": "/signing/edu.pem"}
STORE = {"oci": "registry.example.com/bundles/edu", "publish": True}
FOUND = driver_from(document(signing=SIGNED, prebuilt={"sources": [STORE]}))
SETTINGS = {
    "build-job": Settings(pull_secrets=("registry",)),
    "build-job-openshift": Settings(
        scc="nodeside-driver", ca_config_map="trusted-ca", proxy={"HTTPS_PROXY": "http://p:3128"}
    ),
}


def edu() -> Driver:
    assert FOUND.driver is not None
    return FOUND.driver


def build(**fields: Any) -> SharedBuild:
    usual = SharedBuild(edu(), "0123456789ab", "quay.example.com/dtk:427", "x86_64")
    return replace(usual, **{"publish": publish_target(edu()), **fields})


def made(settings: str = "build-job", **fields: Any) -> dict[str, Any]:
    return build_job(build(**fields), FOUND, SETTINGS[settings])


def containers(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    pod = found["spec"]["template"]["spec"]
    yield from (*pod["initContainers"], *pod["containers"])


def by_name(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in containers(found) if each["name"] == name)


@pytest.mark.parametrize("case", SETTINGS)
def test_the_job_is_the_golden_one(case: str) -> None:
    path, text = GOLDEN / f"{case}.yaml", yaml.safe_dump(made(case), sort_keys=False, width=100)
    if os.environ.get("NODESIDE_GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("case", SETTINGS)
def test_no_container_has_a_privilege_a_host_path_or_a_token(case: str) -> None:
    pod = made(case)["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert not any("hostPath" in volume for volume in pod["volumes"])
    assert not any(pod.get(word) for word in ("hostNetwork", "hostPID", "hostIPC"))
    for container in containers(made(case)):
        security = container["securityContext"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert "add" not in security["capabilities"]


def test_on_openshift_the_namespace_gives_the_user_as_restricted_v2_asks() -> None:
    found = made("build-job-openshift")
    template = found["spec"]["template"]
    assert template["metadata"]["annotations"]["openshift.io/required-scc"] == "restricted-v2"
    for security in (template["spec"], *containers(found)):
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & security["securityContext"].keys()


def test_the_signing_key_is_mounted_for_the_last_step_alone() -> None:
    found = made()
    mounted = {c["name"]: {m["name"] for m in c["volumeMounts"]} for c in containers(found)}
    assert [name for name, mounts in mounted.items() if "signing" in mounts] == ["finish"]
    assert [name for name, mounts in mounted.items() if "certificate" in mounts] == ["order"]
    volumes = {v["name"]: v for v in found["spec"]["template"]["spec"]["volumes"]}
    assert volumes["certificate"]["secret"]["items"] == [{"key": "edu.pem", "path": "edu.pem"}]
    assert [name for name, mounts in mounted.items() if "publish" in mounts] == list(
        TRUSTED_CONTAINERS
    )


def test_vendor_code_can_write_what_the_protocol_says_is_the_sidecars_and_no_more() -> None:
    shared = SharedDir(Path("/build/shared"))
    for step in ("kernels", "answer"):
        container = by_name(made(), step)
        mounts = {m["mountPath"]: m for m in container["volumeMounts"]}
        writable = {path for path, mount in mounts.items() if not mount.get("readOnly")}
        assert writable == {str(shared.results), str(shared.out), "/tmp"}
        for path in (shared.results, shared.out, shared.root):
            inside = PurePosixPath(path).relative_to("/build")
            assert mounts[str(path)]["subPath"] == str(inside)
        assert "env" not in container


def test_every_step_is_a_command_that_there_is() -> None:
    found = made()
    names = [container["name"] for container in containers(found)]
    assert names == ["provide", "kernels", "order", "answer", "finish"]
    for step in ("provide", "order", "finish"):
        program, group, verb, *options = by_name(found, step)["command"]
        assert (program, group) == ("nodeside", "driver")
        driver_verbs.commands[verb].make_context(verb, [*options, "--shared", "/x"])
    for step in ("kernels", "answer"):
        command = by_name(found, step)["command"]
        words = command[command.index("/build/shared/toolkit.pyz") + 1 :]
        assert sidecar_parser().parse_args(words).shared == Path("/build/shared")


def test_the_kernel_is_named_or_its_variant_is() -> None:
    assert by_name(made(kernel="6.1.0", variant=None), "order")["command"][3:5] == [
        "--kernel",
        "6.1.0",
    ]
    assert by_name(made(variant="rt"), "order")["command"][3] == "--kernel-variant=rt"
    assert by_name(made(variant=""), "order")["command"][3] == "--kernel-variant="
    assert by_name(made(publish=""), "order")["command"][-1] == "--no-publish"
    assert by_name(made(), "order")["command"][-2:] == [
        "--to",
        "oci:registry.example.com/bundles/edu",
    ]


def test_a_name_stands_for_what_is_built_and_with_what() -> None:
    name = build().name
    assert build(revision="another").name == name
    assert len(build(driver=replace(edu(), name="e" * 40)).name) <= 63
    others = [
        build(toolkit="quay.example.com/dtk:503"),
        build(architecture="aarch64"),
        build(kernel="6.1.0"),
        build(variant="rt"),
        build(publish=""),
        build(driver=replace(edu(), spec=replace(edu().spec, version="2.0.0"))),
        build(driver=replace(edu(), spec=replace(edu().spec, signing=None))),
        build(driver=replace(edu(), spec=replace(edu().spec, image="other"))),
    ]
    assert len({name, *(other.name for other in others)}) == len(others) + 1


def test_what_another_try_would_not_change_is_not_tried_again() -> None:
    rules = made()["spec"]["podFailurePolicy"]["rules"]
    assert rules[0]["onPodConditions"] == [{"type": "DisruptionTarget"}]
    final = rules[1]["onExitCodes"]["values"]
    assert {10, 21, 22, 53, 77} <= set(final)
    assert not {31, 50, 51, 52} & set(final)


def test_its_pods_are_no_driver_pods() -> None:
    found = made()
    key, _, value = OURS.partition("=")
    assert found["metadata"]["labels"][key] == value
    assert found["spec"]["template"]["metadata"]["labels"][key] != value
    assert job_from(found).driver == "edu"


@pytest.mark.cluster
@pytest.mark.parametrize("case", [*SETTINGS, "policy"])
def test_an_api_server_takes_it(
    case: str, control_plane: ControlPlane, installed: InstallSettings
) -> None:
    path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs?dryRun=All&fieldValidation=Strict"
    with_policy = driver_from(document(pods=POLICY))
    found = build_job(build(), with_policy, Settings()) if case == "policy" else made(case)
    found["metadata"]["ownerReferences"][0]["uid"] = "9e3f3c4a-0000-4000-8000-000000000000"
    control_plane.do("POST", path, found)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("OOMKilled", "exit code 137: out of memory; raise build.memoryLimitMib"),
        ("Error", "exit code 137: killed; if for memory, raise build.memoryLimitMib"),
    ],
)
def test_a_step_that_needed_too_much_memory_says_what_to_raise(reason: str, words: str) -> None:
    end = {"reason": reason, "exitCode": 137}
    ended = {"name": "answer", "state": {"terminated": end}}
    pod = build_pod_from({"metadata": {}, "status": {"initContainerStatuses": [ended]}})

    assert pod.outcome is None
    assert words in pod.ended


def test_only_what_runs_in_the_toolkit_image_has_a_limit_of_memory() -> None:
    spec = made()["spec"]["template"]["spec"]
    limits = {
        each["name"]: each["resources"].get("limits")
        for each in (*spec["initContainers"], *spec["containers"])
    }
    assert limits == {
        "provide": None,
        "kernels": {"memory": "8Gi"},
        "order": None,
        "answer": {"memory": "8Gi"},
        "finish": None,
    }


def test_a_registry_without_passwords_needs_no_secret() -> None:
    """The volumes are optional. Of several files the node takes the first there is, or none."""
    for settings in SETTINGS:
        for step in TRUSTED_CONTAINERS:
            values = {e["name"]: e["value"] for e in by_name(made(settings), step)["env"]}
            assert first_existing_path(Path(values["NODESIDE_CREDENTIALS"])) is None


def test_nothing_that_the_image_says_of_a_driver_pod_holds_in_a_build() -> None:
    """The image names where a driver pod mounts the host. A build mounts none."""
    image = dict(
        each.split("=", 1) for each in image_settings(TOP / "images/driver.Containerfile")["Env"]
    )
    ours = {name for name in image if name.startswith("NODESIDE_")}
    assert image["NODESIDE_HOST"] == "/host"
    for step in TRUSTED_CONTAINERS:
        container = by_name(made(), step)
        values = {each["name"]: each["value"] for each in container["env"]}
        assert ours <= values.keys()
        assert values["NODESIDE_HOST"] == "/"
