"""Makes the two root file systems of a node's pod from Debian packages, with mmdebstrap.

That of the driver has the packages that `images/` puts into the driver image. That of the toolkit
has the content of a Driver Toolkit image: the kernel's compiler, but no Python. Both are
directories in the cache whose files have the right owners, so only root can make them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from nodeside.system import process
from nodeside.trial.cache import TrialCache, digest_of
from nodeside.trial.debian.archive import Archive, proxy_environment
from nodeside.trial.errors import ArchiveError, TrialError
from nodeside.trial.progress import Progress

RECIPE = 2  # increase it when root file systems are made differently
NEEDS_MIB = 1536
_USUAL = "half a minute"

DRIVER_PACKAGES = (
    "python3", "python3-click", "python3-psutil", "python3-requests", "python3-pyudev",
    "python3-yaml", "kmod", "openssl", "ca-certificates", "iproute2",
)  # fmt: skip
TOOLKIT_PACKAGES = (
    "make", "binutils", "kmod", "libelf-dev", "libssl-dev", "openssl", "patch", "xz-utils", "zstd",
    "bc", "bison", "flex", "cpio", "rsync", "file", "gawk", "perl-base", "pahole",
)  # fmt: skip
# A kernel without headers names no compiler, but its toolkit still needs one.
DEFAULT_COMPILER = "gcc"

_LEFT_OUT = ("usr/share/doc/*", "usr/share/man/*", "usr/share/locale/*", "usr/share/info/*")


class RootFileSystems:
    """The maker of root file systems. Each one is made once and kept in the cache.

    `toolkit_packages` are added to the toolkit's.
    """

    def __init__(
        self,
        archive: Archive,
        cache: TrialCache,
        progress: Progress,
        toolkit_packages: Sequence[str] = (),
    ) -> None:
        self.toolkit_packages = tuple(toolkit_packages)
        self.archive = archive
        self.cache = cache
        self.progress = progress

    def driver(self) -> Path:
        return self.make("driver", DRIVER_PACKAGES)

    def toolkit(self, compiler: str) -> Path:
        """Return the toolkit's root. `compiler` is the package that the headers need: `gcc-12`."""
        more = sorted(set(self.toolkit_packages) - {*TOOLKIT_PACKAGES, compiler})
        return self.make("toolkit", (compiler or DEFAULT_COMPILER, *TOOLKIT_PACKAGES, *more))

    @staticmethod
    def _name_compiler(root: Path, compiler: str) -> None:
        """Make `gcc` and `cc` links to the kernel's compiler, as in a Driver Toolkit image."""
        for name in ("gcc", "cc"):
            link = root / "usr" / "bin" / name
            if compiler != DEFAULT_COMPILER and not link.exists():
                link.symlink_to(compiler)

    def make(self, role: str, packages: Sequence[str]) -> Path:
        """Return a root file system with these packages. `role` is the first part of its name."""
        recipe = "\n".join((str(RECIPE), self.archive.digest, *packages, *_LEFT_OUT))
        name = f"{role}-{digest_of(recipe)}"
        entry = self.cache.make(
            "roots",
            name,
            lambda path: self._bootstrap_root(role, packages, path),
            needs_mib=NEEDS_MIB,
        )
        return entry / "root"

    def _bootstrap_root(self, role: str, packages: Sequence[str], directory: Path) -> None:
        require_root()
        is_foreign = self.archive.architecture.is_foreign
        duration = "five minutes, under emulation" if is_foreign else _USUAL
        self.progress.print_step(f"making the {role}'s root file system (about {duration})")
        sources = directory / "sources.list"
        sources.write_text("\n".join(self.archive.sources.lines) + "\n")
        argv = [
            "mmdebstrap", "--variant=minbase", "--mode=root", "--skip=check/qemu",
            f"--architectures={self.archive.architecture.name}",
            f"--include={','.join(packages)}",
            *(f"--dpkgopt=path-exclude=/{pattern}" for pattern in _LEFT_OUT),
            *(f"--aptopt={row.rstrip(';')}" for row in self.archive.read_apt_settings()),
            self.archive.sources.suite, str(directory / "root"), str(sources),
        ]  # fmt: skip
        try:
            with self.progress.show_growth(directory):
                env = proxy_environment() | {"TMPDIR": str(directory)}
                process.run(argv, timeout=1800, env=env)
        except process.ToolError as exc:
            raise ArchiveError(
                f"cannot make the {role}'s root file system\n{_error_lines(exc.completed.errors)}",
                hint="check the network and the proxy, or set NODESIDE_MIRROR to a Debian mirror",
            ) from exc
        shutil.rmtree(directory / "root" / "var" / "cache" / "apt", ignore_errors=True)
        if role == "toolkit":
            self._name_compiler(directory / "root", packages[0])


def require_root() -> None:
    """Raise TrialError unless this process is root.

    The files of a root file system belong to root, and only root can load the modules in it.
    """
    if os.geteuid() != 0:
        raise TrialError(
            "root file systems can only be made by root", hint="run it again with sudo"
        )


def _error_lines(text: str) -> str:
    rows = [row for row in text.splitlines() if row.startswith(("E:", "W:", "dpkg:"))]
    return "\n".join(rows[-8:]) or process.last_lines_of(text)
