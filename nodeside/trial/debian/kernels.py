"""Finds the available Debian kernels, the one that a user means, and its packages.

Kernels change every few weeks, so they are looked up in the archive at run time. Some have an image
but no headers: they can boot, but nothing can be built for them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from nodeside.trial.architecture import AMD64, Architecture
from nodeside.trial.debian.archive import Archive
from nodeside.trial.debian.version import DebianVersion
from nodeside.trial.errors import UnknownKernel
from nodeside.values import frozen

# Up to Linux 6.18, linux-image-* contains the kernel, its modules and their lists. Since 6.19 these
# are in linux-binary-*, linux-modules-* and linux-base-*, each with a version in its name. The
# package linux-base, without one, has only tools.
_PART = re.compile(r"linux-(base|binary|headers|kbuild|modules)-\d")
# Since 6.19, headers require gcc-16-for-host, which brings gcc-16 without a command `gcc-16`.
_COMPILER = re.compile(r"(?P<package>gcc-\d+)(-for-host)?")


@frozen
class AvailableKernel:
    """A kernel of the archive. `headers` is its package of headers; "" if there is none."""

    release: str
    flavour: str
    image: str
    headers: str

    @property
    def series(self) -> str:
        """Return `6.1` for `6.1.0-47-amd64`. One stable release of Debian keeps one series."""
        return ".".join(self.release.split(".")[:2])

    @property
    def sort_key(self) -> tuple[DebianVersion, str]:
        return DebianVersion(self.release.removesuffix(f"-{self.flavour}")), self.flavour


def _image_pattern(architecture: Architecture) -> re.Pattern[str]:
    """Return the pattern of the names of packages that contain a kernel."""
    return re.compile(
        r"^linux-image-(?P<release>(?P<version>\d+\.\d+\..*?)"
        rf"-(?P<flavour>{'|'.join(architecture.flavours)}))(?P<unsigned>-unsigned)?$"
    )


def kernels_among(
    names: Iterable[str], architecture: Architecture = AMD64
) -> tuple[AvailableKernel, ...]:
    """Return the kernels among package names, oldest first. Signed images win over unsigned."""
    packages, image = set(names), _image_pattern(architecture)
    images: dict[str, re.Match[str]] = {}
    for name in sorted(packages):  # the signed name sorts before the one with -unsigned
        match = image.match(name)
        if match and match["release"] not in images:
            images[match["release"]] = match
    kernels = (
        AvailableKernel(
            release,
            match["flavour"],
            match[0],
            f"linux-headers-{release}" if f"linux-headers-{release}" in packages else "",
        )
        for release, match in images.items()
    )
    return tuple(sorted(kernels, key=lambda kernel: kernel.sort_key))


@frozen
class KernelPackages:
    """The packages to unpack for a kernel, and the compiler package that its headers require."""

    names: tuple[str, ...]
    compiler: str


def packages_of(kernel: AvailableKernel, archive: Archive) -> KernelPackages:
    """Return the image, the headers, and the parts of the kernel that these depend on.

    The compiler is "" without headers. Of alternative packages, the first is taken: Debian prefers
    that one.
    """
    compiler = ""
    names = [name for name in (kernel.image, kernel.headers) if name]
    for name in names:  # what is appended here is visited too
        for needed, *_ in archive.alternatives(name):
            if _PART.match(needed) and needed not in names:
                names.append(needed)
            compiler = compiler or _compiler_of_package(needed, archive)
    return KernelPackages(tuple(names), compiler)


def _compiler_of_package(package: str, archive: Archive) -> str:
    """Return `gcc-12` for gcc-12, gcc-12-for-host and its linux-compiler package; else ""."""
    if match := _COMPILER.fullmatch(package):
        return match["package"]
    if package.startswith("linux-compiler-"):
        names = archive.depends(package)
        return next((name for name in names if name.startswith("gcc-")), "")
    return ""


def available_kernels(archive: Archive) -> tuple[AvailableKernel, ...]:
    return kernels_among(archive.names(), archive.architecture)


def default_series(archive: Archive) -> str:
    """Return the series of Debian's own `linux-image-<flavour>` packages, "" if unknown."""
    image = _image_pattern(archive.architecture)
    for flavour in archive.architecture.flavours:
        for package in archive.depends(f"linux-image-{flavour}"):
            if match := image.match(package):
                return ".".join(match["version"].split(".")[:2])
    return ""


def resolve_kernel(
    name: str,
    kernels: Sequence[AvailableKernel],
    series: str = "",
    architecture: Architecture = AMD64,
) -> AvailableKernel:
    """Return the kernel a user means: a release, a flavour, a version, or `<version>-<flavour>`.

    All but a release stand for the newest matching kernel with headers; without a version, one of
    `series` is preferred. Raises UnknownKernel with the nearest names.
    """
    for kernel in kernels:
        if kernel.release == name:
            return kernel
    version, flavour = _split_flavour(name, architecture)
    matching = [
        kernel
        for kernel in kernels
        if kernel.flavour == flavour and kernel.headers and _is_version(kernel, version)
    ]
    preferred = [kernel for kernel in matching if not version and kernel.series == series]
    if preferred or matching:
        return (preferred or matching)[-1]
    raise _unknown_kernel_error(name, kernels, architecture)


def _split_flavour(name: str, architecture: Architecture) -> tuple[str, str]:
    for flavour in architecture.flavours:
        if name == flavour:
            return "", flavour
        if name.endswith(f"-{flavour}"):
            return name.removesuffix(f"-{flavour}"), flavour
    return name, architecture.default_kernel


def _is_version(kernel: AvailableKernel, version: str) -> bool:
    return not version or re.match(rf"{re.escape(version)}(?![0-9])", kernel.release) is not None


def _unknown_kernel_error(
    name: str, kernels: Sequence[AvailableKernel], architecture: Architecture
) -> UnknownKernel:
    names = [*architecture.flavours, *(kernel.release for kernel in kernels)]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    guess = f"did you mean {', '.join(near)}? " if near else ""
    return UnknownKernel(
        f"no kernel named {name!r} in the package archive",
        hint=f"{guess}list all kernels: nodeside try --kernel list",
    )
