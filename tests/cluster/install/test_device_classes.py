"""What `nodeside-cluster manifests --driver` prints, and what a real scheduler makes of it.

A device agent's token publishes the devices; the kubelet's part is not here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cluster.cache.drain_pods import list_consumers
from cluster.cli.main import root
from cluster.install.device_classes import class_name, device_classes
from cluster.install.manifests import InstallSettings
from cluster.kube.client import connect
from cluster.model.names import DEVICE_AGENT
from cluster.options.drain.pods import demand_of, eviction_policy
from nodeside.errors import SpecError
from nodeside.spec import Driver, parse
from tests import yaml_in_c as yaml
from tests.cluster.fakes.driverpods import identity, make_pod
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.nodes import Nodes
from tests.spec.documents import document

EDU = {"resource": "example.com/edu", "discover": {"pci": [{"vendor": "1234"}]}}
UNIT = {"resource": "units.example.com/unit", "discover": {"count": 2}, "expose": "dra"}
NODE = "claims-1.example.com"
SLICE = f"edu.nodeside.io-{NODE}-0"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
PODS = "/api/v1/namespaces/default/pods"


def driver(**spec: Any) -> Driver:
    return parse(document(devices=[EDU | {"expose": "dra"}, UNIT], **spec))


def printed(directory: Path, *options: str) -> str:
    path = directory / "driver.yaml"
    path.write_text(json.dumps(document(devices=[EDU | {"expose": "dra"}, UNIT])))
    arguments = ["manifests", "--driver", str(directory), *options]
    done = CliRunner().invoke(root, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_each_resource_that_is_exposed_by_dra_has_a_class_and_a_template(tmp_path: Path) -> None:
    documents = tuple(yaml.safe_load_all(printed(tmp_path)))
    assert documents == device_classes(driver())
    assert [(each["kind"], each["metadata"]["name"]) for each in documents] == [
        ("DeviceClass", "edu.example.com"),
        ("DeviceClass", "unit.units.example.com"),
        ("ResourceClaimTemplate", "edu.example.com"),
        ("ResourceClaimTemplate", "unit.units.example.com"),
    ]
    assert documents[0]["spec"] == {
        "selectors": [
            {
                "cel": {
                    "expression": 'device.driver == "edu.nodeside.io" && '
                    'device.attributes["edu.nodeside.io"].resource == "example.com/edu"'
                }
            }
        ],
        "extendedResourceName": "example.com/edu",
    }


def test_the_extended_resource_can_be_left_out(tmp_path: Path) -> None:
    made = yaml.safe_load_all(printed(tmp_path, "--no-extended-resource"))
    assert all("extendedResourceName" not in each["spec"] for each in made)


def test_what_a_device_plugin_offers_needs_none() -> None:
    mixed = parse(document(devices=[EDU, UNIT]))
    assert {each["metadata"]["name"] for each in device_classes(mixed)} == {
        class_name("units.example.com/unit")
    }
    with pytest.raises(SpecError, match="driver edu exposes no devices by dynamic resource"):
        device_classes(parse(document(devices=[EDU])))


@pytest.fixture
def published(
    control_plane: ControlPlane, installed: InstallSettings, nodes: Nodes, tmp_path: Path
) -> Iterator[None]:
    """A node whose agent has published a device of each resource."""
    nodes.create(NODE)
    pod = make_pod(control_plane, NODE, name="edu-devices-c1a1m", account=DEVICE_AGENT)
    agent = identity(control_plane, tmp_path / "token", pod, account=DEVICE_AGENT)
    devices = [
        {"name": f"d{n}", "attributes": {"resource": {"string": each}}}
        for n, each in enumerate(("units.example.com/unit", *["example.com/edu"] * 2))
    ]
    spec = {
        "driver": "edu.nodeside.io",
        "nodeName": NODE,
        "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
        "devices": devices,
    }
    wanted = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": SLICE},
        "spec": spec,
    }
    answer = control_plane.request("POST", SLICES, wanted, token=agent.token)
    assert answer.status == 201, answer.message
    yield
    control_plane.do("DELETE", f"{SLICES}/{SLICE}")
    control_plane.request("DELETE", PODS, {"gracePeriodSeconds": 0})
    control_plane.wait_for(lambda: not control_plane.do("GET", PODS)["items"], "no pods")


def workload(name: str, **parts: Any) -> Mapping[str, Any]:
    container = {"name": "main", "image": "registry.example.com/app:1", **parts.pop("main", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **parts},
    }


@pytest.mark.cluster
def test_pods_get_the_devices_by_claim_and_by_limits_and_both_are_found_as_consumers(
    control_plane: ControlPlane, published: None, tmp_path: Path
) -> None:
    path = tmp_path / "classes.yaml"
    path.write_text(printed(tmp_path))
    control_plane.kubectl("apply", "--validate=strict", "--namespace=default", "-f", str(path))

    claims = [{"name": "device", "resourceClaimTemplateName": "edu.example.com"}]
    for pod in (
        workload(
            "claims",
            resourceClaims=claims,
            main={"resources": {"claims": [{"name": "device"}]}},
        ),
        workload("limits", main={"resources": {"limits": {"example.com/edu": "1"}}}),
        workload("neither"),
    ):
        control_plane.do("POST", PODS, pod)

    def placed() -> set[str]:
        pods = control_plane.do("GET", PODS)["items"]
        return {each["metadata"]["name"] for each in pods if each["spec"].get("nodeName") == NODE}

    control_plane.wait_for(lambda: placed() == {"claims", "limits", "neither"}, "pods to be placed")

    evict = eviction_policy(driver(rollout={"evict": {}}))
    assert evict is not None
    api = connect(control_plane.kubeconfig)
    found = list_consumers(api, demand_of(evict))
    assert found.known, found.trouble
    assert set(found.consumers) == {"default/claims", "default/limits"}
    assert {each.node for each in found.consumers.values()} == {NODE}
    control_plane.kubectl("delete", "--namespace=default", "-f", str(path))
