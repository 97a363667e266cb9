"""ResourceSlices on a real API server: it takes what the agent writes, and its rights suffice.

A stand-in would take anything; this one has Kubernetes' own validation and RBAC.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeside.device_agent.dra.api import CALLER, DraClient
from nodeside.device_agent.dra.claims import read_claim
from nodeside.device_agent.dra.names import device_name
from nodeside.device_agent.dra.publisher import Publication
from nodeside.device_agent.dra.slices import Document, device_document
from nodeside.device_agent.inventory import OfferedDevice
from nodeside.devices.discovery import FoundDevice
from nodeside.http.status import KubernetesError
from nodeside.kube.client import PodAccess
from nodeside.protocol.labels import dra_driver
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.nodes import Nodes
from tests.tries import tries

pytestmark = pytest.mark.cluster

NODE = "slices-1.example.com"
DRIVER = dra_driver("d" * 40)  # the longest name that driver.yaml takes
ACCOUNT = "slices"
RIGHTS = "/apis/rbac.authorization.k8s.io/v1"
DRA = "/apis/resource.k8s.io/v1"
IDS = st.from_regex(r"[A-Za-z0-9_.:-]{1,59}(::[0-9]{1,2})?", fullmatch=True)


@pytest.fixture(scope="module")
def access(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PodAccess]:
    """An account that may do what api.py says that it asks for, and nothing else."""
    nodes = Nodes(control_plane)
    nodes.create(NODE)
    account = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "default"}
    rules = [
        {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
        for resource, (group, verbs) in CALLER.rules.items()
    ]
    metadata = {"name": ACCOUNT}
    role = {"kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", "name": ACCOUNT}
    control_plane.do("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": metadata})
    control_plane.do("POST", f"{RIGHTS}/clusterroles", {"metadata": metadata, "rules": rules})
    binding = {"metadata": metadata, "roleRef": role, "subjects": [account]}
    control_plane.do("POST", f"{RIGHTS}/clusterrolebindings", binding)
    directory = tmp_path_factory.mktemp("token")
    (directory / "token").write_text(control_plane.pod_token("default", ACCOUNT, None))
    shutil.copy(control_plane.ca, directory / "ca.crt")
    yield PodAccess(control_plane.url, directory)
    for path in (f"{RIGHTS}/clusterrolebindings", f"{RIGHTS}/clusterroles"):
        control_plane.do("DELETE", f"{path}/{ACCOUNT}")
    control_plane.do("DELETE", f"/api/v1/namespaces/default/serviceaccounts/{ACCOUNT}")
    nodes.clear()


@pytest.fixture
def cluster(control_plane: ControlPlane, access: PodAccess) -> Iterator[DraClient]:
    cluster = DraClient(access)
    yield cluster
    cluster.close()
    selector = f"fieldSelector=spec.driver%3D{DRIVER}"
    control_plane.do("DELETE", f"{DRA}/resourceslices?{selector}")


def devices(*ids: str, **more: Any) -> list[Document]:
    return [
        device_document(
            device_name("example.com/edu", each),
            OfferedDevice(each, FoundDevice(each, **more)),
            resource="example.com/edu",
            version="1.0.0",
            ids=("1234", "11e8"),
        )
        for each in ids
    ]


def published(cluster: DraClient, wanted: Sequence[Document]) -> list[Document]:
    """Publish them until nothing is left to do; return the slices."""
    publication = Publication(cluster, DRIVER, NODE)
    publication.set_devices(wanted)
    publication.publish_if_due(0.0)
    assert publication._trouble == ""
    return cluster.list_slices(DRIVER, NODE)


def test_a_device_with_everything_that_can_be_said_is_taken(
    control_plane: ControlPlane, cluster: DraClient
) -> None:
    attributes = {f"a{number}" + "x" * 29: str(number) * 200 for number in range(16)}
    wanted = devices(
        "00:06.0", address="00:06.0", pci_root="pci0000:00", numa_node=0, attributes=attributes
    )

    (found,) = published(cluster, wanted)

    assert found["spec"]["devices"] == wanted
    assert found["spec"]["nodeName"] == NODE
    node = control_plane.do("GET", f"/api/v1/nodes/{NODE}")
    (owner,) = found["metadata"]["ownerReferences"]
    assert owner["uid"] == node["metadata"]["uid"]


def test_what_was_written_is_not_written_again_by_the_next_agent(cluster: DraClient) -> None:
    wanted = devices("00:06.0", "00:07.0", address="00:06.0", attributes={"empty": ""})
    before = published(cluster, wanted)
    assert published(cluster, wanted) == before


def test_a_thousand_devices_come_and_go(cluster: DraClient) -> None:
    every = [f"unit{number}" for number in range(1000)]
    assert len(published(cluster, devices(*every))) == 8
    left = published(cluster, devices(*every[::2]))
    assert sum(len(each["spec"]["devices"]) for each in left) == 500
    assert published(cluster, []) == []


def test_slices_that_somebody_deletes_come_back(
    control_plane: ControlPlane, cluster: DraClient
) -> None:
    publication = Publication(cluster, DRIVER, NODE)
    publication.set_devices(devices("00:06.0"))
    publication.publish_if_due(0.0)
    (found,) = cluster.list_slices(DRIVER, NODE)
    assert cluster.list_versions(DRIVER, NODE) == {
        found["metadata"]["name"]: found["metadata"]["resourceVersion"]
    }
    control_plane.do("DELETE", f"{DRA}/resourceslices/{found['metadata']['name']}")

    def is_back() -> bool:
        publication.note_kubelet_answer(now=1000.0)
        publication.publish_if_due(now=2000.0)
        return len(cluster.list_slices(DRIVER, NODE)) == 1

    control_plane.wait_for(is_back, "the slice to come back")


@settings(max_examples=tries(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    ids=st.lists(IDS, min_size=1, max_size=20, unique=True),
    attributes=st.dictionaries(
        st.from_regex(r"[a-z]([a-z0-9_]{0,30}[a-z0-9])?", fullmatch=True),
        st.text(max_size=200),
        max_size=16,
    ),
    version=st.one_of(st.text(max_size=80), st.from_regex(r"[0-9]+\.[0-9]+\.[0-9]+(-[a-z.]+)?")),
)
def test_whatever_a_device_says_of_itself_is_taken(
    control_plane: ControlPlane, ids: list[str], attributes: Mapping[str, str], version: str
) -> None:
    spec = {
        "driver": DRIVER,
        "nodeName": NODE,
        "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
        "devices": [
            device_document(
                device_name("example.com/edu", each),
                OfferedDevice(each, FoundDevice(each, attributes=attributes)),
                resource="example.com/edu",
                version=version,
            )
            for each in ids
        ],
    }
    slices = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
    answer = control_plane.request(
        "POST",
        f"{DRA}/resourceslices?dryRun=All&fieldValidation=Strict",
        {**slices, "metadata": {"name": "try"}, "spec": spec},
    )
    assert answer.message == ""
    assert answer.document["spec"] == spec


def test_a_claim_is_read_as_it_is_stored(control_plane: ControlPlane, cluster: DraClient) -> None:
    name = device_name("example.com/edu", "00:06.0")
    request = {"name": "main", "exactly": {"deviceClassName": "none"}}
    stored = control_plane.do(
        "POST",
        f"{DRA}/namespaces/default/resourceclaims",
        {"metadata": {"name": "one"}, "spec": {"devices": {"requests": [request]}}},
    )
    selector = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}
    allocation = {
        "devices": {
            "results": [{"request": "main", "driver": DRIVER, "pool": NODE, "device": name}]
        },
        "nodeSelector": {"nodeSelectorTerms": [selector]},
    }
    path = f"{DRA}/namespaces/default/resourceclaims/one"
    control_plane.do("PUT", f"{path}/status", {**stored, "status": {"allocation": allocation}})
    uid = stored["metadata"]["uid"]

    found = read_claim(
        cluster.fetch_claim("default", "one"),
        uid=uid,
        namespace="default",
        name="one",
        driver=DRIVER,
        pool=NODE,
    )

    assert [each.device for each in found.devices] == [name]
    control_plane.do("DELETE", path)


@pytest.fixture
def device_class(control_plane: ControlPlane) -> Iterator[str]:
    """As docs/devices.md has it."""
    expression = (
        f'device.driver == "{DRIVER}" && '
        f'device.attributes["{DRIVER}"].resource == "example.com/edu"'
    )
    spec = {
        "extendedResourceName": "example.com/edu",
        "selectors": [{"cel": {"expression": expression}}],
    }
    path = f"{DRA}/deviceclasses"
    control_plane.do("POST", path, {"metadata": {"name": "edu"}, "spec": spec})
    yield "edu"
    control_plane.do("DELETE", f"{path}/edu")


def allocated(control_plane: ControlPlane, container: Mapping[str, Any], **spec: Any) -> list[str]:
    """The devices that the scheduler gives a pod, by its claim."""
    path = "/api/v1/namespaces/default/pods"
    main = {"name": "main", "image": "registry.example.com/a:1", **container}
    pod = {
        "nodeSelector": {"kubernetes.io/hostname": NODE},
        "tolerations": [{"operator": "Exists"}],
        "containers": [main],
        **spec,
    }
    control_plane.do("POST", path, {"metadata": {"name": "compute"}, "spec": pod})

    def results() -> list[Mapping[str, Any]]:
        claims = control_plane.do("GET", f"{DRA}/namespaces/default/resourceclaims")["items"]
        allocations = [each.get("status", {}).get("allocation", {}) for each in claims]
        return [one for each in allocations for one in each.get("devices", {}).get("results", ())]

    control_plane.wait_for(results, "the claim of a pod to be allocated")
    found = results()
    control_plane.do("DELETE", f"{path}/compute?gracePeriodSeconds=0")
    control_plane.wait_for(lambda: not results(), "the claim to be gone")
    assert {(each["driver"], each["pool"]) for each in found} == {(DRIVER, NODE)}
    return sorted(each["device"] for each in found)


def test_the_scheduler_gives_a_claim_what_is_published(
    control_plane: ControlPlane, cluster: DraClient, device_class: str
) -> None:
    published(cluster, devices("00:06.0", "00:07.0", "00:08.0"))
    exactly = {"deviceClassName": device_class, "count": 2}
    template = {"spec": {"devices": {"requests": [{"name": "main", "exactly": exactly}]}}}
    path = f"{DRA}/namespaces/default/resourceclaimtemplates"
    control_plane.do("POST", path, {"metadata": {"name": "two"}, "spec": template})

    found = allocated(
        control_plane,
        {"resources": {"claims": [{"name": "edu"}]}},
        resourceClaims=[{"name": "edu", "resourceClaimTemplateName": "two"}],
    )

    assert len(set(found)) == 2
    assert set(found) <= {device_name("example.com/edu", f"00:0{n}.0") for n in (6, 7, 8)}
    control_plane.do("DELETE", f"{path}/two")


def test_a_pod_that_was_written_for_a_device_plugin_is_given_a_published_device(
    control_plane: ControlPlane, cluster: DraClient, device_class: str
) -> None:
    """KEP-5004: the scheduler makes the claim."""
    published(cluster, devices("00:06.0"))
    limits = {"resources": {"limits": {"example.com/edu": "1"}}}
    assert allocated(control_plane, limits) == [device_name("example.com/edu", "00:06.0")]


def test_a_claim_that_is_gone_is_said(cluster: DraClient) -> None:
    with pytest.raises(KubernetesError) as error:
        cluster.fetch_claim("default", "gone")
    assert error.value.status == 404
    assert "cannot get" not in str(error.value)
    assert '"gone" not found' in str(error.value)
