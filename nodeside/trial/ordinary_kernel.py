"""What a driver lacks in a cloud kernel, and would have in the ordinary kernel of the same version.

The default kernel of a trial is poorer than most nodes: it has no video, sound, USB, I2C or
sensors. A driver that needs one of them fails there, at the link, before the load or at the load.
That is not the driver's fault.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from nodeside.driver.module.symvers import parse_symvers
from nodeside.errors import NodesideError
from nodeside.protocol.module_names import name_of_file
from nodeside.text.shortlist import shortlist
from nodeside.toolkit_sidecar.headers import header_places, read_headers
from nodeside.trial.debian.archive import Archive, unpack_package
from nodeside.trial.debian.kernels import (
    AvailableKernel,
    available_kernels,
    default_series,
    resolve_kernel,
)
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.values import frozen

_IMAGE = "vmlinux"
_NAMED = 4  # symbols or options in one sentence
_WORD = re.compile(r"\b[A-Za-z]\w*_\w+\b")  # one without `_` could be any word


@frozen
class KernelContents:
    """What the headers of a kernel say that it has: symbols by module, and options that are on."""

    symbols: Mapping[str, str]
    options: frozenset[str]


def find_lack(here: KernelContents, ordinary: KernelContents, text: str) -> str:
    """Return what only the ordinary kernel has of what a failure's `text` names; "" if nothing.

    These are symbols and options.
    """
    words = dict.fromkeys(_WORD.findall(text))
    symbols = [word for word in words if word in ordinary.symbols and word not in here.symbols]
    options = [word for word in words if word in ordinary.options and word not in here.options]
    if not symbols and not options:
        return ""
    paths = dict.fromkeys(ordinary.symbols[symbol] for symbol in symbols)
    modules = [name_of_file(path) for path in paths if path != _IMAGE]
    named = shortlist(symbols, _NAMED) + (f" (of {shortlist(modules, _NAMED)})" if modules else "")
    return ", ".join(part for part in (named, shortlist(options, _NAMED)) if part)


def ordinary_kernel_hint(disk: KernelDisk, text: str, archive: Archive, command: str = "") -> str:
    """Return the hint for a failure with this kernel, whose words are `text`.

    `command` is the one to repeat with the ordinary kernel, if it is known. Returns "" if the
    kernel is an ordinary one, or if what is lacking is not known to be there either.
    """
    ordinary = _ordinary_kernel(disk, archive)
    if ordinary is None or not _WORD.search(text):
        return ""
    with suppress(NodesideError):  # without the archive, the hint of the node side stands
        here = read_contents(disk.tree, disk.release)
        there = read_contents(_unpack_headers(ordinary, archive), ordinary.release)
        if lack := find_lack(here, there, text):
            again = f"{command} --kernel {disk.architecture.ordinary_kernel}".strip()
            return (
                f"the kernel of this trial, {disk.release}, has no {lack}; the ordinary kernel "
                f"has: {again}"
            )
    return ""


def read_contents(root: Path, release: str) -> KernelContents:
    """Read the headers of a kernel that are unpacked below `root`."""
    for directory in header_places(root, release):
        path = directory / "Module.symvers"
        if path.is_file():
            config = read_headers(directory).config
            symbols = parse_symvers(path.read_text(errors="replace"))
            return KernelContents(
                {name: symbol.module for name, symbol in symbols.items()},
                frozenset(name for name, value in config.items() if value in ("y", "m")),
            )
    return KernelContents({}, frozenset())


def _ordinary_kernel(disk: KernelDisk, archive: Archive) -> AvailableKernel | None:
    """Return the ordinary kernel of the same version, or the newest; None if this one is ordinary.

    Of the flavours, only cloud kernels lack drivers.
    """
    flavour = disk.architecture.ordinary_kernel
    cloud = f"-cloud-{flavour}"
    if not disk.release.endswith(cloud):
        return None
    same = f"{disk.release.removesuffix(cloud)}-{flavour}"
    with suppress(NodesideError):
        available = available_kernels(archive)
        if found := [each for each in available if each.release == same and each.headers]:
            return found[0]
        series = default_series(archive)
        return resolve_kernel(flavour, available, series, disk.architecture)
    return None


def _unpack_headers(kernel: AvailableKernel, archive: Archive) -> Path:
    """Return a directory with the headers of a kernel, without making its disk."""

    def fill(directory: Path) -> None:
        archive.progress.print_step(f"fetching the list of what {kernel.release} has")
        for package in archive.download([kernel.headers], directory):
            unpack_package(package, directory)
            package.unlink()

    return archive.cache.make("headers", kernel.release, fill)
