"""What two parts agree on, checked where a change would break the other one."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

import pytest

from nodeside.contract import (
    LABEL_VALUE,
    READY_PATTERN,
    BuildKind,
    BuildSettings,
    FailureKind,
    NodeDriverStatus,
    Rung,
    State,
    assigned_label,
    bundle_key,
    node_driver_name,
    ready_marker,
    state_label,
    store_tag,
)
from nodeside.host import Kernel
from nodeside.spec import check_labels

KERNEL = Kernel("6.12.107+deb12-amd64", "#1 SMP PREEMPT_DYNAMIC Debian", "x86_64")
SETTINGS = BuildSettings(BuildKind.KBUILD, ("edu",))
LONGEST_NAME = "a" * 40


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


@pytest.mark.parametrize("source", Rung)
def test_the_ready_marker_fits_its_pattern(source: Rung) -> None:
    line = ready_marker(
        NodeDriverStatus(
            *("edu", "node", State.READY, "1.0", KERNEL.release, "boot"),
            source=source,
            modules=("edu", "edu2"),
        )
    )
    assert line == (
        "NODESIDE_READY driver=edu version=1.0 kernel=6.12.107+deb12-amd64 "
        f"source={source.value} modules=edu,edu2"
    )
    found = READY_PATTERN.fullmatch(line)
    assert found is not None
    assert found.groupdict()["modules"] == "edu,edu2"


@pytest.mark.parametrize("state", State)
def test_labels_of_the_longest_driver_name_are_labels(state: State) -> None:
    labels = {state_label(LONGEST_NAME): state.value, assigned_label(LONGEST_NAME): "0" * 10}
    assert check_labels(labels) == []
    assert LABEL_VALUE.fullmatch(state.value)


def test_a_node_driver_is_named_by_driver_and_node() -> None:
    assert node_driver_name("edu", "worker-1") == "edu.worker-1"


# Exit code, whether to retry, and whose fault it is, as an administrator is told.
FAILURES = {
    FailureKind.NO_HEADERS: (21, "for good", "toolkit"),
    FailureKind.WRONG_KERNEL: (22, "for good", "toolkit"),
    FailureKind.WRONG_COMPILER: (22, "for good", ""),
    FailureKind.NO_TOOLS: (22, "for good", ""),
    FailureKind.NO_EXEC: (22, "for good", ""),
    FailureKind.EXCLUDED: (77, "for good", "driver"),
    FailureKind.BAD_SOURCE: (3, "for good", "driver"),
    FailureKind.COMPILE: (10, "for good", "driver"),
    FailureKind.NO_MODULE: (11, "for good", "driver"),
    FailureKind.OUT_OF_MEMORY: (53, "for good", ""),
    FailureKind.DISK_FULL: (51, "may pass", ""),
    FailureKind.TIMEOUT: (50, "may pass", ""),
    FailureKind.PROTOCOL: (52, "for good", ""),
    FailureKind.INTERNAL: (1, "may pass", ""),
}


@pytest.mark.parametrize("kind", FailureKind)
def test_every_failure_of_a_build_has_an_exit_code_and_says_whether_to_retry(
    kind: FailureKind,
) -> None:
    assert FAILURES[kind] == (
        kind.exit_code,
        "may pass" if kind.retryable else "for good",
        "toolkit" * kind.of_the_toolkit + "driver" * kind.of_the_driver,
    )
