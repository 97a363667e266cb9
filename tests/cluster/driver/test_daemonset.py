"""The pod of a driver: golden files to read, and what must hold of them.

To write the golden files anew after a change: NODESIDE_GOLDEN=write pytest tests/cluster, then read
the difference.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from cluster.driver.daemonset import daemonset_document, object_to_overwrite
from cluster.driver.pod import (
    DRIVER_FILE,
    SHARED,
    SIDECAR_COMMAND,
    TOKEN_DIRECTORY,
    TOOLKIT_USER,
    DaemonSetInput,
    pod_spec,
    signing_secret,
)
from cluster.driver.revisions import (
    config_map,
    policy_config_map,
    read_revision,
    revision_of,
    revision_text,
)
from cluster.model.parse import daemonset_from, revision_from
from cluster.model.snapshot import Node, RevisionObject
from cluster.options.unload.pod import unload_pod
from nodeside.driver import cli
from nodeside.driver.handoff.provide import sidecar_command as provided_command
from nodeside.driver.ladder.task import Config, read_driver
from nodeside.kube.client import PodAccess
from nodeside.protocol.labels import assigned_label
from nodeside.spec import Driver
from nodeside.spec.document import parse
from nodeside.system.host import Host
from nodeside.trial.machine import containers
from tests import TOP
from tests import yaml_in_c as yaml
from tests.cluster.fakes.daemonsets import CASES, COREOS, OPENSHIFT, POOL, wanted
from tests.cluster.fakes.model import EDU, document

GOLDEN = TOP / "tests" / "cluster" / "golden"


@pytest.mark.parametrize("case", CASES)
def test_the_daemonset_is_the_golden_one(case: str) -> None:
    text = yaml.safe_dump(daemonset_document(CASES[case]), sort_keys=False, width=100)
    path = GOLDEN / f"{case}.yaml"
    if os.environ.get("NODESIDE_GOLDEN") == "write":
        path.write_text(text)

    assert text == path.read_text()


def test_the_pod_that_unloads_is_the_golden_one() -> None:
    want = CASES["signing"]
    node = Node("n1", kernel=POOL.kernel, boot_id="c0ffee")
    made = unload_pod(want.owner, want.driver, want.revision, node, OPENSHIFT)
    text = yaml.safe_dump(made, sort_keys=False, width=100)
    path = GOLDEN / "unload.yaml"
    if os.environ.get("NODESIDE_GOLDEN") == "write":
        path.write_text(text)

    assert text == path.read_text()


def test_the_pod_that_unloads_is_a_driver_pod_without_what_it_can_spare() -> None:
    """Never privileged; neither key nor credentials; no kernel to be refused; nothing shared."""
    for case in ("privileged", "signing", "proxy"):
        want = CASES[case]
        node = Node("n1", kernel=POOL.kernel, boot_id="c0ffee")
        made = unload_pod(want.owner, want.driver, want.revision, node, want.settings)
        (container,) = made["spec"]["containers"]
        assert "privileged" not in container["securityContext"]
        assert "nodeSelector" not in made["spec"]
        assert "initContainers" not in made["spec"]
        volumes = {volume["name"] for volume in made["spec"]["volumes"]}
        assert volumes == {mount["name"] for mount in container["volumeMounts"]}
        assert volumes.isdisjoint({"shared", "signing", "credentials", "ca"})
        assert volumes >= {"driver-yaml", "token", "tmp", "host-run-nodeside"}


def test_what_unloads_has_the_kernels_own_modules_if_it_is_to_bring_them_back() -> None:
    def mounts(**restore: str) -> set[str]:
        want, node = CASES["kubernetes"], Node("n1", kernel=POOL.kernel, boot_id="c0ffee")
        driver = parse(document(conflicts={"modules": ["edu_old"], **restore}))
        made = unload_pod(want.owner, driver, want.revision, node, want.settings)
        (container,) = made["spec"]["containers"]
        found = {v["name"]: v["hostPath"] for v in made["spec"]["volumes"] if "hostPath" in v}
        return {
            found[mount["name"]]["path"]
            for mount in container["volumeMounts"]
            if mount["name"] in found and mount.get("readOnly")
        }

    assert mounts() == {"/lib/modules"}
    assert mounts(restore="never") == set()


def test_the_config_map_is_the_golden_one() -> None:
    want = wanted(rollout={"paused": True})
    text = revision_text(want.driver)
    made = config_map(want.owner, want.revision, text, want.settings)
    path = GOLDEN / "revision.yaml"
    if os.environ.get("NODESIDE_GOLDEN") == "write":
        path.write_text(yaml.safe_dump(made, sort_keys=False, width=100))

    assert made == yaml.safe_load(path.read_text())
    assert "rollout" not in text
    assert "hardware" not in text
    assert "toolkit" not in text


# --- the other half reads what this half writes -------------------------------------------------


def environment(container: dict[str, Any]) -> set[str]:
    return {entry["name"] for entry in container["env"]}


def by_name(spec: dict[str, Any], container: str) -> dict[str, Any]:
    every = [*spec.get("initContainers", []), *spec["containers"]]
    return next(each for each in every if each["name"] == container)


def golden(case: str) -> dict[str, Any]:
    parsed = yaml.safe_load((GOLDEN / f"{case}.yaml").read_text())
    spec: dict[str, Any] = parsed["spec"]["template"]["spec"]
    return spec


def variables(verb: click.Command) -> set[str]:
    """The environment variables of the options of a verb."""
    names: set[str] = set()
    for parameter in verb.params:
        found = parameter.envvar
        names |= {found} if isinstance(found, str) else set(found or ())
    return names


def test_every_variable_of_the_driver_container_is_one_that_run_reads() -> None:
    read_elsewhere = {"NODESIDE_TOKEN_DIR"}  # kubernetes.py
    given = environment(by_name(golden("proxy"), "driver"))
    of_requests = {"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"}

    assert given - of_requests - read_elsewhere <= variables(cli.driver.commands["run"])


def test_every_variable_that_run_needs_in_a_pod_is_given() -> None:
    not_for_a_pod = {"NODESIDE_CACHE", "NODESIDE_SIDECAR_TIMEOUT", "NODESIDE_SYMBOLS_OF"}
    given = environment(by_name(golden("proxy"), "driver"))

    assert variables(cli.driver.commands["run"]) - not_for_a_pod <= given


def test_the_init_container_gives_provide_what_it_needs() -> None:
    container = by_name(golden("kubernetes"), "provide")

    assert environment(container) == variables(cli.driver.commands["provide"])
    assert container["command"] == ["nodeside", "driver", "provide"]


def test_the_sidecar_is_started_the_way_it_was_provided() -> None:
    provided = provided_command(Path(SHARED))

    assert (*provided, "--log-format", "json") == SIDECAR_COMMAND


def test_the_token_is_where_the_driver_looks_for_it() -> None:
    driver = by_name(golden("kubernetes"), "driver")
    environ = {entry["name"]: entry.get("value", "") for entry in driver["env"]}

    access = PodAccess.from_environment(environ | {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})

    assert access is not None
    assert access.directory == Path(TOKEN_DIRECTORY)
    assert TOKEN_DIRECTORY in {mount["mountPath"] for mount in driver["volumeMounts"]}


def test_the_pod_has_the_directories_of_the_host_that_the_trial_plays() -> None:
    """What `nodeside try` proves must be what runs in a cluster."""
    played = {target for _, target, _ in containers.DRIVER.binds if target.startswith("/host")}
    driver = by_name(golden("kubernetes"), "driver")
    mounted = {
        mount["mountPath"] for mount in driver["volumeMounts"] if "/host" in mount["mountPath"]
    }

    assert mounted == played
    assert TOOLKIT_USER == containers.TOOLKIT_UID


def test_a_node_reads_the_revision_as_the_driver_that_was_applied(tmp_path: Path) -> None:
    spec = {**EDU, "signing": {"key": "/signing/k", "certificate": "c.pem"}, "upgrade": "onReboot"}
    want = wanted(**spec)
    made = config_map(want.owner, want.revision, revision_text(want.driver), want.settings)
    told = policy_config_map(want.owner, want.driver, want.settings)
    (tmp_path / "driver.yaml").write_text(made["data"]["driver.yaml"])
    (tmp_path / "policy.json").write_text(told["data"]["policy.json"])
    config = Config(
        tmp_path / "driver.yaml",
        Host(tmp_path),
        None,  # type: ignore[arg-type]
        revision="1",
        policy_file=tmp_path / "policy.json",
    )

    seen = read_driver(config)

    assert seen.name == "edu"
    assert seen.spec == replace(
        want.driver.spec,
        hardware=seen.spec.hardware,
        toolkit=seen.spec.toolkit,
        rollout=seen.spec.rollout,
    )


def test_driver_yaml_takes_the_place_of_the_one_in_the_image() -> None:
    """Relative paths in it mean what they mean in the image."""
    image = Path("images/driver.Containerfile").read_text()
    assert f"NODESIDE_DRIVER={DRIVER_FILE}" in image

    mounts = by_name(golden("kubernetes"), "driver")["volumeMounts"]
    assert {
        "name": "driver-yaml",
        "mountPath": DRIVER_FILE,
        "readOnly": True,
        "subPath": "driver.yaml",
    } in mounts


# --- what must hold of every pod ---------------------------------------------------------------


def mounts_of(container: dict[str, Any]) -> set[str]:
    return {mount["name"] for mount in container["volumeMounts"]}


@pytest.mark.parametrize("case", CASES)
def test_every_mount_has_its_volume_and_every_volume_a_mount(case: str) -> None:
    spec = golden(case)
    every = [*spec.get("initContainers", []), *spec["containers"]]

    assert {v["name"] for v in spec["volumes"]} == set().union(*map(mounts_of, every))


@pytest.mark.parametrize("case", CASES)
def test_vendor_code_gets_no_privilege_no_token_and_no_key(case: str) -> None:
    spec = golden(case)
    assert spec["automountServiceAccountToken"] is False
    for container in [*spec.get("initContainers", []), *spec["containers"][1:]]:
        security = container["securityContext"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert mounts_of(container) <= {"shared", "toolkit-tmp"}


@pytest.mark.parametrize("case", CASES)
def test_the_driver_stands_first_and_nothing_probes_it(case: str) -> None:
    spec = golden(case)

    assert spec["containers"][0]["name"] == "driver"
    probes = {"livenessProbe", "readinessProbe", "startupProbe", "lifecycle"}
    assert not any(probes & set(container) for container in spec["containers"])


@pytest.mark.parametrize("case", CASES)
def test_no_variable_is_empty_since_the_api_server_would_drop_it(case: str) -> None:
    for container in golden(case)["containers"]:
        assert all(entry.get("value", "x") for entry in container.get("env", []))


@pytest.mark.parametrize("case", CASES)
def test_every_scratch_directory_has_a_limit(case: str) -> None:
    volumes = [v["emptyDir"] for v in golden(case)["volumes"] if "emptyDir" in v]

    assert volumes
    assert all("sizeLimit" in volume for volume in volumes)


def with_programs(**more: Any) -> Driver:
    """The driver with hooks and services, and more in its spec."""
    hook = {"command": ["true"]}
    services = [{"name": name, "command": ["true"]} for name in ("a", "b")]
    programs: dict[str, Any] = {"hooks": {"afterUnload": [hook]}, "services": services}
    return parse(document(privileged=True, **programs, **more))


def test_programs_get_a_place_to_write_and_time_to_end() -> None:
    want = CASES["kubernetes"]
    spec = pod_spec(replace(want, driver=with_programs()))
    [container] = [each for each in spec["containers"] if each["name"] == "driver"]
    assert {"name": "run", "mountPath": "/run/edu"} in container["volumeMounts"]
    assert {"name": "run", "emptyDir": {"sizeLimit": "64Mi"}} in spec["volumes"]
    assert spec["terminationGracePeriodSeconds"] == 60 + 2 * 10


def test_what_unloads_can_run_hooks_and_remove_files() -> None:
    def mounts(driver: Driver) -> set[str]:
        want = CASES["kubernetes"]
        node = Node("n1", kernel="6.1", boot_id="b1", architecture="x86_64")
        found = unload_pod(want.owner, driver, want.revision, node, want.settings)
        [container] = found["spec"]["containers"]
        assert container["securityContext"]["privileged"] is True, "for its hooks"
        assert {v["name"] for v in found["spec"]["volumes"]} == {
            mount["name"] for mount in container["volumeMounts"]
        }
        return {mount["mountPath"] for mount in container["volumeMounts"]}

    plain, files = mounts(with_programs()), {"userspace": {"paths": ["/opt/edu"]}}
    assert "/run/edu" in plain
    assert mounts(with_programs(**files)) - plain == {"/host/var/lib/nodeside"}


def test_a_pod_goes_only_where_the_controller_assigned_it() -> None:
    want = CASES["kubernetes"]

    assert pod_spec(want)["nodeSelector"] == {assigned_label("edu"): want.assignment}
    assert want.name == f"edu-{want.assignment}"


def test_the_longest_names_fit() -> None:
    want = CASES["kubernetes"]
    long = replace(want, driver=replace(want.driver, name="a" * 40))

    assert len(long.name) == 53
    assert (
        len(daemonset_document(long)["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"])
        < 253
    )


def test_without_a_toolkit_there_is_no_sidecar_and_nothing_is_shared() -> None:
    spec = golden("prebuilt-only")

    assert [container["name"] for container in spec["containers"]] == ["driver"]
    assert "initContainers" not in spec
    assert "NODESIDE_SHARED" not in environment(spec["containers"][0])


@pytest.mark.parametrize(
    ("fields", "secret"),
    [
        ({}, ""),
        ({"signing": {"key": "keys/k.pem", "certificate": "keys/c.pem"}}, ""),
        ({"signing": {"key": "/signing/k.pem", "certificate": "c.pem"}}, "edu-signing"),
        ({"prebuilt": {"trust": {"certificate": "/signing/c.pem"}}}, "edu-signing"),
        ({"signing": {"key": "/signing2/k.pem", "certificate": "c.pem"}}, ""),
    ],
)
def test_a_signing_secret_is_mounted_where_a_path_points_into_it(
    fields: dict[str, Any], secret: str
) -> None:
    assert signing_secret(wanted(**fields).driver) == secret


# --- what was applied, and what somebody changed ------------------------------------------------


def observed(want: DaemonSetInput) -> dict[str, Any]:
    """As the API server gives it back, with some of its defaults."""
    found: dict[str, Any] = yaml.safe_load(yaml.safe_dump(daemonset_document(want)))
    spec = found["spec"]["template"]["spec"]
    spec |= {"dnsPolicy": "ClusterFirst", "restartPolicy": "Always"}
    for container in spec["containers"]:
        container["imagePullPolicy"] = "IfNotPresent"
    found["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] = 0
    found["metadata"]["uid"] = "u1"
    return found


def test_what_was_applied_does_not_differ_whatever_the_api_server_adds() -> None:
    want = CASES["signing"]

    assert not object_to_overwrite(daemonset_document(want), daemonset_from(observed(want)))


def edits() -> Iterator[tuple[str, Any]]:
    def image(spec: dict[str, Any]) -> None:
        spec["containers"][0]["image"] = "example.com/other"

    def sidecar_removed(spec: dict[str, Any]) -> None:
        del spec["containers"][1]

    def sidecar_added(spec: dict[str, Any]) -> None:
        spec["containers"].append({"name": "debug", "image": "busybox"})

    def tolerations(spec: dict[str, Any]) -> None:
        del spec["tolerations"]

    yield from ((f.__name__, f) for f in (image, sidecar_removed, sidecar_added, tolerations))


@pytest.mark.parametrize(("name", "edit"), tuple(edits()))
def test_a_hand_edit_is_seen(name: str, edit: Any) -> None:
    want = CASES["kubernetes"]
    found = observed(want)
    edit(found["spec"]["template"]["spec"])

    assert object_to_overwrite(daemonset_document(want), daemonset_from(found))


def test_another_toolkit_image_differs() -> None:
    want = CASES["kubernetes"]
    other = replace(want, toolkit="registry.example.com/toolkits:other")

    assert object_to_overwrite(daemonset_document(other), daemonset_from(observed(want)))
    assert other.name == want.name


def test_a_daemonset_tells_its_pool_and_revision() -> None:
    want = CASES["openshift"]
    found = daemonset_from(observed(want))

    assert (found.pool, found.revision, found.driver) == (COREOS, want.revision, "edu")
    assert found.assignment == want.assignment
    assert found.toolkit == want.toolkit


# --- revisions ---------------------------------------------------------------------------------


def test_pausing_or_selecting_other_nodes_makes_no_new_revision() -> None:
    revisions = {
        wanted(**fields).revision
        for fields in (
            {},
            {"rollout": {"paused": True}},
            {"hardware": {"pci": [{"vendor": "8086"}]}},
            {"toolkit": {"images": {"6.1.0": "example.com/t:1"}}},
        )
    }

    assert len(revisions) == 1


def test_what_a_node_sees_makes_one() -> None:
    revisions = {
        wanted(**fields).revision
        for fields in ({}, {"version": "2"}, {"image": "example.com/edu:2"}, {"privileged": True})
    }

    assert len(revisions) == 4


def test_a_revision_of_a_newer_controller_is_read_without_what_is_unknown() -> None:
    want = wanted()
    newer = json.loads(revision_text(want.driver))
    newer["spec"]["inTheNextRelease"] = True
    text = json.dumps(newer)

    read = read_revision(RevisionObject("edu-revision-1", "edu", revision_of(text), text))

    assert read is not None
    assert revision_text(read) == revision_text(want.driver)


def test_a_revision_is_read_back_and_one_that_was_tampered_with_is_not() -> None:
    want = wanted()
    text = revision_text(want.driver)
    made = config_map(want.owner, want.revision, text, want.settings)
    found = revision_from(made)

    read = read_revision(found)

    assert read is not None
    assert revision_text(read) == text
    assert read_revision(replace(found, document=text.replace("1.0.0", "6.6.6"))) is None
    assert read_revision(replace(found, document="{", revision=revision_of("{"))) is None
