"""Module.symvers: the symbols a kernel exports, and whether modules are compatible with them.

`compare_symbols` tells whether this kernel would resolve every symbol of these modules. The
compatible rung and the check before a load need this. It applies the rules of the kernel's
resolve_symbol() (kernel/module/main.c) and check_version() (kernel/module/version.c), without
asking the kernel.

`read_kernel_symbols` finds this kernel's list without compiling anything. A node has the list if
its headers are installed, or if the distribution ships `symvers` next to the kernel (EL does). The
toolkit sidecar publishes the list of its headers in the shared directory.

The format is documented in Documentation/kbuild/modules.rst, "Symbols From the Kernel". Fields are
separated by tabs; their number and order changed:

    before 5.4    CRC  symbol  module  export
    5.4 to 5.6    CRC  symbol  namespace  module  export
    since 5.7     CRC  symbol  module  export  namespace
"""

from __future__ import annotations

import lzma
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from nodeside import log
from nodeside.driver.module.modulefile import ModuleFile
from nodeside.errors import ExitCode, NodesideError
from nodeside.protocol.module_names import kernel_name
from nodeside.protocol.shared_directory import SharedDir
from nodeside.system.files import open_untrusted
from nodeside.system.host import Host
from nodeside.values import frozen

_SYMBOL = r"[A-Za-z_.$][\w.$]*"
_PLACE = r"[^\t\n]+"
_EXPORT = r"EXPORT_(?:UNUSED_)?SYMBOL(?:_GPL(?:_FUTURE)?)?"
_LINE = re.compile(
    rf"^(0x[0-9a-fA-F]{{8}})\t({_SYMBOL})\t(?:"
    rf"({_PLACE})\t({_EXPORT})(?:\t([^\t\n]*+))?"
    rf"|([^\t\n]*)\t({_PLACE})\t({_EXPORT}))[ \r]*$\n?",
    re.MULTILINE | re.ASCII,
)
_GPL_ONLY = ("EXPORT_SYMBOL_GPL", "EXPORT_UNUSED_SYMBOL_GPL")
_MODULES = "module:"

# include/linux/license.h, license_is_gpl_compatible
_GPL_COMPATIBLE = frozenset(
    {
        "GPL",
        "GPL v2",
        "GPL and additional rights",
        "Dual BSD/GPL",
        "Dual MIT/GPL",
        "Dual MPL/GPL",
    }
)


class MalformedSymvers(NodesideError):
    """A Module.symvers with a line that no kernel build produces."""

    exit_code = ExitCode.NO_HEADERS
    reason = "MalformedSymvers"


class KernelSymbol(NamedTuple):
    """An exported symbol. `module` is "vmlinux" or the path of a module without its suffix."""

    name: str
    crc: int
    module: str
    export: str
    namespace: str = ""


@frozen
class Mismatch:
    """A symbol that makes a kernel refuse a module. `why` is a clause: "has CRC …, not …".

    `forgivable`: a kernel with CONFIG_MODULE_ALLOW_MISSING_NAMESPACE_IMPORTS only warns.
    """

    symbol: str
    why: str
    module: str = ""
    forgivable: bool = False


def parse_symvers(text: str) -> Mapping[str, KernelSymbol]:
    """Parse all symbols, by name. Raises MalformedSymvers naming the first wrong line."""
    symbols: dict[str, KernelSymbol] = {}
    make = KernelSymbol
    end = 0
    for match in _LINE.finditer(text):
        if match.start() != end:
            break
        end = match.end()
        crc, name, module, export, namespace, old_space, old_module, old_export = match.groups()
        if module is not None:
            symbols[name] = make(name, int(crc, 16), module, export, namespace or "")
        else:
            symbols[name] = make(name, int(crc, 16), old_module, old_export, old_space)
    if text[end:].strip():
        raise _malformed_error(text, end)
    return symbols


def _malformed_error(text: str, end: int) -> MalformedSymvers:
    number = text.count("\n", 0, end) + 1
    line = text[end : end + 200].splitlines()[0] if text[end:] else ""
    return MalformedSymvers(
        f"Module.symvers:{number}: expected CRC, symbol, module, export type and namespace, "
        f"separated by tabs; got {line!r}",
        hint="install the headers of this kernel again: the file is damaged",
    )


def compare_symbols(
    modules: Sequence[ModuleFile], symbols: Mapping[str, KernelSymbol]
) -> tuple[Mismatch, ...]:
    """Return every symbol that does not match between the modules and the kernel.

    An empty result means the modules are compatible. An export of one module satisfies the imports
    of the others. CRCs are compared only if both sides have them: without CONFIG_MODVERSIONS, all
    CRCs in a kernel's Module.symvers are zero.
    """
    versioned = any(symbol.crc for symbol in symbols.values())
    siblings = {name: (m.name, crc) for m in modules for name, crc in m.exports.items()}
    return tuple(
        mismatch
        for module in modules
        for mismatch in _compare_module(module, symbols, siblings, versioned=versioned)
    )


def _compare_module(
    module: ModuleFile,
    symbols: Mapping[str, KernelSymbol],
    siblings: Mapping[str, tuple[str, int | None]],
    *,
    versioned: bool,
) -> Iterator[Mismatch]:
    for name, crc in sorted([*module.imports.items(), *module.weak_imports.items()]):
        if name in siblings:
            exporter, exported = siblings[name]
            if crc is not None and exported is not None and crc != exported:
                why = f"has CRC {exported:#010x} in {exporter}, not {crc:#010x}"
                yield Mismatch(name, why, module.name)
        elif name in symbols:
            symbol = symbols[name]
            if name in module.weak_imports and _is_hidden(module, symbol):
                continue  # to the module, it is not there: find_symbol() (kernel/module/main.c)
            if why := _unresolved_reason(module, symbol, crc if versioned else None):
                yield Mismatch(name, why, module.name)
            elif symbol.namespace and not _is_allowed(module, symbol):
                why = f"is in the namespace {symbol.namespace}, which the module does not import"
                yield Mismatch(name, why, module.name, forgivable=True)
        elif name in module.imports:
            yield Mismatch(name, "is not exported by this kernel", module.name)


def _unresolved_reason(module: ModuleFile, symbol: KernelSymbol, crc: int | None) -> str:
    """Return why the kernel would not resolve `symbol` for the module; "" if it would."""
    if crc is not None and crc != symbol.crc:
        return f"has CRC {symbol.crc:#010x} in this kernel, not {crc:#010x}"
    if _is_hidden(module, symbol):
        return f"is for GPL-compatible modules only, the licence is {module.license!r}"
    if symbol.namespace.startswith(_MODULES) and not _is_listed(module.name, symbol.namespace):
        return f"is for the modules {symbol.namespace.removeprefix(_MODULES)} only"
    return ""


def _is_allowed(module: ModuleFile, symbol: KernelSymbol) -> bool:
    return symbol.namespace.startswith(_MODULES) or symbol.namespace in module.import_namespaces


def _is_hidden(module: ModuleFile, symbol: KernelSymbol) -> bool:
    return symbol.export in _GPL_ONLY and module.license not in _GPL_COMPATIBLE


def _is_listed(name: str, namespace: str) -> bool:
    """Match the names that EXPORT_SYMBOL_FOR_MODULES gives, comma-separated; a `*` may end each.

    The macro came with Linux 6.16, where its name is EXPORT_SYMBOL_GPL_FOR_MODULES.
    """
    for entry in namespace.removeprefix(_MODULES).split(","):
        pattern = kernel_name(entry.strip())
        if pattern == name or (pattern.endswith("*") and name.startswith(pattern[:-1])):
            return True
    return False


# Bytes; a distribution's list has 25,000 lines, about 1.5 MiB. The sidecar's list may be forged,
# and the parsed symbols take about eight times as much memory. So the limit also holds for what a
# compressed list expands to.
_LIMIT = 8 << 20
_XZ_MEMORY = 128 << 20
_DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError, UnicodeDecodeError, NodesideError)


def read_kernel_symbols(
    host: Host, release: str, shared: SharedDir | None
) -> Mapping[str, KernelSymbol] | None:
    """Return the exported symbols of a kernel, or None if no symbol list is available."""
    for path in _symvers_paths(host, release, shared):
        try:
            return parse_symvers(_read_symvers(path))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except _DAMAGE as problem:
            log.warning("a symbol list cannot be used", path=path, why=problem)
    return None


def _symvers_paths(host: Host, release: str, shared: SharedDir | None) -> Iterator[Path]:
    modules = host.lib_modules(release)
    yield host.resolve_link(modules / "build") / "Module.symvers"
    for suffix in (".gz", ".xz", ""):
        yield modules / f"symvers{suffix}"
        yield host.root / "boot" / f"symvers-{release}{suffix}"
    if shared is not None:
        yield shared.symvers_path(release)


def _read_symvers(path: Path) -> str:
    with open_untrusted(path, limit=_LIMIT) as file:
        data = file.read(_LIMIT)
    if path.suffix in (".gz", ".xz"):
        data = _decompress_symvers(data, path)
    return data.decode()


def _decompress_symvers(data: bytes, path: Path) -> bytes:
    """Decompress a list; `MalformedSymvers` if it is longer than any kernel's."""
    if path.suffix == ".gz":
        gz = zlib.decompressobj(wbits=31)  # 31: a gzip header is expected
        plain, complete = gz.decompress(data, _LIMIT + 1), gz.eof
    else:
        xz = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
        plain, complete = xz.decompress(data, _LIMIT + 1), xz.eof
    if len(plain) > _LIMIT:
        raise MalformedSymvers(f"{path}: a symbol list of more than {_LIMIT >> 20} MiB is refused")
    if not complete:
        raise EOFError("unexpected end of file")
    return plain
