"""Headers of exactly this kernel, or a sentence that names what is there instead."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

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


# By distribution: a release, where its package puts the headers, and what `build` leads to.
LAYOUTS = [
    ("Debian", "6.1.0-9-amd64", "usr/src/linux-headers-6.1.0-9-amd64", "/usr/src/linux-headers-{}"),
    (
        "Ubuntu",
        "6.5.0-21-generic",
        "usr/src/linux-headers-6.5.0-21-generic",
        "/usr/src/linux-headers-{}",
    ),
    ("Ubuntu 24.10", "6.11.0-8-generic", "usr/src/linux-headers-6.11.0-8-generic", ""),
    (
        "RHEL",
        "5.14.0-427.13.1.el9_4.x86_64",
        "usr/src/kernels/5.14.0-427.13.1.el9_4.x86_64",
        "/usr/src/kernels/{}",
    ),
    (
        "RHEL, for real time",
        "5.14.0-427.13.1.el9_4.x86_64+rt",
        "usr/src/kernels/5.14.0-427.13.1.el9_4.x86_64+rt",
        "",
    ),
    (
        "Amazon Linux",
        "6.1.79-99.164.amzn2023.x86_64",
        "usr/src/kernels/6.1.79-99.164.amzn2023.x86_64",
        "",
    ),
    (
        "SUSE",
        "6.4.0-150600.21-default",
        "usr/src/linux-6.4.0-150600.21-obj/x86_64/default",
        "/usr/src/linux-6.4.0-150600.21-obj/x86_64/default",
    ),
    ("SUSE for Azure", "6.4.0-150600.8-azure", "usr/src/linux-6.4.0-150600.8-obj/x86_64/azure", ""),
    ("Arch", "6.9.1-arch1-1", "usr/lib/modules/6.9.1-arch1-1/build", ""),
]


@pytest.mark.parametrize("link", ["right", "broken", "none"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: str(layout[0]))
def test_headers_are_found_where_each_distribution_puts_them(
    tmp_path: Path, layout: tuple[str, str, str, str], link: str
) -> None:
    """Ubuntu's and SUSE's Makefile is in the directory for all flavours."""
    distribution, release, place, target = layout
    root, directory = tmp_path, tmp_path / place
    (directory / "include/generated").mkdir(parents=True)
    (directory / "include/generated/utsrelease.h").write_text(f'#define UTS_RELEASE "{release}"\n')
    common = root / "usr/src/common"
    common.mkdir(parents=True)
    (common / "Makefile").write_text("")
    (directory / "Makefile").symlink_to(os.path.relpath(common / "Makefile", directory))
    if distribution == "Arch":
        (root / "lib").symlink_to("usr/lib")
    elif link != "none":
        build = root / "lib/modules" / release / "build"
        build.parent.mkdir(parents=True)
        build.symlink_to((target or f"/{place}").format(release) if link == "right" else "/gone")
    kernel = Kernel(release, "#1", "x86_64")

    assert headers.find_headers(root, kernel).directory.samefile(directory)
    assert headers.installed_releases(root) == (release,)
    with pytest.raises(BuildFailed) as caught:
        headers.find_headers(root, replace(kernel, release=f"9.{release}"))
    assert release in str(caught.value), "what is there is named"


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
