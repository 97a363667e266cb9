"""Where this kernel's symbol list (Module.symvers) is to be found without compiling anything.

A node has it if its headers are installed, or if the distribution ships `symvers` beside the kernel
(EL does); the toolkit sidecar publishes the one of its headers in the shared directory. Used by the
`compatible` rung and by the checks before a load.
"""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Iterator, Mapping
from pathlib import Path

from nodeside import log
from nodeside.driver.symvers import KernelSymbol, parse_symvers
from nodeside.errors import NodesideError
from nodeside.host import Host
from nodeside.records import open_untrusted
from nodeside.shared import SharedDir

# Bytes; a distribution's list has 25,000 lines, about 1.5 MiB. The sidecar's may be forged, and
# what is read of it takes some eight times as much memory.
_LIMIT = 8 << 20


def symbols_of(
    host: Host, release: str, shared: SharedDir | None
) -> Mapping[str, KernelSymbol] | None:
    """The exported symbols of a kernel, or None where no list of them is at hand."""
    for path in _places(host, release, shared):
        try:
            return parse_symvers(_read(path))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError, NodesideError) as problem:
            log.warning("a symbol list cannot be used", path=path, problem=problem)
    return None


def _places(host: Host, release: str, shared: SharedDir | None) -> Iterator[Path]:
    modules = host.lib_modules(release)
    yield host.inside(modules / "build") / "Module.symvers"
    for suffix in (".gz", ".xz", ""):
        yield modules / f"symvers{suffix}"
        yield host.root / "boot" / f"symvers-{release}{suffix}"
    if shared is not None:
        yield shared.symvers(release)


def _read(path: Path) -> str:
    with open_untrusted(path, limit=_LIMIT) as file:
        data = file.read(_LIMIT)
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    elif path.suffix == ".xz":
        data = lzma.decompress(data)
    return data.decode()
