"""The Helm chart and the kustomize base: their files, and how they come to be in a directory.

What Helm and kustomize make of them is shown with the real ones, in tests of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any

import jsonschema
import pytest

from cluster.install import helm
from cluster.install.helm import chart_files
from cluster.install.kustomize import KUSTOMIZATION, NAMES, base_files
from cluster.install.manifests import (
    InstallSettings,
    NotInstallable,
    all_manifests,
)
from nodeside import __version__
from nodeside.spec.image_names import DIGEST, PLAIN, TAG
from tests import yaml_in_c as yaml

IMAGE = "registry.example.com:5000/nodeside-cluster:1.0"
CHOSEN = InstallSettings(
    image=IMAGE,
    agent_image="registry.example.com:5000/nodeside-agent:1.0",
    openshift=True,
    pull_secrets=("pull",),
    ca_config_map="trust",
    proxy={"NO_PROXY": ".svc"},
    node_selector={"role": "infra"},
    service_monitor=True,
)


# Values that only the chart has: by `install`, objects are changed with kustomize.
OF_THE_CHART = {
    "namespace",
    "podLabels",
    "podAnnotations",
    "priorityClassName",
    "affinity",
    "networkPolicy",
    "extraEnv",
}


def values(installation: InstallSettings) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(chart_files(installation)["values.yaml"])
    return found


@cache
def chosen() -> dict[str, Any]:
    """The values of the chart where everything is chosen."""
    return values(CHOSEN)


@cache
def usual_chart() -> Mapping[str, str]:
    """The files of the chart if nothing is chosen."""
    return chart_files(InstallSettings())


def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(usual_chart()["values.schema.json"])
    return found


# --- the chart --------------------------------------------------------------------------------


def test_the_version_of_the_chart_is_the_packages_as_helm_wants_it() -> None:
    about = yaml.safe_load(usual_chart()["Chart.yaml"])
    assert about["version"] == about["appVersion"] == __version__
    assert re.fullmatch(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?", about["version"])
    assert about["kubeVersion"] == ">=1.30.0-0"


def test_what_is_chosen_is_the_default_values_of_the_chart() -> None:
    found = chosen()
    assert found["image"] == {
        "repository": "registry.example.com:5000/nodeside-cluster",
        "tag": "1.0",
        "digest": "",
        "pullPolicy": "",
    }
    assert found["agentImage"] == {
        "repository": "registry.example.com:5000/nodeside-agent",
        "tag": "1.0",
        "digest": "",
    }
    assert found["openshift"] is True
    assert found["imagePullSecrets"] == [{"name": "pull"}]
    assert found["caConfigMap"] == "trust"
    assert found["proxy"] == {"NO_PROXY": ".svc"}
    assert found["nodeSelector"] == {"role": "infra"}
    assert found["namespace"] == {"create": False}


@pytest.mark.parametrize(
    ("pull_spec", "parts"),
    [
        ("localhost/x", ("localhost/x", "", "")),
        ("registry:5000/x", ("registry:5000/x", "", "")),
        ("registry:5000/x:1.0", ("registry:5000/x", "1.0", "")),
        ("x:1@sha256:" + "a" * 64, ("x", "1", "sha256:" + "a" * 64)),
        ("x@sha256:" + "a" * 64, ("x", "", "sha256:" + "a" * 64)),
    ],
)
def test_a_pull_spec_is_taken_apart(pull_spec: str, parts: tuple[str, str, str]) -> None:
    found = values(InstallSettings(image=pull_spec))
    assert tuple(found["image"].values()) == (*parts, "")
    jsonschema.validate(found, schema())


@pytest.mark.slow
def test_the_schema_knows_exactly_the_values_that_there_are() -> None:
    known = schema()["properties"]
    assert {*known} - {"global"} == {*chosen()}
    for image in ("image", "agentImage"):
        assert {*known[image]["properties"]} == {*chosen()[image]}
    jsonschema.validate(chosen(), schema())
    jsonschema.validate(values(InstallSettings()), schema())


def test_the_schema_has_the_grammar_of_the_spec() -> None:
    image = {
        "repository": {"type": "string", "pattern": f"^{PLAIN.repository}$"},
        "tag": {"type": "string", "pattern": f"^({TAG})?$"},
        "digest": {"type": "string", "pattern": f"^({DIGEST})?$"},
    }
    agent = {"repository": {"type": "string", "pattern": f"^({PLAIN.repository})?$"}}
    policy = {"pullPolicy": {"enum": ["", "Always", "IfNotPresent", "Never"]}}
    assert schema()["properties"]["image"]["properties"] == image | policy
    assert schema()["properties"]["agentImage"]["properties"] == {**image, **agent}


@pytest.mark.parametrize(
    "wrong",
    [
        {"replicaCount": 0},
        {"replicas": 2},
        {"serviceMonitor": True},
        {"serviceMonitor": {"enabled": True, "interval": "soon"}},
        {"serviceMonitor": {"enabled": True, "credentials": {"name": "No Name"}}},
        {"networkPolicy": {"enabled": True, "apiServerPorts": []}},
        {"image": {"repository": "nodeside-cluster", "pullPolicy": "Sometimes"}},
        {"openshift": "yes"},
        {"imagePullSecrets": ["pull"]},
        {"proxy": {"FTP_PROXY": "x"}},
        {"nodeSelector": {"a": True}},
        {"image": {"repository": ""}},
        {"agentImage": {"repository": "a b"}},
        {"image": {"repository": "https://registry.example.com/nodeside-cluster"}},
        {"image": {"repository": "registry.example.com/Nodeside/nodeside-cluster"}},
        {"image": {"repository": "nodeside-cluster", "digest": "sha256:94"}},
        {"caConfigMap": "No Name"},
        {"opneshift": True},
    ],
)
def test_a_wrong_value_is_refused_by_the_schema(wrong: Mapping[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**chosen(), **wrong}, schema())


def test_every_field_of_an_installation_is_a_value_of_the_chart() -> None:
    """The namespace is the release's; that it may be part of it is the chart's own."""
    made = helm.chart_values(CHOSEN)
    assert len(made) == len(fields(CHOSEN)) - 1
    assert {*made} == {*chosen()} - OF_THE_CHART
    assert {name: chosen()[name] for name in made} == made


def test_a_value_takes_the_place_of_the_default_and_of_nothing_else() -> None:
    usual, other = usual_chart()["values.yaml"], chart_files(CHOSEN)["values.yaml"]
    comments = [line for line in usual.splitlines() if line.startswith("#")]
    assert [line for line in other.splitlines() if line.startswith("#")] == comments
    assert [*yaml.safe_load(other)] == [*yaml.safe_load(usual)]
    assert chart_files(CHOSEN) | {"values.yaml": ""} == dict(usual_chart()) | {"values.yaml": ""}


@pytest.mark.slow
def test_templates_read_values_that_exist() -> None:
    files = usual_chart()
    text = "".join(files[name] for name in files if name.startswith("templates/"))
    for path in re.findall(r"\.Values\.([A-Za-z.]+)", text):
        found: Any = chosen()
        for key in path.split("."):
            assert key in found, path
            found = found[key]
    read = {path.split(".")[0] for path in re.findall(r"\.Values\.([A-Za-z.]+)", text)}
    assert read == {*chosen()}, "a value that no template reads"


# --- the base ---------------------------------------------------------------------------------


def test_the_base_lists_its_files_in_the_order_of_need() -> None:
    files = base_files(CHOSEN)
    listed = yaml.safe_load(files[KUSTOMIZATION])["resources"]
    assert listed[:3] == ["crds.yaml", "namespace.yaml", "accounts.yaml"]
    assert listed[-2:] == ["openshift.yaml", "controller.yaml"]
    assert {*files} == {*listed, *(name for name in NAMES if "kustomization.yaml" in name)} | {
        "another-namespace/transformers.yaml"
    }
    assert {*files} == NAMES
    assert "openshift.yaml" not in base_files(InstallSettings())


def test_what_is_in_other_namespaces_finds_back_from_an_overlay() -> None:
    path = "another-namespace/transformers.yaml"
    found = list(yaml.safe_load_all(base_files(InstallSettings(namespace="drivers"))[path]))
    assert [transformer["metadata"]["name"] for transformer in found] == [
        "back-to-default-role-nodeside-events",
        "back-to-default-rolebinding-nodeside-events",
        "subjects-of-nodeside-events",
        "no-namespace",
    ], "an overlay has to put right what is new here"
    target = found[2]["replacements"][0]["targets"][0]
    assert target["fieldPaths"] == ["subjects.*.namespace"]
    assert re.fullmatch(found[3]["target"]["kind"], "ValidatingAdmissionPolicyBinding")
    assert not re.fullmatch(found[3]["target"]["kind"], "Namespace")


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from texts([*value.keys(), *value.values()])
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)


def test_the_namespace_stands_where_an_overlay_can_change_it() -> None:
    """Not in an expression, nor on a command line."""
    documents = all_manifests(replace(CHOSEN, namespace="xyzzy"))
    said = {text for text in texts([*documents]) if re.search(r"\bxyzzy\b", text)}
    assert {text for text in said if not re.fullmatch(r"xyzzy|[a-z-]+\.xyzzy\.svc", text)} == set()


@pytest.mark.parametrize("make", [chart_files, base_files])
def test_a_name_that_no_api_server_would_take_makes_no_directory(make: Any) -> None:
    with pytest.raises(NotInstallable, match="not a valid name of a ConfigMap"):
        make(InstallSettings(ca_config_map="No Name"))
    with pytest.raises(NotInstallable, match="a b=c is not a valid label of a node"):
        make(InstallSettings(node_selector={"a b": "c"}))
