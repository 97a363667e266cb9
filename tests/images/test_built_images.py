"""The images as they ship: small, complete, without privilege, and the same every time."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import nodeside
from nodeside.driver.handoff.source import source_digest
from nodeside.driver.handoff.source_tree import NotSource
from nodeside.protocol.bundle_key import BuildKind, BuildSettings
from nodeside.spec import load
from nodeside.system import process
from nodeside.trial import scaffold
from nodeside.trial.target.draft import Draft
from nodeside.trial.workshop import Workshop
from tests.images.built import (
    AGENT,
    CONTROLLER,
    DRIVER,
    Engine,
    engine,
    entries,
    unpacked_size,
)
from tests.patience import patience

pytestmark = pytest.mark.toolkit

_MB = 1_000_000
_SECONDS = patience(120.0)
_IMPORT_ALL = (
    "import importlib, pkgutil, {0}; "
    "names = [each.name for each in pkgutil.walk_packages({0}.__path__, '{0}.')]; "
    "[importlib.import_module(name) for name in names if not name.endswith('__main__') "
    "and (not name.startswith('nodeside.device_agent.') or '{0}' == 'nodeside.device_agent')]; "
    "print(len(names))"
)


@pytest.fixture(scope="module")
def built() -> Iterator[Engine]:
    with Workshop() as workshop, engine(workshop.cache) as built:
        built.build_all()
        yield built


@pytest.fixture(scope="module")
def driver(built: Engine) -> Iterator[Path]:
    with built.mounted(DRIVER) as root:
        yield root


@pytest.fixture(scope="module")
def controller(built: Engine) -> Iterator[Path]:
    with built.mounted(CONTROLLER) as root:
        yield root


@pytest.fixture(scope="module")
def agent(built: Engine) -> Iterator[Path]:
    with built.mounted(AGENT) as root:
        yield root


@pytest.fixture(params=["driver", "controller", "agent"])
def root(request: pytest.FixtureRequest) -> Path:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Path)
    return found


def run(root: Path, *words: str) -> process.Completed:
    """As a user that the image does not know."""
    return process.run(
        ["chroot", "--userspec=12345:0", root, *words], timeout=_SECONDS, check=False, env={}
    )


def test_they_are_small(driver: Path, controller: Path, agent: Path) -> None:
    assert unpacked_size(agent) <= 90 * _MB
    assert unpacked_size(driver) <= 130 * _MB
    assert unpacked_size(controller) <= 140 * _MB


def test_no_file_gives_a_privilege_and_none_is_everybodys_to_write(root: Path) -> None:
    writable = []
    for path in entries(root):
        mode, group = path.lstat().st_mode, path.lstat().st_gid
        assert not stat.S_ISREG(mode) or not mode & (stat.S_ISUID | stat.S_ISGID), path
        assert "security.capability" not in os.listxattr(path, follow_symlinks=False)
        root_too = stat.S_ISREG(mode) and group == 0  # the group of pods on OpenShift
        others = stat.S_IWOTH | (stat.S_IWGRP if root_too else 0)
        if mode & others and not stat.S_ISLNK(mode) and not mode & stat.S_ISVTX:
            writable.append(path)

    assert writable == []


def test_there_is_no_documentation_but_who_has_the_copyright(root: Path) -> None:
    share = root / "usr" / "share"
    documents = {path.name for path in (share / "doc").rglob("*") if path.is_file()}

    assert documents <= {"copyright"}
    for name in ("man", "locale", "info"):
        assert not [path for path in (share / name).rglob("*") if path.is_file()]


def test_vendors_can_install_packages_on_the_driver_image_and_nobody_in_the_others(
    driver: Path, controller: Path, agent: Path
) -> None:
    for name in ("apt-get", "dpkg", "sh", "perl"):
        assert (driver / "usr/bin" / name).exists()
        for root in (controller, agent):
            assert not list((root / "usr").glob(f"*bin/{name}"))


def test_what_is_in_an_image_says_who_it_is(driver: Path, controller: Path, agent: Path) -> None:
    version = nodeside.__version__

    for root in (driver, agent):
        assert run(root, "nodeside", "--version").output == f"nodeside, version {version}\n"
    found = run(controller, "nodeside-cluster", "--version")
    assert found.output == f"nodeside-cluster, version {version}\n"


def test_every_module_finds_what_it_imports(driver: Path, controller: Path) -> None:
    """Those that `nodeside try` imports of the host are there as well."""
    for root, package in ((driver, "nodeside"), (controller, "nodeside"), (controller, "cluster")):
        found = run(root, "python3", "-c", _IMPORT_ALL.format(package))
        assert found.exit_code == 0, found.errors
        assert int(found.output) > 50


def test_the_agent_has_what_it_imports(agent: Path) -> None:
    found = run(agent, "python3", "-c", _IMPORT_ALL.format("nodeside.device_agent"))
    assert found.exit_code == 0, found.errors
    found = run(agent, "python3", "-c", "import requests; print('late')")
    assert found.output == "late\n", found.errors
    found = run(agent, "nodeside", "device-agent", "--driver", "/nowhere")
    assert found.errors.startswith("error: cannot read /nowhere"), found.errors


def test_the_controller_has_what_it_imports_late(controller: Path) -> None:
    late = "import cryptography.x509, jinja2.sandbox, kubernetes.config, prometheus_client"
    found = run(controller, "python3", "-c", f"{late}, re2; print(bool(re2.search('a+', 'baa')))")

    assert found.output == "True\n", found.errors


def test_openssl_finds_the_certificates_of_cas(root: Path) -> None:
    found = run(root, "python3", "-c", "import ssl; print(ssl.get_default_verify_paths().capath)")

    assert found.output == "/usr/lib/ssl/certs\n", found.errors


def test_the_controller_says_that_it_finds_no_cluster(controller: Path) -> None:
    found = run(controller, "nodeside-cluster", "status")

    assert "Traceback" not in found.errors
    assert found.errors.startswith("error: ")


def test_the_sidecars_python_runs_by_itself_and_shares_files_with_debians(driver: Path) -> None:
    python = driver / "usr/lib/nodeside/python"
    words = "/usr/lib/nodeside/python/loader --library-path /usr/lib/nodeside/python/libs"
    found = run(
        driver, *words.split(), "/usr/lib/nodeside/python/bin/python3", "-c", "print(6 * 7)"
    )

    assert found.output == "42\n", found.errors
    assert (python / "bin/python3").stat().st_nlink == 2


def test_the_sidecars_program_is_packed_and_need_not_be_compiled(driver: Path) -> None:
    code = (
        "from pathlib import Path; from nodeside.driver.handoff import zipapp; "
        "zipapp.compile_pyc = None; zipapp.build_zipapp(Path('/usr/lib/nodeside/toolkit.pyz'))"
    )
    found = run(driver, "python3", "-c", code)

    assert found.exit_code == 0, found.errors


def test_python_is_compiled_whatever_the_time_of_its_files(root: Path) -> None:
    """PEP 552: 1 is by hash, and the source is not looked at."""
    compiled = list((root / "usr/lib").glob("python3*/**/*.pyc"))

    assert len(compiled) > 500
    assert {path.read_bytes()[4:8] for path in compiled} == {b"\1\0\0\0"}


def test_the_bill_of_materials_names_each_package(root: Path) -> None:
    [path] = (root / "usr/share/sbom").iterdir()
    found = json.loads(path.read_text())
    status = (root / "var/lib/dpkg/status").read_text()
    packages = {row[9:] for row in status.splitlines() if row.startswith("Package: ")}

    assert found["spdxVersion"] == "SPDX-2.3"
    assert found["creationInfo"]["created"] == "2023-11-14T22:13:20Z"
    assert {package["name"] for package in found["packages"]} == packages | {"nodeside"}
    assert len({package["SPDXID"] for package in found["packages"]}) == len(packages) + 1


def test_nothing_of_the_machine_that_built_it_is_in_an_image(root: Path) -> None:
    for name in ("etc/hostname", "etc/resolv.conf", "etc/machine-id"):
        path = root / name
        assert not path.exists() or not path.read_text()


def test_an_image_has_labels_with_version_and_revision(built: Engine) -> None:
    for image in (DRIVER, CONTROLLER, AGENT):
        labels = json.loads(built.run("buildah", "inspect", "--type", "image", image))["OCIv1"]
        found = labels["config"]["Labels"]
        assert found["org.opencontainers.image.version"] == nodeside.__version__
        assert found["org.opencontainers.image.revision"]


@pytest.mark.parametrize(
    ("name", "image"), [("driver", DRIVER), ("controller", CONTROLLER), ("agent", AGENT)]
)
def test_another_build_makes_the_same_image(built: Engine, name: str, image: str) -> None:
    def build_anew(tag: str) -> tuple[str, bytes]:
        """The digest of the image, and the packages in it."""
        built.build(name, tag, OPTIONS="--no-cache")
        with built.mounted(tag) as root:
            packages = (root / "var/lib/dpkg/status").read_bytes()
        return digest(built, tag), packages

    with built.mounted(image) as root:
        packages, first = (root / "var/lib/dpkg/status").read_bytes(), digest(built, image)
    again, packages_again = build_anew("localhost/again")
    if packages_again != packages:  # Debian has newer ones than when the image was built
        first, packages = build_anew("localhost/first")
        built.run("buildah", "rmi", "localhost/first")
    built.run("buildah", "rmi", "localhost/again")

    assert packages_again == packages
    assert again == first


def digest(built: Engine, image: str) -> str:
    return built.run("buildah", "images", "--no-trunc", "--quiet", image)


def test_a_vendor_installs_a_package_on_the_driver_image_with_cached_layers(
    built: Engine, tmp_path: Path
) -> None:
    recipe = tmp_path / "Containerfile"
    install = "apt-get update && apt-get install --yes --no-install-recommends hello"
    recipe.write_text(f"FROM {DRIVER}\nRUN {install}\n")
    build = ("buildah", "build", "--layers", "--file", recipe)  # as podman does by default
    built.run(*build, "--tag", "localhost/vendors", tmp_path)
    with built.mounted("localhost/vendors") as root:
        assert (root / "usr/bin/hello").exists()
    built.run("buildah", "rmi", "localhost/vendors")


def test_what_init_writes_makes_an_image_with_the_same_source(
    built: Engine, tmp_path: Path
) -> None:
    """The key of its bundles is that of the directory, so what was published from there fits."""
    tree = tmp_path / "chip"
    (tree / ".git").mkdir(parents=True)
    (tree / "chip.c").write_text("int chip;\n")
    draft = Draft("chip", "1.0", BuildSettings(BuildKind.KBUILD, ("chip",)))
    for name, text in scaffold.make_file_texts(draft, ".", nodeside.__version__).items():
        (tree / name).write_text(text)
    exclude = load(tree / "driver.yaml").spec.source.exclude

    tag = built.assemble("localhost/chip:1.0", tree, DRIVER)
    try:
        with built.mounted(tag) as root:
            image = root / "driver-image"
            names = sorted(path.name for path in image.iterdir())
            digest = source_digest(image, NotSource(exclude))
    finally:
        built.run("buildah", "rmi", tag)

    assert names == ["chip.c", "driver.yaml"]
    assert digest == source_digest(tree, NotSource(exclude))
