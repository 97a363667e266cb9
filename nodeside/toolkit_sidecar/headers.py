"""Kernel headers in the toolkit image: those of exactly this kernel, and which others exist.

A release (`uname -r`) is not enough, because a rebuilt kernel has the same one. `uname -v`
identifies one build, and the headers carry the same string: in `include/generated/utsversion.h`
since Linux 6.1, and in `include/generated/compile.h` before (scripts/mkcompile_h).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path

from nodeside.protocol.build_job import ToolkitKernel
from nodeside.protocol.build_records import FailureKind
from nodeside.system.host import Kernel
from nodeside.toolkit_sidecar.failure import BuildFailed
from nodeside.values import frozen

_DEFINE = re.compile(r'^#define (UTS_RELEASE|UTS_VERSION) "(.*)"$', re.MULTILINE)
# An output directory's Makefile, which is this line: of Debian's headers, and SUSE's.
_INCLUDE = re.compile(r"^include (/\S{1,4000}/Makefile)$", re.MULTILINE)
_SETTING = re.compile(r"^(CONFIG_\w+)=(.*)$", re.MULTILINE)

_SUSE = "usr/src/linux-*-obj/*/*"  # the output directories: one per architecture and flavour


@frozen
class Headers:
    """A kernel build directory. `version` is "" if the headers do not carry it."""

    directory: Path
    release: str
    version: str
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def config_file(self) -> Path:
        """Return the file of the kernel's configuration that dkms.conf files expect."""
        plain = self.directory / ".config"
        return plain if plain.exists() else self.directory / "include/config/auto.conf"

    def is_enabled(self, name: str) -> bool:
        return self.config.get(name) in ("y", "m")


def find_headers(root: Path, kernel: Kernel) -> Headers:
    """Return the headers of exactly this kernel. Raises BuildFailed: no-headers or wrong-kernel."""
    for directory in header_places(root, kernel.release):
        if (directory / "Makefile").is_file():
            headers = read_headers(directory)
            check_identity(headers, kernel)
            _check_common_part(root, headers)
            return headers
    raise _no_headers_error(root, kernel)


def read_headers(directory: Path) -> Headers:
    """Read release, version and configuration of a kernel build directory."""
    generated = directory / "include/generated"
    names = ("utsrelease.h", "utsversion.h", "compile.h")
    defined = read_defines("\n".join(_read_text(generated / name) for name in names))
    config = _read_text(directory / "include/config/auto.conf") or _read_text(directory / ".config")
    return Headers(
        directory,
        defined.get("UTS_RELEASE", ""),
        defined.get("UTS_VERSION", ""),
        read_settings(config),
    )


def read_defines(text: str) -> dict[str, str]:
    """Return UTS_RELEASE and UTS_VERSION from the text of generated headers."""
    return dict(_DEFINE.findall(text))


def read_settings(text: str) -> dict[str, str]:
    """Return the CONFIG_ settings of a kernel configuration, without quotes."""
    return {name: value.strip().strip('"') for name, value in _SETTING.findall(text)}


def check_identity(headers: Headers, kernel: Kernel) -> None:
    """Raise BuildFailed if the headers belong to another kernel or were never prepared."""
    where = headers.directory
    if not headers.release:
        raise BuildFailed(
            FailureKind.NO_HEADERS,
            f"the headers at {where} are not prepared: include/generated/utsrelease.h is missing",
            hint="install the distribution's packaged headers, not a bare source tree",
        )
    if headers.release != kernel.release:
        raise BuildFailed(
            FailureKind.WRONG_KERNEL,
            f"the headers at {where} are for {headers.release}, the node runs {kernel.release}",
            hint="use the toolkit image of the node's operating system version",
        )
    if headers.version and headers.version != kernel.version:
        raise BuildFailed(
            FailureKind.WRONG_KERNEL,
            f"the headers at {where} are of another build of {kernel.release}: "
            f"theirs is {headers.version!r}, the node runs {kernel.version!r}",
            hint="the node or the toolkit image was updated without the other: reboot the node "
            "into its newest kernel, or use the toolkit image of that build",
        )


def _check_common_part(root: Path, headers: Headers) -> None:
    """Raise BuildFailed if the headers are one of two packages and the other is missing."""
    included = _INCLUDE.search(_read_text(headers.directory / "Makefile"))
    if included and not (root / included[1].lstrip("/")).is_file():
        raise BuildFailed(
            FailureKind.NO_HEADERS,
            f"the headers at {headers.directory} need {included[1]}, which is missing",
            hint="install the package with the common part of the headers, too (Debian: "
            "linux-headers-*-common, SUSE: kernel-devel)",
        )


def installed_releases(root: Path) -> tuple[str, ...]:
    """Return the sorted kernel releases whose headers are installed."""
    patterns = ("lib/modules/*/build", "usr/src/kernels/*", "usr/src/linux-headers-*", _SUSE)
    releases: set[str] = set()
    for pattern in patterns:
        for directory in root.glob(pattern):
            place = _inside_root(root, directory)
            defined = read_defines(_read_text(place / "include/generated/utsrelease.h"))
            if defined.get("UTS_RELEASE") and (place / "Makefile").is_file():
                releases.add(defined["UTS_RELEASE"])
    return tuple(sorted(releases))


def toolkit_kernels(root: Path) -> tuple[ToolkitKernel, ...]:
    """Return every kernel with headers, with what a build needs to know about it in advance."""
    kernels = []
    for release in installed_releases(root):
        places = header_places(root, release)
        directory = next((place for place in places if (place / "Makefile").is_file()), None)
        if directory is None:  # it is in the place of another release
            continue
        headers = read_headers(directory)
        signature_hash = headers.config.get("CONFIG_MODULE_SIG_HASH", "")
        kernels.append(ToolkitKernel(release, headers.version, signature_hash))
    return tuple(kernels)


def read_version_of_release(root: Path, release: str) -> str:
    """Return the version string in the headers of a release not running here, "" if unknown."""
    for directory in header_places(root, release):
        if (directory / "Makefile").is_file():
            return read_headers(directory).version
    return ""


def driver_toolkit_kernels(root: Path) -> tuple[str, ...]:
    """Return the kernels that `/etc/driver-toolkit-release.json` claims; () if there are none.

    The file is unreliable: a key may be absent, hold junk, or lack the architecture.
    """
    with suppress(ValueError, RecursionError):
        record = json.loads(_read_text(root / "etc/driver-toolkit-release.json") or "{}")
        if isinstance(record, dict):
            values = (record.get(key) for key in ("KERNEL_VERSION", "RT_KERNEL_VERSION"))
            return tuple(value for value in values if isinstance(value, str) and value)
    return ()


def _no_headers_error(root: Path, kernel: Kernel) -> BuildFailed:
    here = installed_releases(root)
    claimed = [name for name in driver_toolkit_kernels(root) if name not in here]
    message = (
        f"toolkit has headers for {', '.join(here)}, the node runs {kernel.release}"
        if here
        else f"toolkit has no kernel headers at all, the node runs {kernel.release}"
    )
    if broken := _broken_link(root, kernel.release):
        message += f"; {broken}"
    if claimed:
        message += f" (/etc/driver-toolkit-release.json claims {', '.join(claimed)})"
    if driver_toolkit_kernels(root):
        hint = "the driver-toolkit tag is not for the node's OS version; see the image stream"
    else:
        hint = (
            f"install linux-headers-{kernel.release} (Debian, Ubuntu) or "
            f"kernel-devel-{kernel.release} (Fedora, RHEL), or the kernel-*-devel package of "
            f"{kernel.release} (SUSE); for a pod, in the toolkit image"
        )
    return BuildFailed(FailureKind.NO_HEADERS, message, hint=hint)


def header_places(root: Path, release: str) -> Iterator[Path]:
    """Yield the directories where the headers of a kernel may be."""
    yield _inside_root(root, root / "lib/modules" / release / "build")
    yield root / "usr/src/kernels" / release
    yield root / f"usr/src/linux-headers-{release}"
    version, _, flavour = release.rpartition("-")
    if version and flavour:
        for architecture in sorted((root / f"usr/src/linux-{version}-obj").glob("*")):
            yield architecture / flavour


def _broken_link(root: Path, release: str) -> str:
    """Return which link to the headers of a kernel leads nowhere, in words; "" if none does."""
    build = root / "lib/modules" / release / "build"
    places = [build, *(place / "Makefile" for place in header_places(root, release))]
    for link in places:
        if link.is_symlink() and not _inside_root(root, link).exists():
            return f"{link} is a link to {link.readlink()}, which is missing"
    return ""


def _inside_root(root: Path, path: Path) -> Path:
    """Return `path`; if it is an absolute link, return its target below `root`."""
    if root != Path("/") and path.is_symlink():
        target = path.readlink()
        if target.is_absolute():
            return root / target.relative_to("/")
    return path


def _read_text(path: Path) -> str:
    """Return the text of a file of the toolkit image, "" if it cannot be read."""
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""
