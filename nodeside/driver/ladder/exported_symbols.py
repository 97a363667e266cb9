"""The symbols that the modules of a loaded driver export, for drivers that come after it.

    /run/nodeside-locks/<driver>.symvers   in the format of Module.symvers since 5.7

A bundle's manifest has the symbols with their CRCs. They are kept here too, since a cache may be
lost while the modules stay loaded. The file counts only beside a `loaded.json` of this boot.

That a symbol is for GPL-compatible modules only, or is in a namespace, is left to the kernel's own
check at the load: a manifest does not say so.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from nodeside.driver.bundle.manifest import BundleManifest
from nodeside.driver.node.run_directory import read_loaded
from nodeside.errors import UsageError
from nodeside.spec.model import Driver
from nodeside.system.files import disk_errors, open_untrusted, publish_bytes
from nodeside.system.host import Host, Kernel
from nodeside.values import frozen

_LIMIT = 8 << 20  # bytes; a whole kernel's list has about 1.5 MiB
_NO_CRC = "0x00000000"
_SYMBOL = re.compile(r"[A-Za-z_.$][\w.$]*", re.ASCII)  # anything else would spoil the whole list


@frozen
class ExportedSymbols:
    """What other drivers export: `text` is a Module.symvers, `digest` is "" if it is empty."""

    text: str = ""
    digest: str = ""


NO_SYMBOLS = ExportedSymbols()


def symvers_of(manifest: BundleManifest) -> str:
    """Return a Module.symvers with what the modules of a bundle export."""
    return "".join(
        f"{crc or _NO_CRC}\t{symbol}\t{module.name}\tEXPORT_SYMBOL\t\n"
        for module in manifest.modules
        for symbol, crc in sorted(module.exports.items())
        if _SYMBOL.fullmatch(symbol)
    )


def join_exports(lists: Iterable[tuple[str, str]]) -> ExportedSymbols:
    """Return what several drivers export: for each its list, and the key of its bundle.

    A kernel without CONFIG_MODVERSIONS has no CRCs, so that nothing in a list tells one version of
    a driver from the next. The key does.
    """
    text, marks = "", ""
    for symvers, key in lists:
        text += symvers
        marks += key if any(line.startswith(_NO_CRC) for line in symvers.splitlines()) else ""
    digest = hashlib.sha256(f"{text}{marks}".encode()).hexdigest() if text else ""
    return ExportedSymbols(text, digest)


def symbols_of_loaded(host: Host, drivers: Iterable[str], boot_id: str) -> ExportedSymbols:
    """Return what these drivers export on this node now. A driver that is not loaded has nothing.

    Raises UntrustedFile if a list is not a file, or too long.
    """
    lists = []
    for driver in drivers:
        record = read_loaded(host, driver, boot_id)
        if record is not None and record.modules:
            lists.append((_read_list(symvers_path(host, driver)), record.key))
    return join_exports(lists)


def symbols_of_bundles(
    driver: Driver, bundles: Iterable[BundleManifest], kernel: Kernel
) -> ExportedSymbols:
    """Return what the bundles of the drivers that `driver` comes after export.

    Raises UsageError for a bundle of another driver, or for another kernel.
    """
    manifests = {manifest.driver: manifest for manifest in bundles}
    for manifest in manifests.values():
        if manifest.driver not in driver.spec.after:
            raise UsageError(
                f"a bundle of {manifest.driver} is given for its symbols, which is not in the "
                f"spec.after of {driver.name}",
                hint=f"in its driver.yaml: after: [{manifest.driver}]",
            )
        if manifest.kernel != kernel:
            raise UsageError(
                f"the bundle of {manifest.driver} is for {manifest.kernel.release} "
                f"({manifest.kernel.architecture}), expected {kernel.release} "
                f"({kernel.architecture}), {kernel.version}"
            )
    given = [manifests[name] for name in driver.spec.after if name in manifests]
    return join_exports((symvers_of(manifest), manifest.key) for manifest in given)


def symvers_path(host: Host, driver: str) -> Path:
    return host.locks / f"{driver}.symvers"


def write_symbols(host: Host, manifest: BundleManifest) -> None:
    """Write the list of a loaded bundle, unless it is there."""
    path, text = symvers_path(host, manifest.driver), symvers_of(manifest)
    if _read_list(path) != text:
        publish_bytes(path, text.encode())


def clear_symbols(host: Host, driver: str) -> None:
    with disk_errors(symvers_path(host, driver)):
        symvers_path(host, driver).unlink(missing_ok=True)


def _read_list(path: Path) -> str:
    try:
        with open_untrusted(path, limit=_LIMIT) as file:
            return file.read(_LIMIT).decode(errors="replace")
    except FileNotFoundError:
        return ""
