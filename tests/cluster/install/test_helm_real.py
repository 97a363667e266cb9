"""What the real Helm makes of our chart: lint, templates, and a release on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.driver.daemonset import daemonset_document
from cluster.install.directory import write_directory
from cluster.install.helm import chart_files
from cluster.install.install import InstalledElsewhere, install
from cluster.install.manifests import InstallSettings, all_manifests, to_yaml
from cluster.kube.client import Api, connect
from cluster.kube.resources import DRIVERS, resource_of
from cluster.model.names import CONTROLLER
from cluster.model.snapshot import Settings
from cluster.options.build_once.job_manifest import SharedBuild, build_job
from cluster.options.devices.agent_manifests import device_agent
from tests import yaml_in_c as yaml
from tests.cluster.fakes.daemonsets import wanted as wanted_daemonset
from tests.cluster.fakes.installed import install_all
from tests.cluster.fakes.same import different, without_release
from tests.cluster.fakes.settings import IMAGE, SETTINGS
from tests.controlplane.binaries import Say
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.nodes import Nodes
from tests.helm.program import Helm, helm_program
from tests.spec.documents import document

pytestmark = pytest.mark.cluster

ALL = ("--include-crds", "--set", "namespace.create=true")
PLAIN = SETTINGS["plain"]


@pytest.fixture(scope="session")
def helm(say: Say, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(helm_program(say), tmp_path_factory.mktemp("helm"))


def written(place: Path, defaults: InstallSettings) -> Path:
    write_directory(place, chart_files(defaults), main="Chart.yaml")
    return place


@pytest.mark.parametrize("kind", SETTINGS)
def test_helm_finds_nothing_to_complain_of(helm: Helm, tmp_path: Path, kind: str) -> None:
    said = helm.run("lint", "--strict", written(tmp_path / "nodeside", SETTINGS[kind])).output
    assert "1 chart(s) linted, 0 chart(s) failed" in said
    assert "[WARNING]" not in said
    assert "[ERROR]" not in said


@pytest.mark.parametrize("kind", SETTINGS)
def test_the_chart_gives_the_objects_of_the_manifests(
    helm: Helm, tmp_path: Path, kind: str
) -> None:
    """With its default values, which are what the chart was made with."""
    wanted = SETTINGS[kind]
    place = written(tmp_path / "nodeside", wanted)
    found = helm.template(place, "--namespace", wanted.namespace, *ALL)
    assert different(without_release(found), all_manifests(wanted)) == []


def test_values_change_the_objects_as_options_change_the_manifests(
    helm: Helm, tmp_path: Path
) -> None:
    wanted = replace(
        SETTINGS["everything"],
        arguments=("--verbose", "--health-port=8081"),
        tolerations=(),
        resources={"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
        replicas=3,
        proxy={"HTTP_PROXY": "http://user:p&%<>\"'{{x}}@proxy"},
    )
    values = yaml.safe_load(chart_files(wanted)["values.yaml"])
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    words = ("--namespace", wanted.namespace, "--values", tmp_path / "values.yaml", *ALL)
    found = helm.template(written(tmp_path / "nodeside", InstallSettings()), *words)
    assert different(without_release(found), all_manifests(wanted)) == []


EVERYTHING: dict[str, Any] = {
    "replicaCount": 3,
    "image": {"repository": "registry.example.com/c", "tag": "1", "pullPolicy": "Always"},
    "podLabels": {"team": "a"},
    "podAnnotations": {"note": "b"},
    "priorityClassName": "",
    "affinity": {"podAntiAffinity": {}},
    "extraEnv": [{"name": "A", "value": "1"}],
    "serviceMonitor": {
        "enabled": True,
        "labels": {"release": "prom"},
        "interval": "30s",
        "credentials": {"name": "scraper"},
    },
    "networkPolicy": {"enabled": True, "apiServerPorts": [6443], "egress": []},
}


def test_what_only_the_chart_has_is_in_its_objects(helm: Helm, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(EVERYTHING))
    place = written(tmp_path / "nodeside", PLAIN)
    found = helm.template(place, "--values", tmp_path / "values.yaml")
    by_kind = {each["kind"]: each for each in found}
    deployment, monitor = by_kind["Deployment"]["spec"], by_kind["ServiceMonitor"]
    template, [container] = deployment["template"], deployment["template"]["spec"]["containers"]

    assert deployment["replicas"] == 3
    assert template["metadata"]["labels"]["team"] == "a"
    assert template["metadata"]["annotations"] == {"note": "b"}
    assert template["spec"]["affinity"] == {"podAntiAffinity": {}}
    assert "priorityClassName" not in template["spec"]
    assert container["imagePullPolicy"] == "Always"
    assert container["env"][-1] == {"name": "A", "value": "1"}
    assert monitor["metadata"]["labels"]["release"] == "prom"
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["interval"] == "30s"
    assert endpoint["authorization"] == {"credentials": {"name": "scraper", "key": "token"}}
    assert "bearerTokenFile" not in endpoint


def test_network_policies_name_the_pods_that_there_are(
    helm: Helm, control_plane: ControlPlane, tmp_path: Path
) -> None:
    """And an API server takes them."""
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(EVERYTHING))
    place = written(tmp_path / "nodeside", PLAIN)
    words = ("--namespace", "default", "--values", tmp_path / "values.yaml")
    found = [d for d in helm.template(place, *words) if d["kind"] == "NetworkPolicy"]
    for policy in found:
        path = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies"
        control_plane.do("POST", f"{path}?dryRun=All&fieldValidation=Strict", policy)

    selectors = {each["metadata"]["name"]: each["spec"]["podSelector"] for each in found}
    want = wanted_daemonset(devices=[{"resource": "x.io/y", "discover": {"count": 1}}])
    build = SharedBuild(want.driver, want.revision, "toolkit", "x86_64")
    assert _selects(selectors["nodeside-driver"], _labels(daemonset_document(want)))
    assert _selects(selectors["nodeside-build"], _labels(build_job(build, want.owner, Settings())))
    agent = _labels(device_agent(want.driver, Settings())[1])
    assert _selects(selectors["nodeside-device-agent"], agent)
    assert not _selects(selectors["nodeside-driver"], agent)


def _labels(workload: dict[str, Any]) -> dict[str, str]:
    return dict(workload["spec"]["template"]["metadata"]["labels"])


def _selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", ())
    )


def test_a_release_leaves_the_namespace_to_helm(helm: Helm, tmp_path: Path) -> None:
    place = written(tmp_path / "nodeside", PLAIN)
    found = helm.template(place, "--namespace", "nodeside", "--include-crds")
    assert different(without_release(found), all_manifests(PLAIN)) == ["Namespace /nodeside"]


def test_a_value_that_cannot_be_is_refused_in_words(helm: Helm, tmp_path: Path) -> None:
    place = written(tmp_path / "nodeside", PLAIN)
    words = ("--set", "replicaCount=0", "--set", "opneshift=true")
    done = helm.run("template", place, *words, check=False)
    assert done.exit_code != 0
    assert "at '/replicaCount': minimum: got 0, want 1" in done.errors
    assert "additional properties 'opneshift' not allowed" in done.errors


@pytest.fixture
def api(control_plane: ControlPlane, installed: InstallSettings) -> Iterator[Api]:
    """Of a cluster with nothing of nodeside but its namespace; afterwards all is there again."""
    wanted = [d for d in all_manifests(installed) if d["kind"] != "Namespace"]
    control_plane.kubectl("delete", "--ignore-not-found", "-f", "-", input=to_yaml(wanted))
    api = connect(control_plane.kubeconfig)
    yield api
    api.close()
    install_all(control_plane, installed)


def there(control_plane: ControlPlane, installation: InstallSettings) -> list[str]:
    """The kinds of what is in the cluster of an installation."""

    def is_there(wanted: dict[str, Any]) -> bool:
        metadata = wanted["metadata"]
        namespace = metadata.get("namespace", "")
        path = resource_of(wanted).path(metadata["name"], namespace=namespace)
        return control_plane.request("GET", path).status == 200

    return [str(d["kind"]) for d in all_manifests(installation) if is_there(d)]


def test_a_release_comes_changes_and_goes(
    control_plane: ControlPlane, api: Api, nodes: Nodes, helm: Helm, tmp_path: Path
) -> None:
    helm = replace(helm, kubeconfig=control_plane.kubeconfig)
    place, chosen = written(tmp_path / "nodeside", PLAIN), replace(PLAIN, namespace="by-helm")
    release = ("nodeside", place, "--namespace", "by-helm")
    nodes.create("helm-1")

    said = helm.run("install", *release, "--create-namespace", "--wait").output
    assert there(control_plane, chosen) == [str(d["kind"]) for d in all_manifests(chosen)]
    assert "kubectl label namespace by-helm --overwrite" in said
    assert "--namespace by-helm rollout status deployment/nodeside-controller" in said
    deployment = f"/apis/apps/v1/namespaces/by-helm/deployments/{CONTROLLER}"
    found = control_plane.do("GET", deployment)
    assert found["status"]["readyReplicas"] == 2
    assert found["spec"]["template"]["spec"]["containers"][0]["image"] == IMAGE

    elsewhere = ("nodeside", place, "--namespace", "elsewhere", "--create-namespace")
    refused = helm.run("install", *elsewhere, check=False)
    assert refused.exit_code != 0
    assert 'current value is "by-helm"' in refused.errors

    with pytest.raises(InstalledElsewhere, match="by Helm, as release nodeside") as caught:
        list(install(api, all_manifests(chosen)))
    assert "helm uninstall nodeside --namespace by-helm" in caught.value.hint

    driver = document(image=IMAGE) | {"metadata": {"name": "stays"}}
    control_plane.do("POST", DRIVERS.path(), driver)
    said = helm.run("upgrade", *release, "--set", "replicaCount=1", "--wait").output
    assert control_plane.do("GET", deployment)["spec"]["replicas"] == 1
    assert "kubectl apply --server-side --force-conflicts -f CHART/crds/" in said
    control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", place / "crds")

    helm.run("uninstall", "nodeside", "--namespace", "by-helm", "--wait")
    kinds = there(control_plane, chosen)
    assert kinds == ["CustomResourceDefinition", "CustomResourceDefinition", "Namespace"]
    control_plane.do("DELETE", DRIVERS.path("stays"))  # it, too, was still there
    control_plane.do("DELETE", "/api/v1/namespaces/by-helm")
