"""Module.symvers: every age of the format, hostile lines, and what makes a module unfit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeside.driver.module.modulefile import ModuleFile
from nodeside.driver.module.symvers import (
    KernelSymbol,
    MalformedSymvers,
    compare_symbols,
    parse_symvers,
)
from tests.driver.fakes.hostile import only_our_errors

NEW = "0x4c9d28b0\tphys_base\tvmlinux\tEXPORT_SYMBOL\t\n"
NAMED = "0x00c0ffee\tnvme_go\tdrivers/nvme/host/nvme\tEXPORT_SYMBOL_GPL\tNVME_CORE\n"


def module(name: str = "edu", license: str = "GPL", **more: object) -> ModuleFile:
    return ModuleFile(path=Path(f"{name}.ko"), name=name, license=license, **more)  # type: ignore[arg-type]


# --- the parser -------------------------------------------------------------------------------


def test_weak_import_that_the_licence_hides_is_only_absent() -> None:
    """The kernel looks on as if nothing exported it, and a weak symbol may be absent."""
    hidden = {"secret": KernelSymbol("secret", 7, "vmlinux", "EXPORT_SYMBOL_GPL")}
    closed = replace(module(), license="Proprietary", modversions=True)

    assert compare_symbols([replace(closed, weak_imports={"secret": 8})], hidden) == ()
    assert compare_symbols([replace(closed, imports={"secret": 7})], hidden) != ()
    free = replace(closed, license="GPL", weak_imports={"secret": 8})
    assert compare_symbols([free], hidden) != ()


def test_five_fields_with_the_namespace_last_as_since_5_7() -> None:
    assert parse_symvers(NEW + NAMED) == {
        "phys_base": KernelSymbol("phys_base", 0x4C9D28B0, "vmlinux", "EXPORT_SYMBOL", ""),
        "nvme_go": KernelSymbol(
            "nvme_go", 0xC0FFEE, "drivers/nvme/host/nvme", "EXPORT_SYMBOL_GPL", "NVME_CORE"
        ),
    }


def test_five_fields_with_the_namespace_third_as_in_5_4() -> None:
    text = (
        "0x00000001\ta\t\tvmlinux\tEXPORT_SYMBOL\n"
        "0x00000002\tb\tUSB_STORAGE\tdrivers/usb/storage/usb-storage\tEXPORT_SYMBOL_GPL\n"
    )
    assert parse_symvers(text) == {
        "a": KernelSymbol("a", 1, "vmlinux", "EXPORT_SYMBOL", ""),
        "b": KernelSymbol(
            "b", 2, "drivers/usb/storage/usb-storage", "EXPORT_SYMBOL_GPL", "USB_STORAGE"
        ),
    }


def test_four_fields_as_before_5_4() -> None:
    text = "0x0000000a\tprintk\tvmlinux\tEXPORT_SYMBOL_GPL_FUTURE\n0x0000000b\tx\ty\tEXPORT_SYMBOL"

    assert parse_symvers(text)["printk"].export == "EXPORT_SYMBOL_GPL_FUTURE"
    assert parse_symvers(text)["x"].crc == 11


def test_windows_line_ends_and_a_missing_last_newline_are_read() -> None:
    assert set(parse_symvers(NEW.replace("\n", "\r\n") + NAMED.rstrip("\n"))) == {
        "phys_base",
        "nvme_go",
    }


def test_empty_file_has_no_symbols() -> None:
    assert parse_symvers("") == {}


@pytest.mark.parametrize(
    "line",
    [
        "garbage",
        "0x4c9d28b0 phys_base vmlinux EXPORT_SYMBOL",
        "0x4c9d28b\tphys_base\tvmlinux\tEXPORT_SYMBOL\t",
        "4c9d28b0\tphys_base\tvmlinux\tEXPORT_SYMBOL\t",
        "0x4c9d28b0\tphys_base\tvmlinux\tEXPORT_EVERYTHING\t",
        "0x4c9d28b0\tphys_base\tvmlinux\tEXPORT_SYMBOL\tNS\tmore",
        "0x4c9d28b0\tphys base\tvmlinux\tEXPORT_SYMBOL\t",
        "0x4c9d28b0\t\tvmlinux\tEXPORT_SYMBOL\t",
        "\0\0\0",
    ],
)
def test_hostile_line_is_refused_with_its_number(line: str) -> None:
    with pytest.raises(MalformedSymvers, match=r"^Module.symvers:3: expected CRC, symbol, module"):
        parse_symvers(NEW + NAMED + line + "\n" + NEW)


def test_half_a_million_spaces_are_refused_like_one() -> None:
    line = "0x00000000\ta\tb\tEXPORT_SYMBOL\t" + " " * 500_000 + "\t\n"

    with pytest.raises(MalformedSymvers, match=r"^Module.symvers:1: expected CRC"):
        parse_symvers(line)


def test_large_list_is_read_whole() -> None:
    text = "".join(f"0x{n:08x}\tsymbol_{n}\tvmlinux\tEXPORT_SYMBOL\t\n" for n in range(25_000))

    assert len(parse_symvers(text)) == 25_000


@given(st.text(alphabet="0x9af\t\n EXPORT_SYMBOLGPLvmlinux", max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with only_our_errors("Module.symvers:"):
        assert len(parse_symvers(text)) <= text.count("\n") + 1


@given(
    st.lists(
        st.tuples(st.integers(0, 0xFFFFFFFF), st.from_regex(r"[a-z_]{1,9}", fullmatch=True)),
        unique_by=lambda row: row[1],
    )
)
def test_what_is_written_is_read(rows: list[tuple[int, str]]) -> None:
    text = "".join(f"0x{crc:08x}\t{name}\tvmlinux\tEXPORT_SYMBOL\t\n" for crc, name in rows)

    assert [(s.crc, s.name) for s in parse_symvers(text).values()] == rows


# --- the comparison ---------------------------------------------------------------------------

KERNEL = {
    name: KernelSymbol(name, crc, "vmlinux", export, namespace)
    for name, crc, export, namespace in [
        ("module_layout", 1, "EXPORT_SYMBOL", ""),
        ("printk", 2, "EXPORT_SYMBOL", ""),
        ("secret", 3, "EXPORT_SYMBOL_GPL", ""),
        ("spaced", 4, "EXPORT_SYMBOL_GPL", "NVME_CORE"),
        ("chosen", 5, "EXPORT_SYMBOL_GPL", "module:kvm,snd-*"),
    ]
}


def whys(*modules: ModuleFile) -> list[str]:
    return [f"{m.module}: {m.symbol} {m.why}" for m in compare_symbols(modules, KERNEL)]


def test_module_whose_symbols_all_fit_has_no_mismatch() -> None:
    assert (
        compare_symbols([module(imports={"module_layout": 1, "printk": 2, "secret": 3})], KERNEL)
        == ()
    )


def test_other_crc_is_named_with_both_numbers() -> None:
    mismatch = compare_symbols([module(imports={"printk": 0x99})], KERNEL)[0]

    assert mismatch.symbol == "printk"
    assert mismatch.why == "has CRC 0x00000002 in this kernel, not 0x00000099"


def test_missing_symbol_is_named() -> None:
    assert whys(module(imports={"gone": 1, "lost": None})) == [
        "edu: gone is not exported by this kernel",
        "edu: lost is not exported by this kernel",
    ]


def test_weak_symbol_may_be_missing_but_not_differ() -> None:
    assert whys(module(weak_imports={"gone": 1, "printk": 2})) == []
    assert whys(module(weak_imports={"printk": 7})) == [
        "edu: printk has CRC 0x00000002 in this kernel, not 0x00000007"
    ]


@pytest.mark.parametrize("license", ["Proprietary", "BSD", "gpl", ""])
def test_gpl_only_symbol_is_not_for_other_licences(license: str) -> None:
    assert whys(module(license=license, imports={"secret": 3})) == [
        f"edu: secret is for GPL-compatible modules only, the licence is {license!r}"
    ]


@pytest.mark.parametrize("license", ["GPL", "GPL v2", "Dual BSD/GPL", "Dual MIT/GPL"])
def test_gpl_only_symbol_is_for_compatible_licences(license: str) -> None:
    assert whys(module(license=license, imports={"secret": 3})) == []


def test_namespace_must_be_imported() -> None:
    assert whys(module(imports={"spaced": 4})) == [
        "edu: spaced is in the namespace NVME_CORE, which the module does not import"
    ]
    assert whys(module(imports={"spaced": 4}, import_namespaces=("NVME_CORE",))) == []


def test_symbol_for_named_modules_is_for_them_only() -> None:
    assert whys(module("kvm", imports={"chosen": 5})) == []
    assert whys(module("snd_hda", imports={"chosen": 5})) == []
    assert whys(module("kvm_intel", imports={"chosen": 5})) == [
        "kvm_intel: chosen is for the modules kvm,snd-* only"
    ]


def test_symbols_of_sibling_modules_satisfy() -> None:
    library = module("library", exports={"library_go": 0xAA})

    assert whys(library, module("user", imports={"library_go": 0xAA})) == []
    assert whys(library, module("user", imports={"library_go": None})) == []
    assert whys(module("user", imports={"library_go": 0xBB}), library) == [
        "user: library_go has CRC 0x000000aa in library, not 0x000000bb"
    ]


def test_kernel_without_crcs_is_compared_by_names() -> None:
    kernel = {"printk": KernelSymbol("printk", 0, "vmlinux", "EXPORT_SYMBOL")}

    assert compare_symbols([module(imports={"printk": 77})], kernel) == ()
    assert compare_symbols([module(imports={"gone": None})], kernel) != ()
