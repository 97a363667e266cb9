"""The disk with nodeside and the driver to try."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import nodeside
from nodeside.driver.handoff import zipapp
from nodeside.trial.machine.payload import compile_to_bytecode, pack_program

# Stands for the loader of a root file system; its Python is the one of the tests.
LOADER = f"""\
#!/bin/sh
unset PYTHONHOME
shift 3
exec {sys.executable} "$@"
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root file system with a Python."""
    libraries = tmp_path / "root" / "usr" / "lib" / "x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    (libraries / "ld-linux-x86-64.so.2").write_text(LOADER)
    (libraries / "ld-linux-x86-64.so.2").chmod(0o755)
    return tmp_path / "root"


@pytest.mark.slow
def test_the_program_of_the_sidecar_is_packed_as_the_driver_would_make_it(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = Path(nodeside.__file__).parent.parent

    pack_program(packages, tmp_path / "toolkit.pyz", root)

    monkeypatch.setattr(zipapp, "compile_pyc", None)
    assert zipapp.build_zipapp(tmp_path / "toolkit.pyz") == (tmp_path / "toolkit.pyz").read_bytes()


def test_nothing_of_a_vendors_directory_is_run_to_compile(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, vendor = tmp_path / "package", tmp_path / "vendor"
    for directory in (package, vendor):
        directory.mkdir()
    (package / "module.py").touch()
    for name in ("compileall", "struct"):
        (vendor / f"{name}.py").write_text("open('run', 'w').close()\n")
    monkeypatch.chdir(vendor)

    compile_to_bytecode(package, root)

    assert list(package.rglob("*.pyc"))
    assert not (vendor / "run").exists()
