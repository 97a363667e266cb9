"""A driver that lacks in the kernel of a trial what the ordinary kernel has."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nodeside.trial.architecture import AMD64, ARM64, Architecture
from nodeside.trial.cache import TrialCache
from nodeside.trial.errors import ArchiveError
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.ordinary_kernel import ordinary_kernel_hint
from nodeside.trial.progress import Progress

CLOUD, ORDINARY = "6.1.0-56-cloud-amd64", "6.1.0-56-amd64"
UNDEFINED = 'first error: ERROR: modpost: "hwmon_register" [warm.ko] undefined!'
SYMVERS = "0x00000001\tclass_create\tvmlinux\tEXPORT_SYMBOL_GPL\t\n"
HWMON = "0x00000002\thwmon_register\tdrivers/hwmon/hwmon\tEXPORT_SYMBOL_GPL\t\n"
VIDEO = "0x00000003\tv4l2_open\tdrivers/media/v4l2-core/videodev\tEXPORT_SYMBOL\t\n"
IMAGE = "0x00000004\twmi_ask\tvmlinux\tEXPORT_SYMBOL\t\n"


@dataclass
class FakeArchive:
    """An archive with kernels of these releases, whose headers are in its cache."""

    cache: TrialCache
    releases: tuple[str, ...] = (CLOUD, ORDINARY)
    architecture: Architecture = AMD64
    progress: Progress = field(default_factory=lambda: Progress(quiet=True))

    def names(self) -> tuple[str, ...]:
        return tuple(f"linux-{p}-{r}" for r in self.releases for p in ("image", "headers"))

    def depends(self, package: str) -> tuple[str, ...]:
        return ()

    def download(self, *_: object) -> Any:
        raise ArchiveError("no network here")


@pytest.fixture
def archive(tmp_path: Path) -> FakeArchive:
    made = FakeArchive(TrialCache(tmp_path / "cache"))
    put_headers(
        made.cache.path("headers", ORDINARY),
        ORDINARY,
        SYMVERS + HWMON + VIDEO + IMAGE,
        "CONFIG_ACPI_WMI=m\nCONFIG_HWMON=y\n",
    )
    return made


def put_headers(root: Path, release: str, symvers: str, config: str) -> None:
    directory = root / f"usr/src/linux-headers-{release}"
    (directory / "include/config").mkdir(parents=True)
    (directory / "Module.symvers").write_text(symvers)
    (directory / "include/config/auto.conf").write_text(config)


def disk(tmp_path: Path, release: str = CLOUD, architecture: Architecture = AMD64) -> KernelDisk:
    put_headers(tmp_path / release / "tree", release, SYMVERS, "CONFIG_HWMON=y\n")
    return KernelDisk(tmp_path / release, release, True, "gcc-12", architecture)


@pytest.mark.parametrize(
    ("text", "lack"),
    [
        (UNDEFINED, "hwmon_register (of hwmon)"),
        (
            "cam needs videodev: not in /lib/modules, and nothing else exports v4l2_open",
            "v4l2_open (of videodev)",
        ),
        ("cannot load warm: ENOENT: nothing in the kernel exports wmi_ask", "wmi_ask"),
        (
            "the kernel declares wmi_get only with CONFIG_ACPI_WMI (linux/acpi.h), which is off",
            "CONFIG_ACPI_WMI",
        ),
        (
            "wmi_ask needs CONFIG_ACPI_WMI; v4l2_open",
            "wmi_ask, v4l2_open (of videodev), CONFIG_ACPI_WMI",
        ),
        (
            "exports hwmon_register, v4l2_open and class_create",
            "hwmon_register, v4l2_open (of hwmon, videodev)",
        ),
    ],
)
def test_what_only_the_ordinary_kernel_has_is_named_with_the_command(
    tmp_path: Path, archive: Any, text: str, lack: str
) -> None:
    assert ordinary_kernel_hint(disk(tmp_path), text, archive, "nodeside try ./warm") == (
        f"the kernel of this trial, {CLOUD}, has no {lack}; the ordinary kernel has: "
        "nodeside try ./warm --kernel amd64"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "class_create is here and there",
        "no_kernel_has_this [warm.ko] undefined!",
        "hwmon.c:3:1: error: expected ';' in videodev",
        "CONFIG_HWMON is on, CONFIG_NOWHERE is not",
    ],
)
def test_what_the_ordinary_kernel_lacks_too_is_the_drivers_own(
    tmp_path: Path, archive: Any, text: str
) -> None:
    assert ordinary_kernel_hint(disk(tmp_path), text, archive) == ""


def test_an_ordinary_kernel_is_compared_with_no_other(tmp_path: Path, archive: Any) -> None:
    assert ordinary_kernel_hint(disk(tmp_path, ORDINARY), UNDEFINED, archive) == ""
    assert ordinary_kernel_hint(disk(tmp_path, "6.1.0-56-rt-amd64"), UNDEFINED, archive) == ""


def test_the_newest_ordinary_kernel_stands_for_one_that_is_gone(
    tmp_path: Path, archive: Any
) -> None:
    old = disk(tmp_path, "6.1.0-50-cloud-amd64")

    assert ordinary_kernel_hint(old, UNDEFINED, archive).endswith(
        "the ordinary kernel has: --kernel amd64"
    )


@pytest.mark.parametrize("broken", ["no headers", "no kernel", "no list", "a list of nonsense"])
def test_without_the_archive_nothing_is_said(tmp_path: Path, archive: Any, broken: str) -> None:
    listed = archive.cache.path("headers", ORDINARY)
    symvers = listed / f"usr/src/linux-headers-{ORDINARY}/Module.symvers"
    if broken == "no headers":
        listed.rename(tmp_path / "away")
    elif broken == "no kernel":
        archive.releases = (CLOUD,)
    elif broken == "no list":
        symvers.unlink()
    else:
        symvers.write_text("hwmon_register\n")

    assert ordinary_kernel_hint(disk(tmp_path), UNDEFINED, archive) == ""


def test_another_architecture_has_an_ordinary_kernel_of_its_own(tmp_path: Path) -> None:
    cloud, ordinary = "6.1.0-56-cloud-arm64", "6.1.0-56-arm64"
    archive: Any = FakeArchive(TrialCache(tmp_path / "cache"), (cloud, ordinary), ARM64)
    put_headers(archive.cache.path("headers", ordinary), ordinary, HWMON, "")

    hint = ordinary_kernel_hint(disk(tmp_path, cloud, ARM64), UNDEFINED, archive, "nodeside try w")

    assert hint.endswith("nodeside try w --kernel arm64")
