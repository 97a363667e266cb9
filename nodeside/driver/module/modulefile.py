"""Parser for kernel module files: identity, imports, exports and parameters, without loading.

Everything that nodeside knows about a module before the kernel sees it comes from here. The file
may be compressed or hostile, so a child process with limits reads it. A file that cannot be read
raises NotAModule.

The formats are defined in the kernel sources (6.x):

    section              content                        defined in
    .modinfo             key=value strings              include/linux/moduleparam.h, module.h
    __versions           struct modversion_info         include/linux/module.h
    __version_ext_*      separate CRCs, names (6.14)    kernel/module/version.c
    __ksymtab* __kcrctab*  exported symbols             include/linux/export-internal.h
    __param              struct kernel_param            include/linux/moduleparam.h
    .note.gnu.build-id   the identity of one build      Documentation/ABI/testing/sysfs-module
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from nodeside import log
from nodeside.driver.module.compression import open_module
from nodeside.driver.module.elf import ElfObject, MalformedElf, NotAModule, Symbol, parse_notes
from nodeside.driver.module.signature import Signature, describe_signature, find_appended
from nodeside.errors import DeadlinePassed
from nodeside.protocol.module_names import kernel_name, name_of_file
from nodeside.protocol.records import MalformedRecord, decode, encode
from nodeside.system.child import ChildDied, ChildLimits, ChildRaised, run_in_child
from nodeside.system.digests import sha256_and_size
from nodeside.values import frozen

# To read the largest module of Debian's 6.1.0-56-amd64 (amdgpu, 19 MB) takes 0.1 s and 20 MiB. The
# dictionary of an .xz file may take 128 MiB. All modules of a driver, 1 GiB at most, are hashed in
# seconds. The answer goes into a manifest, which has at most 8 MiB.
_LIMITS = ChildLimits(memory=384 << 20, processor=60, answer=8 << 20)
_TIMEOUT = 300.0  # seconds; a slow disk must not be mistaken for a hostile file

_MODINFO = (
    "name", "version", "vermagic", "srcversion", "license", "depends", "parm", "parmtype",
    "import_ns", "alias", "firmware", "softdep",
)  # fmt: skip
_PARAMETER_LIMIT = 4096  # the largest drivers declare ~200
_EXPORT_LIMIT = 65536  # a whole kernel exports ~15,000
_CRC, _EXPORT, _PARAM = "__crc_", "__ksymtab_", "__param_str_"
# The module loader ignores this symbol: kernel/module/main.c, ignore_undef_symbol.
_IGNORED = ("_GLOBAL_OFFSET_TABLE_",)


@frozen
class Parameter:
    """A module parameter. `type` is as in modinfo ("bool", "array of int"); "" if unknown."""

    name: str
    type: str = ""
    description: str = ""


@frozen
class ModuleFile:
    """The metadata of a module file.

    `name` is the kernel's name (`_`, never `-`). `sha256` and `size` are those of the file on disk.
    `imports` maps every required symbol to its CRC, or to None. `weak_imports` does so for optional
    symbols; if the kernel exports one, its CRC must still match. `modversions` tells whether the
    module has CRCs at all. `exports` maps the exported symbols to their CRCs. `aliases` are the
    devices that the module declares, such as `pci:v00001234d000011E8sv*sd*bc*sc*i*`
    (scripts/mod/file2alias.c). `firmware` are the firmware files that the module declares.
    `softdeps` are its lines of MODULE_SOFTDEP.
    """

    path: Path
    name: str
    sha256: str = ""
    size: int = 0
    elf_class: int = 64
    machine: str = ""
    vermagic: str = ""
    srcversion: str = ""
    license: str = ""
    build_id: str = ""
    modversions: bool = False
    depends: tuple[str, ...] = ()
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    imports: Mapping[str, int | None] = field(default_factory=dict)
    weak_imports: Mapping[str, int | None] = field(default_factory=dict)
    exports: Mapping[str, int | None] = field(default_factory=dict)
    import_namespaces: tuple[str, ...] = ()
    signature: Signature | None = None
    version: str = ""
    aliases: tuple[str, ...] = ()
    firmware: tuple[str, ...] = ()
    softdeps: tuple[str, ...] = ()


class UnreadableModule(NotAModule):
    """A module whose reader crashed or was killed. A linker writes no file that causes this."""

    reason = "UnreadableModule"


def read_module(path: Path) -> ModuleFile:
    """Read a module file: .ko, .ko.gz, .ko.xz or .ko.zst. Raises NotAModule, SystemRefused."""
    return read_modules([path])[0]


def read_modules(paths: Sequence[Path]) -> list[ModuleFile]:
    """Read the modules of one driver in a single child process, within its limits.

    The limits hold for all modules together, against files made to exhaust memory or time. Raises
    NotAModule, SystemRefused.
    """
    try:
        data = run_in_child(lambda: _pack_modules(paths), _TIMEOUT, limits=_LIMITS)
        records = zip(paths, json.loads(data), strict=True)
        return [replace(decode(ModuleFile, row, where="it"), path=path) for path, row in records]
    except ChildRaised as exc:
        if exc.kind != "MemoryError":
            log.warning("the module reader crashed", modules=_paths_in_words(paths), why=exc)
        raise _unreadable_error(paths, exc.kind) from exc
    except (ChildDied, DeadlinePassed, MalformedRecord) as exc:
        raise _unreadable_error(paths, str(exc)) from exc


def _pack_modules(paths: Sequence[Path]) -> bytes:
    files = [replace(parse_module(path), path=Path()) for path in paths]
    return json.dumps([encode(file) for file in files]).encode()


def _unreadable_error(paths: Sequence[Path], how: str) -> UnreadableModule:
    return UnreadableModule(
        f"{_paths_in_words(paths)}: cannot be read (limits: {_LIMITS.memory >> 20} MiB of memory, "
        f"{_LIMITS.processor} s of CPU time): {how}",
        hint=f"inspect it: readelf -S {paths[0]}",
    )


def _paths_in_words(paths: Sequence[Path]) -> str:
    more = f" or another of these {len(paths)} modules" if len(paths) > 1 else ""
    return f"{paths[0]}{more}"


def parse_module(path: Path) -> ModuleFile:
    """Read a module in this process: the child of `read_modules`, or any for a trusted module."""
    with open_module(path) as file:
        elf = ElfObject(file, str(path))
        info = _read_modinfo(elf.contents(".modinfo"))
        if elf.section(".modinfo") is None:
            raise NotAModule(
                f"{path}: not a kernel module: an object file without a .modinfo section",
                hint="name the .ko that the build linked, not a .o",
            )
        symbols = list(elf.symbols((_CRC, _EXPORT, _PARAM)))
        versions = _read_versions(elf)
        imports, weak = _read_imports(symbols, versions or {})
        sha256, size = sha256_and_size(path)
        return ModuleFile(
            path=path,
            name=kernel_name(_first_value(info, "name")) or name_of_file(path.name),
            sha256=sha256,
            size=size,
            elf_class=elf.elf_class,
            machine=elf.machine,
            vermagic=_first_value(info, "vermagic"),
            srcversion=_first_value(info, "srcversion"),
            license=_first_value(info, "license"),
            build_id=parse_notes(
                elf.contents(".note.gnu.build-id"), little_endian=elf.little_endian
            ),
            modversions=versions is not None,
            depends=tuple(
                kernel_name(name) for name in _first_value(info, "depends").split(",") if name
            ),
            parameters=_read_parameters(elf, info, symbols),
            imports=imports,
            weak_imports=weak,
            exports=_read_exports(elf, symbols),
            import_namespaces=tuple(info["import_ns"]),
            signature=describe_signature(find_appended(file, str(path))),
            version=_first_value(info, "version"),
            aliases=tuple(info["alias"]),
            firmware=tuple(info["firmware"]),
            softdeps=tuple(info["softdep"]),
        )


# --- .modinfo ---------------------------------------------------------------------------------


def _read_modinfo(data: bytes) -> dict[str, list[str]]:
    """Return all values of the keys in `_MODINFO`, in file order."""
    info: dict[str, list[str]] = {key: [] for key in _MODINFO}
    for entry in data.split(b"\0"):
        key, separator, value = entry.partition(b"=")
        if separator and (values := info.get(key.decode("utf-8", "replace"))) is not None:
            values.append(value.decode("utf-8", "replace"))
    return info


def _first_value(info: Mapping[str, list[str]], key: str) -> str:
    """Return the first value of a key, as the kernel's get_modinfo does; "" if there is none."""
    return next(iter(info[key]), "")


# --- imports ----------------------------------------------------------------------------------


def _read_versions(elf: ElfObject) -> dict[str, int] | None:
    """Return the CRC of every versioned import; None if the module was built without CRCs."""
    if elf.section("__versions") is None and elf.section("__version_ext_crcs") is None:
        return None
    return {**_basic_versions(elf), **_extended_versions(elf)}


def _basic_versions(elf: ElfObject) -> dict[str, int]:
    """Parse struct modversion_info: an unsigned long and a name, 64 bytes in total."""
    form = struct.Struct(elf.byte_order + ("Q56s" if elf.elf_class == 64 else "I60s"))
    data = elf.contents("__versions")
    if len(data) % form.size:
        raise MalformedElf(f"{elf.where}: __versions has {len(data)} bytes, not a multiple of 64")
    versions = {}
    for crc, name in form.iter_unpack(data):
        # 64-bit PowerPC prefixes function names with a dot. The kernel drops it, see
        # dedotify_versions.
        text = name.partition(b"\0")[0].decode("utf-8", "replace").removeprefix(".")
        versions[text] = crc & 0xFFFFFFFF
    return versions


def _extended_versions(elf: ElfObject) -> dict[str, int]:
    """Parse an array of u32 CRCs and the same number of NUL-terminated names."""
    crcs = elf.contents("__version_ext_crcs")
    names = elf.contents("__version_ext_names").split(b"\0")
    count = len(crcs) // 4
    if len(names) < count:
        raise MalformedElf(f"{elf.where}: {count} extended CRCs, but {len(names)} names")
    numbers = struct.unpack(f"{elf.byte_order}{count}I", crcs[: count * 4])
    return {name.decode("utf-8", "replace"): crc for name, crc in zip(names, numbers, strict=False)}


def _read_imports(
    symbols: list[Symbol], versions: Mapping[str, int]
) -> tuple[dict[str, int | None], dict[str, int | None]]:
    """Return the required and the weak imports: two maps from symbol to CRC."""
    weak: dict[str, int | None] = {
        symbol.name: versions.get(symbol.name)
        for symbol in symbols
        if symbol.undefined and symbol.weak
    }
    needed: dict[str, int | None] = {
        name: crc for name, crc in versions.items() if name not in weak
    }
    for symbol in symbols:
        if symbol.undefined and not symbol.weak and symbol.name not in _IGNORED:
            needed.setdefault(symbol.name, None)
    return needed, weak


# --- exports ----------------------------------------------------------------------------------


def _read_exports(elf: ElfObject, symbols: list[Symbol]) -> dict[str, int | None]:
    """Return the CRC of every exported symbol, by name."""
    defined = [symbol for symbol in symbols if not symbol.undefined]
    names = [s.name.removeprefix(_EXPORT) for s in defined if s.name.startswith(_EXPORT)]
    if not names:
        names = _export_strings(elf)
    if len(names) > _EXPORT_LIMIT:
        raise MalformedElf(f"{elf.where}: {len(names)} exports, at most {_EXPORT_LIMIT} are read")
    exported = set(names)
    crcs = {
        symbol.name.removeprefix(_CRC): _symbol_crc(elf, symbol)
        for symbol in defined
        if symbol.name.startswith(_CRC) and symbol.name.removeprefix(_CRC) in exported
    }
    return {name: crcs.get(name) for name in names}


def _symbol_crc(elf: ElfObject, symbol: Symbol) -> int:
    """Return the CRC that a `__crc_` symbol stands for.

    Before 5.19 the symbol is absolute and its value is the CRC. Otherwise it points at the CRC, in
    __kcrctab*, or in .rodata where 4.11 to 5.18 used relative CRCs.
    """
    if symbol.section is None:
        return symbol.value & 0xFFFFFFFF
    return elf.u32_at(symbol.section, symbol.value)


def _export_strings(elf: ElfObject) -> list[str]:
    """Return the names of exports of a module without local symbols, mixed with namespaces."""
    strings = elf.contents("__ksymtab_strings").split(b"\0")
    return list(dict.fromkeys(text.decode("utf-8", "replace") for text in strings if text))


# --- parameters -------------------------------------------------------------------------------


def _read_parameters(
    elf: ElfObject, info: Mapping[str, list[str]], symbols: list[Symbol]
) -> dict[str, Parameter]:
    """Return every parameter that the kernel would accept, with type and description of .modinfo.

    The kernel compares with the names in __param. .modinfo alone is not enough: it does not have a
    module_param_cb parameter without a description. Nor is its type that of a parameter whose
    setter is the module's own: kvm's nx_huge_pages is a "bool" there, and takes "auto".
    """
    descriptions = dict(_split_entries(info["parm"]))
    types = dict(_split_entries(info["parmtype"]))
    in_rows, own_setters = _param_rows(elf)
    declared = [*in_rows, *_param_strings(elf, symbols), *types, *descriptions]
    names = dict.fromkeys(declared)
    _limit_parameters(elf, len(names))
    for name in own_setters:
        types.pop(name, None)
    return {
        name: Parameter(name, types.get(name, ""), descriptions.get(name, "")) for name in names
    }


def _split_entries(values: list[str]) -> Iterator[tuple[str, str]]:
    """Split `name:text` entries."""
    for value in values:
        name, _, text = value.partition(":")
        yield name, text


def _param_rows(elf: ElfObject) -> tuple[list[str], set[str]]:
    """Return the names in __param, and those of them whose setter the module defines itself.

    struct kernel_param begins with a pointer to the name, and has one to its kernel_param_ops after
    that to the module.
    """
    row, ops = (40, 16) if elf.elf_class == 64 else (20, 8)
    names: dict[int, str] = {}
    own = set()
    for target in elf.targets("__param"):
        number, place = divmod(target.offset, row)
        if place == 0:
            names[number] = elf.string_at(target.section, target.address)
            _limit_parameters(elf, len(names))
        elif place == ops:
            own.add(number)
    return list(names.values()), {names[number] for number in own if number in names}


def _param_strings(elf: ElfObject, symbols: list[Symbol]) -> list[str]:
    """Return the names in __param by symbols, for machines with other relocation formats."""
    strings = [s for s in symbols if s.name.startswith(_PARAM) and s.section is not None]
    _limit_parameters(elf, len(strings))
    return [elf.string_at(s.section, s.value) for s in strings if s.section is not None]


def _limit_parameters(elf: ElfObject, count: int) -> None:
    if count > _PARAMETER_LIMIT:
        raise MalformedElf(f"{elf.where}: {count} parameters, at most {_PARAMETER_LIMIT} are read")
