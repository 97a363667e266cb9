"""Writes small kernel modules byte by byte: any class and byte order, right ones and wrong ones.

Only as much ELF as a module reader looks at; no compiler for the machine in question is needed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PROGBITS, SYMTAB, STRTAB, RELA, NOTE, REL = 1, 2, 3, 4, 7, 9
ABSOLUTE = 0xFFF1
VERMAGIC = "6.1.0-56-cloud-amd64 SMP preempt mod_unload modversions "


@dataclass
class Row:
    """A section to be written."""

    name: str
    kind: int
    data: bytes
    link: int = 0
    info: int = 0


@dataclass
class ModuleWriter:
    """What the module shall contain. `write()` gives its bytes."""

    elf_class: int = 64
    little: bool = True
    machine: int = 62
    kind: int = 1
    info: Sequence[tuple[str, str]] = (
        ("license", "GPL"),
        ("name", "written"),
        ("vermagic", VERMAGIC),
    )
    versions: Mapping[str, int] | None = None
    extended: Mapping[str, int] | None = None
    undefined: Sequence[str] = ()
    weak: Sequence[str] = ()
    exports: Mapping[str, int] = field(default_factory=dict)
    absolute_crcs: bool = False
    parameters: Sequence[str] = ()
    own_setters: Sequence[str] = ()
    build_id: bytes = bytes(range(20))
    rela: bool = True
    more: Sequence[Row] = ()

    @property
    def order(self) -> str:
        return "<" if self.little else ">"

    def pack(self, form64: str, form32: str, *values: object) -> bytes:
        return struct.pack(self.order + (form64 if self.elf_class == 64 else form32), *values)

    def write(self) -> bytes:
        rows = [Row("", 0, b""), Row(".modinfo", PROGBITS, self._modinfo())]
        rows.append(Row(".note.gnu.build-id", NOTE, self._note()))
        rows += self._version_rows()
        symbols, names = self._symbols(rows)
        self._parameter_rows(rows)
        rows += self.more
        rows.append(Row(".symtab", SYMTAB, symbols, link=len(rows) + 1))
        rows.append(Row(".strtab", STRTAB, names))
        return self._assemble(rows)

    def _modinfo(self) -> bytes:
        return b"".join(f"{key}={value}".encode() + b"\0" for key, value in self.info)

    def _note(self) -> bytes:
        return struct.pack(self.order + "III", 4, len(self.build_id), 3) + b"GNU\0" + self.build_id

    def _version_rows(self) -> list[Row]:
        rows = []
        if self.versions is not None:
            data = b"".join(
                self.pack("Q56s", "I60s", crc, name.encode()) for name, crc in self.versions.items()
            )
            rows.append(Row("__versions", PROGBITS, data))
        if self.extended is not None:
            crcs = b"".join(struct.pack(self.order + "I", crc) for crc in self.extended.values())
            names = b"".join(name.encode() + b"\0" for name in self.extended) + b"\0"
            rows.append(Row("__version_ext_crcs", PROGBITS, crcs))
            rows.append(Row("__version_ext_names", PROGBITS, names))
        return rows

    def _symbols(self, rows: list[Row]) -> tuple[bytes, bytes]:
        """The symbol table. Its symbol 1 stands for .rodata, which the parameters point into."""
        crc_section = len(rows)
        crcs = b"".join(struct.pack(self.order + "I", crc) for crc in self.exports.values())
        rows.append(Row("__kcrctab", PROGBITS, crcs))
        self._rodata = len(rows)
        strings = b"".join(name.encode() + b"\0" for name in self.parameters)
        rows.append(Row(".rodata", PROGBITS, b"\0" * 8 + strings))
        table = bytearray(self._symbol(0, 0, 0, 0) + self._symbol(0, 3, self._rodata, 8))
        names = bytearray(b"\0")

        def add(name: str, info: int, section: int, value: int) -> None:
            table.extend(self._symbol(len(names), info, section, value))
            names.extend(name.encode() + b"\0")

        for name in self.undefined:
            add(name, 0x10, 0, 0)
        for name in self.weak:
            add(name, 0x20, 0, 0)
        for index, (name, crc) in enumerate(self.exports.items()):
            add(f"__ksymtab_{name}", 0, crc_section, 0)
            if self.absolute_crcs:
                add(f"__crc_{name}", 0x10, ABSOLUTE, crc)
            else:
                add(f"__crc_{name}", 0, crc_section, 4 * index)
        return bytes(table), bytes(names)

    def _symbol(self, name: int, info: int, section: int, value: int) -> bytes:
        if self.elf_class == 64:
            return struct.pack(self.order + "IBBHQQ", name, info, 0, section, value, 0)
        return struct.pack(self.order + "IIIBBH", name, value, 0, info, 0, section)

    def _parameter_rows(self, rows: list[Row]) -> None:
        if not self.parameters:
            return
        size = 40 if self.elf_class == 64 else 20
        section = len(rows)
        data, relocations, at = bytearray(size * len(self.parameters)), b"", 0
        for index, name in enumerate(self.parameters):
            symbol = 1 << (32 if self.elf_class == 64 else 8) | 1
            if self.rela:
                relocations += self.pack("QQq", "IIi", index * size, symbol, at)
            else:
                relocations += self.pack("QQ", "II", index * size, symbol)
                word = self.pack("Q", "I", at)
                data[index * size : index * size + len(word)] = word
            if name in self.own_setters:
                place = index * size + (16 if self.elf_class == 64 else 8)
                if self.rela:
                    relocations += self.pack("QQq", "IIi", place, symbol, 0)
                else:
                    relocations += self.pack("QQ", "II", place, symbol)
            at += len(name) + 1
        rows.append(Row("__param", PROGBITS, bytes(data)))
        rows.append(Row(".rela__param", RELA if self.rela else REL, relocations, info=section))

    def _assemble(self, rows: list[Row]) -> bytes:
        rows = [*rows, Row(".shstrtab", STRTAB, b"")]
        names, starts = b"", []
        for row in rows:
            starts.append(len(names))
            names += row.name.encode() + b"\0"
        rows[-1].data = names
        body, headers = b"", b""
        base = 64 if self.elf_class == 64 else 52
        for row, start in zip(rows, starts, strict=True):
            headers += self.pack(
                "IIQQQQIIQQ", "IIIIIIIIII",
                start, row.kind, 0, 0, base + len(body), len(row.data), row.link, row.info, 1, 0,
            )  # fmt: skip
            body += row.data
        return self._header(base + len(body), len(rows)) + body + headers

    def _header(self, table: int, rows: int) -> bytes:
        ident = b"\x7fELF" + bytes([self.elf_class // 32, 1 if self.little else 2, 1]) + bytes(9)
        header_size, row_size = (64, 64) if self.elf_class == 64 else (52, 40)
        return ident + self.pack(
            "HHIQQQIHHHHHH", "HHIIIIIHHHHHH",
            self.kind, self.machine, 1, 0, 0, table, 0, header_size, 0, 0, row_size, rows, rows - 1,
        )  # fmt: skip
