"""A wheel and a source distribution that work without a checkout, with documents and man pages."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from nodeside.system import process
from tests.patience import patience

pytestmark = pytest.mark.slow

TOP = Path(__file__).parents[1]
_SECONDS = patience(600.0)
_SOURCES = (
    *("nodeside", "cluster", "charts", "deploy", "docs"),
    *("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"),
)


def copied(to: Path) -> Path:
    """What a distribution is made of; a build writes beside it."""
    to.mkdir()
    for name in _SOURCES:
        source = TOP / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, to / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(source, to / name)
    return to


def built(kind: str, tree: Path, to: Path) -> Path:
    """Built as pip does it, with the tools that are installed here."""
    to.mkdir()
    code = f"from setuptools import build_meta; build_meta.build_{kind}({str(to)!r})"
    env = {"PATH": os.environ["PATH"]}
    process.run([sys.executable, "-c", code], cwd=tree, env=env, timeout=_SECONDS)
    [made] = to.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scratch = tmp_path_factory.mktemp("wheel")
    return built("wheel", copied(scratch / "tree"), scratch / "dist")


@pytest.fixture(scope="module")
def prefix(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place that has the wheel; what it depends on is that of this environment."""
    prefix = tmp_path_factory.mktemp("prefix")
    # Without --ignore-installed, pip would take what this environment has for an older version.
    words = ["--ignore-installed", "--no-deps", "--no-index", "--quiet", "--prefix", str(prefix)]
    process.run([sys.executable, "-m", "pip", "install", *words, str(wheel)], timeout=_SECONDS)
    return prefix


def installed(prefix: Path, program: str, *words: str) -> str:
    """The output of an installed program, which sees nothing of this checkout."""
    paths = {"base": str(prefix), "platbase": str(prefix)}
    purelib = sysconfig.get_path("purelib", "venv", vars=paths)
    env = {"PYTHONPATH": purelib}
    argv = [sys.executable, "-P", str(prefix / "bin" / program), *words]
    return process.run(argv, cwd=prefix, env=env, timeout=_SECONDS).output


def test_a_wheel_has_the_programs_their_data_and_their_documents(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}

    assert {top.partition("-")[0] for top in tops} == {"nodeside", "cluster"}
    inside = {name.partition(".data/data/")[2] for name in names}
    for file in ("share/man/man1/nodeside-try.1", "share/doc/nodeside/docs/driver-yaml.md"):
        assert file in inside
    for file in (
        "cluster/install/charts/nodeside/values.schema.json",
        "cluster/install/charts/nodeside/templates/_helpers.tpl",
        "cluster/install/deploy/base/controller.yaml",
        "nodeside/device_agent/api/deviceplugin.proto",
    ):
        assert any(name.startswith(file.rpartition("/")[0]) for name in names), file
    assert not [name for name in names if name.startswith(("tests", "bench"))]
    for top in ("charts", "deploy"):
        files = (path for path in (TOP / top).rglob("*") if path.is_file())
        inside = {name for name in names if name.startswith(f"cluster/install/{top}/")}
        assert inside == {f"cluster/install/{path.relative_to(TOP)}" for path in files}


def test_what_is_installed_from_it_works_without_a_checkout(prefix: Path) -> None:
    where = installed(prefix, "nodeside", "--version")
    assert "nodeside, version" in where
    assert installed(prefix, "nodeside", "spec", "reference") == (
        (TOP / "docs" / "driver-yaml.md").read_text()
    )
    manifests = installed(
        prefix, "nodeside-cluster", "manifests", "--image", "registry.example.com/n:1"
    )
    assert "kind: Deployment" in manifests
    installed(
        prefix,
        *("nodeside-cluster", "manifests", "--image", "registry.example.com/n:1"),
        *("--format", "helm", "--output", str(prefix / "chart")),
    )
    assert (prefix / "chart" / "values.schema.json").is_file()


def test_a_source_distribution_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    packed = built("sdist", copied(tmp_path / "tree"), tmp_path / "dist")
    (tmp_path / "unpacked").mkdir()
    process.run(["tar", "-xf", packed, "-C", tmp_path / "unpacked"], timeout=_SECONDS)
    [tree] = (tmp_path / "unpacked").iterdir()

    again = built("wheel", tree, tmp_path / "again")

    assert set(zipfile.ZipFile(again).namelist()) == set(zipfile.ZipFile(wheel).namelist())
