"""Fills the shared directory, in the init container, before the toolkit container starts.

The program and its Python appear by rename. Current ones are left alone, so a running sidecar keeps
the files that it runs on. Both are packed when an image is built, side by side:

    /usr/lib/nodeside/python        a Python that runs anywhere (relocatable_python.py)
    /usr/lib/nodeside/toolkit.pyz   the program (zipapp.py)
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nodeside import log
from nodeside.driver.handoff.relocatable_python import pack_python
from nodeside.driver.handoff.zipapp import build_zipapp
from nodeside.protocol.shared_directory import SharedDir
from nodeside.system.files import TEMPORARY_PREFIX, disk_errors, publish_bytes
from nodeside.system.host import Host

PYTHON, PROGRAM = "python", "toolkit.pyz"


def pack_toolkit(to: Path, *, link: bool = False) -> None:
    """Pack what `provide_toolkit` needs. `link`: Python shares files with the one that runs."""
    pack_python(to / PYTHON, link=link)
    publish_bytes(to / PROGRAM, build_zipapp())


def provide_toolkit(
    shared: SharedDir, python: Path | None = None, *, host: Host | None = None
) -> None:
    """Prepare the shared directory for a sidecar.

    `python` is a Python that `pack_toolkit` packed when the image was built, with the program
    beside it. None packs the running one, which takes some seconds. `host` provides the boot id.
    """
    boot_id = (host or Host()).boot_id
    shared.create()
    data = build_zipapp(python.with_name(PROGRAM) if python else None)
    if not _has_content(shared.program, data):
        publish_bytes(shared.program, data)
    with log.step("provide Python", at=shared.python):
        _provide_python(shared, python, boot_id)


def sidecar_command(root: Path, verb: str = "run") -> tuple[str, ...]:
    """Return the argv that starts the sidecar on the shared directory `root`, on any architecture.

    Another `verb` runs one step of a build in steps (nodeside/protocol/build_job.py). -I ignores
    PYTHON* variables and the user's directories, -S skips `site`, -B writes no .pyc.
    """
    python = root / "python"
    return (
        str(python / "loader"),
        "--library-path",
        str(python / "libs"),
        str(python / "bin/python3"),
        *("-I", "-S", "-B"),
        str(root / "toolkit.pyz"),
        *(verb, "--shared", str(root)),
    )


def _provide_python(shared: SharedDir, python: Path | None, boot_id: str) -> None:
    """Install the Python. One from another boot is replaced: a power loss may have torn it."""
    stamp = shared.python / "STAMP"
    mark = f"boot {boot_id}\n"
    desired = (python / "STAMP").read_text() + mark if python else None
    if stamp.is_file():
        current = stamp.read_text()
        if current == desired or (desired is None and current.endswith(mark)):
            return
    with disk_errors(shared.python), _write_aside(shared.python) as new:
        if python:
            shutil.copytree(python, new, symlinks=True)
        else:
            pack_python(new)
        with open(new / "STAMP", "a") as file:
            file.write(mark)


@contextmanager
def _write_aside(path: Path) -> Iterator[Path]:
    """Yield a temporary path that is renamed to `path` if the block succeeds."""
    new = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{path.name}")
    old = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-old-{path.name}")
    for leftover in (new, old):  # from a killed run with the same pid
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        yield new
        if path.exists():
            path.rename(old)
        new.rename(path)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _has_content(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:
        return False
