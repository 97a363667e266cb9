"""Names of devices in ResourceSlices."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeside.device_agent.dra.names import device_name

LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
RESOURCES = st.sampled_from(["", "example.com/edu", "example.com/port", "b.example.com/edu"])
IDS = st.one_of(
    st.from_regex(r"([0-9a-f]{4,5}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](-[0-9])?", fullmatch=True),
    st.from_regex(r"[A-Za-z0-9_.:-]{1,63}", fullmatch=True),
    st.sampled_from(["pci-0000-00-06-0", "00:06.0-2", "00-06-0-2", "id-a", "a", "s0-a", "A"]),
)


@pytest.mark.parametrize(
    ("id_", "name"),
    [
        ("00:06.0", "pci-0000-00-06-0"),
        ("0001:5e:00.1", "pci-0001-5e-00-1"),
        ("5e:00.0-2", "pci-0000-5e-00-0-2"),
        ("5e:00.0::3", "s3-pci-0000-5e-00-0"),
        ("video0", "id-video0"),
        ("17", "id-17"),
        ("00:14.0-usb1.2", "x-00-14-0-usb1-2-d0d492f41808"),
    ],
)
def test_a_name_can_be_read(id_: str, name: str) -> None:
    assert device_name(id_) == name


def test_a_name_says_the_resource_where_a_driver_has_several() -> None:
    assert device_name("0", "example.com/port").startswith("x-port-0-")
    assert device_name("0", "example.com/port") != device_name("0", "example.com/unit")


@given(one=IDS, other=IDS, shares=st.tuples(*[st.sampled_from(["", "::0", "::63"])] * 2))
def test_two_devices_never_have_one_name(one: str, other: str, shares: tuple[str, str]) -> None:
    ids = (one + shares[0], other + shares[1])
    names = [device_name(each) for each in ids]
    assert (names[0] == names[1]) == (ids[0] == ids[1])


@given(id_=IDS, resource=RESOURCES, share=st.sampled_from(["", "::0", "::63"]))
def test_every_name_is_a_dns_label(id_: str, resource: str, share: str) -> None:
    assert LABEL.fullmatch(device_name(id_ + share, resource))
