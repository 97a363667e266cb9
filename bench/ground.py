"""What the measurements stand on: kernels, root file systems, nodeside as a driver image has it.

Everything dear comes from the cache of `nodeside try`; the rest lives in a directory of its own
that is removed at the end.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import nodeside
from bench.filenode import FileNode
from bench.room import BenchError, Room
from nodeside.spec import load
from nodeside.system import process
from nodeside.system.host import Kernel
from nodeside.system.scratch import scratch_directory
from nodeside.toolkit_sidecar.headers import read_version_of_release
from nodeside.trial.debian.archive import unpack_package
from nodeside.trial.host import packed_python
from nodeside.trial.host.toolkit import HostToolkit
from nodeside.trial.machine.containers import DRIVER
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.progress import Progress
from nodeside.trial.target import dkms_tree, target
from nodeside.trial.workshop import Workshop

_MEMORY = Path("/dev/shm")  # noqa: S108 - a directory of our own is made in it
_COMMAND = """\
#!/usr/bin/python3
import sys
sys.path.insert(0, "/opt/nodeside")
from nodeside.cli import main
main()
"""


@dataclass(frozen=True)
class Prepared:
    """A driver ready to be built: `image` plays /driver-image, `tree` is its dkms tree."""

    name: str
    image: Path
    package: str = ""  # PACKAGE_NAME and PACKAGE_VERSION of its dkms.conf
    version: str = ""

    @property
    def tree(self) -> Path:
        return self.image / "src"

    @property
    def files(self) -> int:
        """Source files that are compiled, roughly: all .c files."""
        return sum(1 for _ in self.tree.rglob("*.c"))


class Ground:
    """Use as a context manager."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.workshop = Workshop(progress)
        self._stack = ExitStack()
        self._kernels: dict[str, KernelDisk] = {}

    def __enter__(self) -> Ground:
        with ExitStack() as stack:
            stack.enter_context(self.workshop)
            self.scratch = stack.enter_context(scratch_directory("bench"))
            self.scratch.chmod(0o755)
            self._memory = stack.enter_context(scratch_directory("bench", _MEMORY))
            self.driver_root = self.workshop.roots.driver()
            self.python = packed_python.pack_cached_python(
                self.driver_root, self.workshop.cache, self.progress
            )
            self._install_nodeside()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def directory(self, name: str) -> Path:
        """A directory for one measurement, new and empty."""
        path = self.scratch / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def node(self, name: str, kernel: KernelDisk) -> FileNode:
        """A node made of files, in memory, as /proc, /sys and /run of a node are."""
        return FileNode(self._memory / name, self.identity(kernel))

    def kernel(self, flavour: str) -> KernelDisk:
        """The newest kernel of a flavour."""
        if flavour not in self._kernels:
            self._kernels[flavour] = self.workshop.kernel(flavour)
        return self._kernels[flavour]

    def identity(self, kernel: KernelDisk) -> Kernel:
        """The kernel as its headers name it: release and `uname -v`."""
        return Kernel(
            kernel.release, read_version_of_release(kernel.tree, kernel.release), "x86_64"
        )

    def toolkit(self, kernel: KernelDisk) -> Path:
        """The toolkit's root file system for a kernel."""
        return self.workshop.roots.toolkit(kernel.compiler)

    def toolkit_layers(self, kernel: KernelDisk) -> tuple[Path, ...]:
        """Headers over the toolkit, as the sidecar has them."""
        return (kernel.tree, self.toolkit(kernel))

    def sidecar(
        self, kernel: KernelDisk, directory: Path, output: int = process.NOWHERE
    ) -> HostToolkit:
        """The toolkit container with the sidecar in it. Its output goes to a file descriptor."""
        return HostToolkit(
            kernel, self.toolkit(kernel), directory, python=self.python, output=output
        )

    def driver_room(self, directory: Path, binds: Mapping[Path, str]) -> Room:
        """The driver container, without the host."""
        every = {self._package: "/opt/nodeside", self._bin: "/usr/local/bin", **binds}
        return Room((self.driver_root,), directory, every, DRIVER.env)

    def prepare(self, name: str, word: str, kernel: KernelDisk) -> Prepared:
        """A driver image of a dkms tree, given as a directory or as the name of a package."""
        image = self.directory(f"images/{name}") / "image"
        evaluate = dkms_tree.make_evaluator(kernel, self.toolkit(kernel))
        build = partial(self.workshop.build, kernel)
        target.prepare_target(word, image, self.workshop.archive, evaluate, build)
        load(image / "driver.yaml")
        values = evaluate(image / "src").values
        return Prepared(name, image, values.first("PACKAGE_NAME"), values.first("PACKAGE_VERSION"))

    def dkms_layer(self, kernel: KernelDisk) -> Path:
        """dkms on top of the toolkit, and all of the kernel's modules, since depmod reads them."""
        version = self.workshop.archive.show("dkms").get("Version", "")
        if not version:
            raise BenchError("the package archive has no dkms")

        def fill(directory: Path) -> None:
            self.progress.print_step(
                f"fetching dkms {version}, and unpacking the modules for depmod"
            )
            downloads = directory / "downloads"
            downloads.mkdir()
            for package in self.workshop.archive.download(["dkms"], downloads):
                unpack_package(package, directory / "layer")
            shutil.rmtree(downloads)
            _merge_usr(directory / "layer")
            _dump_modules(kernel, directory / "layer")

        name = f"dkms-{version.replace('+', '_')}-{kernel.directory.name}"
        return self.workshop.cache.make("bench", name, fill, needs_mib=1024) / "layer"

    def _install_nodeside(self) -> None:
        """The package and its command, byte-compiled by the driver's Python, as in the image."""
        self._package = self.directory("opt")
        self._bin = self.directory("bin")
        source = Path(nodeside.__file__).parent
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, self._package / "nodeside", ignore=ignored)
        (self._bin / "nodeside").write_text(_COMMAND)
        (self._bin / "nodeside").chmod(0o755)
        compile_all = ["python3", "-m", "compileall", "-q"]
        compile_all += ["--invalidation-mode", "unchecked-hash", "/opt/nodeside/nodeside"]
        self.driver_room(self.directory("install"), {}).run(compile_all, timeout=120)


def _merge_usr(layer: Path) -> None:
    """A directory `/lib` would hide the toolkit's link of that name."""
    for name in ("bin", "sbin", "lib"):
        if (layer / name).is_dir():
            shutil.copytree(layer / name, layer / "usr" / name, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(layer / name)


def _dump_modules(kernel: KernelDisk, layer: Path) -> None:
    """All modules of the kernel, out of its disk image, without mounting it."""
    modules = f"/usr/lib/modules/{kernel.release}"
    target = Path(f"{layer}{modules}")
    target.mkdir(parents=True)
    process.run(["debugfs", "-R", f"rdump {modules}/kernel {target}", kernel.image], timeout=300)
    if not any(target.rglob("*.ko*")):
        raise BenchError(f"no modules came out of {kernel.image}")
