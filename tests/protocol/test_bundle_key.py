"""What determines the key of a bundle."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

import pytest

from nodeside.protocol.bundle_key import BuildKind, BuildSettings, bundle_key, store_tag
from nodeside.system.host import Kernel

KERNEL = Kernel("6.12.107+deb12-amd64", "#1 SMP PREEMPT_DYNAMIC Debian", "x86_64")


SETTINGS = BuildSettings(BuildKind.KBUILD, ("edu",))


def test_the_key_is_the_same_in_every_version_of_nodeside() -> None:
    """Another key would make every cache and every registry worthless: change it knowingly."""
    assert bundle_key("d" * 64, SETTINGS, KERNEL) == (
        "19fa1f15c6358847a9b6b5c1b27a01cdb0024319045c7b9507ccc041b94e33c5"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"kind": BuildKind.DKMS},
        {"modules": ("edu", "edu2")},
        {"directory": "src"},
        {"make_arguments": ("V=1",)},
        {"environment": {"A": "b"}},
        {"patches": ("a.patch",)},
        {"command": ("make",)},
        {"symbols": "f" * 64},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_setting_changes_the_key(change: dict[str, Any]) -> None:
    assert bundle_key("d", replace(SETTINGS, **change), KERNEL) != bundle_key("d", SETTINGS, KERNEL)


def test_every_setting_is_tried_above() -> None:
    assert {item.name for item in fields(BuildSettings)} == {
        *("kind", "modules", "directory", "make_arguments", "environment", "patches", "command"),
        "symbols",
    }


def test_source_kernel_and_certificate_change_the_key() -> None:
    keys = [
        bundle_key("d", SETTINGS, KERNEL),
        bundle_key("e", SETTINGS, KERNEL),
        bundle_key("d", SETTINGS, replace(KERNEL, release="6.1")),
        bundle_key("d", SETTINGS, replace(KERNEL, version="#2 SMP")),
        bundle_key("d", SETTINGS, replace(KERNEL, architecture="aarch64")),
        bundle_key("d", SETTINGS, KERNEL, "c" * 64),
    ]
    assert len(set(keys)) == len(keys)


def test_a_tag_is_one_that_registries_and_file_systems_take() -> None:
    tag = store_tag("1.0+2~rc1", KERNEL, "0123456789abcdef")
    assert tag == "1.0_2_rc1-6.12.107_deb12-amd64-x86_64-0123456789ab"
    longest = store_tag("9" * 40, replace(KERNEL, release="r" * 64), "0" * 64)
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", longest)
