"""The Containerfiles agree with the tree and with the proving ground's root file systems."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from nodeside import process
from nodeside.trial.root_filesystems import DRIVER_PACKAGES
from tests.images.containerfile import copies, instructions

TOP = Path(__file__).parents[2]
IMAGES = TOP / "images"
DRIVER = IMAGES / "driver.Containerfile"
TOOLKIT = IMAGES / "toolkit.Containerfile"
CONTROLLER = IMAGES / "controller.Containerfile"
OURS = [DRIVER, CONTROLLER]  # the whole repository is their context


def installed(containerfile: Path) -> set[str]:
    text = "\n".join(instructions(containerfile))
    found = re.findall(r"apt-get install --yes --no-install-recommends (.*?)&&", text)
    return {word for words in found for word in words.split()}


@pytest.mark.parametrize("containerfile", OURS, ids=lambda path: path.name)
def test_what_an_image_copies_is_there(containerfile: Path) -> None:
    assert all((TOP / source).exists() for source, _ in copies(containerfile))


def test_the_context_has_what_the_images_copy_and_nothing_else() -> None:
    admitted = re.findall(r"^!(.*)$", (TOP / ".dockerignore").read_text(), re.MULTILINE)

    assert set(admitted) == {source for image in OURS for source, _ in copies(image)}


def test_the_controller_image_has_the_packages_that_the_extra_names() -> None:
    extra = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {re.split(r"[<>=]", package)[0] for package in extra["cluster"]}

    assert {f"python3-{name}" for name in names | {"click", "yaml"}} <= installed(CONTROLLER)


def test_the_driver_image_has_the_python_packages_of_the_proving_ground() -> None:
    def python(names: set[str]) -> set[str]:
        return {name for name in names if name.startswith("python3")}

    assert python(installed(DRIVER)) == python(set(DRIVER_PACKAGES))


def test_the_toolkit_image_installs_no_python() -> None:
    assert not [name for name in installed(TOOLKIT) if "python" in name]
    assert {"gcc", "make", "kmod", "libelf-dev", "patch"} <= installed(TOOLKIT)


@pytest.mark.parametrize("containerfile", [DRIVER, TOOLKIT], ids=lambda path: path.name)
def test_the_base_image_is_a_build_argument(containerfile: Path) -> None:
    assert instructions(containerfile)[:2] == ["ARG BASE=debian:bookworm-slim", "FROM ${BASE}"]


def test_the_controller_is_built_on_a_later_debian() -> None:
    assert instructions(CONTROLLER)[:2] == ["ARG BASE=debian:trixie-slim", "FROM ${BASE}"]


def test_building_nothing_says_what_can_be_built() -> None:
    done = process.run([IMAGES / "build"], check=False, timeout=30)

    assert done.exit_code == 2
    assert done.errors.startswith("error: nothing to build\nhint: images/build driver|toolkit|")


def test_building_without_an_engine_says_which_would_do() -> None:
    done = process.run(
        [IMAGES / "build", "driver"], env={"ENGINE": "no-such-engine"}, check=False, timeout=30
    )

    assert done.exit_code == 2
    assert done.errors.startswith("error: none of no-such-engine is here\nhint: apt-get install")
