"""Each fake API server is asked what a real one is asked, and answers in the same shape."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from cluster.install.manifests import InstallSettings
from cluster.kube.resources import LEASES
from cluster.model.names import NAMESPACE
from nodeside.device_agent.dra.slices import API, device_document
from nodeside.device_agent.inventory import OfferedDevice
from nodeside.devices.discovery import FoundDevice
from nodeside.driver.announce.documents import (
    event_call,
    event_document,
    node_driver_call,
    node_driver_document,
)
from nodeside.kube.client import ApiCall
from nodeside.kube.nodes import label_node, read_node
from nodeside.protocol.labels import state_label
from nodeside.protocol.node_status import NodeDriverStatus, State
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.nodes import Nodes
from tests.device_agent.dra.documents import POOL
from tests.device_agent.dra.played_api import SELECTOR, DraApiServer
from tests.driver.fakes.apiserver import TOKEN, Seen, make_certificates

pytestmark = pytest.mark.cluster

NODE = "fakes.example.com"
SLICES = f"/apis/{API}/resourceslices"
STATUS = NodeDriverStatus(
    driver="edu", node=NODE, state=State.READY, version="1.0.0", kernel="6.1.0", boot_id="b"
)
Answer = tuple[int, Any]


class BothServers:
    """Sends a request to both, and compares the answers."""

    def __init__(self, real: ControlPlane, fake: DraApiServer) -> None:
        self.real, self.fake = real, fake

    def send(self, call: ApiCall) -> tuple[Answer, Answer]:
        body = None if call.body is None else json.dumps(call.body).encode()
        headers = {"Accept": call.accept, "Content-Type": call.content_type or "application/json"}
        session = self.real.new_session("")
        said = session.request(
            call.method, self.real.url + call.path, data=body, headers=headers, timeout=60
        )
        parts = urlsplit(call.path)
        authorized = {"Authorization": f"Bearer {TOKEN}", **headers}
        seen = Seen(call.method, parts.path, parts.query, authorized, call.body)
        status, document = self.fake.answer(seen)
        return (said.status_code, said.json()), (status, json.loads(json.dumps(document)))

    def compare(self, call: ApiCall, status: int) -> Any:
        """Assert that both answer with `status`, the fake with nothing that the real one lacks."""
        (real_status, real), (fake_status, fake) = self.send(call)
        assert real_status == status, real
        assert fake_status == status, fake
        assert not differences(real, fake)
        return real


def differences(real: Any, fake: Any, at: str = "") -> list[str]:
    """Return where the fake gives what the real one does not; it may give less, not of a kind.

    `apiVersion` and `kind` decide how an answer is read: these must be there in both or in neither.
    """
    if isinstance(real, Mapping) and isinstance(fake, Mapping):
        found = [f"{at}.{key} is not in the real one" for key in fake.keys() - real.keys()]
        found += [
            f"{at}.{key}: {real.get(key)!r}, not {fake.get(key)!r}"
            for key in ("apiVersion", "kind")
            if real.get(key) != fake.get(key)
        ]
        for key in fake.keys() & real.keys():
            found += differences(real[key], fake[key], f"{at}.{key}")
        return found
    if isinstance(real, list) and isinstance(fake, list):
        if len(real) != len(fake):
            return [f"{at}: {len(real)} items, not {len(fake)}"]
        pairs = enumerate(zip(real, fake, strict=True))
        return [each for i, (a, b) in pairs for each in differences(a, b, f"{at}[{i}]")]
    same = type(real) is type(fake)
    return [] if same else [f"{at}: {type(real).__name__}, not {type(fake).__name__}"]


@pytest.fixture
def both(
    control_plane: ControlPlane, installed: InstallSettings, nodes: Nodes, tmp_path: Path
) -> Iterator[BothServers]:
    nodes.create(NODE, ready=False)
    certificates = tmp_path / "certificates"
    certificates.mkdir()
    fake = DraApiServer(tmp_path / "credentials", make_certificates(certificates))
    with fake.running():
        yield BothServers(control_plane, fake)


def test_differences_are_seen() -> None:
    real = {"kind": "NodeList", "items": [{"metadata": {"name": "a"}}]}

    assert not differences(real, real)
    assert not differences(real, {"kind": "NodeList"}), "a fake may know less"
    assert differences(real, {"items": []})
    assert differences(real, real | {"items": [{"kind": "Node", "metadata": {}}]})
    assert differences(real, real | {"items": [{"metadata": {"name": 1}}]})
    assert differences(real, real | {"metadata": {}})


def test_what_a_driver_container_sends(both: BothServers) -> None:
    labels = {state_label("edu"): "ready"}
    document = node_driver_document(STATUS)
    happened = event_document(STATUS, node_uid="", now=1_700_000_000.0)
    try:
        both.compare(label_node(NODE, labels), 200)
        both.compare(read_node(NODE), 200)
        both.compare(node_driver_call(document), 201)
        both.compare(node_driver_call(document), 200)
        both.compare(node_driver_call(document, "status"), 404)
        both.compare(event_call(happened), 201)
        both.compare(event_call(happened), 409)
    finally:
        both.real.request("DELETE", urlsplit(node_driver_call(document).path).path)


def test_what_a_device_agent_sends(both: BothServers) -> None:
    devices = [
        device_document(
            "edu-0", OfferedDevice("a", FoundDevice("a")), resource="example.com/edu", version="1.0"
        )
    ]
    spec = {
        "driver": POOL.driver,
        "nodeName": POOL.node,
        "pool": {"name": POOL.node, "generation": 1, "resourceSliceCount": 1},
        "devices": devices,
    }
    made = {
        "apiVersion": API,
        "kind": "ResourceSlice",
        "metadata": {"name": "fakes-edu"},
        "spec": spec,
    }
    listing = f"{SLICES}?{urlencode({'fieldSelector': SELECTOR})}"
    only = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
    alone = f"{SLICES}/fakes-edu"

    def call(method: str, path: str, body: Any = None, accept: str = ApiCall.accept) -> ApiCall:
        return ApiCall("", "", "", method, path, "application/json", body, accept)

    def with_version(version: str) -> dict[str, Any]:
        return {**made, "metadata": {"name": "fakes-edu", "resourceVersion": version}}

    try:
        both.compare(call("GET", listing), 200)
        both.compare(call("POST", SLICES, made), 201)
        both.compare(call("POST", SLICES, made), 409)
        both.compare(call("GET", listing), 200)
        both.compare(call("GET", listing, accept=only), 200)
        both.compare(call("PUT", alone, with_version("9999999")), 409)
        both.compare(call("PUT", f"{SLICES}/none", {**made, "metadata": {"name": "none"}}), 404)
        both.compare(call("DELETE", alone), 200)
        both.compare(call("DELETE", alone), 404)
        both.compare(call("GET", listing), 200)
        claims = f"/apis/{API}/namespaces/default/resourceclaims"
        both.compare(call("GET", f"{claims}/none"), 404)
    finally:
        both.real.request("DELETE", alone)


def test_a_lease_has_the_conflicts_that_the_election_counts_on(
    control_plane: ControlPlane, installed: InstallSettings
) -> None:
    """`FakeLeases` of test_election has these three."""
    path = LEASES.path(namespace=NAMESPACE)
    lease = {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.kind,
        "metadata": {"name": "fakes"},
        "spec": {"holderIdentity": "one"},
    }
    assert control_plane.request("GET", f"{path}/fakes").status == 404
    made = control_plane.do("POST", path, lease)
    try:
        assert control_plane.request("POST", path, lease).status == 409
        changed = {**made, "spec": {"holderIdentity": "two"}}
        assert control_plane.request("PUT", f"{path}/fakes", changed).status == 200
        assert control_plane.request("PUT", f"{path}/fakes", changed).status == 409
    finally:
        control_plane.request("DELETE", f"{path}/fakes")
