"""The ELF reader: right files of every kind, and hostile ones."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeside.driver.module.elf import ElfObject, MalformedElf, NotAModule, parse_notes
from tests import CORPUS
from tests.driver.fakes.hostile import only_our_errors
from tests.driver.fakes.module_writer import NOTE, PROGBITS, RELA, STRTAB, SYMTAB, ModuleWriter, Row

SPECIMEN = CORPUS / "modules" / "specimen.ko"


def read(data: bytes) -> ElfObject:
    return ElfObject(io.BytesIO(data), "edu.ko")


@pytest.mark.parametrize(
    ("elf_class", "little", "machine", "name"),
    [
        (64, True, 62, "x86_64"),
        (64, True, 183, "aarch64"),
        (32, True, 3, "i686"),
        (32, True, 40, "armv7l"),
        (64, True, 21, "ppc64le"),
        (64, False, 21, "ppc64"),
        (64, False, 22, "s390x"),
        (64, True, 243, "riscv64"),
        (64, True, 258, "loongarch64"),
        (32, True, 62, "elf-machine-62"),
    ],
)
def test_machine_is_named_as_uname_names_it(
    elf_class: int, little: bool, machine: int, name: str
) -> None:
    elf = read(ModuleWriter(elf_class, little, machine).write())

    assert elf.machine == name
    assert elf.elf_class == elf_class
    assert elf.contents(".modinfo").startswith(b"license=GPL\0")


def test_text_file_is_not_a_module() -> None:
    with pytest.raises(
        NotAModule, match=r"edu.ko: not a kernel module.*begins with b'#inc'"
    ) as info:
        read(b"#include <linux/module.h>\n")

    assert info.value.hint == "file edu.ko"


def test_program_is_not_a_module() -> None:
    with pytest.raises(NotAModule, match=r"expected a relocatable object .* its type is 3"):
        read(ModuleWriter(kind=3).write())


@pytest.mark.parametrize("size", [0, 3, 4, 10, 16, 40, 63])
def test_file_that_ends_in_its_header_is_refused(size: int) -> None:
    with pytest.raises(NotAModule, match=r"edu.ko"):
        read(ModuleWriter().write()[:size])


def test_truncated_file_says_that_it_is_truncated() -> None:
    data = ModuleWriter().write()

    with pytest.raises(MalformedElf, match="extend past the end of the file") as info:
        read(data[: len(data) // 2])

    assert "truncated" in info.value.hint


def test_section_that_ends_behind_the_file_is_refused() -> None:
    data = bytearray(ModuleWriter().write())
    table = struct.unpack_from("<Q", data, 40)[0]
    struct.pack_into("<Q", data, table + 64 + 32, 1 << 60)  # the size of section 1

    with pytest.raises(MalformedElf, match="a section of 1152921504606846976 bytes"):
        read(bytes(data))


def test_section_too_large_to_read_is_refused_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nodeside.driver.module.elf.TABLE_LIMIT", 1000)
    elf = read(ModuleWriter(more=[Row("huge", PROGBITS, bytes(1001))]).write())

    with pytest.raises(MalformedElf, match="section 'huge' has 1001 bytes, at most 1000 are read"):
        elf.contents("huge")


def with_symbols(rows: bytes, names: bytes) -> bytes:
    """A module whose symbol table is these rows, with these names."""
    empty = len(read(ModuleWriter().write()).sections) - 3  # .symtab, .strtab, .shstrtab
    more = [Row("symbols", SYMTAB, rows, link=empty + 1), Row("names", STRTAB, names)]
    return ModuleWriter(more=more).write()


def test_symbols_that_share_one_long_name_are_refused() -> None:
    """Each would be a string of its own: a file of 2 MB would take 300 MB of memory."""
    undefined = struct.pack("<IBBHQQ", 1, 16, 0, 0, 0, 0)
    elf = read(with_symbols(undefined * 80_000, b"\0" + b"a" * 4000 + b"\0"))

    with pytest.raises(MalformedElf, match="its names take more than 16 MiB of memory"):
        list(elf.symbols(()))


@pytest.mark.slow
def test_symbols_without_end_are_refused_even_with_short_names() -> None:
    undefined = struct.pack("<IBBHQQ", 1, 16, 0, 0, 0, 0)
    elf = read(with_symbols(undefined * 300_000, b"\0a\0"))

    with pytest.raises(MalformedElf, match="its names take more than 16 MiB of memory"):
        list(elf.symbols(()))


def test_a_symbol_table_too_large_is_refused_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nodeside.driver.module.elf.SYMBOL_LIMIT", 10)
    elf = read(with_symbols(bytes(24 * 11), b"\0"))

    with pytest.raises(MalformedElf, match="'symbols' has 264 bytes, at most 240 are read"):
        list(elf.symbols(()))


def test_a_second_relocation_table_of_a_section_is_refused() -> None:
    """Many tables may overlap in the file: 3 MiB of headers would be hours of reading."""
    first = ModuleWriter(parameters=["debug"])
    param = next(i for i, s in enumerate(read(first.write()).sections) if s.name == "__param")
    again = Row(".again", RELA, struct.pack("<QQq", 0, 1 << 32 | 1, 0), info=param)
    elf = read(ModuleWriter(parameters=["debug"], more=[again]).write())

    with pytest.raises(MalformedElf, match="'__param' has 2 relocation tables, not one"):
        list(elf.targets("__param"))


def test_relocations_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeside.driver.module.elf.RELOCATION_LIMIT", 1)
    elf = read(ModuleWriter(parameters=["debug", "level"]).write())

    with pytest.raises(MalformedElf, match=r"'\.rela__param' has 48 bytes, at most 24 are read"):
        list(elf.targets("__param"))


def test_name_without_an_end_is_refused() -> None:
    data = ModuleWriter().write()
    names = data.index(b".shstrtab\0")
    cut = data[: names + 9] + b"x" + data[names + 10 :]

    with pytest.raises(MalformedElf, match="a name is unterminated"):
        read(cut)


def test_relocation_against_a_symbol_that_does_not_exist_is_refused() -> None:
    data = ModuleWriter(parameters=["debug", "level"]).write()
    good = struct.pack("<QQq", 40, 1 << 32 | 1, len("debug") + 1)
    assert data.count(good) == 1
    elf = read(data.replace(good, struct.pack("<QQq", 40, 77 << 32 | 1, 0)))

    with pytest.raises(MalformedElf, match="symbol 77, which does not exist"):
        list(elf.targets("__param"))


def test_first_of_two_sections_of_one_name_counts_as_in_the_kernel() -> None:
    elf = read(ModuleWriter(more=[Row(".modinfo", PROGBITS, b"license=Other\0")]).write())

    assert b"license=GPL" in elf.contents(".modinfo")


def test_build_id_is_found_behind_another_note() -> None:
    other = struct.pack("<III", 6, 3, 7) + b"Linux\0\0\0" + b"abc\0"
    own = struct.pack("<III", 4, 4, 3) + b"GNU\0" + bytes.fromhex("c0ffee00")

    assert parse_notes(other + own) == "c0ffee00"
    assert parse_notes(other) == ""


@pytest.mark.parametrize("cut", range(1, 20))
def test_cut_note_has_no_build_id(cut: int) -> None:
    own = struct.pack("<III", 4, 4, 3) + b"GNU\0" + bytes.fromhex("c0ffee00")

    assert parse_notes(own[:-cut]) == ""


def walk(data: bytes) -> None:
    """Everything a caller may do with a file."""
    elf = read(data)
    list(elf.symbols(("__crc_", "__ksymtab_", "__param_str_")))
    for section in elf.sections:
        elf.contents(section.name)
        for target in elf.targets(section.name):
            with only_our_errors("edu.ko: "):  # a target in .bss has no bytes in the file
                elf.string_at(target.section, target.address)
                elf.u32_at(target.section, target.address)


def test_the_real_module_is_walked_to_its_end_where_the_damaged_ones_are_tried() -> None:
    walk(SPECIMEN.read_bytes())
    with pytest.raises(MalformedElf):
        walk(SPECIMEN.read_bytes()[:-100])


@given(st.data())
def test_damaged_real_module_gives_our_errors_only(data: st.DataObject) -> None:
    real = bytearray(SPECIMEN.read_bytes())
    header, table = range(64), range(len(real) - 64 * 40, len(real))
    places = st.sampled_from([*header, *table]) | st.integers(0, len(real) - 1)
    for place, value in data.draw(
        st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=12)
    ):
        real[place] = value
    size = data.draw(st.integers(0, len(real)) | st.just(len(real)))
    with only_our_errors("edu.ko: "):
        walk(bytes(real[:size]))


@given(st.binary(max_size=400))
def test_any_bytes_behind_an_elf_header_give_our_errors_only(data: bytes) -> None:
    for ident in (b"\x7fELF\x02\x01\x01", b"\x7fELF\x01\x02\x01"):
        with only_our_errors("edu.ko: "):
            walk(ident + bytes(9) + data)


@given(st.binary(max_size=200))
def test_any_note_bytes_are_survived(data: bytes) -> None:
    assert parse_notes(data) == parse_notes(data, little_endian=True)


def test_note_sections_of_big_endian_machines_are_read() -> None:
    elf = read(ModuleWriter(64, little=False, machine=22).write())
    note = elf.section(".note.gnu.build-id")

    assert note is not None
    assert note.kind == NOTE
    assert parse_notes(elf.contents(note.name), little_endian=False) == bytes(range(20)).hex()
