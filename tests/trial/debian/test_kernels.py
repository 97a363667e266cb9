"""Which kernel a user means, out of the names of an archive, and what it consists of."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeside.errors import ExitCode
from nodeside.trial.architecture import ARM64
from nodeside.trial.debian.kernels import (
    available_kernels,
    kernels_among,
    packages_of,
    resolve_kernel,
)
from nodeside.trial.errors import UnknownKernel
from tests.trial.debian.local_archive import BOOKWORM, SID, TRIXIE, LocalArchive

NAMES = [
    *(f"linux-image-6.1.0-{n}-{f}" for n in (9, 47, 48) for f in ("amd64", "cloud-amd64")),
    *(f"linux-headers-6.1.0-{n}-{f}" for n in (9, 47) for f in ("amd64", "cloud-amd64")),
    "linux-image-6.1.0-47-amd64-unsigned",
    "linux-image-6.1.0-47-amd64-dbg",
    "linux-image-6.12.107+deb12-cloud-amd64-unsigned",
    "linux-headers-6.12.107+deb12-cloud-amd64",
    "linux-image-6.12.9+deb12-cloud-amd64",
    "linux-headers-6.12.9+deb12-cloud-amd64",
    "linux-image-amd64",
    "linux-image-6.12-amd64",
    "linux-headers-6.1.0-47-common",
]
KERNELS = kernels_among(NAMES)
ARM64_KERNELS = kernels_among(
    [
        *(
            f"linux-{p}-6.1.0-56-{f}"
            for p in ("image", "headers")
            for f in ("arm64", "cloud-arm64")
        ),
        *(f"linux-{p}-6.12.117+deb12-arm64-16k" for p in ("image", "headers")),
        "linux-image-6.12.117+deb12-arm64-16k-unsigned",
        "linux-image-6.12.117+deb12-arm64-16k-dbg",
        "linux-image-6.1.0-56-cloud-amd64",
    ],
    ARM64,
)


def test_kernels_are_listed_oldest_first_without_metapackages() -> None:
    assert [kernel.release for kernel in KERNELS] == [
        "6.1.0-9-amd64",
        "6.1.0-9-cloud-amd64",
        "6.1.0-47-amd64",
        "6.1.0-47-cloud-amd64",
        "6.1.0-48-amd64",
        "6.1.0-48-cloud-amd64",
        "6.12.9+deb12-cloud-amd64",
        "6.12.107+deb12-cloud-amd64",
    ]


def test_signed_image_is_preferred_because_its_modules_are_signed() -> None:
    images = {kernel.release: kernel.image for kernel in KERNELS}

    assert images["6.1.0-47-amd64"] == "linux-image-6.1.0-47-amd64"
    assert images["6.12.107+deb12-cloud-amd64"].endswith("-unsigned")


@pytest.mark.parametrize(
    ("wanted", "release"),
    [
        ("6.1.0-48-amd64", "6.1.0-48-amd64"),
        ("amd64", "6.1.0-47-amd64"),
        ("cloud-amd64", "6.1.0-47-cloud-amd64"),
        ("6.12", "6.12.107+deb12-cloud-amd64"),
        ("6.12-cloud-amd64", "6.12.107+deb12-cloud-amd64"),
        ("6.1-amd64", "6.1.0-47-amd64"),
        ("6.1.0-9", "6.1.0-9-cloud-amd64"),
    ],
)
def test_a_word_means_the_newest_kernel_that_has_headers(wanted: str, release: str) -> None:
    assert resolve_kernel(wanted, KERNELS, "6.1").release == release


def test_a_kernel_without_headers_is_there_when_named_exactly() -> None:
    assert resolve_kernel("6.1.0-48-cloud-amd64", KERNELS, "6.1").headers == ""


def test_unknown_kernel_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(UnknownKernel, match=r"no kernel named '6\.1\.0-46-amd64'") as caught:
        resolve_kernel("6.1.0-46-amd64", KERNELS, "6.1")

    assert "did you mean 6.1.0-4" in caught.value.hint
    assert "nodeside try --kernel list" in caught.value.hint
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_flavour_with_larger_pages_is_one_of_its_own() -> None:
    assert [(kernel.release, kernel.flavour) for kernel in ARM64_KERNELS] == [
        ("6.1.0-56-arm64", "arm64"),
        ("6.1.0-56-cloud-arm64", "cloud-arm64"),
        ("6.12.117+deb12-arm64-16k", "arm64-16k"),
    ]


@pytest.mark.parametrize(
    ("wanted", "release"),
    [
        ("arm64", "6.1.0-56-arm64"),
        ("arm64-16k", "6.12.117+deb12-arm64-16k"),
        ("6.12-arm64-16k", "6.12.117+deb12-arm64-16k"),
        ("6.1", "6.1.0-56-cloud-arm64"),
    ],
)
def test_a_word_means_a_kernel_of_the_machines_architecture(wanted: str, release: str) -> None:
    assert resolve_kernel(wanted, ARM64_KERNELS, "6.1", ARM64).release == release


def test_a_kernel_of_another_architecture_is_unknown() -> None:
    with pytest.raises(UnknownKernel, match="no kernel named 'cloud-amd64'") as caught:
        resolve_kernel("cloud-amd64", ARM64_KERNELS, "6.1", ARM64)

    assert "did you mean cloud-arm64" in caught.value.hint


@pytest.mark.parametrize(
    ("index", "compiler", "packages"),
    [
        (
            BOOKWORM,
            "gcc-12",
            """
            linux-headers-6.1.0-47-cloud-amd64
            linux-headers-6.1.0-47-common
            linux-image-6.1.0-47-cloud-amd64
            linux-kbuild-6.1
            """,
        ),
        (
            TRIXIE,
            "gcc-14",
            """
            linux-headers-6.12.118+deb13-cloud-amd64
            linux-headers-6.12.118+deb13-common
            linux-image-6.12.118+deb13-cloud-amd64
            linux-kbuild-6.12.118+deb13
            """,
        ),
        (
            SID,
            "gcc-16",
            """
            linux-base-7.2.13+deb14-cloud-amd64
            linux-binary-7.2.13+deb14-cloud-amd64
            linux-headers-7.2.13+deb14-cloud-amd64
            linux-headers-7.2.13+deb14-common
            linux-image-7.2.13+deb14-cloud-amd64
            linux-kbuild-7.2.13+deb14
            linux-modules-7.2.13+deb14-cloud-amd64
            """,
        ),
    ],
    ids=["bookworm", "trixie", "sid"],
)
def test_a_kernel_consists_of_what_its_image_and_headers_depend_on(
    tmp_path: Path, index: str, compiler: str, packages: str
) -> None:
    archive = LocalArchive(tmp_path)
    archive.publish(index)
    (kernel,) = available_kernels(archive)

    found = packages_of(kernel, archive)

    assert sorted(found.names) == packages.split()
    assert found.compiler == compiler


def test_a_kernel_without_headers_needs_no_compiler(tmp_path: Path) -> None:
    archive = LocalArchive(tmp_path)
    archive.publish(SID.replace("linux-headers-7.2.13+deb14-cloud-amd64", "linux-other"))
    (kernel,) = available_kernels(archive)

    found = packages_of(kernel, archive)

    assert [name.split("-")[1] for name in found.names] == ["image", "base", "binary", "modules"]
    assert found.compiler == ""
