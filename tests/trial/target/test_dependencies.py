"""What is said of a Debian package's dependencies."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeside.driver.module.modulefile import ModuleFile
from nodeside.errors import ExitCode, UsageError
from nodeside.protocol.bundle_key import BuildSettings
from nodeside.trial.cache import TrialCache
from nodeside.trial.debian.archive import Archive
from nodeside.trial.errors import TargetError
from nodeside.trial.progress import Progress
from nodeside.trial.target import target
from nodeside.trial.target.dependencies import missing_dependencies, require_packages
from nodeside.trial.target.dkms_tree import EvaluatedConf

DEPENDS = {
    "netflow-dkms": ("dkms", "libc6-dev", "libxtables-dev", "pkg-config"),
    "razer-meta": ("python3", "razer-dkms"),
    "razer-dkms": ("dkms",),
    "choosy-dkms": ("dkms|dh-dkms", "nothing-has-this|libxtables-dev|pkg-config"),
}


class SmallArchive(Archive):
    """An archive of three packages, none of which can be unpacked to a dkms tree."""

    def __init__(self, directory: Path) -> None:
        super().__init__(TrialCache(directory / "cache"), Progress(quiet=True))
        self.asked: list[str] = []

    def names(self) -> tuple[str, ...]:
        return (*DEPENDS, "libc6-dev", "libxtables-dev", "pkg-config", "python3")

    def alternatives(self, package: str) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(each.split("|")) for each in DEPENDS[package])

    def download(self, packages: object, directory: Path) -> tuple[Path, ...]:
        self.asked.append(str(*packages))  # type: ignore[misc]
        return ()


@pytest.fixture
def archive(tmp_path: Path) -> SmallArchive:
    return SmallArchive(tmp_path)


@pytest.fixture
def toolkit(tmp_path: Path) -> Path:
    """A toolkit's root file system in which two packages are installed."""
    status = tmp_path / "toolkit" / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True)
    status.write_text("Package: gcc-12\nStatus: ok\n\nPackage: libc6-dev\nStatus: ok\n")
    return tmp_path / "toolkit"


def build_nothing(tree: Path, _settings: BuildSettings) -> tuple[ModuleFile, ...]:
    raise AssertionError(f"{tree} is not to be built")


def evaluate_nothing(tree: Path) -> EvaluatedConf:
    raise AssertionError(f"{tree} has no dkms.conf to evaluate")


def test_what_the_toolkit_does_not_have_is_named(archive: SmallArchive, toolkit: Path) -> None:
    assert missing_dependencies("netflow-dkms", archive, toolkit) == (
        "libxtables-dev",
        "pkg-config",
    )


def test_a_directory_has_no_dependencies(archive: SmallArchive, toolkit: Path) -> None:
    assert missing_dependencies("./examples/edu", archive, toolkit) == ()
    assert missing_dependencies("edu", archive, toolkit) == ()


def test_a_package_without_a_tree_stands_for_the_dkms_package_it_depends_on(
    archive: SmallArchive, tmp_path: Path
) -> None:
    with pytest.raises(TargetError, match="razer-dkms has no dkms tree") as caught:
        target.prepare_target(
            "razer-meta", tmp_path / "image", archive, evaluate_nothing, build_nothing
        )
    assert archive.asked == ["razer-meta", "razer-dkms"]
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_package_that_debian_does_not_have_is_refused_with_those_it_may_be(
    archive: SmallArchive,
) -> None:
    require_packages((), archive)
    require_packages(("razer-dkms", "python3"), archive)

    with pytest.raises(UsageError, match="Debian has no package of that name") as caught:
        require_packages(("razer-dkms", "razor-meta"), archive)

    assert caught.value.hint == "did you mean razer-meta or razer-dkms?"


def test_of_alternatives_the_first_that_there_is_will_do(
    archive: SmallArchive, toolkit: Path
) -> None:
    assert missing_dependencies("choosy-dkms", archive, toolkit) == ("libxtables-dev",)
