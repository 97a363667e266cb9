"""The toolkit container on this machine instead of the throwaway one, for large builds.

A compiler runs about fifteen times slower in an emulated machine. Therefore the same sidecar
program, in the same root file system with the same headers, as the same ordinary user without
capabilities and without network, runs here in namespaces of its own. Only the load needs the
machine.

    with HostToolkit(kernel_disk, toolkit_root, scratch) as shared:
        ...                      # a SharedDir with a running sidecar
"""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO

from nodeside.driver.handoff.provide import provide_toolkit, sidecar_command
from nodeside.protocol.shared_directory import SharedDir
from nodeside.system import process
from nodeside.trial.host.container import ENVIRONMENT, UNPRIVILEGED, make_entrance
from nodeside.trial.machine.kernel_disk import KernelDisk

_GOODBYE = 5.0  # seconds for the sidecar to end after SIGTERM


class HostToolkit:
    """A toolkit container for one kernel on this machine. `scratch` is a directory of ours.

    `python` is a packed Python (see `relocatable_python.pack_python`); None packs this one.
    """

    def __init__(
        self,
        kernel: KernelDisk,
        toolkit: Path,
        scratch: Path,
        *,
        python: Path | None = None,
        output: IO[bytes] | int = process.NOWHERE,
    ) -> None:
        self.kernel = kernel
        self.toolkit = toolkit
        self.scratch = scratch
        self.shared = SharedDir(scratch / "shared")
        self._python = python
        self._output = output
        self._child: process.Child | None = None

    def __enter__(self) -> SharedDir:
        self.scratch.mkdir(parents=True, exist_ok=True)
        provide_toolkit(self.shared, self._python)
        layers = (self.kernel.tree, self.toolkit)
        with make_entrance(layers, self.scratch, {self.shared.root: "/shared"}) as enter:
            self._child = process.start(
                [*UNPRIVILEGED, *sidecar_command(Path("/shared"))],
                env=ENVIRONMENT,
                stdout=self._output,
                stderr=sys.stderr.fileno() if self._output == process.NOWHERE else self._output,
                wrapper=enter,
            )
        return self.shared

    def __exit__(self, *_: object) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        process.kill_group(child.pid, signal.SIGTERM)
        with suppress(process.StillRunning):
            child.wait(_GOODBYE)
        process.kill_group(child.pid)
        child.wait()
