"""The disk with nodeside and the driver to try."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nodeside.trial.machine.payload import compile_package

# Stands for the loader of a root file system; its Python is the one of the tests.
LOADER = f"""\
#!/bin/sh
unset PYTHONHOME
shift 3
exec {sys.executable} "$@"
"""


def test_nothing_of_a_vendors_directory_is_run_to_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, package, vendor = tmp_path / "root", tmp_path / "package", tmp_path / "vendor"
    libraries = root / "usr" / "lib" / "x86_64-linux-gnu"
    for directory in (libraries, package, vendor):
        directory.mkdir(parents=True)
    (libraries / "ld-linux-x86-64.so.2").write_text(LOADER)
    (libraries / "ld-linux-x86-64.so.2").chmod(0o755)
    (package / "module.py").touch()
    for name in ("compileall", "struct"):
        (vendor / f"{name}.py").write_text("open('run', 'w').close()\n")
    monkeypatch.chdir(vendor)

    compile_package(package, root)

    assert list(package.rglob("*.pyc"))
    assert not (vendor / "run").exists()
