"""One kernel as files that a machine can boot, made once and cached.

kernels/<release>-<digest>/
  vmlinuz, initramfs    what QEMU starts
  kernel.ext4           the second disk: usr/lib/modules/<release>, usr/src and kbuild's tools
  tree/                 the same headers, for a build on the host
  kernel.json           the release, and the compiler package that its headers require
"""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from nodeside import process
from nodeside.records import publish, read_untrusted
from nodeside.trial.architecture import AMD64, Architecture
from nodeside.trial.cache import TrialCache
from nodeside.trial.debian.archive import Archive, unpack
from nodeside.trial.debian.kernels import AvailableKernel
from nodeside.trial.errors import TrialError
from nodeside.trial.machine import busybox, disks, initramfs
from nodeside.trial.progress import Progress

RECIPE = 1  # increase it when kernel disks are made differently


@dataclass(frozen=True)
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


def make(
    kernel: AvailableKernel, archive: Archive, cache: TrialCache, progress: Progress
) -> KernelDisk:
    """Return the kernel's disk from the cache, or make it from the archive."""
    name = f"{kernel.release}-{RECIPE}{'' if kernel.headers else '-bare'}"
    maker = _Maker(kernel, archive, busybox.make(archive, cache), progress)
    directory = cache.make("kernels", name, maker.fill, needs_mib=2048)
    record = read_untrusted(directory / "kernel.json")
    if record is None:
        raise TrialError(f"{directory} is damaged", hint="nodeside try --clean-cache")
    compiler = str(record["compiler"])
    return KernelDisk(
        directory, kernel.release, bool(kernel.headers), compiler, archive.architecture
    )


@dataclass(frozen=True)
class _Maker:
    kernel: AvailableKernel
    archive: Archive
    busybox: Path
    progress: Progress

    def fill(self, directory: Path) -> None:
        release = self.kernel.release
        packages, compiler = self._packages()
        self.progress.say(f"fetching kernel {release}: {len(packages)} packages")
        tree = directory / "tree"
        with tempfile.TemporaryDirectory(dir=directory) as downloads:
            for package in self.archive.download(packages, Path(downloads)):
                unpack(package, tree)
        self.progress.say(f"making the kernel disk of {release}")
        modules = _arrange(tree, release)
        shutil.copyfile(tree / "boot" / f"vmlinuz-{release}", directory / "vmlinuz")
        for name in ("boot", "usr/share"):
            shutil.rmtree(tree / name, ignore_errors=True)
        _depmod(tree / "usr", release)
        (directory / "initramfs").write_bytes(initramfs.build(modules, self.busybox))
        disks.ext4(tree, directory / "kernel.ext4", label="kernel")
        for name in ("kernel", "vdso"):  # the modules are in the image; the tree is for builds
            shutil.rmtree(modules / name, ignore_errors=True)
        publish(directory / "kernel.json", {"release": release, "compiler": compiler})

    def _packages(self) -> tuple[tuple[str, ...], str]:
        """Return the image, the headers and what they include; and the compiler of the headers."""
        packages = [self.kernel.image]
        compiler = ""
        waiting = [self.kernel.headers] if self.kernel.headers else []
        while waiting:
            name = waiting.pop()
            packages.append(name)
            for needed in self.archive.depends(name):
                if re.match(r"linux-(headers|kbuild)-", needed) and needed not in packages:
                    waiting.append(needed)
                compiler = compiler or self._compiler(needed)
        return tuple(dict.fromkeys(packages)), compiler

    def _compiler(self, package: str) -> str:
        """Return `gcc-12` if the package is it or is a linux-compiler package for it, else ""."""
        if re.fullmatch(r"gcc-\d+", package):
            return package
        if package.startswith("linux-compiler-"):
            names = self.archive.depends(package)
            return next((name for name in names if name.startswith("gcc-")), "")
        return ""


def _arrange(tree: Path, release: str) -> Path:
    """Move `/lib` into `/usr/lib`, as on merged-/usr systems. Return the modules' directory."""
    if (tree / "lib").is_dir() and not (tree / "lib").is_symlink():
        shutil.copytree(tree / "lib", tree / "usr" / "lib", symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(tree / "lib")
    modules = tree / "usr" / "lib" / "modules" / release
    if not (tree / "boot" / f"vmlinuz-{release}").exists() or not modules.is_dir():
        raise TrialError(f"the image package of {release} has no kernel or no modules in it")
    return modules


def _depmod(base: Path, release: str) -> None:
    """Make modules.dep and its siblings. depmod looks for `<base>/lib/modules`."""
    process.run(["depmod", "-b", base, release], timeout=120)
