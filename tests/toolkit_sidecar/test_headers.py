"""Headers of exactly this kernel, or a sentence that names what is there instead."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeside.protocol.build_records import FailureKind
from nodeside.system.host import Kernel
from nodeside.toolkit_sidecar import headers
from nodeside.toolkit_sidecar.failure import BuildFailed
from tests.toolkit_sidecar.faketoolkit import KERNEL, FakeToolkit

NEWER = replace(KERNEL, release="6.1.0-10-cloud-amd64")


def refusal(toolkit: FakeToolkit, kernel: Kernel) -> BuildFailed:
    with pytest.raises(BuildFailed) as caught:
        headers.find_headers(toolkit.root, kernel)
    return caught.value


def test_headers_of_this_kernel_are_found(toolkit: FakeToolkit) -> None:
    found = headers.find_headers(toolkit.root, KERNEL)
    assert found.directory == toolkit.root / f"usr/src/linux-headers-{KERNEL.release}"
    assert (found.release, found.version) == (KERNEL.release, KERNEL.version)
    assert found.is_enabled("CONFIG_I2C")
    assert not found.is_enabled("CONFIG_HWMON")


def test_the_build_link_of_the_kernel_comes_first(toolkit: FakeToolkit) -> None:
    there = toolkit.headers().rename(toolkit.root / "usr/src/elsewhere")
    link = toolkit.root / "lib/modules" / KERNEL.release / "build"
    link.parent.mkdir(parents=True)
    link.symlink_to("/usr/src/elsewhere")
    assert headers.find_headers(toolkit.root, KERNEL).directory == there


def test_missing_headers_name_the_ones_that_are_there(toolkit: FakeToolkit) -> None:
    failed = refusal(toolkit, NEWER)
    assert failed.kind is FailureKind.NO_HEADERS
    assert str(failed) == (
        "toolkit has headers for 6.1.0-9-cloud-amd64, the node runs 6.1.0-10-cloud-amd64"
    )
    assert "linux-headers-6.1.0-10-cloud-amd64" in failed.hint


def test_a_driver_toolkit_that_drifted_is_named(toolkit: FakeToolkit) -> None:
    record = {"KERNEL_VERSION": "5.14.0-427.el9", "RT_KERNEL_VERSION": 7, "RHEL_VERSION": "9.4"}
    toolkit.write("etc/driver-toolkit-release.json", json.dumps(record))
    failed = refusal(toolkit, NEWER)
    assert "(/etc/driver-toolkit-release.json claims 5.14.0-427.el9)" in str(failed)
    assert "see the image stream" in failed.hint


@pytest.mark.parametrize("text", ["", "[]", "{", '{"KERNEL_VERSION": null}', "[" * 100_000])
def test_a_broken_driver_toolkit_release_file_says_nothing(toolkit: FakeToolkit, text: str) -> None:
    toolkit.write("etc/driver-toolkit-release.json", text)
    assert headers.driver_toolkit_kernels(toolkit.root) == ()


def test_an_image_without_any_headers_says_so(toolkit: FakeToolkit) -> None:
    toolkit.headers().rename(toolkit.root / "gone")
    assert "no kernel headers at all" in str(refusal(toolkit, KERNEL))


def test_headers_of_another_release_under_this_name_are_refused(toolkit: FakeToolkit) -> None:
    place = toolkit.headers()
    (place / "include/generated/utsrelease.h").write_text(
        f'#define UTS_RELEASE "{NEWER.release}"\n'
    )
    failed = refusal(toolkit, KERNEL)
    assert failed.kind is FailureKind.WRONG_KERNEL
    assert f"are for {NEWER.release}, the node runs {KERNEL.release}" in str(failed)


def test_headers_of_another_build_of_the_same_release_are_refused(toolkit: FakeToolkit) -> None:
    failed = refusal(toolkit, replace(KERNEL, version="#2 SMP rebuilt"))
    assert failed.kind is FailureKind.WRONG_KERNEL
    assert KERNEL.version in str(failed)
    assert "'#2 SMP rebuilt'" in str(failed)


def test_older_kernels_say_their_build_in_compile_h(toolkit: FakeToolkit) -> None:
    place = toolkit.headers()
    (place / "include/generated/utsversion.h").rename(place / "include/generated/compile.h")
    assert headers.find_headers(toolkit.root, KERNEL).version == KERNEL.version


def test_headers_that_were_never_prepared_are_refused(toolkit: FakeToolkit) -> None:
    (toolkit.headers() / "include/generated/utsrelease.h").unlink()
    assert "are not prepared" in str(refusal(toolkit, KERNEL))


@given(st.text())
def test_no_configuration_breaks_the_reader(text: str) -> None:
    headers.read_settings(text)
    headers.read_defines(text)
