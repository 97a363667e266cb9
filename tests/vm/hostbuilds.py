"""Bundles built on this host, in the toolkit's root file system: in seconds, not minutes."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from nodeside.driver.bundle.bundle import Bundle, read_bundle
from nodeside.protocol.shared_directory import SharedDir
from nodeside.system import process
from nodeside.system.process import Completed
from nodeside.trial.host import build
from nodeside.trial.host.toolkit import HostToolkit
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.workshop import Workshop


class HostBuilds:
    """Bundles built on this host by the real driver and sidecar processes, kept for the session.

    A context manager: for each kernel, one toolkit container stays open until the end.
    """

    def __init__(self, workshop: Workshop, directory: Path) -> None:
        self.workshop = workshop
        self.directory = directory
        self._done: dict[tuple[str, ...], Bundle] = {}
        self._shared: dict[str, SharedDir] = {}
        self._toolkits = ExitStack()

    def __enter__(self) -> HostBuilds:
        return self

    def __exit__(self, *exc: object) -> None:
        self._toolkits.close()

    def __call__(self, driver: Path, kernel: KernelDisk, *, after: Sequence[Bundle] = ()) -> Bundle:
        """The bundle of the driver in this directory, which must not change afterwards.

        `after` are bundles of the drivers that it comes after.
        """
        key = (str(driver), kernel.release, *(bundle.digest for bundle in after))
        if key not in self._done:
            self._done[key] = self._build(driver, kernel, after)
        return self._done[key]

    def publish(self, driver: Path, kernel: KernelDisk, to: str) -> str:
        """`nodeside driver publish` of what was built here; the digest of the bundle."""
        bundle = self(driver, kernel)
        words = ["driver", "publish", "--driver", str(driver), "--to", to, "--output", "json"]
        words += ["--cache", str(self.directory / "cache"), *_named(kernel)]
        done = nodeside(*words, "--kernel-version", bundle.manifest.kernel.version)
        return str(json.loads(done.output)["digest"])

    def _build(self, driver: Path, kernel: KernelDisk, after: Sequence[Bundle]) -> Bundle:
        words = ["driver", "build", "--driver", str(driver), "--output", "json"]
        words += ["--shared", str(self._toolkit(kernel).root)]
        words += [word for each in after for word in ("--symbols-of", str(each.directory))]
        words += ["--cache", str(self.directory / "cache"), *_named(kernel)]
        done = nodeside(*words, "--kernel-version", build.kernel_version(kernel))
        return read_bundle(Path(json.loads(done.output)["path"]))

    def _toolkit(self, kernel: KernelDisk) -> SharedDir:
        if kernel.release not in self._shared:
            toolkit = HostToolkit(
                kernel,
                self.workshop.roots.toolkit(kernel.compiler),
                self.directory / kernel.release,
                python=self.workshop.packed_python(),
            )
            self._shared[kernel.release] = self._toolkits.enter_context(toolkit)
        return self._shared[kernel.release]


def _named(kernel: KernelDisk) -> tuple[str, ...]:
    return ("--kernel", kernel.release, "--kernel-arch", kernel.architecture.machine)


def nodeside(*words: str) -> Completed:
    """The command on this host, as a process of its own."""
    code = "from nodeside.cli import main; main()"
    return process.run([sys.executable, "-c", code, *words], timeout=1800)


def headers_of(kernel: KernelDisk) -> Path:
    return kernel.tree / "usr" / "src" / f"linux-headers-{kernel.release}"
