"""The symbols of other drivers' modules, as kbuild's KBUILD_EXTRA_SYMBOLS takes them.

See Documentation/kbuild/modules.rst, "Symbols From Another External Module". Linux 5.7 changed the
order of the fields in a Module.symvers, and a kernel's modpost refuses any order but its own. So
the fields are written in the order that the list in the kernel's headers has.
"""

from __future__ import annotations

from pathlib import Path

from nodeside.protocol.build_records import FailureKind
from nodeside.system.files import UntrustedFile, disk_errors, open_untrusted
from nodeside.toolkit_sidecar.failure import BuildFailed

_LIMIT = 8 << 20  # bytes; a whole kernel's list has about 1.5 MiB
_FIRST_LINE = 4096  # bytes


def write_extra_symbols(given: Path, kernels: Path, target: Path) -> None:
    """Write the list `given`, whose order is that since 5.7, in the order of the list `kernels`.

    Raises BuildFailed (bad-source) if `given` cannot be read, and NoSpace.
    """
    try:
        with open_untrusted(given, limit=_LIMIT) as file:
            lines = file.read(_LIMIT).decode().splitlines()
    except (FileNotFoundError, UntrustedFile, UnicodeDecodeError) as exc:
        raise BuildFailed(
            FailureKind.BAD_SOURCE,
            f"the symbols of other drivers cannot be read: {exc}",
            hint="the driver puts them there before the request; restart the driver container",
        ) from exc
    order = _field_order(kernels)
    with disk_errors(target), target.open("w") as out:
        for line in lines:
            crc, symbol, module, export, namespace = (*line.split("\t"), *[""] * 5)[:5]
            fields = {"c": crc, "s": symbol, "m": module, "e": export, "n": namespace}
            out.write("\t".join(fields[name] for name in order) + "\n")


def _field_order(kernels: Path) -> str:
    """Return the order of the fields in a kernel's list, as the keys of `fields` above."""
    try:
        with kernels.open("rb") as file:
            first = file.readline(_FIRST_LINE).decode(errors="replace")
    except OSError:
        return "csmen"
    fields = first.rstrip("\r\n").split("\t")
    if len(fields) == 5 and fields[4].startswith("EXPORT_"):
        return "csnme"  # 5.4 to 5.6
    return "csme" if len(fields) == 4 else "csmen"
