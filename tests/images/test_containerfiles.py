"""The Containerfiles agree with the tree and with the proving ground's root file systems."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import grimp
import pytest

from nodeside.system import process
from nodeside.trial.debian.root_filesystems import DRIVER_PACKAGES
from tests.images.containerfile import copies, instructions

TOP = Path(__file__).parents[2]
IMAGES = TOP / "images"
DRIVER = IMAGES / "driver.Containerfile"
TOOLKIT = IMAGES / "toolkit.Containerfile"
CONTROLLER = IMAGES / "controller.Containerfile"
AGENT = IMAGES / "agent.Containerfile"
OURS = [DRIVER, CONTROLLER, AGENT]  # the whole repository is their context


def installed(containerfile: Path) -> set[str]:
    text = "\n".join(instructions(containerfile))
    found = re.findall(r"apt-get install --yes --no-install-recommends (.*?)(?:&&|\n|$)", text)
    return {word for words in found for word in words.split()}


@pytest.mark.parametrize("containerfile", OURS, ids=lambda path: path.name)
def test_what_an_image_copies_is_there(containerfile: Path) -> None:
    assert all(list(TOP.glob(source)) for source, _ in copies(containerfile))


def test_the_context_has_what_the_images_copy_and_nothing_else() -> None:
    admitted = re.findall(r"^!(.*)$", (TOP / ".dockerignore").read_text(), re.MULTILINE)

    assert set(admitted) == {source for image in OURS for source, _ in copies(image)}


def test_the_controllers_image_has_the_files_that_links_of_the_package_lead_to() -> None:
    """The links stay out of the context: an engine would copy them as they are."""
    ignored = (TOP / ".dockerignore").read_text().splitlines()
    copied = dict(copies(CONTROLLER))
    links = [path for path in (TOP / "cluster").rglob("*") if path.is_symlink()]
    assert {path.name for path in links} == {"charts", "deploy"}
    for link in links:
        name = str(link.relative_to(TOP))
        assert name in ignored
        assert copied[str(link.resolve().relative_to(TOP))].endswith(f"/{name}")


# What starts in a container of each image, and what is packed there for the toolkit container.
STARTS = {
    DRIVER: ["driver.cli", "spec.cli", "completion", "__main__", "toolkit_sidecar.cli"],
    AGENT: ["device_agent.cli", "spec.cli", "completion", "__main__"],
    CONTROLLER: ["cluster"],
}


@pytest.mark.slow
@pytest.mark.parametrize("containerfile", OURS, ids=lambda path: path.name)
def test_an_image_has_the_parts_of_nodeside_that_its_commands_reach(containerfile: Path) -> None:
    graph = grimp.build_graph("nodeside", "cluster", exclude_type_checking_imports=True)
    starts = {
        module
        for start in STARTS[containerfile]
        for module in graph.modules
        if f"{module}.".startswith((f"nodeside.{start}.", f"{start}."))
    }
    reached = starts.union(*(graph.find_upstream_modules(each) for each in starts))
    names = {module.split(".")[1] for module in reached if module.startswith("nodeside.")}
    parts = {name for name in names if (TOP / "nodeside" / name).is_dir()}

    copied = {source for source, _ in copies(containerfile) if source.startswith("nodeside/")}
    assert copied == {"nodeside/*.py"} | {f"nodeside/{part}" for part in parts}


def test_the_agents_image_has_the_packages_that_it_names() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *project["optional-dependencies"]["devices"]]
    names = {re.split(r"[<>=]", package)[0] for package in named}
    packaged = names - {"pyyaml", "psutil"} | {"yaml"}  # services are of the driver image

    assert {f"python3-{name}" for name in packaged} | {"python3"} == installed(AGENT)


def test_the_controller_image_has_the_packages_that_the_extra_names() -> None:
    extra = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {re.split(r"[<>=]", package)[0] for package in extra["cluster"]}
    packaged = names - {"google-re2"} | {"re2", "click", "yaml"}

    assert {f"python3-{name}" for name in packaged} <= installed(CONTROLLER)


def test_the_driver_image_has_the_python_packages_of_the_proving_ground() -> None:
    def python(names: set[str]) -> set[str]:
        return {name for name in names if name.startswith("python3")}

    assert python(installed(DRIVER)) == python(set(DRIVER_PACKAGES))


def test_the_toolkit_image_installs_no_python() -> None:
    assert not [name for name in installed(TOOLKIT) if "python" in name]
    assert {"gcc", "make", "kmod", "libelf-dev", "patch"} <= installed(TOOLKIT)


@pytest.mark.parametrize("containerfile", [DRIVER, TOOLKIT], ids=lambda path: path.name)
def test_the_base_image_is_a_build_argument(containerfile: Path) -> None:
    first, second, *_ = instructions(containerfile)
    assert first == "ARG BASE=debian:bookworm-slim"
    assert second.removesuffix(" AS build") == "FROM ${BASE}"


@pytest.mark.parametrize("containerfile", [CONTROLLER, AGENT], ids=lambda path: path.name)
def test_what_no_vendor_builds_on_is_built_on_a_later_debian(containerfile: Path) -> None:
    assert instructions(containerfile)[:2] == [
        "ARG BASE=debian:trixie-slim",
        "FROM ${BASE} AS build",
    ]


def test_building_nothing_says_what_can_be_built() -> None:
    done = process.run([IMAGES / "build"], check=False, timeout=30)

    assert done.exit_code == 2
    assert done.errors.startswith(
        "error: nothing to build\nhint: images/build driver|controller|agent|"
    )


def test_building_without_an_engine_says_which_would_do() -> None:
    done = process.run(
        [IMAGES / "build", "driver"], env={"ENGINE": "no-such-engine"}, check=False, timeout=30
    )

    assert done.exit_code == 2
    expected = "error: none of no-such-engine is installed\nhint: apt-get install"
    assert done.errors.startswith(expected)


def test_the_builder_of_images_explains_itself() -> None:
    done = process.run([IMAGES / "build", "--help"], timeout=10)

    assert done.output.startswith("Build the images with the first of buildah, podman and docker")
    for what in ("driver", "controller", "agent", "toolkit", "edu", "base", "all"):
        assert f"\n  images/build {what} " in done.output
    assert "set -eu" not in done.output


@pytest.mark.parametrize("containerfile", [*OURS, TOOLKIT], ids=lambda path: path.name)
def test_an_image_is_not_built_without_the_packages_of_a_source_that_fails(
    containerfile: Path,
) -> None:
    """By default, apt goes on without the security updates that it could not look for."""
    updates = re.findall(r"apt-get update(.*?)&&", "\n".join(instructions(containerfile)))

    assert [words.split() for words in updates] == [["--error-on=any"]]


@pytest.mark.parametrize("containerfile", [CONTROLLER, AGENT], ids=lambda path: path.name)
def test_the_files_of_an_image_are_those_of_the_packages_that_are_installed(
    containerfile: Path,
) -> None:
    [files] = [row for row in instructions(containerfile) if "rootfs.py /tmp/rootfs" in row]
    copied = set(files.partition("/tmp/rootfs.py /tmp/rootfs")[2].partition("&&")[0].split())

    assert copied == installed(containerfile) | {"base-files"}


@pytest.mark.parametrize("word", ["", "--force-yes", "make-", "a b", "x;reboot"])
def test_what_is_no_name_of_a_package_is_not_given_to_apt(word: str) -> None:
    argv = [str(IMAGES / "build"), "toolkit", "6.1.0-56-amd64", "--package", word]
    done = process.run(argv, env={"ENGINE": "true"}, check=False, timeout=30)

    assert done.exit_code == 2
    assert f"error: --package {word}: expected the name of a Debian package" in done.errors


def test_an_unknown_word_is_answered_with_those_that_are_known() -> None:
    done = process.run([IMAGES / "build", "drivers"], check=False, timeout=30)

    assert done.exit_code == 2
    assert done.errors.startswith("error: no image is called drivers\nhint: images/build driver|")


def check_of_the_base(tmp_path: Path, **versions: str) -> process.Completed:
    """The check in the controller's Containerfile, by a Python with these packages."""
    for name, version in versions.items():
        about = tmp_path / f"{name}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    [check] = [row for row in instructions(CONTROLLER) if row.startswith("RUN python3 -c '")]
    code = check.removeprefix("RUN python3 -c '").removesuffix("'")
    words = [sys.executable, "-S", "-c", code]
    return process.run(words, timeout=10, check=False, env={"PYTHONPATH": str(tmp_path)})


def test_a_base_image_that_is_too_old_for_the_controller_is_refused(tmp_path: Path) -> None:
    bookworm = check_of_the_base(tmp_path, kubernetes="22.6.0", urllib3="1.26.12")

    assert bookworm.exit_code == 1
    assert bookworm.errors == (
        "error: the base image is too old for the controller: it has "
        "['kubernetes 22.6.0', 'urllib3 1.26.12']\n"
        "hint: build on Debian 13 (trixie) or later\n"
    )


def test_a_base_image_of_debian_13_is_taken(tmp_path: Path) -> None:
    assert check_of_the_base(tmp_path, kubernetes="30.1.0", urllib3="2.3.0").exit_code == 0


def test_the_check_of_the_base_image_has_the_bounds_of_the_extra() -> None:
    extra = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    bounds = dict(re.findall(r"([a-z0-9]+)>=(\d+\.\d+)", " ".join(extra["cluster"])))
    checked = re.findall(r'"(kubernetes|urllib3)": \((\d+), (\d+)\)', CONTROLLER.read_text())

    assert {name: f"{major}.{minor}" for name, major, minor in checked} == {
        name: bounds[name] for name in ("kubernetes", "urllib3")
    }
