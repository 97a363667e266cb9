"""A strict parser for relocatable ELF objects, the format of kernel modules.

The input may be hostile. Every offset and size is checked before use, only requested data is read,
and the only exceptions are `NotAModule` and `MalformedElf`. Time and memory are linear in the
amount of data read, which is limited, even if tables overlap or many rows share one name. The file
is read, never mapped: truncating a mapped file kills the process that reads it.

The formats are documented in elf(5). The module loader's own checks are in the kernel's
kernel/module/main.c (elf_validity_check). Stdlib only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cached_property
from typing import IO, NamedTuple

from nodeside.errors import ExitCode, NodesideError

# The comment on each limit gives the largest value among all modules of Debian's 6.1.0-56-amd64.
# The largest of these modules, amdgpu, is 19 MB. The largest in the wild is three times as large,
# and the limits allow forty times as much.
SECTION_LIMIT = 64 << 20  # bytes of one section; the symbol names of amdgpu: 0.5 MB
TABLE_LIMIT = 4 << 20  # bytes of a section of strings, CRCs or notes; option's .modinfo: 76 kB
SYMBOL_LIMIT = 1 << 20  # rows of the symbol table; amdgpu: 26,032
RELOCATION_LIMIT = 1 << 16  # rows of one relocation table; lpfc: 267
NAMES_LIMIT = 16 << 20  # bytes of memory for all names; drm: 1,285 names with 35,809 bytes
NAME_LIMIT = 4096  # bytes of one name or string; the kernel's own limit on symbols is 512
_NAME_COST = 64  # bytes of memory overhead per name

_IDENT = 16
_ET_REL = 1
_SHT_SYMTAB = 2
_SHT_RELA = 4
_SHT_NOBITS = 8
_SHT_REL = 9
_SHN_UNDEF = 0
_SHN_ABS = 0xFFF1
_STB_WEAK = 2
_GNU_BUILD_ID = 3

# `uname -m` by (e_machine, ELF class, little endian); None matches any value.
_MACHINES: dict[tuple[int, int | None, bool | None], str] = {
    (3, 32, True): "i686",
    (62, 64, True): "x86_64",
    (183, 64, True): "aarch64",
    (183, 64, False): "aarch64_be",
    (40, 32, None): "armv7l",
    (20, 32, False): "ppc",
    (21, 64, True): "ppc64le",
    (21, 64, False): "ppc64",
    (22, 64, False): "s390x",
    (22, 32, False): "s390",
    (243, 64, True): "riscv64",
    (243, 32, True): "riscv32",
    (258, 64, True): "loongarch64",
    (8, 64, None): "mips64",
    (8, 32, None): "mips",
    (43, 64, False): "sparc64",
}
MACHINES = frozenset(_MACHINES.values())


class NotAModule(NodesideError):
    """A file that is not a kernel module, or that no kernel would accept as one."""

    exit_code = ExitCode.BUNDLE
    reason = "NotAModule"


class MalformedElf(NotAModule):
    """An ELF file whose tables contradict its size or each other."""


class ElfSection(NamedTuple):
    """One row of the section header table; offsets and sizes are in bytes."""

    name: str
    kind: int
    offset: int
    size: int
    link: int
    info: int


class Symbol(NamedTuple):
    """One symbol. `section` is an index, or None if the symbol is undefined or absolute."""

    name: str
    value: int
    section: int | None
    undefined: bool
    weak: bool


class RelocationTarget(NamedTuple):
    """The target of a relocation: `offset` in its section → `address` in section `section`."""

    offset: int
    section: int
    address: int


class ElfObject:
    """A relocatable object read from a seekable file. `where` is its name in messages."""

    def __init__(self, file: IO[bytes], where: str) -> None:
        self._file = file
        self.where = where
        self._size = file.seek(0, 2)
        self._names_left = NAMES_LIMIT
        self._read_ident()
        self.machine, self.sections = self._read_header()

    # --- header ------------------------------------------------------------------------------

    def _read_ident(self) -> None:
        ident = self._read_bytes(0, min(_IDENT, self._size))
        if ident[:4] != b"\x7fELF":
            raise NotAModule(
                f"{self.where}: not a kernel module: expected an ELF file, "
                f"it begins with {ident[:4]!r}",
                hint=f"file {self.where}",
            )
        if len(ident) < _IDENT or ident[4] not in (1, 2) or ident[5] not in (1, 2):
            raise self._malformed_error("the identification bytes are invalid or truncated")
        self.elf_class = 32 * ident[4]
        self.little_endian = ident[5] == 1
        self.byte_order = "<" if self.little_endian else ">"

    def _read_header(self) -> tuple[str, tuple[ElfSection, ...]]:
        form = struct.Struct(
            self.byte_order + ("HHIQQQIHHHHHH" if self.elf_class == 64 else "HHIIIIIHHHHHH")
        )
        values = form.unpack(self._read_bytes(_IDENT, form.size))
        kind, machine, table, row_size, rows, names = (
            values[0], values[1], values[5], values[10], values[11], values[12]
        )  # fmt: skip
        if kind != _ET_REL:
            raise NotAModule(
                f"{self.where}: not a kernel module: expected a relocatable object (ET_REL, 1), "
                f"its type is {kind}"
            )
        return self._machine_name(machine), self._read_sections(table, row_size, rows, names)

    def _machine_name(self, number: int) -> str:
        for elf_class in (self.elf_class, None):
            for order in (self.little_endian, None):
                if name := _MACHINES.get((number, elf_class, order)):
                    return name
        return f"elf-machine-{number}"

    def _read_sections(
        self, table: int, row_size: int, rows: int, names: int
    ) -> tuple[ElfSection, ...]:
        form = struct.Struct(
            self.byte_order + ("IIQQQQIIQQ" if self.elf_class == 64 else "IIIIIIIIII")
        )
        if row_size != form.size or not 0 < names < rows:
            raise self._malformed_error(
                f"{rows} section headers of {row_size} bytes, section names in section {names}"
            )
        raw = list(form.iter_unpack(self._read_bytes(table, rows * form.size)))
        strings = self._read_contents(
            ElfSection("section names", *self._check_placement(raw[names]))
        )
        return tuple(
            ElfSection(self._read_string(strings, row[0]), *self._check_placement(row))
            for row in raw
        )

    def _check_placement(self, row: tuple[int, ...]) -> tuple[int, int, int, int, int]:
        kind, offset, size, link, info = row[1], row[4], row[5], row[6], row[7]
        if kind not in (0, _SHT_NOBITS) and offset + size > self._size:
            raise self._malformed_error(
                f"a section of {size} bytes at {offset} extends past the end of the file "
                f"({self._size} bytes)",
                hint="the file is truncated: copy or fetch it again",
            )
        return kind, offset, size, link, info

    # --- sections ----------------------------------------------------------------------------

    def section(self, name: str) -> ElfSection | None:
        """Return the first section with that name, as the kernel does (find_sec), or None."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> dict[str, ElfSection]:
        return {section.name: section for section in reversed(self.sections)}

    def contents(self, name: str) -> bytes:
        """Return the bytes of a section; empty if it does not exist.

        Raises MalformedElf if it is larger than TABLE_LIMIT.
        """
        section = self.section(name)
        return b"" if section is None else self._read_contents(section, TABLE_LIMIT)

    def string_at(self, section: int, offset: int) -> str:
        """Return the C string at an offset in a section."""
        row = self._section_at(section)
        length = min(NAME_LIMIT, row.size - offset)
        if offset < 0 or length <= 0 or row.kind in (0, _SHT_NOBITS):
            raise self._malformed_error(f"section {row.name!r} has no string at offset {offset}")
        return self._read_string(self._read_bytes(row.offset + offset, length), 0)

    def u32_at(self, section: int, offset: int) -> int:
        """Return the 32-bit number at an offset in a section."""
        row = self._section_at(section)
        if offset < 0 or offset + 4 > row.size or row.kind in (0, _SHT_NOBITS):
            raise self._malformed_error(
                f"section {row.name!r} has no 32-bit number at offset {offset}"
            )
        data = self._read_bytes(row.offset + offset, 4)
        return int.from_bytes(data, "little" if self.little_endian else "big")

    def _section_at(self, index: int) -> ElfSection:
        if index >= len(self.sections):
            raise self._malformed_error(f"no section {index}: there are only {len(self.sections)}")
        return self.sections[index]

    def _read_contents(self, section: ElfSection, limit: int = SECTION_LIMIT) -> bytes:
        if section.kind in (0, _SHT_NOBITS):
            return b""
        if section.size > limit:
            raise self._malformed_error(
                f"section {section.name!r} has {section.size} bytes, at most {limit} are read"
            )
        return self._read_bytes(section.offset, section.size)

    # --- symbols and relocations -------------------------------------------------------------

    def symbols(self, prefixes: tuple[str, ...]) -> Iterator[Symbol]:
        """Yield undefined symbols, and defined symbols whose name starts with one of `prefixes`."""
        _, names = self._symbol_table
        encoded = tuple(prefix.encode() for prefix in prefixes)
        for name, info, section, value in self._symbol_rows():
            if section == _SHN_UNDEF:
                if name:
                    yield Symbol(
                        self._read_string(names, name), value, None, True, info >> 4 == _STB_WEAK
                    )
            elif names.startswith(encoded, name):
                where = None if section == _SHN_ABS else section
                yield Symbol(
                    self._read_string(names, name), value, where, False, info >> 4 == _STB_WEAK
                )

    def targets(self, name: str) -> Iterator[RelocationTarget]:
        """Yield the relocation targets of a section that lie within this object."""
        index = next((i for i, row in enumerate(self.sections) if row.name == name), None)
        tables = [
            table
            for table in self.sections
            if index is not None and table.info == index and table.kind in (_SHT_REL, _SHT_RELA)
        ]
        if len(tables) > 1:  # no linker produces two
            raise self._malformed_error(
                f"section {name!r} has {len(tables)} relocation tables, not one"
            )
        for table in tables:
            yield from self._table_targets(table, name)

    def _table_targets(self, table: ElfSection, name: str) -> Iterator[RelocationTarget]:
        word = "Q" if self.elf_class == 64 else "I"
        addend = "" if table.kind == _SHT_REL else word.lower()
        form = struct.Struct(self.byte_order + word + word + addend)
        data = self._read_contents(table, RELOCATION_LIMIT * form.size)
        contents = self.contents(name) if table.kind == _SHT_REL else b""
        place = struct.Struct(self.byte_order + word)
        for row in form.iter_unpack(data[: len(data) // form.size * form.size]):
            offset, symbol = row[0], row[1] >> (32 if self.elf_class == 64 else 8)
            target, value = self._symbol_place(symbol)
            if table.kind == _SHT_RELA:
                value += row[2]
            elif offset + place.size <= len(contents):
                value += place.unpack_from(contents, offset)[0]
            if 0 < target < len(self.sections):
                yield RelocationTarget(offset, target, value)

    def _symbol_place(self, index: int) -> tuple[int, int]:
        data, _ = self._symbol_table
        if not 0 <= index < len(data) // self._symbol_form.size:
            raise self._malformed_error(
                f"a relocation against symbol {index}, which does not exist"
            )
        row = self._symbol_form.unpack_from(data, index * self._symbol_form.size)
        return (row[3], row[4]) if self.elf_class == 64 else (row[5], row[1])

    def _symbol_rows(self) -> Iterator[tuple[int, int, int, int]]:
        """Return (name, info, section, value) of every symbol."""
        data, _ = self._symbol_table
        rows = self._symbol_form.iter_unpack(data)
        if self.elf_class == 64:
            return ((row[0], row[1], row[3], row[4]) for row in rows)
        return ((row[0], row[3], row[5], row[1]) for row in rows)

    @cached_property
    def _symbol_form(self) -> struct.Struct:
        return struct.Struct(self.byte_order + ("IBBHQQ" if self.elf_class == 64 else "IIIBBH"))

    @cached_property
    def _symbol_table(self) -> tuple[bytes, bytes]:
        """Return the symbol table, cut to whole rows, and its string table."""
        table = next((row for row in self.sections if row.kind == _SHT_SYMTAB), None)
        if table is None:
            return b"", b""
        data = self._read_contents(table, SYMBOL_LIMIT * self._symbol_form.size)
        whole = len(data) // self._symbol_form.size * self._symbol_form.size
        return data[:whole], self._read_contents(self._section_at(table.link))

    # --- bytes -------------------------------------------------------------------------------

    def _read_bytes(self, offset: int, size: int) -> bytes:
        if offset + size > self._size:
            raise self._malformed_error(
                f"{size} bytes at {offset} extend past the end of the file ({self._size} bytes)",
                hint="the file is truncated: copy or fetch it again",
            )
        self._file.seek(offset)
        data = self._file.read(size)
        if len(data) != size:
            raise self._malformed_error("the file was truncated while it was being read")
        return data

    def _read_string(self, strings: bytes, start: int) -> str:
        end = strings.find(b"\0", start, start + NAME_LIMIT)
        if end < 0:
            raise self._malformed_error(
                f"a name is unterminated or has more than {NAME_LIMIT} bytes"
            )
        self._names_left -= end - start + _NAME_COST
        if self._names_left < 0:
            raise self._malformed_error(
                f"its names take more than {NAMES_LIMIT >> 20} MiB of memory"
            )
        return strings[start:end].decode("utf-8", "replace")

    def _malformed_error(self, what: str, *, hint: str = "") -> MalformedElf:
        return MalformedElf(f"{self.where}: damaged ELF file: {what}", hint=hint)


def parse_notes(data: bytes, *, little_endian: bool = True) -> str:
    """Return the GNU build-id in an ELF note section, in hex; "" if there is none.

    A loaded module exposes the same bytes in `/sys/module/X/notes/.note.gnu.build-id`. Names and
    descriptors are padded to 4 bytes (elf(5), "Notes").
    """
    header = struct.Struct("<III" if little_endian else ">III")
    at = 0
    while at + header.size <= len(data):
        name_size, size, kind = header.unpack_from(data, at)
        name = at + header.size
        start = name + (name_size + 3 & ~3)
        if start + size > len(data):
            return ""
        if kind == _GNU_BUILD_ID and data[name : name + name_size] == b"GNU\0":
            return data[start : start + size].hex()
        at = start + (size + 3 & ~3)
    return ""
