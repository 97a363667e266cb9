"""The operating system that a node of the lab says it is, as the controller reads it."""

from __future__ import annotations

import shlex

import pytest

from cluster.driver.pools import os_version
from cluster.model.coreos import parse_coreos_version, tag_order
from tests.lab.system import os_release, ostree_version

# From old to new.
RELEASES = [
    "6.1.0-9-cloud-amd64",
    "6.1.0-55-cloud-amd64",
    "6.1.0-56-cloud-amd64",
    "6.1.0-56-rt-amd64",
    "6.12.48+deb12-cloud-amd64",
    "6.12.57+deb12-cloud-amd64",
]


@pytest.mark.parametrize("release", RELEASES)
def test_the_controller_finds_the_version_in_the_name_of_the_system(release: str) -> None:
    lines = (line.partition("=") for line in os_release(release).splitlines())
    said = {name: "".join(shlex.split(value)) for name, _, value in lines}
    assert os_version(said["PRETTY_NAME"]) == said["OSTREE_VERSION"] == ostree_version(release)


def test_each_kernel_has_a_system_of_its_own() -> None:
    assert len({ostree_version(release) for release in RELEASES}) == len(RELEASES)


def test_a_newer_kernel_has_a_newer_system() -> None:
    versions = [ostree_version(release) for release in RELEASES]
    assert versions == sorted(versions, key=tag_order)
    assert all(parse_coreos_version(version) for version in versions)


def test_what_is_no_release_of_debian_is_named() -> None:
    with pytest.raises(ValueError, match="not a kernel release of Debian: Linux"):
        ostree_version("Linux")
