"""The paths and the kernel of the node, all relative to one root directory.

In a pod, the host's `/sys`, `/proc`, `/lib/modules` and `/run/nodeside` are mounted under `/host`.
On the command line, the root is `/`. Tests pass a temporary directory.

Stdlib only: the toolkit sidecar uses this module too.
"""

from __future__ import annotations

import os
from pathlib import Path

from nodeside.errors import SystemRefused
from nodeside.values import frozen

_ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


@frozen
class Kernel:
    """One build of a kernel.

    `release` is `uname -r`; `version` is `uname -v`, which names one build of that release;
    `architecture` is `uname -m` (x86_64, aarch64, ppc64le, s390x).
    """

    release: str
    version: str
    architecture: str


@frozen
class Host:
    """Paths of the node. `root` is `/`, `/host` in a pod, or a temporary directory in tests."""

    root: Path = Path("/")

    @property
    def sys(self) -> Path:
        return self.root / "sys"

    @property
    def proc(self) -> Path:
        return self.root / "proc"

    @property
    def dev(self) -> Path:
        return self.root / "dev"

    @property
    def sys_module(self) -> Path:
        return self.sys / "module"

    @property
    def run(self) -> Path:
        """`/run/nodeside`: ready files, firmware; a tmpfs, so gone after a reboot."""
        return self.root / "run" / "nodeside"

    @property
    def locks(self) -> Path:
        """`/run/nodeside-locks`: locks and loaded.json.

        Consumers do not mount it: whoever can read a file can lock it.
        """
        return self.root / "run" / "nodeside-locks"

    @property
    def cache(self) -> Path:
        """`/var/lib/nodeside/cache`: bundles; survives pod deletion and reboot."""
        return self.root / "var" / "lib" / "nodeside" / "cache"

    @property
    def userspace(self) -> Path:
        """`/var/lib/nodeside/userspace`: files of driver images, for the host and for pods."""
        return self.root / "var" / "lib" / "nodeside" / "userspace"

    @property
    def loading(self) -> Path:
        """`/var/lib/nodeside/loading`: marks of loads that have not passed their validation yet."""
        return self.root / "var" / "lib" / "nodeside" / "loading"

    def lib_modules(self, release: str) -> Path:
        return self.root / "lib" / "modules" / release

    def resolve_link(self, path: Path) -> Path:
        """Resolve a host link as seen from a pod; absolute targets are below the host's root.

        Returns `path` itself if it is not a link.
        """
        try:
            target = path.readlink()
        except OSError:
            return path
        return self.root / target.relative_to("/") if target.is_absolute() else path.parent / target

    @property
    def boot_id(self) -> str:
        """The kernel's random id of this boot, Documentation/admin-guide/sysctl/kernel.rst."""
        return self._read_text("proc/sys/kernel/random/boot_id")

    @property
    def kernel(self) -> Kernel:
        """The running kernel."""
        machine = os.uname().machine
        return Kernel(
            release=self._read_text("proc/sys/kernel/osrelease"),
            version=self._read_text("proc/sys/kernel/version"),
            architecture=_ARCHITECTURES.get(machine, machine),
        )

    def _read_text(self, relative: str) -> str:
        path = self.root / relative
        try:
            return path.read_text().strip()
        except OSError as exc:
            raise SystemRefused(
                f"cannot read {path}: {exc.strerror}",
                hint="in a pod, mount the host's /proc at /host/proc",
            ) from exc
