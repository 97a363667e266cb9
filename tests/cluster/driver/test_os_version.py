"""The version of an operating system, from the kubelet's words."""

from __future__ import annotations

import pytest

from cluster.driver.pools import os_parts, os_version, ostree_version
from cluster.model.names import OSTREE_LABEL


@pytest.mark.parametrize(
    ("os_image", "version"),
    [
        ("Red Hat Enterprise Linux CoreOS 49.84.202110081407-0 (Ootpa)", "49.84.202110081407-0"),
        ("Red Hat Enterprise Linux CoreOS 410.84.202207140725-0 (Ootpa)", "410.84.202207140725-0"),
        ("Red Hat Enterprise Linux CoreOS 418.94.202501221327-0", "418.94.202501221327-0"),
        ("Red Hat Enterprise Linux CoreOS 9.6.20251023-0 (Plow)", "9.6.20251023-0"),
        ("Red Hat Enterprise Linux CoreOS 9.6.20260616-0", "9.6.20260616-0"),
        ("CentOS Stream CoreOS 418.9.202412211500-0", "418.9.202412211500-0"),
        ("Debian GNU/Linux 12 (bookworm)", ""),
        ("Ubuntu 22.04.4 LTS", ""),
        ("Fedora CoreOS 39.20231204.3.3", ""),
        ("", ""),
    ],
)
def test_the_ostree_version_stands_in_the_kubelets_os_image(os_image: str, version: str) -> None:
    assert ostree_version({}, os_image) == version


def test_the_kubelet_wins_over_a_label_that_lags_a_reboot() -> None:
    labels = {OSTREE_LABEL: "418.94.202412170927-0"}

    found = ostree_version(labels, "Red Hat Enterprise Linux CoreOS 418.94.202501221327-0")

    assert found == "418.94.202501221327-0"


def test_the_label_serves_where_the_kubelet_does_not_say_it() -> None:
    labels = {OSTREE_LABEL: "9.6.20260616-0"}

    assert ostree_version(labels, "Red Hat Enterprise Linux CoreOS") == "9.6.20260616-0"


def test_a_label_that_holds_no_version_is_no_version() -> None:
    assert ostree_version({OSTREE_LABEL: "rhcos"}, "") == ""


@pytest.mark.parametrize(
    ("os_image", "version"),
    [
        ("Red Hat Enterprise Linux CoreOS 418.94.202501221327-0", "418.94.202501221327-0"),
        ("Red Hat Enterprise Linux 9.4 (Plow)", "rhel9.4"),
        ("Rocky Linux 9.4 (Blue Onyx)", "rocky9.4"),
        ("AlmaLinux 9.5 (Teal Serval)", "almalinux9.5"),
        ("Debian GNU/Linux 12 (bookworm)", "debian12"),
        ("Debian GNU/Linux trixie/sid", "debian"),
        ("Ubuntu 22.04.4 LTS", "ubuntu22.04"),
        ("Ubuntu 24.04 LTS", "ubuntu24.04"),
        ("SUSE Linux Enterprise Server 15 SP5", "sles15.5"),
        ("openSUSE Leap 15.6", "opensuse-leap15.6"),
        ("Amazon Linux 2023.4.20240401", "amzn2023.4"),
        ("Fedora CoreOS 39.20231204.3.3", "fedora-coreos39.20231204"),
        ("Flatcar Container Linux by Kinvolk 3815.2.0 (Oklo)", "flatcar3815.2"),
        ("Talos (v1.7.0)", "talos1.7"),
        ("Container-Optimized OS from Google", "cos"),
        ("Some Vendor's OS 3", "some-vendor-s-os3"),
        ("", "unknown"),
    ],
)
def test_any_other_system_is_named_by_id_and_version(os_image: str, version: str) -> None:
    assert os_version(os_image) == version


def test_a_point_release_is_no_other_version() -> None:
    assert os_version("Ubuntu 22.04.4 LTS") == os_version("Ubuntu 22.04.5 LTS")


@pytest.mark.parametrize(
    ("version", "parts"),
    [
        ("418.94.202501221327-0", ("rhcos", "coreos", "4.18", "4", "18", "9.4")),
        ("49.84.202110081407-0", ("rhcos", "coreos", "4.9", "4", "9", "8.4")),
        ("418.9.202412211500-0", ("scos", "coreos", "4.18", "4", "18", "9")),
        ("9.6.20260616-0", ("rhel", "coreos", "9.6", "9", "6", "9.6")),
        ("10.2.20260924-0", ("rhel", "coreos", "10.2", "10", "2", "10.2")),
        ("9.0.20250827-0", ("scos", "coreos", "9.0", "9", "0", "9")),
        ("10.0.20260307-0", ("scos", "coreos", "10.0", "10", "0", "10")),
        ("rhel9.4", ("rhel", "", "9.4", "9", "4", "9.4")),
        ("centos9", ("centos", "", "9", "9", "", "9")),
        ("debian12", ("debian", "", "12", "12", "", "")),
        ("ubuntu22.04", ("ubuntu", "", "22.04", "22", "04", "")),
        ("opensuse-leap15.6", ("opensuse-leap", "", "15.6", "15", "6", "")),
        (
            "fedora-coreos39.20231204",
            ("fedora", "coreos", "39.20231204", "39", "20231204", ""),
        ),
        ("debian", ("debian", "", "", "", "", "")),
        ("unknown", ("unknown", "", "", "", "", "")),
        ("", ("", "", "", "", "", "")),
    ],
)
def test_a_version_has_parts(version: str, parts: tuple[str, ...]) -> None:
    names = ("id", "variant", "version", "major", "minor", "rhel")

    assert os_parts(version) == dict(zip(names, parts, strict=True))
