"""Names of devices in ResourceSlices."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeside.device_agent.dra.names import device_name

LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
RESOURCES = st.one_of(
    st.sampled_from(["example.com/edu", "example.com/edu-00", "b.example.com/edu"]),
    st.from_regex(r"[a-z.]{1,40}/[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", fullmatch=True),
)
IDS = st.one_of(
    st.from_regex(r"([0-9a-f]{4,5}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](-[0-9])?", fullmatch=True),
    st.from_regex(r"[A-Za-z0-9_.:-]{1,63}", fullmatch=True),
    st.sampled_from(["00:06.0-2", "00-06-0-2", "06-0-2", "a", "A", "-", "00:06.0::2"]),
)


@pytest.mark.parametrize(
    ("resource", "id_", "name"),
    [
        ("example.com/edu", "00:06.0", "edu-00-06-0-47d5b5925eb3"),
        ("b.example.com/edu", "00:06.0", "edu-00-06-0-c70ccb46d126"),
        ("example.com/edu", "0001:5e:00.1-2", "edu-0001-5e-00-1-2-043fa9e4060d"),
        ("example.com/edu", "5e:00.0::3", "edu-5e-00-0-3-af0ffe6c004b"),
        ("example.com/edu", "00:14.0-usb1.2", "edu-00-14-0-usb1-2-4d72d567a767"),
        ("example.com/FPGA_Port", "17", "fpga-port-17-b5bf6548e034"),
    ],
)
def test_a_name_can_be_read_and_stays_what_it_is(resource: str, id_: str, name: str) -> None:
    """Claims that are allocated hold it: another one is a device that nobody has."""
    assert device_name(resource, id_) == name


@given(one=st.tuples(RESOURCES, IDS), other=st.tuples(RESOURCES, IDS))
def test_two_devices_never_have_one_name(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (device_name(*one) == device_name(*other)) == (one == other)


@given(resource=RESOURCES, id_=IDS)
def test_every_name_is_a_dns_label(resource: str, id_: str) -> None:
    assert LABEL.fullmatch(device_name(resource, id_))
