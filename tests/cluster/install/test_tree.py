"""charts/ and deploy/: what they have of each other and of the code.

What Helm and kustomize make of them: test_same_objects.py.
"""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.install.crds import crd_documents
from cluster.install.helm import chart_values
from cluster.install.manifests import FILES, ONLY_IF, InstallSettings, all_manifests
from cluster.model.names import (
    CONTROLLER,
    CORDONED,
    DEVICE_AGENT,
    DRIVER,
    EVICTION,
    EXPLAIN,
    METRICS,
    METRICS_PATH,
    METRICS_READER,
    PREFLIGHT,
)
from nodeside.protocol.labels import (
    FEATURE_LIMIT,
    dra_driver,
    feature_prefix,
    state_label,
)
from nodeside.protocol.node_status import REPORT_ITEMS, REPORT_TEXT, NodeDriverStatus, State
from nodeside.spec.schema import camel_case
from tests import TOP
from tests.manifests import CHART, DEPLOY, texts


@pytest.mark.parametrize("path", texts(), ids=lambda path: str(path.relative_to(TOP)))
def test_what_is_written_from_other_files_is_up_to_date(path: Path) -> None:
    assert path.read_text() == texts()[path], ".venv/bin/python -m tests.manifests"


def test_there_are_no_other_definitions() -> None:
    names = sorted(f"{crd['metadata']['name']}.yaml" for crd in crd_documents())
    assert sorted(path.name for path in (CHART / "crds").iterdir()) == names
    assert listed("crds") == names


def listed(directory: str) -> list[str]:
    resources = yaml.safe_load((DEPLOY / directory / "kustomization.yaml").read_text())["resources"]
    return [str(name) for name in resources]


def test_the_base_has_its_files_in_the_order_of_need() -> None:
    usual = [path.removeprefix("base/") for name, path in FILES.items() if name not in ONLY_IF]
    assert listed("base") == ["../crds", *usual]
    assert {path.name for path in (DEPLOY / "base").iterdir()} == {*usual, "kustomization.yaml"}


def test_without_an_option_the_objects_are_those_of_the_files() -> None:
    said = [*crd_documents()]
    for name in listed("base")[1:]:
        said += yaml.safe_load_all((DEPLOY / "base" / name).read_text())
    assert list(all_manifests(InstallSettings())) == said


@pytest.mark.parametrize("name", FILES)
def test_the_chart_has_a_template_for_each_file(name: str) -> None:
    """With the same comments."""
    plain = (DEPLOY / FILES[name]).read_text()
    template = (CHART / "templates" / f"{name}.yaml").read_text()
    actions = re.sub(r"{{.*?}}", "", template)
    comments = [line for line in plain.splitlines() if line.lstrip().startswith("#")]
    assert [line for line in actions.splitlines() if line.lstrip().startswith("#")] == comments


def test_the_values_are_the_defaults_of_install() -> None:
    found = yaml.safe_load((CHART / "values.yaml").read_text())
    usual = chart_values(InstallSettings())
    assert {name: found[name] for name in usual} == usual
    assert found["namespace"] == {"create": False}
    assert found["networkPolicy"]["enabled"] is False
    assert found["priorityClassName"] == "system-cluster-critical"
    rest = found.keys() - usual.keys() - {"namespace", "networkPolicy", "priorityClassName"}
    assert not any(found[name] for name in rest)


# --- what the manifests have from the code ------------------------------------------------------


@cache
def everything() -> tuple[dict[str, Any], ...]:
    """All objects that there can be."""
    return all_manifests(InstallSettings(openshift=True, service_monitor=True))


def policy(name: str) -> str:
    """All that a policy says, as one text."""
    [found] = [
        document
        for document in everything()
        if (document["kind"], document["metadata"]["name"]) == ("ValidatingAdmissionPolicy", name)
    ]
    return all_text(found)


def all_text(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(all_text(each) for each in value.values())
    return "\n".join(map(all_text, value)) if isinstance(value, list) else str(value)


def test_the_names_are_those_of_the_code() -> None:
    named: dict[str, set[str]] = {}
    for document in everything():
        named.setdefault(document["kind"], set()).add(document["metadata"]["name"])
    assert named["ServiceAccount"] == {CONTROLLER, DRIVER, DEVICE_AGENT}
    assert named["ClusterRoleBinding"] == {CONTROLLER, DRIVER, DEVICE_AGENT, EVICTION, METRICS}
    assert {METRICS_READER, EXPLAIN, PREFLIGHT} < named["ClusterRole"]
    assert named["SecurityContextConstraints"] == {DRIVER, DEVICE_AGENT}
    assert named["Service"] == named["ServiceMonitor"] == {METRICS}
    assert named["Deployment"] == {CONTROLLER}
    [monitor] = [each for each in everything() if each["kind"] == "ServiceMonitor"]
    assert monitor["spec"]["endpoints"][0]["path"] == METRICS_PATH


def test_the_policies_have_the_labels_of_the_code() -> None:
    before, after = state_label("<>").split("<>")
    nodes = policy("nodeside-driver-nodes")
    assert f'key == "{before}" + variables.driver + "{after}")' in nodes
    before, after = feature_prefix("<>").split("<>")
    assert f'"{before}" + variables.driver + "{after}"' in policy("nodeside-device-agent-nodes")
    name = dra_driver("<>").removeprefix("<>")
    assert f'slice.spec.driver == variables.driver + "{name}"' in policy(
        "nodeside-device-agent-slices"
    )
    assert f'"{CORDONED}" in variables.after' in policy("nodeside-controller-nodes")
    assert f'== "{PREFLIGHT}"' in policy("nodeside-preflight-jobs")


def test_the_policies_have_the_limits_of_the_code() -> None:
    states = ", ".join(f'"{state.value}"' for state in State)
    assert f"variables.after[key] in [{states}]" in policy("nodeside-driver-nodes")
    assert f".size() <= {FEATURE_LIMIT}\n" in policy("nodeside-device-agent-nodes")
    reported = policy("nodeside-driver-nodedrivers")
    assert f"size(text) <= {REPORT_TEXT})" in reported
    assert reported.count(f" <= {REPORT_ITEMS}") == 3
    texts = [camel_case(each.name) for each in fields(NodeDriverStatus) if each.type == "str"]
    assert re.findall(r'object\.status\.\?(\w+)\.orValue\(""\)', reported) == texts
