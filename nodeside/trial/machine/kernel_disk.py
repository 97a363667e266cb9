"""One kernel as files that a machine can boot, made once and cached.

kernels/<release>-<digest>/
  vmlinuz, initramfs    what QEMU starts
  kernel.ext4           the second disk: usr/lib/modules/<release>, usr/src and kbuild's tools
  tree/                 the same headers, for a build on the host
  kernel.json           the release, and the compiler package that its headers require
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from nodeside.protocol.records import publish, read_untrusted
from nodeside.system import process
from nodeside.trial.architecture import AMD64, Architecture
from nodeside.trial.cache import TrialCache
from nodeside.trial.debian.archive import Archive, unpack_package
from nodeside.trial.debian.kernels import AvailableKernel, packages_of
from nodeside.trial.errors import TrialError
from nodeside.trial.machine import busybox, disks, initramfs
from nodeside.trial.progress import Progress
from nodeside.values import frozen

RECIPE = 1  # increase it when kernel disks are made differently


@frozen
class KernelDisk:
    """A bootable kernel. `compiler` is the Debian package that its headers require."""

    directory: Path
    release: str
    headers: bool
    compiler: str
    architecture: Architecture = AMD64

    @property
    def vmlinuz(self) -> Path:
        return self.directory / "vmlinuz"

    @property
    def initramfs(self) -> Path:
        return self.directory / "initramfs"

    @property
    def image(self) -> Path:
        return self.directory / "kernel.ext4"

    @property
    def tree(self) -> Path:
        return self.directory / "tree"


def make_kernel_disk(
    kernel: AvailableKernel, archive: Archive, cache: TrialCache, progress: Progress
) -> KernelDisk:
    """Return the kernel's disk from the cache, or make it from the archive."""
    name = f"{kernel.release}-{RECIPE}{'' if kernel.headers else '-bare'}"
    maker = _Maker(kernel, archive, busybox.provide_busybox(archive, cache), progress)
    directory = cache.make("kernels", name, maker.fill, needs_mib=2048)
    record = read_untrusted(directory / "kernel.json")
    if record is None:
        raise TrialError(f"{directory} is damaged", hint="nodeside try --clean-cache")
    compiler = str(record["compiler"])
    return KernelDisk(
        directory, kernel.release, bool(kernel.headers), compiler, archive.architecture
    )


@frozen
class _Maker:
    kernel: AvailableKernel
    archive: Archive
    busybox: Path
    progress: Progress

    def fill(self, directory: Path) -> None:
        release = self.kernel.release
        packages = packages_of(self.kernel, self.archive)
        self.progress.print_step(f"fetching kernel {release}: {len(packages.names)} packages")
        tree = directory / "tree"
        with tempfile.TemporaryDirectory(dir=directory) as downloads:
            for package in self.archive.download(packages.names, Path(downloads)):
                unpack_package(package, tree)
        self.progress.print_step(f"making the kernel disk of {release}")
        modules = _merge_usr(tree, release)
        _take_kernel(tree, modules, directory / "vmlinuz")
        for name in ("boot", "usr/share"):
            shutil.rmtree(tree / name, ignore_errors=True)
        _run_depmod(tree / "usr", release)
        (directory / "initramfs").write_bytes(initramfs.build_initramfs(modules, self.busybox))
        disks.make_ext4(tree, directory / "kernel.ext4", label="kernel")
        for name in ("kernel", "vdso"):  # the modules are in the image; the tree is for builds
            shutil.rmtree(modules / name, ignore_errors=True)
        record = {"release": release, "compiler": packages.compiler}
        publish(directory / "kernel.json", record)


def _merge_usr(tree: Path, release: str) -> Path:
    """Move `/lib` into `/usr/lib`, as on merged-/usr systems. Return the modules' directory."""
    if (tree / "lib").is_dir() and not (tree / "lib").is_symlink():
        shutil.copytree(tree / "lib", tree / "usr" / "lib", symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(tree / "lib")
    modules = tree / "usr" / "lib" / "modules" / release
    if not (modules / "kernel").is_dir():
        raise TrialError(f"the packages of {release} have no modules in them")
    return modules


def _take_kernel(tree: Path, modules: Path, to: Path) -> None:
    """Move the kernel out of the tree. Since Linux 6.19 Debian has it beside its modules."""
    places = (tree / "boot" / f"vmlinuz-{modules.name}", modules / "vmlinuz")
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        raise TrialError(f"the packages of {modules.name} have no kernel in them")
    found.rename(to)


def _run_depmod(base: Path, release: str) -> None:
    """Make modules.dep and its siblings. depmod looks for `<base>/lib/modules`."""
    process.run(["depmod", "-b", base, release], timeout=120)
