"""The messages of the device plugin API."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import nodeside.device_agent
from nodeside.device_agent import messages
from tests.tries import sampled

API = Path(nodeside.device_agent.__file__).with_name("api")


@pytest.mark.parametrize(
    "name", sampled(["deviceplugin", "podresources", "dra", "drahealth", "pluginregistration"], 5)
)
def test_the_descriptors_are_those_of_the_proto_file(name: str, tmp_path: Path) -> None:
    made = tmp_path / f"{name}.binpb"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{API}", f"{name}.proto"]
    subprocess.run([*command, f"--descriptor_set_out={made}"], check=True)
    assert made.read_bytes() == (API / made.name).read_bytes(), (
        "make it anew: python -m grpc_tools.protoc -Inodeside/device_agent/api "
        f"{name}.proto --descriptor_set_out=nodeside/device_agent/api/{name}.binpb"
    )


def test_a_registration_has_the_bytes_that_a_kubelet_reads() -> None:
    """By hand: a field's number and its type, then its length; protobuf.dev, Encoding."""
    request = messages.RegisterRequest(
        version="v1beta1",
        endpoint="a.sock",
        resource_name="example.com/edu",
        options=messages.DevicePluginOptions(get_preferred_allocation_available=True),
    )
    assert request.SerializeToString() == (
        b"\x0a\x07v1beta1\x12\x06a.sock\x1a\x0fexample.com/edu\x22\x02\x10\x01"
    )


def test_what_a_container_gets_has_the_bytes_that_a_kubelet_reads() -> None:
    given = messages.ContainerAllocateResponse(
        envs={"A": "1"},
        devices=[
            messages.DeviceSpec(container_path="/dev/a", host_path="/dev/b", permissions="rw")
        ],
    )
    assert given.SerializeToString() == (
        b"\x0a\x06\x0a\x01A\x12\x011\x1a\x14\x0a\x06/dev/a\x12\x06/dev/b\x1a\x02rw"
    )
