"""A package archive in a directory: an index of the shape of Debian's, and packages made for it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from nodeside.system import process
from nodeside.trial.cache import TrialCache
from nodeside.trial.debian.archive import Archive, Sources
from nodeside.trial.progress import Progress

Files = Mapping[str, str]  # paths in a package, and the text of the files

# Linux 6.1 of Debian 12.
BOOKWORM = """\
Package: linux-image-6.1.0-47-cloud-amd64
Source: linux-signed-amd64 (6.1.170+3)
Version: 6.1.170-3
Architecture: amd64
Depends: kmod, linux-base (>= 4.3~), initramfs-tools (>= 0.120+deb8u2) | linux-initramfs-tool

Package: linux-headers-6.1.0-47-cloud-amd64
Source: linux
Version: 6.1.170-3
Architecture: amd64
Depends: linux-headers-6.1.0-47-common (= 6.1.170-3), linux-kbuild-6.1 (>= 6.1.170-3), \
linux-compiler-gcc-12-x86

Package: linux-headers-6.1.0-47-common
Source: linux
Version: 6.1.170-3
Architecture: all

Package: linux-kbuild-6.1
Source: linux
Version: 6.1.170-3
Architecture: amd64
Depends: libc6 (>= 2.34), libelf1 (>= 0.144), libssl3 (>= 3.0.0)

Package: linux-compiler-gcc-12-x86
Source: linux
Version: 6.1.170-3
Architecture: amd64
Depends: gcc-12 (>= 12.2.0-14~)

Package: linux-base
Version: 4.9
Architecture: all
Depends: debconf (>= 0.5) | debconf-2.0
"""

# Linux 6.12 of Debian 13, whose headers depend on the kernel.
TRIXIE = """\
Package: linux-image-6.12.118+deb13-cloud-amd64
Source: linux-signed-amd64 (6.12.118+1)
Version: 6.12.118-1
Architecture: amd64
Depends: kmod, initramfs-tools (>= 0.120+deb8u2) | linux-initramfs-tool

Package: linux-image-6.12.118+deb13-cloud-amd64-unsigned
Source: linux
Version: 6.12.118-1
Architecture: amd64
Depends: kmod, initramfs-tools (>= 0.120+deb8u2) | linux-initramfs-tool

Package: linux-headers-6.12.118+deb13-cloud-amd64
Source: linux
Version: 6.12.118-1
Architecture: amd64
Depends: linux-base (>= 4.12.1~), linux-headers-6.12.118+deb13-common (= 6.12.118-1), \
linux-image-6.12.118+deb13-cloud-amd64 (= 6.12.118-1) | \
linux-image-6.12.118+deb13-cloud-amd64-unsigned (= 6.12.118-1), \
linux-kbuild-6.12.118+deb13, gcc-14

Package: linux-headers-6.12.118+deb13-common
Source: linux
Version: 6.12.118-1
Architecture: all

Package: linux-kbuild-6.12.118+deb13
Source: linux
Version: 6.12.118-1
Architecture: amd64
Depends: libc6 (>= 2.38), libelf1t64 (>= 0.144), libssl3t64 (>= 3.5.0), pahole
"""

# Linux 7.2 of what becomes Debian 14.
SID = """\
Package: linux-image-7.2.13+deb14-cloud-amd64
Source: linux-signed-amd64 (7.2.13+1)
Version: 7.2.13-1
Architecture: amd64
Depends: dracut | initramfs-tools (>= 0.120+deb8u2) | linux-initramfs-tool, \
linux-base-7.2.13+deb14-cloud-amd64 (= 7.2.13-1), \
linux-binary-7.2.13+deb14-cloud-amd64 (= 7.2.13-1), \
linux-modules-7.2.13+deb14-cloud-amd64 (= 7.2.13-1)
Pre-Depends: linux-base (>= 4.17~)

Package: linux-image-7.2.13+deb14-cloud-amd64-dbg
Source: linux
Version: 7.2.13-1
Architecture: amd64

Package: linux-base-7.2.13+deb14-cloud-amd64
Source: linux
Version: 7.2.13-1
Architecture: amd64

Package: linux-binary-7.2.13+deb14-cloud-amd64
Source: linux-signed-amd64 (7.2.13+1)
Version: 7.2.13-1
Architecture: amd64
Depends: linux-base-7.2.13+deb14-cloud-amd64 (= 7.2.13-1)

Package: linux-binary-unsigned-7.2.13+deb14-cloud-amd64
Source: linux
Version: 7.2.13-1
Architecture: amd64
Depends: linux-base-7.2.13+deb14-cloud-amd64 (= 7.2.13-1)

Package: linux-modules-7.2.13+deb14-cloud-amd64
Source: linux
Version: 7.2.13-1
Architecture: amd64
Depends: kmod, linux-base-7.2.13+deb14-cloud-amd64 (= 7.2.13-1)

Package: linux-headers-7.2.13+deb14-cloud-amd64
Source: linux
Version: 7.2.13-1
Architecture: amd64
Depends: gcc-16-for-host, linux-base (>= 4.12.1~), \
linux-base-7.2.13+deb14-cloud-amd64 (= 7.2.13-1), \
linux-headers-7.2.13+deb14-common (= 7.2.13-1), linux-kbuild-7.2.13+deb14

Package: linux-headers-7.2.13+deb14-common
Source: linux
Version: 7.2.13-1
Architecture: all

Package: linux-kbuild-7.2.13+deb14
Source: linux
Version: 7.2.13-1
Architecture: amd64
Depends: pahole, libc6 (>= 2.38), libelf1t64 (>= 0.144), libssl3t64 (>= 3.5.0)

Package: linux-base
Version: 4.17
Architecture: all
Depends: debconf (>= 0.5) | debconf-2.0
"""


class LocalArchive(Archive):
    """The archive of `directory`, where `publish` puts packages."""

    def __init__(self, directory: Path) -> None:
        super().__init__(TrialCache(directory / "cache"), Progress(quiet=True))
        self.directory = directory / "archive"
        self.directory.mkdir()

    def _find_sources(self) -> Sources:
        return Sources("local", (f"deb [trusted=yes] file:{self.directory} ./",))

    def publish(self, index: str, files: Mapping[str, Files] | None = None) -> None:
        """Write the index; also the packages themselves if `files` says what is in them."""
        stanzas = index.strip().split("\n\n")
        if files is not None:
            stanzas = [self._with_package(stanza, files) for stanza in stanzas]
        (self.directory / "Packages").write_text("\n\n".join(stanzas) + "\n")

    def _with_package(self, stanza: str, files: Mapping[str, Files]) -> str:
        """Make the package; return the stanza with its file."""
        name = stanza.splitlines()[0].removeprefix("Package: ")
        tree, package = self.directory / name, self.directory / f"{name}.deb"
        control = f"{stanza}\nMaintainer: Nobody <nobody@example.com>\nDescription: a part\n"
        for path, text in {"DEBIAN/control": control, **files.get(name, {})}.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_text(text)
        process.run(["dpkg-deb", "--build", "-Znone", tree, package], timeout=60)
        digest = hashlib.sha256(package.read_bytes()).hexdigest()
        size = package.stat().st_size
        return f"{stanza}\nFilename: ./{name}.deb\nSize: {size}\nSHA256: {digest}"
