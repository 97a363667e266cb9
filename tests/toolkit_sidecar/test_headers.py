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


# Where distributions put the headers of a kernel, and the links to them.
LAYOUTS = [
    ("6.1.0-9-amd64", "usr/src/linux-headers-6.1.0-9-amd64", ""),  # Debian
    ("6.8.0-60-generic", "usr/src/linux-headers-6.8.0-60-generic", ""),  # Ubuntu
    ("6.6.31-0-lts", "usr/src/linux-headers-6.6.31-0-lts", "/usr/src/linux-headers-6.6.31-0-lts"),
    ("5.14.0-427.13.1.el9_4.x86_64", "usr/src/kernels/5.14.0-427.13.1.el9_4.x86_64", ""),  # RHEL
    ("6.8.5-301.fc40.x86_64", "usr/src/kernels/6.8.5-301.fc40.x86_64", ""),  # Fedora
    ("6.4.0-150600.23.7-default", "usr/src/linux-6.4.0-150600.23.7-obj/x86_64/default", ""),  # SUSE
    (
        "6.4.0-150600.21-default",
        "usr/src/linux-6.4.0-150600.21-obj/x86_64/default",
        "/usr/src/linux-6.4.0-150600.21-obj/x86_64/default",
    ),
    ("6.9.3-arch1-1", "lib/modules/6.9.3-arch1-1/build", ""),  # Arch: a directory
]


def move_headers(toolkit: FakeToolkit, release: str, place: str, link: str) -> Kernel:
    """Move the toolkit's headers to another place, with a link from /lib/modules."""
    kernel = replace(KERNEL, release=release)
    old = toolkit.headers()
    target = toolkit.root / place
    target.parent.mkdir(parents=True, exist_ok=True)
    old.rename(target)
    (target / "include/generated/utsrelease.h").write_text(f'#define UTS_RELEASE "{release}"\n')
    if link:
        build = toolkit.root / "lib/modules" / release / "build"
        build.parent.mkdir(parents=True)
        build.symlink_to(link)
    return kernel


@pytest.mark.parametrize(("release", "place", "link"), LAYOUTS)
def test_headers_are_found_where_each_distribution_puts_them(
    toolkit: FakeToolkit, release: str, place: str, link: str
) -> None:
    kernel = move_headers(toolkit, release, place, link)
    assert headers.find_headers(toolkit.root, kernel).directory == toolkit.root / place
    assert headers.installed_releases(toolkit.root) == (release,)
    assert [found.release for found in headers.toolkit_kernels(toolkit.root)] == [release]


@pytest.mark.parametrize(("release", "place", "link"), LAYOUTS)
def test_headers_of_another_kernel_are_refused_in_each_place(
    toolkit: FakeToolkit, release: str, place: str, link: str
) -> None:
    kernel = move_headers(toolkit, release, place, link)
    generated = toolkit.root / place / "include/generated/utsrelease.h"
    generated.write_text('#define UTS_RELEASE "6.99.0"\n')
    failed = refusal(toolkit, kernel)
    assert failed.kind is FailureKind.WRONG_KERNEL
    assert f"{place} are for 6.99.0, the node runs {release}" in str(failed)
    assert headers.toolkit_kernels(toolkit.root) == ()


def test_a_link_that_leads_nowhere_is_named(toolkit: FakeToolkit) -> None:
    link = toolkit.root / "lib/modules" / NEWER.release / "build"
    link.parent.mkdir(parents=True)
    link.symlink_to("/usr/src/kernels/gone")
    failed = refusal(toolkit, NEWER)
    assert failed.kind is FailureKind.NO_HEADERS
    assert f"{link} is a link to /usr/src/kernels/gone, which is missing" in str(failed)


def test_a_headers_package_without_the_one_it_links_to_is_named(toolkit: FakeToolkit) -> None:
    makefile = toolkit.headers() / "Makefile"
    makefile.unlink()
    makefile.symlink_to("../linux-headers-6.8.0-60/Makefile")
    assert "is a link to ../linux-headers-6.8.0-60/Makefile, which is missing" in str(
        refusal(toolkit, KERNEL)
    )


def test_a_headers_package_without_its_common_part_is_named(toolkit: FakeToolkit) -> None:
    common = "/usr/src/linux-headers-6.1.0-9-common/Makefile"
    (toolkit.headers() / "Makefile").write_text(f"include {common}\n")
    failed = refusal(toolkit, KERNEL)
    assert failed.kind is FailureKind.NO_HEADERS
    assert str(failed).endswith(f"need {common}, which is missing")
    toolkit.write(common.lstrip("/"), "")
    assert headers.find_headers(toolkit.root, KERNEL).release == KERNEL.release


@given(st.text())
def test_no_configuration_breaks_the_reader(text: str) -> None:
    headers.read_settings(text)
    headers.read_defines(text)
