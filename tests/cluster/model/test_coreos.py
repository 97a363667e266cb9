"""The order of the versions of CoreOS, with versions of releases of OpenShift and OKD."""

from __future__ import annotations

import random

import pytest

from cluster.model.coreos import parse_coreos_version, rhel_major_of, tag_order

IN_ORDER = [
    "",
    "0.0.1-snapshot-machine-os",
    "latest",
    "latest-rhel-10",
    "46.82.202010091720-0",
    "47.83.202102090044-0",
    "49.84.202212201621-0",
    "410.84.202301241128-0",
    "412.86.202306132230-0",
    "413.92.202307260246-0",
    "418.94.202501221327-0",
    "417.94.202503102036-0",  # a later build of an older release
    "418.9.202504250632-0",
    "418.94.202509161500-0",
    "9.6.20250916-0",
    "9.6.20250916-1",
    "9.8.20250916-0",
    "9.6.20251023-0",
    "9.6.20251023-9",
    "9.6.20251023-10",
    "9.8.20260915-0",
    "10.2.20240101-0",
    "10.0.20260307-0",
    "10.2.20260924-0",
]


def test_versions_are_in_the_order_of_rhel_and_of_their_builds() -> None:
    shuffled = random.Random(1).sample(IN_ORDER, len(IN_ORDER))

    assert sorted(shuffled, key=tag_order) == IN_ORDER


@pytest.mark.parametrize(
    ("version", "major", "minor", "openshift"),
    [
        ("418.94.202501221327-0", 9, 4, (4, 18)),
        ("47.83.202102090044-0", 8, 3, (4, 7)),
        ("418.9.202504250632-0", 9, -1, (4, 18)),
        ("9.6.20250916-0", 9, 6, ()),
        ("10.2.20260924-0", 10, 2, ()),
    ],
)
def test_a_version_has_the_rhel_that_it_is_of(
    version: str, major: int, minor: int, openshift: tuple[int, ...]
) -> None:
    found = parse_coreos_version(version)

    assert found is not None
    assert (found.major, found.minor, found.openshift) == (major, minor, openshift)


@pytest.mark.parametrize(
    "text",
    [
        "debian12",
        "rhel9.4",
        "39.20231204.3.3",
        "43.81.202003052336.0",
        "418.94.202501221327",
        "418.94.202501221327-0\n",
        " 9.6.20250916-0",
        "9.6.2025091-0",
        "9.6.\uff12\uff10\uff12\uff15\uff10\uff19\uff11\uff16-0",
        "9.6.20250916-²",
        f"9.6.20250916-{'9' * 5000}",
        f"{'9' * 5000}.94.202501221327-0",
    ],
)
def test_any_other_text_is_no_version_and_comes_before_all(text: str) -> None:
    assert parse_coreos_version(text) is None
    assert tag_order(text) < tag_order("46.82.202010091720-0")


def test_a_date_that_no_calendar_has_is_one_like_any_other() -> None:
    assert tag_order("9.6.20251399-0") > tag_order("9.6.20251231-0")


@pytest.mark.parametrize(
    ("kernel", "rhel"),
    [
        ("4.18.0-305.25.1.el8_4.x86_64", 8),
        ("5.14.0-427.el9.x86_64+rt", 9),
        ("5.14.0-570.49.1.el9_6.x86_64", 9),
        ("6.12.0-231.12.el10nv.aarch64+64k", 10),
        ("6.12.57+deb12-cloud-amd64", None),
        ("6.1.0.el999.x86_64", None),
        ("(none named)", None),
        ("", None),
    ],
)
def test_a_kernel_release_of_rhel_has_its_major_version(kernel: str, rhel: int | None) -> None:
    assert rhel_major_of(kernel) == rhel
