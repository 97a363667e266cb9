"""What is installed in a cluster, and the promises that are made about it.

To write the golden files anew: NODESIDE_GOLDEN=write pytest tests/cluster, then read the diff.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cluster.cli.main import root
from cluster.install import helm
from cluster.install import manifests as module
from cluster.install.manifests import (
    InstallSettings,
    NotInstallable,
    all_manifests,
    to_yaml,
)
from cluster.kube.resources import resource_of
from cluster.model.names import (
    CERTIFICATE,
    CONTROLLER,
    DEVICE_AGENT,
    DRIVER,
    EVICTION,
    MANAGED_BY,
    MANAGER,
    METRICS,
    METRICS_READER,
    NAMESPACE,
)
from cluster.model.snapshot import Settings
from nodeside.driver.announce.api import CALLER
from tests import TOP
from tests import yaml_in_c as yaml

GOLDEN = TOP / "tests" / "cluster" / "golden" / "manifests"
KINDS = {
    "plain": InstallSettings(image="registry.example.com/nodeside-cluster:1.0"),
    "openshift": InstallSettings(
        namespace="drivers",
        image="registry.example.com/nodeside-cluster:1.0",
        agent_image="registry.example.com/nodeside-agent:1.0",
        openshift=True,
        pull_secrets=("pull",),
        arguments=("--verbose",),
    ),
}


@cache
def of_kind(kind: str) -> tuple[dict[str, Any], ...]:
    """The manifests of one of KINDS, made once."""
    return all_manifests(KINDS[kind])


def made(installation: InstallSettings) -> list[dict[str, Any]]:
    """Without the definitions of the custom resources, which have tests of their own."""
    known = (of_kind(kind) for kind, each in KINDS.items() if each is installation)
    found = next(known, None) or all_manifests(installation)
    return [document for document in found if document["kind"] != "CustomResourceDefinition"]


def roles(installation: InstallSettings, account: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rules of an account, with the namespace that each holds in ("" for all)."""
    documents = made(installation)
    by_name = {(d["kind"], d["metadata"]["name"]): d for d in documents}
    for binding in documents:
        if any(subject["name"] == account for subject in binding.get("subjects", [])):
            role = by_name[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
            for rule in role["rules"]:
                yield binding["metadata"].get("namespace", ""), rule


def test_the_manifests_are_the_ones_on_file() -> None:
    """With options; without one they are the files of deploy/."""
    path = GOLDEN / "openshift.yaml"
    text = to_yaml(made(KINDS["openshift"]))
    if os.environ.get("NODESIDE_GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_every_document_can_be_applied_and_says_whose_it_is(kind: str) -> None:
    for document in of_kind(kind):
        resource = resource_of(document)
        assert bool(document["metadata"].get("namespace")) == resource.namespaced, document
        assert document["metadata"]["labels"][MANAGED_BY] == MANAGER


@pytest.mark.parametrize("kind", KINDS)
def test_the_printed_text_is_the_documents(kind: str) -> None:
    documents = of_kind(kind)
    assert tuple(yaml.safe_load_all(to_yaml(documents))) == documents


def test_what_is_needed_first_comes_first() -> None:
    kinds = [document["kind"] for document in of_kind("openshift")]
    assert kinds[:3] == ["CustomResourceDefinition", "CustomResourceDefinition", "Namespace"]
    assert kinds.index("ServiceAccount") < kinds.index("Deployment")
    assert kinds.index("ValidatingAdmissionPolicyBinding") < kinds.index("Deployment")


def test_the_names_are_those_that_the_controller_gives_its_pods() -> None:
    settings = Settings()
    assert (settings.namespace, settings.service_account) == (NAMESPACE, DRIVER)
    arguments = made(KINDS["openshift"])[-2]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments == [
        "run",
        "--namespace=$(POD_NAMESPACE)",  # so that nothing but the pod's own namespace decides
        f"--metrics-certificate={CERTIFICATE}",
        f"--scc={DRIVER}",
        "--pull-secret=pull",
        "--agent-image=registry.example.com/nodeside-agent:1.0",
        "--verbose",
    ]
    assert root.commands["run"].make_context("run", arguments[1:]).params["scc"] == DRIVER


def test_a_driver_pod_may_do_what_its_code_asks_for_and_nothing_else() -> None:
    asked = {
        (group, resource, verb)
        for resource, (group, verbs) in CALLER.rules.items()
        if resource != "nodedrivers/status"  # asked of a NodeDriver with a status subresource only
        for verb in verbs
    }
    allowed = {
        (group, resource, verb)
        for _, rule in roles(KINDS["plain"], DRIVER)
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert allowed == asked


def test_a_device_agent_may_label_its_node_and_publish_devices_and_nothing_else() -> None:
    allowed = {
        (namespace, resource): rule["verbs"]
        for namespace, rule in roles(KINDS["plain"], DEVICE_AGENT)
        for resource in rule["resources"]
    }
    assert allowed == {
        ("", "nodes"): ["get", "patch"],
        ("", "resourceslices"): ["list", "create", "update", "delete"],
        ("", "resourceclaims"): ["get"],
    }


def test_on_openshift_each_account_is_admitted_by_constraints_of_its_own() -> None:
    documents = made(KINDS["openshift"])
    named = {d["metadata"]["name"]: d for d in documents if d["kind"].endswith("Constraints")}
    assert set(named) == {DRIVER, DEVICE_AGENT}
    for account in named:
        (rule,) = (
            rule
            for namespace, rule in roles(KINDS["openshift"], account)
            if namespace == "drivers" and "securitycontextconstraints" in rule["resources"]
        )
        assert rule["resourceNames"] == [account]
        assert rule["verbs"] == ["use"]
    agent = named[DEVICE_AGENT]
    assert agent["requiredDropCapabilities"] == ["ALL"]
    assert agent["allowedCapabilities"] == []
    assert agent["readOnlyRootFilesystem"] is True
    assert not agent["allowPrivilegedContainer"]
    assert not agent["allowPrivilegeEscalation"]


def test_the_device_agents_token_is_mounted_by_nobody_itself() -> None:
    (account,) = [
        document
        for document in made(KINDS["plain"])
        if (document["kind"], document["metadata"]["name"]) == ("ServiceAccount", DEVICE_AGENT)
    ]
    assert account["automountServiceAccountToken"] is False


def test_no_role_has_a_wildcard_or_hands_out_rights() -> None:
    for account in (CONTROLLER, DRIVER, DEVICE_AGENT):
        for _, rule in roles(KINDS["openshift"], account):
            words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert not words & {"*", "escalate", "bind", "impersonate", "secrets"}, rule


def test_pods_are_made_in_one_namespace_only() -> None:
    for namespace, rule in roles(KINDS["openshift"], CONTROLLER):
        if {"daemonsets", "configmaps", "leases"} & {*rule["resources"]}:
            assert namespace == "drivers"
        if "pods" in rule.get("resources", ()) and {*rule["verbs"]} - {"list", "watch"}:
            assert namespace == "drivers"


def test_only_a_role_of_its_own_looks_at_all_pods_and_evicts() -> None:
    documents = {(d["kind"], d["metadata"]["name"]): d for d in made(KINDS["plain"])}
    rules = {
        (name, resource, verb)
        for (kind, name), document in documents.items()
        if kind == "ClusterRole"
        for rule in document["rules"]
        for resource in rule.get("resources", ())
        for verb in rule["verbs"]
        if resource.startswith("pods") or (resource, verb) == ("nodes", "get")
    }
    assert rules == {
        (EVICTION, "pods", "list"),
        (EVICTION, "pods", "watch"),
        (EVICTION, "pods/eviction", "create"),
        (CONTROLLER, "nodes", "get"),  # where somebody was faster than a patch
        (DRIVER, "nodes", "get"),
        (DEVICE_AGENT, "nodes", "get"),
    }
    assert documents["ClusterRoleBinding", EVICTION]["subjects"][0]["name"] == CONTROLLER


def test_the_controller_itself_needs_no_privilege() -> None:
    deployment = next(d for d in made(KINDS["plain"]) if d["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert deployment["spec"]["replicas"] == 2
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_metrics_are_served_by_whom_the_service_selects_on_the_port_it_names() -> None:
    documents = {(d["kind"], d["metadata"]["name"]): d for d in made(KINDS["plain"])}
    service, deployment = documents["Service", METRICS], documents["Deployment", CONTROLLER]
    pod = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    ports = {p["name"]: p["containerPort"] for p in pod["spec"]["containers"][0]["ports"]}
    (port,) = service["spec"]["ports"]
    assert ports[port["targetPort"]] == port["port"]
    (volume,) = pod["spec"]["volumes"]
    assert volume["secret"] == {"secretName": METRICS, "optional": True}
    assert documents["ClusterRole", METRICS_READER]["rules"] == [
        {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}
    ]


def test_a_service_monitor_comes_on_request_only() -> None:
    assert "ServiceMonitor" not in {d["kind"] for d in made(KINDS["plain"])}
    for openshift in (False, True):
        asked = InstallSettings(namespace="drivers", openshift=openshift, service_monitor=True)
        documents = {d["kind"]: d for d in made(asked)}
        monitor, service = documents["ServiceMonitor"]["spec"], documents["Service"]
        labels = service["metadata"]["labels"]
        assert monitor["selector"]["matchLabels"].items() <= labels.items()
        (endpoint,) = monitor["endpoints"]
        assert (endpoint["scheme"], endpoint["path"]) == ("https", "/metrics")
        assert endpoint["port"] == service["spec"]["ports"][0]["name"]
        verified = endpoint["tlsConfig"].get("serverName") == f"{METRICS}.drivers.svc"
        assert verified is openshift


def test_a_namespace_that_is_no_word_of_yaml_stays_text() -> None:
    """`on` unquoted would be a boolean to kubectl."""
    found = all_manifests(InstallSettings(namespace="on", image="1.0"))
    text = to_yaml(found)
    assert "namespace: 'on'" in text
    assert all(d["metadata"].get("namespace", "on") in ("on", "default") for d in found)


@pytest.mark.parametrize(
    ("installation", "message"),
    [
        (
            InstallSettings(namespace="Bad NS"),
            "'Bad NS' is not a valid name of a namespace: expected lower",
        ),
        (InstallSettings(namespace=""), "'' is not a valid name of a namespace"),
        (InstallSettings(namespace="a" * 64), "is not a valid name of a namespace: .* at most 63"),
        (InstallSettings(image="a b"), "'a b' is not a valid pull spec of the controller's image"),
        (InstallSettings(image=""), "'' is not a valid pull spec"),
        (
            InstallSettings(image="https://r.example.com/nodeside-cluster"),
            "is not a valid pull spec of the co",
        ),
        (
            InstallSettings(agent_image="r.example.com/Agent:1"),
            "is not a valid pull spec of the device agent",
        ),
        (
            InstallSettings(agent_image="a b"),
            "'a b' is not a valid pull spec of the device agent's image",
        ),
        (
            InstallSettings(pull_secrets=("pull", "")),
            "'' is not a valid name of a pull secret: exp",
        ),
        (InstallSettings(pull_secrets=("Pull",)), "'Pull' is not a valid name of a pull secret"),
        (InstallSettings(ca_config_map="a b"), "'a b' is not a valid name of a ConfigMap"),
        (InstallSettings(node_selector={"": "x"}), "=x is not a valid label of a node"),
        (
            InstallSettings(node_selector={"a": "x y"}),
            "not a valid label of a node: expected KEY=VALUE",
        ),
        (InstallSettings(node_selector={"a/b/c": "x"}), "a/b/c=x is not a valid label of a node"),
    ],
)
def test_a_name_that_the_api_server_would_refuse_is_refused_before_anything_is_applied(
    installation: InstallSettings, message: str
) -> None:
    with pytest.raises(NotInstallable, match=message):
        all_manifests(installation)


@pytest.mark.parametrize("make", [all_manifests, helm.chart_files])
def test_a_copy_without_the_files_says_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make: Callable[[InstallSettings], object]
) -> None:
    lost = tmp_path / "deploy"
    lost.write_text("../../deploy")  # what is left of a link in a .zip
    monkeypatch.setattr(module, "_DEPLOY", lost)
    monkeypatch.setattr(helm, "_CHART", lost / "nodeside")

    with pytest.raises(NotInstallable, match="lacks") as caught:
        make(InstallSettings())

    assert "git clone" in caught.value.hint
