"""Makes a root file system of a few Debian packages and what they need, without a package manager.

    python3 rootfs.py TARGET PACKAGE...

Runs in a container where the packages are installed, and copies their files and those of their
dependencies to TARGET. var/lib/dpkg/status there lists what was copied, for scanners.
See deb-control(5) and dpkg(1).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

DPKG = Path("/var/lib/dpkg")
# Dependencies that matter only while packages are installed, or that nothing here calls.
LEFT_OUT = frozenset(["awk", "debconf", "debianutils", "dpkg", "openssl", "perl-base"])
# What maintainer scripts make, so no package lists it.
GENERATED = ("/etc/group", "/etc/ld.so.cache", "/etc/passwd", "/etc/ssl/certs")
# The first four lead to /usr; by the last, OpenSSL finds the certificates of CAs.
LINKS = ("/bin", "/lib", "/lib64", "/sbin", "/usr/lib/ssl/certs")


def main(target: Path, wanted: list[str]) -> None:
    entries = (DPKG / "status").read_text().strip().split("\n\n")
    installed = {
        field(entry, "Package"): entry
        for entry in entries
        if field(entry, "Status").endswith(" installed")
    }
    if missing := [name for name in wanted if name not in installed]:
        sys.exit(f"error: not installed: {' '.join(missing)}")
    packages = closure(wanted, installed)
    names = {name for package in packages for name in files(package)}
    names |= {name for top in GENERATED for name in below(top)} | set(filter(os.path.islink, LINKS))
    target.mkdir()
    archive = target.with_suffix(".tar")
    run = partial(subprocess.run, check=True)
    run(["tar", "-C", "/", "-cf", archive, "--no-recursion", "--null", "-T", "-"],
        input="\0".join(f".{name}" for name in sorted(names)).encode())  # fmt: skip
    run(["tar", "-C", target, "-xpf", archive])
    archive.unlink()
    status = target / DPKG.relative_to("/") / "status"
    status.parent.mkdir(parents=True, exist_ok=True)
    status.write_text("\n\n".join(installed[name] for name in packages) + "\n")


def closure(wanted: list[str], installed: dict[str, str]) -> list[str]:
    """Return the names of `wanted` and of all that they depend on, but for what is left out."""
    providers: dict[str, list[str]] = {}
    for name, entry in installed.items():
        for virtual in names_in(field(entry, "Provides")):
            providers.setdefault(virtual, []).append(name)
    found: set[str] = set()
    waiting = list(wanted)
    while waiting:
        name = waiting.pop()
        if name in found or name in LEFT_OUT:
            continue
        if name in installed:
            found.add(name)
            waiting += names_in(field(installed[name], "Depends"))
            waiting += names_in(field(installed[name], "Pre-Depends"))
        else:
            waiting += providers.get(name, [])  # or an alternative that is not installed
    return sorted(found)


def names_in(dependencies: str) -> list[str]:
    return re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]+)", dependencies)


def field(entry: str, name: str) -> str:
    match = re.search(rf"^{name}: (.*)$", entry, re.MULTILINE)
    return match[1] if match else ""


def files(package: str) -> Iterator[str]:
    """Yield the paths of a package that are there, by their real directories."""
    names = (f"info/{package}.list", f"info/{package}:*.list")
    listing = next(path for name in names for path in DPKG.glob(name))
    for row in map(Path, listing.read_text().splitlines()):
        path = row.parent.resolve() / row.name
        if row.name not in ("", ".") and "gconv" not in row.parts and os.path.lexists(path):
            yield str(path)


def below(top: str) -> Iterator[str]:
    if os.path.lexists(top):
        yield top
    for directory, directories, others in os.walk(top):
        yield from (os.path.join(directory, name) for name in directories + others)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
