"""Which nodes a driver is for, and which of them belong together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.driver.hardware import (
    Match,
    former_devices,
    match_hardware,
    selected_devices,
    stale_nfd_label,
)
from cluster.driver.pools import pool_of
from cluster.model.labelmap import Labels, labels_of
from cluster.model.names import KERNEL_LABEL, OSTREE_LABEL
from cluster.model.snapshot import Node, Pool, assignment_name
from nodeside.protocol.labels import LABEL_VALUE
from nodeside.spec.model import Hardware
from nodeside.spec.pci import PciId

RHCOS = "Red Hat Enterprise Linux CoreOS 418.94.202501221327-0"
KERNEL = "5.14.0-427.50.1.el9_4.x86_64"
EDU = Hardware(pci=(PciId("1234", "11e8"),))


def node(**fields: Any) -> Node:
    whole = {"name": "n1", "architecture": "x86_64", "kernel": KERNEL, "os_image": RHCOS}
    return Node(**{**whole, **fields})


def nfd(*fields: str) -> dict[str, str]:
    return {f"feature.node.kubernetes.io/pci-{each}.present": "true" for each in fields}


def test_a_pool_is_architecture_os_version_and_kernel_as_the_kubelet_says_them() -> None:
    labels = {KERNEL_LABEL: "5.14.0-100.el9.x86_64", OSTREE_LABEL: "417.94.202401010000-0"}

    pool = pool_of(node(labels=labels))

    assert pool == Pool("x86_64", "418.94.202501221327-0", KERNEL)


def test_a_realtime_kernel_is_a_pool_of_its_own() -> None:
    plain, realtime = node(), node(kernel=f"{KERNEL}+rt")

    assert pool_of(plain) != pool_of(realtime)
    assert LABEL_VALUE.match(assignment_name("edu", pool_of(realtime), "0123456789ab"))


def test_an_assignment_differs_with_everything_in_it() -> None:
    pools = [Pool("x86_64", "1", "2"), Pool("aarch64", "1", "2"), Pool("x86_64", "12", "")]
    made = {assignment_name(d, p, r) for d in ("edu", "e") for p in pools for r in ("a", "b")}

    assert len(made) == 12


def test_pool_is_stable_until_kernel_or_boot_changes() -> None:
    here = Pool("x86_64", "debian12", KERNEL)
    upgraded = node(os_image="Debian GNU/Linux 13 (trixie)")

    assert pool_of(upgraded, here, rebooted=False) == here
    assert pool_of(upgraded, here, rebooted=True).os_version == "debian13"
    assert pool_of(node(kernel="6.1.0"), here, rebooted=False).kernel == "6.1.0"


def test_an_os_version_that_only_a_label_tells_may_come_and_go() -> None:
    labelled = node(os_image="", labels={OSTREE_LABEL: "418.94.202501221327-0"})
    here = pool_of(labelled)

    assert here.os_version == "418.94.202501221327-0"
    assert pool_of(node(os_image=""), here, rebooted=True) == here


BARE = "Red Hat Enterprise Linux CoreOS"


def test_a_label_that_alone_tells_the_version_is_believed_anew_until_the_driver_works() -> None:
    old, new = "418.94.202501221327-0", "419.96.202507011200-0"
    late = node(os_image=BARE, labels={OSTREE_LABEL: old})
    told = node(os_image=BARE, labels={OSTREE_LABEL: new})
    wrong = pool_of(late, Pool("x86_64", old, "5.14.0-100.el9.x86_64"))

    assert wrong == Pool("x86_64", old, KERNEL)
    assert pool_of(told, wrong, rebooted=False, works=False).os_version == new
    assert pool_of(told, wrong, rebooted=False, works=True) == wrong


@pytest.mark.parametrize("rebooted", [False, True])
@pytest.mark.parametrize("works", [False, True])
def test_a_label_that_alone_tells_the_version_and_is_gone_moves_nothing(
    rebooted: bool, works: bool
) -> None:
    here = Pool("x86_64", "418.94.202501221327-0", KERNEL)

    assert pool_of(node(os_image=BARE), here, rebooted=rebooted, works=works) == here


def test_what_labels_say_otherwise_is_told_and_decides_nothing() -> None:
    lagging = node(labels={KERNEL_LABEL: "5.14.0-100.el9.x86_64"})

    assert "still says 5.14.0-100.el9.x86_64" in stale_nfd_label(lagging)
    assert stale_nfd_label(node(labels={KERNEL_LABEL: KERNEL})) == ""
    assert "418.94.2025" in stale_nfd_label(node(labels={OSTREE_LABEL: "417.94.202401010000-0"}))


@pytest.mark.parametrize(
    ("kernel", "label"),
    [
        ("5.14.0-427.50.1.el9_4.x86_64+rt", "5.14.0-427.50.1.el9_4.x86_64_rt"),
        ("6.12.0-231.12.el10nv.aarch64+64k", "6.12.0-231.12.el10nv.aarch64_64k"),
        ("6.12.57+deb12-cloud-amd64", "6.12.57_deb12-cloud-amd64"),
        ("4.9.140-l4t-r32.3.1+g47e7e1cb0b49", "4.9.140-l4t-r32.3.1_g47e7e1cb0b49"),
        ("5.4.51-v8+", "5.4.51-v8"),
        ("6.8.0-rc1~dirty_", "6.8.0-rc1_dirty"),
    ],
)
def test_a_kernel_release_that_no_label_can_hold_is_agreed_on(kernel: str, label: str) -> None:
    assert stale_nfd_label(node(kernel=kernel, labels={KERNEL_LABEL: label})) == ""


def test_the_label_of_a_realtime_kernel_can_still_be_late() -> None:
    late = node(kernel=f"{KERNEL}+rt", labels={KERNEL_LABEL: KERNEL})
    later = node(kernel=KERNEL, labels={KERNEL_LABEL: f"{KERNEL}_rt"})

    assert stale_nfd_label(late) == (
        f"the label {KERNEL_LABEL} still says {KERNEL}, the kubelet says {KERNEL}+rt"
    )
    assert f"still says {KERNEL}_rt" in stale_nfd_label(later)


def test_a_kubelet_that_has_not_told_its_kernel_contradicts_no_label() -> None:
    assert stale_nfd_label(node(kernel="", labels={KERNEL_LABEL: KERNEL})) == ""


@pytest.mark.parametrize(
    ("os_image", "label"),
    [
        (f"{RHCOS} (Plow)", "418.94.202501221327-0"),
        ("CentOS Stream CoreOS 9.0.20250827-0", "9.0.20250827-0"),
        ("Fedora CoreOS 39.20231204.3.3", "39.20231204.3.3"),
        ("Red Hat Enterprise Linux CoreOS", "418.94.202501221327-0"),
        ("", "418.94.202501221327-0"),
    ],
)
def test_a_label_of_the_version_that_the_kubelet_says_or_does_not_say_is_agreed_on(
    os_image: str, label: str
) -> None:
    assert stale_nfd_label(node(os_image=os_image, labels={OSTREE_LABEL: label})) == ""


@pytest.mark.parametrize("os_image", ["Debian GNU/Linux 13 (trixie)", f"{RHCOS}1"])
def test_a_label_of_another_version_than_the_kubelet_says_is_told(os_image: str) -> None:
    found = stale_nfd_label(node(os_image=os_image, labels={OSTREE_LABEL: "418.94.202501221327-0"}))

    assert found.endswith(f"still says 418.94.202501221327-0, the kubelet says {os_image}")


@pytest.mark.parametrize(
    "fields",
    ["1234", "1234_11e8", "00ff_1234", "00ff_1234_11e8", "1234_11e8_1af4_1100"],
)
def test_a_device_is_found_in_every_form_of_the_label(fields: str) -> None:
    assert match_hardware(node(labels=nfd(fields)), EDU, assigned=False) is Match.HAS


@pytest.mark.parametrize("fields", ["8086", "1234_11e9", "00ff_1234_11e9", "0300_8086_1234"])
def test_another_device_is_not_this_one(fields: str) -> None:
    assert match_hardware(node(labels=nfd(fields)), EDU, assigned=False) is Match.LACKS


def test_a_node_with_thousands_of_device_labels_is_read_once_and_not_per_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    labels = labels_of(nfd(*(f"{number:04x}_{number:04x}" for number in range(20_000)), "fffe"))

    def never(*_: object) -> None:
        raise AssertionError("all labels were read again")

    for name in ("__iter__", "items", "keys"):
        monkeypatch.setattr(Labels, name, never)
    for vendor, fit in [("0001", Match.HAS), ("00ff", Match.HAS), ("fffe", Match.HAS)]:
        hardware = Hardware(pci=(PciId(vendor),))
        assert match_hardware(node(labels=labels), hardware, assigned=False) is fit
    absent = Hardware(pci=tuple(PciId("ffff", f"{number:04x}") for number in range(8)))
    assert match_hardware(node(labels=labels), absent, assigned=False) is Match.LACKS
    assert sum(map(len, labels.devices.values())) <= 1024, "memory is limited"


def test_a_vendor_id_alone_means_every_device_of_the_vendor() -> None:
    vendor = Hardware(pci=(PciId("1234"),))

    assert match_hardware(node(labels=nfd("0300_1234_0001")), vendor, assigned=False) is Match.HAS


def test_a_device_label_that_vanished_takes_no_driver_away() -> None:
    assert match_hardware(node(), EDU, assigned=False) is Match.LACKS
    assert match_hardware(node(), EDU, assigned=True) is Match.KEPT
    assert Match.KEPT.is_selected


@pytest.mark.parametrize("assigned", [False, True])
def test_a_node_that_does_not_run_linux_is_never_a_drivers(assigned: bool) -> None:
    windows = node(labels=nfd("1234") | {"kubernetes.io/os": "windows"})
    linux = node(labels=nfd("1234") | {"kubernetes.io/os": "linux"})

    for hardware in (EDU, Hardware()):
        fit = match_hardware(windows, hardware, assigned=assigned)
        assert (fit, fit.is_selected) == (Match.FOREIGN, False)
        assert match_hardware(linux, hardware, assigned=assigned) is Match.HAS


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (["1234"], ["1234:11e8"]),
        (["1234:9999", "1234:11e8"], ["1234:11e8"]),
        (["1234", "5678"], ["5678"]),
        (["1234"], ["5678:0001"]),
    ],
)
def test_a_node_with_a_device_that_the_driver_is_not_for_any_more_leaves(
    before: list[str], now: list[str]
) -> None:
    ids = [PciId(*each.split(":")) for each in now]
    hardware = Hardware(pci=tuple(ids))
    status = {"devices": before}
    former = former_devices(hardware, status)
    has_other, silent = node(labels=nfd("00ff_1234_9999")), node()

    assert match_hardware(has_other, hardware, assigned=True, former=former) is Match.CONTRADICTED
    assert match_hardware(silent, hardware, assigned=True, former=former) is Match.KEPT
    assert selected_devices(hardware, status)[: len(now)] == now
    assert set(selected_devices(hardware, status)) == {*before, *now}


def test_a_node_with_both_devices_stays_and_one_that_was_never_for_it_says_nothing() -> None:
    former = (PciId("1234", "9999"),)
    both = node(labels=nfd("1234_9999") | nfd("1234_11e8"))
    odd = node(labels=nfd("1234_7777"))

    assert match_hardware(both, EDU, assigned=True, former=former) is Match.HAS
    assert match_hardware(odd, EDU, assigned=True, former=former) is Match.KEPT


def test_a_device_label_that_says_no_does() -> None:
    labels = {"feature.node.kubernetes.io/pci-1234.present": "false"}

    assert match_hardware(node(labels=labels), EDU, assigned=True) is Match.CONTRADICTED
    assert not Match.CONTRADICTED.is_selected


def test_a_label_of_the_selector_is_the_administrators_word() -> None:
    zone = Hardware(node_selector={"example.com/edu": "yes"})

    assert (
        match_hardware(node(labels={"example.com/edu": "yes"}), zone, assigned=False) is Match.HAS
    )
    assert match_hardware(node(), zone, assigned=False) is Match.LACKS
    assert match_hardware(node(), zone, assigned=True) is Match.CONTRADICTED
    said_no = node(labels={"example.com/edu": "no"})
    assert match_hardware(said_no, zone, assigned=True) is Match.CONTRADICTED


def test_a_label_of_the_selector_that_is_node_feature_discoverys_may_vanish() -> None:
    key = "feature.node.kubernetes.io/system-os_release.ID"
    rhcos = Hardware(node_selector={key: "rhcos"})

    assert match_hardware(node(), rhcos, assigned=True) is Match.KEPT
    assert match_hardware(node(labels={key: "fedora"}), rhcos, assigned=True) is Match.CONTRADICTED


def test_a_node_must_fit_both_the_devices_and_the_selector() -> None:
    both = Hardware(pci=EDU.pci, node_selector={"example.com/edu": "yes"})
    labels = nfd("1234") | {"example.com/edu": "yes"}

    assert match_hardware(node(labels=labels), both, assigned=False) is Match.HAS
    assert match_hardware(node(labels=nfd("1234")), both, assigned=False) is Match.LACKS
    assert (
        match_hardware(node(labels={"example.com/edu": "yes"}), both, assigned=True) is Match.KEPT
    )


def test_no_hardware_at_all_means_every_node() -> None:
    assert match_hardware(node(), Hardware(), assigned=False) is Match.HAS


@given(kernel=st.text(max_size=80), version=st.text(max_size=80))
def test_an_assignment_is_a_label_value_whatever_the_kernel_is_called(
    kernel: str, version: str
) -> None:
    made = assignment_name("edu", Pool("x86_64", version, kernel), "0123456789ab")

    assert LABEL_VALUE.match(made)
    assert len(made) == 12
