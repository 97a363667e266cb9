"""Builds without a pod: starts a toolkit sidecar with this machine's compiler and headers.

For engineers on a node or a laptop (`nodeside driver build --local`). The protocol and the code are
the same as in the pod; only the toolkit image is missing.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import nodeside
from nodeside.driver.node.syscalls import prepare_death_with_parent
from nodeside.protocol.shared_directory import SharedDir
from nodeside.system import process
from nodeside.system.scratch import scratch_directory

_STDERR = 2
_GOODBYE = 5.0  # seconds for the sidecar to exit after SIGTERM


@contextmanager
def local_sidecar() -> Iterator[SharedDir]:
    """Yield a shared directory that a running sidecar serves."""
    with scratch_directory("build") as scratch:
        shared = SharedDir(scratch / "shared", private=True)
        shared.create()
        argv = [
            sys.executable,
            "-P",
            "-m",
            "nodeside.toolkit_sidecar",
            "run",
            "--shared",
            str(shared.root),
        ]
        package = str(Path(nodeside.__file__).parent.parent)
        environment = {"PYTHONPATH": package}
        child = process.start(
            argv, env=environment, stderr=_STDERR, wrapper=prepare_death_with_parent()
        )
        try:
            yield shared
        finally:
            _end_sidecar(child)


def _end_sidecar(child: process.Child) -> None:
    """Let the sidecar end its build, then kill its remaining processes, even on a Ctrl-C here."""
    try:
        process.kill_group(child.pid, signal.SIGTERM)
        with suppress(process.StillRunning):
            child.wait(_GOODBYE)
    finally:
        process.kill_group(child.pid)
        with suppress(process.StillRunning):
            child.wait(_GOODBYE)
