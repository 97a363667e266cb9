"""The interface to all parts of a trial, for `nodeside try` and the tests of tier `vm`.

    with Workshop() as workshop:
        with workshop.node("cloud-amd64", driver_image=Path("examples/edu")) as node:
            with node.boot(devices=["edu"]) as machine:
                machine.run(["nodeside", "driver", "plan"], timeout=60)
            with node.boot("amd64", devices=["edu"]) as machine:  # the same disk, another kernel
                ...

A node is a directory below the system's temporary directory. It is removed when the node ends.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from nodeside.driver.handoff.request import ToolkitBuildFailed
from nodeside.driver.module.modulefile import ModuleFile
from nodeside.protocol.bundle_key import BuildSettings
from nodeside.system.scratch import scratch_directory
from nodeside.trial import ordinary_kernel
from nodeside.trial.architecture import AMD64, Architecture
from nodeside.trial.cache import TrialCache
from nodeside.trial.debian import kernels
from nodeside.trial.debian.archive import Archive
from nodeside.trial.debian.kernels import AvailableKernel
from nodeside.trial.debian.root_filesystems import RootFileSystems, require_root
from nodeside.trial.emulation import require_emulation
from nodeside.trial.errors import TrialError
from nodeside.trial.host import packed_python
from nodeside.trial.host.discovery import discover_modules
from nodeside.trial.machine import busybox, disks, kernel_disk, node_disk, payload, qemu
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.machine.machine import Machine
from nodeside.trial.machine.qemu import MachineFiles, MachineSettings
from nodeside.trial.progress import Progress
from nodeside.trial.target import dkms_tree
from nodeside.trial.target.dkms_tree import EvaluatedConf

_CONSOLES = 40  # files; a console takes 20 kB, and has a file of QEMU's messages next to it


class Workshop:
    """Kernels, root file systems and nodes. A context manager that holds the cache."""

    def __init__(
        self,
        progress: Progress | None = None,
        *,
        cache: Path | None = None,
        accelerator: str = "auto",
        architecture: Architecture = AMD64,
        toolkit_packages: Sequence[str] = (),
    ) -> None:
        self.progress = progress or Progress()
        self.architecture = architecture
        self.accelerator = accelerator
        self.cache = TrialCache(cache)
        self.archive = Archive(self.cache, self.progress, architecture)
        self.roots = RootFileSystems(self.archive, self.cache, self.progress, toolkit_packages)
        self._stack = ExitStack()

    def __enter__(self) -> Workshop:
        require_amd64()
        qemu.check_accelerator(self.accelerator, self.architecture)
        require_root()
        require_emulation(self.architecture)
        self._stack.enter_context(self.cache)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def available_kernels(self) -> tuple[AvailableKernel, ...]:
        """Return every kernel of the archive, oldest first."""
        return kernels.available_kernels(self.archive)

    def resolve(self, name: str) -> AvailableKernel:
        """Return the kernel that a release, flavour or version means."""
        series = kernels.default_series(self.archive)
        return kernels.resolve_kernel(name, self.available_kernels(), series, self.architecture)

    def kernel(self, kernel: str | AvailableKernel) -> KernelDisk:
        """Return a kernel that is ready to boot."""
        available = self.resolve(kernel) if isinstance(kernel, str) else kernel
        return kernel_disk.make_kernel_disk(available, self.archive, self.cache, self.progress)

    def node_disk(self, driver: Path, toolkit: Path) -> Path:
        """Return the base disk of nodes with these root file systems; each gets an overlay."""
        static = busybox.provide_busybox(self.archive, self.cache)
        return node_disk.make_node_disk(driver, toolkit, self.cache, self.progress, busybox=static)

    @property
    def kept_bundles(self) -> Path:
        """The bundles of earlier trials."""
        return self.cache.directory / "bundles"

    def packed_python(self) -> Path:
        """Return the Python that sidecars run on."""
        return packed_python.pack_cached_python(self.roots.driver(), self.cache, self.progress)

    def evaluate(self, kernel: AvailableKernel, tree: Path) -> EvaluatedConf:
        """Evaluate the dkms.conf of a tree for this kernel, on this host. Raises TargetError."""
        disk = self.kernel(kernel)
        return dkms_tree.make_evaluator(disk, self.roots.toolkit(disk.compiler))(tree)

    def build(
        self, kernel: AvailableKernel | KernelDisk, tree: Path, settings: BuildSettings
    ) -> tuple[ModuleFile, ...]:
        """Build a source that has no driver.yaml, on this host; return its modules.

        Raises ToolkitBuildFailed, NotAModule.
        """
        disk = kernel if isinstance(kernel, KernelDisk) else self.kernel(kernel)
        toolkit, python = self.roots.toolkit(disk.compiler), self.packed_python()
        try:
            return discover_modules(
                tree, settings, disk, toolkit=toolkit, python=python, progress=self.progress
            )
        except ToolkitBuildFailed as failed:
            words = f"{failed} {failed.hint}"
            failed.hint = (
                ordinary_kernel.ordinary_kernel_hint(disk, words, self.archive) or failed.hint
            )
            raise

    def accelerator_for(self, kernel: KernelDisk) -> str:
        """Return `kvm` or `tcg`."""
        return qemu.choose_accelerator(self.accelerator, kernel, self.cache)

    def node(
        self,
        kernel: str | KernelDisk = "",
        *,
        driver_image: Path | None = None,
        bundles: Path | None = None,
        host_builds: Sequence[str] = (),
    ) -> TrialNode:
        """Return a node with this kernel, by default the architecture's newest cloud kernel.

        `driver_image` becomes /driver-image in the driver container. `bundles` is the content of
        its cache, with bundles for the releases in `host_builds`.
        """
        name = kernel or self.architecture.default_kernel
        disk = self.kernel(name) if isinstance(name, str) else name
        return TrialNode(self, disk, driver_image, bundles, frozenset(host_builds))


class TrialNode:
    """A node's disk over several boots, used as a context manager."""

    def __init__(
        self,
        workshop: Workshop,
        kernel: KernelDisk,
        driver_image: Path | None,
        bundles: Path | None,
        host_builds: frozenset[str],
    ) -> None:
        self.workshop = workshop
        self.kernel = kernel
        self._driver_image = driver_image
        self._bundles = bundles
        self.host_builds = host_builds
        self._boots = 0
        self._directory: Path | None = None
        self._stack = ExitStack()

    def __enter__(self) -> TrialNode:
        roots = self.workshop.roots
        driver = roots.driver()
        toolkit = roots.toolkit(self.kernel.compiler)
        base = self.workshop.node_disk(driver, toolkit)
        with ExitStack() as stack:
            self._directory = stack.enter_context(scratch_directory("node"))
            disks.make_overlay(base, self.directory / "node.qcow2")
            self._make_payload()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._directory = None
        self._stack.close()

    @property
    def directory(self) -> Path:
        assert self._directory is not None
        return self._directory

    def boot(
        self,
        kernel: str | KernelDisk | None = None,
        *,
        devices: Sequence[str] = (),
        append: Sequence[str] = (),
        network: bool = False,
        memory_mib: int = 1536,
        cpus: int = 2,
        allow_splats: bool = False,
    ) -> Machine:
        """Return a machine on this node's disk. Only one may run at a time."""
        if kernel is not None:
            self.kernel = self.workshop.kernel(kernel) if isinstance(kernel, str) else kernel
        self._boots += 1
        accelerator = self.workshop.accelerator_for(self.kernel)
        settings = MachineSettings(
            accelerator, memory_mib, cpus, tuple(devices), tuple(append), network
        )
        files = MachineFiles(
            kernel=self.kernel,
            node=self.directory / "node.qcow2",
            payload=self.directory / "payload.ext4",
            serial=new_console_path(self.workshop.cache, f"{self.directory.name}-{self._boots}"),
        )
        return Machine(settings, files, allow_splats=allow_splats)

    def _make_payload(self) -> None:
        driver_root = self.workshop.roots.driver()
        payload.make_payload_disk(
            self.directory / "payload.ext4",
            driver_image=self._driver_image,
            driver_root=driver_root,
            cache=self._bundles,
            python=self.workshop.packed_python(),
            architecture=self.workshop.architecture,
        )


def new_console_path(cache: TrialCache, name: str) -> Path:
    """Return a path for the console of a boot, kept after the trial. Only the latest are kept."""
    directory = cache.directory / "consoles"
    directory.mkdir(parents=True, exist_ok=True)
    old = sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime)
    for path in old[:-_CONSOLES]:
        path.unlink(missing_ok=True)
    return directory / f"{name}.log"


def require_amd64() -> None:
    """Raise TrialError unless the host is amd64. Machines may be others, under emulation."""
    if platform.machine() != "x86_64":
        raise TrialError(
            f"`nodeside try` needs an amd64 host, this one is {platform.machine()}",
            hint="use an amd64 machine; the node side itself is not limited to amd64",
        )
