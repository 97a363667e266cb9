"""The labels that the lab's stand-in for Node Feature Discovery sets, by NFD's own rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from nodeside.system import process
from tests.lab.features import ASKED, features

_ANSWER = """\
pci 0x00ff00 0x1234 0x11e8 0x1af4 0x1100
pci 0x030000 0x1b36 0x0100 0x1af4 0x1100
pci 0x058000 0x1d0f 0xf000 0x1d0f 0x0001
kernel 6.1.0-50-cloud-amd64
os PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"
os VERSION_ID="12"
os OSTREE_VERSION='418.94.202501221327-0'
os ID=debian
"""


def _present(configuration: Mapping[str, Any]) -> set[str]:
    prefix, end = "feature.node.kubernetes.io/pci-", ".present"
    labels = features(_ANSWER, configuration)
    return {name[len(prefix) : -len(end)] for name in labels if name.startswith(prefix)}


@pytest.mark.parametrize(
    ("pci", "expected"),
    [
        ({}, {"0300_1b36"}),
        ({"deviceClassWhitelist": ["0580", "00ff"]}, {"00ff_1234", "0580_1d0f"}),
        ({"deviceClassWhitelist": []}, set()),
        ({"deviceLabelFields": ["vendor", "device"]}, {"1b36_0100"}),
        ({"deviceLabelFields": ["nonsense"]}, {"0300_1b36"}),
    ],
)
def test_a_device_gets_a_label_as_nfd_is_configured(
    pci: Mapping[str, Any], expected: set[str]
) -> None:
    assert _present({"sources": {"pci": pci}}) == expected


def test_kernel_and_system_become_labels_without_the_quotes_of_a_shell() -> None:
    prefix = "feature.node.kubernetes.io/"
    labels = features(_ANSWER, {})

    assert labels[f"{prefix}kernel-version.full"] == "6.1.0-50-cloud-amd64"
    assert labels[f"{prefix}system-os_release.ID"] == "debian"
    assert labels[f"{prefix}system-os_release.VERSION_ID"] == "12"
    assert labels[f"{prefix}system-os_release.OSTREE_VERSION"] == "418.94.202501221327-0"


@pytest.mark.parametrize(
    ("release", "value"),
    [("6.12.57+deb12-cloud-amd64", "6.12.57_deb12-cloud-amd64"), ("6.6.63-v8+", "6.6.63-v8")],
)
def test_of_a_kernel_release_the_label_holds_what_a_label_can(release: str, value: str) -> None:
    labels = features(f"kernel {release}\n", {})

    assert labels["feature.node.kubernetes.io/kernel-version.full"] == value


def test_this_host_answers_in_the_form_that_is_read() -> None:
    asked = process.run(["sh", "-c", ASKED], timeout=20)

    assert "feature.node.kubernetes.io/kernel-version.full" in features(asked.output)
