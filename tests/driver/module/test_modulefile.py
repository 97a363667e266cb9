"""Reading module files: a real one, written ones of every age of the kernel, hostile ones."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import shutil
import signal
import struct
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeside.driver.module import compression, modulefile
from nodeside.driver.module.compression import decompress
from nodeside.driver.module.elf import MalformedElf, NotAModule
from nodeside.driver.module.modulefile import (
    Parameter,
    UnreadableModule,
    parse_module,
    read_module,
    read_modules,
)
from nodeside.errors import NodesideError, SystemRefused
from nodeside.system.process import ToolMissing, run
from tests import CORPUS
from tests.driver.fakes.hostile import only_our_errors
from tests.driver.fakes.module_writer import PROGBITS, VERMAGIC, ModuleWriter, Row
from tests.tries import sampled

SPECIMEN = CORPUS / "modules" / "specimen.ko"


def written(tmp_path: Path, writer: ModuleWriter, name: str = "written.ko") -> Path:
    path = tmp_path / name
    path.write_bytes(writer.write())
    return path


# --- a real module ----------------------------------------------------------------------------


def test_real_module_says_who_it_is() -> None:
    module = read_module(SPECIMEN)

    assert module.name == "specimen"
    assert module.machine == "x86_64"
    assert module.elf_class == 64
    assert module.vermagic == VERMAGIC
    assert module.srcversion == "287BFF0CCD595DCC723FD43"
    assert module.license == "Dual BSD/GPL"
    assert len(module.build_id) == 40
    assert module.import_namespaces == ("CRYPTO_INTERNAL",)
    assert module.signature is None
    assert module.sha256 == hashlib.sha256(SPECIMEN.read_bytes()).hexdigest()
    assert module.size == SPECIMEN.stat().st_size


def test_real_module_declares_parameters_also_those_without_a_description() -> None:
    assert read_module(SPECIMEN).parameters == {
        "level": Parameter("level", "int", "how much to say: 0 to 7"),
        "quiet": Parameter("quiet", "bool", ""),
        "mode": Parameter("mode", "charp", ""),
        "lines": Parameter("lines", "array of int", ""),
        "hidden": Parameter("hidden", "", ""),
    }


def test_real_module_names_what_it_needs_and_offers_with_crcs() -> None:
    module = read_module(SPECIMEN)

    assert module.modversions
    assert module.imports["module_layout"] is not None
    assert set(module.imports) >= {"_printk", "param_ops_int", "param_array_ops", "__fentry__"}
    assert all(crc is not None for crc in module.imports.values())
    assert set(module.exports) == {"specimen_answer", "specimen_secret"}
    assert all(module.exports.values())


def test_module_stripped_of_local_symbols_keeps_its_parameters(tmp_path: Path) -> None:
    if shutil.which("strip") is None:
        pytest.fail("this test needs strip, from the package binutils")
    stripped = tmp_path / "specimen.ko"
    run(["strip", "--strip-unneeded", "-o", stripped, SPECIMEN], timeout=10)

    module = read_module(stripped)

    assert set(module.parameters) == set(read_module(SPECIMEN).parameters)
    assert set(module.exports) >= {"specimen_answer", "specimen_secret"}
    assert module.build_id == read_module(SPECIMEN).build_id


# --- written modules --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("elf_class", "little", "machine"),
    [(64, True, 62), (32, True, 3), (64, False, 22), (32, False, 20)],
)
@pytest.mark.parametrize("rela", [True, False])
def test_every_class_and_byte_order_reads_the_same(
    tmp_path: Path, elf_class: int, little: bool, machine: int, rela: bool
) -> None:
    writer = ModuleWriter(
        elf_class,
        little,
        machine,
        versions={"module_layout": 0xDEADBEEF, "printk": 0x12345678},
        undefined=["printk", "memcpy", "_GLOBAL_OFFSET_TABLE_"],
        weak=["maybe"],
        exports={"edu_read": 0xCAFEBABE, "edu_write": 0x0BADF00D},
        parameters=["debug", "irq_mode"],
        rela=rela,
    )
    module = read_module(written(tmp_path, writer))

    assert module.imports == {"module_layout": 0xDEADBEEF, "printk": 0x12345678, "memcpy": None}
    assert module.weak_imports == {"maybe": None}
    assert module.exports == {"edu_read": 0xCAFEBABE, "edu_write": 0x0BADF00D}
    assert set(module.parameters) == {"debug", "irq_mode"}
    assert module.build_id == bytes(range(20)).hex()


@pytest.mark.parametrize(("elf_class", "machine"), [(64, 62), (32, 3)])
@pytest.mark.parametrize("rela", [True, False])
def test_type_of_a_parameter_with_a_setter_of_its_own_is_not_known(
    tmp_path: Path, elf_class: int, machine: int, rela: bool
) -> None:
    """kvm's nx_huge_pages says that it is a bool, and takes "auto" and "force"."""
    writer = ModuleWriter(
        elf_class,
        machine=machine,
        info=[("name", "kvm"), ("parmtype", "nx_huge_pages:bool"), ("parmtype", "tdp_mmu:bool")],
        parameters=["tdp_mmu", "nx_huge_pages"],
        own_setters=["nx_huge_pages"],
        rela=rela,
    )
    module = read_module(written(tmp_path, writer))

    assert {each.name: each.type for each in module.parameters.values()} == {
        "tdp_mmu": "bool",
        "nx_huge_pages": "",
    }


def test_soft_dependencies_are_those_of_modinfo(tmp_path: Path) -> None:
    info = [("name", "edu"), ("softdep", "pre: a-b post: c"), ("softdep", "pre: d")]
    module = read_module(written(tmp_path, ModuleWriter(info=info)))

    assert module.softdeps == ("pre: a-b post: c", "pre: d")


def test_crcs_of_exports_before_5_19_are_absolute_symbols(tmp_path: Path) -> None:
    writer = ModuleWriter(exports={"edu_read": 0xCAFEBABE}, absolute_crcs=True)

    assert read_module(written(tmp_path, writer)).exports == {"edu_read": 0xCAFEBABE}


def test_extended_versions_of_6_14_hold_names_longer_than_56_bytes(tmp_path: Path) -> None:
    long = "_RNvNtCs" + "x" * 100
    writer = ModuleWriter(extended={"module_layout": 1, long: 0xFFFFFFFF}, undefined=[long])
    module = read_module(written(tmp_path, writer))

    assert module.modversions
    assert module.imports == {"module_layout": 1, long: 0xFFFFFFFF}


def test_extended_versions_win_over_cut_names(tmp_path: Path) -> None:
    writer = ModuleWriter(versions={"printk": 1}, extended={"printk": 2, "kfree": 3})

    assert read_module(written(tmp_path, writer)).imports == {"printk": 2, "kfree": 3}


def test_module_without_crcs_has_its_undefined_symbols_as_imports(tmp_path: Path) -> None:
    module = read_module(written(tmp_path, ModuleWriter(undefined=["printk"], weak=["maybe"])))

    assert not module.modversions
    assert module.imports == {"printk": None}


def test_weak_import_with_a_crc_is_kept_apart(tmp_path: Path) -> None:
    writer = ModuleWriter(versions={"maybe": 7, "printk": 8}, weak=["maybe"], undefined=["printk"])
    module = read_module(written(tmp_path, writer))

    assert module.imports == {"printk": 8}
    assert module.weak_imports == {"maybe": 7}


def test_name_and_dependencies_are_folded_to_the_kernels_form(tmp_path: Path) -> None:
    info = [("license", "GPL"), ("depends", "video-dev,mc"), ("vermagic", VERMAGIC)]
    module = read_module(written(tmp_path, ModuleWriter(info=info), "my-driver.ko"))

    assert module.name == "my_driver"
    assert module.depends == ("video_dev", "mc")


def test_description_keeps_its_colons_and_odd_bytes(tmp_path: Path) -> None:
    info = [("parm", "debug:level: 0:off"), ("parmtype", "debug:int"), ("author", "J\udce9")]
    writer = ModuleWriter(info=[(k, v) for k, v in info if k != "author"])

    assert read_module(written(tmp_path, writer)).parameters["debug"] == Parameter(
        "debug", "int", "level: 0:off"
    )


def test_object_file_without_modinfo_is_not_a_module(tmp_path: Path) -> None:
    path = written(tmp_path, ModuleWriter())
    path.write_bytes(path.read_bytes().replace(b".modinfo", b".modonfi"))

    with pytest.raises(NotAModule, match=r"an object file without a .modinfo section"):
        read_module(path)


def test_versions_of_odd_size_are_refused(tmp_path: Path) -> None:
    writer = ModuleWriter(more=[Row("__versions", PROGBITS, bytes(65))])

    with pytest.raises(MalformedElf, match="__versions has 65 bytes, not a multiple of 64"):
        read_module(written(tmp_path, writer))


def test_more_crcs_than_names_are_refused(tmp_path: Path) -> None:
    rows = [
        Row("__version_ext_crcs", PROGBITS, bytes(40)),
        Row("__version_ext_names", PROGBITS, b"a\0b\0"),
    ]
    with pytest.raises(MalformedElf, match="10 extended CRCs, but 3 names"):
        read_module(written(tmp_path, ModuleWriter(more=rows)))


def test_endless_parameters_are_refused(tmp_path: Path) -> None:
    writer = ModuleWriter(parameters=[f"p{number}" for number in range(5000)])

    with pytest.raises(MalformedElf, match="4097 parameters, at most 4096 are read"):
        read_module(written(tmp_path, writer))


def test_endless_descriptions_of_parameters_are_refused(tmp_path: Path) -> None:
    info = [("license", "GPL"), *(("parm", f"p{number}:text") for number in range(5000))]

    with pytest.raises(MalformedElf, match="5000 parameters, at most 4096 are read"):
        read_module(written(tmp_path, ModuleWriter(info=info)))


def test_a_modinfo_without_end_is_refused(tmp_path: Path) -> None:
    info = [("license", "GPL"), ("alias", "a" * (4 << 20))]

    with pytest.raises(MalformedElf, match=r"section '\.modinfo' has \d+ bytes, at most 4194304"):
        read_module(written(tmp_path, ModuleWriter(info=info)))


# --- the child that reads ---------------------------------------------------------------------


def test_the_child_says_what_the_reader_says(tmp_path: Path) -> None:
    path = written(tmp_path, ModuleWriter(undefined=["printk"], weak=["maybe"]), "odd\udce9.ko")

    assert read_modules([SPECIMEN, path]) == [parse_module(SPECIMEN), parse_module(path)]


@pytest.mark.parametrize(
    ("crash", "how"),
    [
        (lambda _: os.kill(os.getpid(), signal.SIGKILL), "killed by SIGKILL"),
        (lambda _: bytes(1 << 40), "MemoryError"),
        (lambda _: int("a bug of ours"), "ValueError"),
    ],
)
def test_the_end_of_the_reader_is_a_refusal_of_the_module(
    crash: Callable[[Path], object], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modulefile, "parse_module", crash)

    with pytest.raises(UnreadableModule, match=rf"specimen\.ko: cannot be read \(.*: {how}") as no:
        read_module(SPECIMEN)

    assert (no.value.reason, no.value.retryable) == ("UnreadableModule", False)


def test_a_reader_that_does_not_end_is_a_refusal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modulefile, "parse_module", lambda _: threading.Event().wait())
    monkeypatch.setattr(modulefile, "_TIMEOUT", 0.01)

    with pytest.raises(UnreadableModule, match="cannot be read"):
        read_module(SPECIMEN)


# --- files ------------------------------------------------------------------------------------


def test_missing_file_names_itself(tmp_path: Path) -> None:
    with pytest.raises(SystemRefused, match=r"cannot read the module .*/no.ko: No such file"):
        read_module(tmp_path / "no.ko")


def test_pipe_and_directory_do_not_block_and_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.ko")
    for path in (tmp_path, tmp_path / "pipe.ko"):
        with pytest.raises(NodesideError, match="expected a regular file"):
            read_module(path)


def packed(path: Path, suffix: str) -> Path:
    """The specimen, compressed as distributions do it."""
    data = SPECIMEN.read_bytes()
    if suffix == ".gz":
        path.write_bytes(gzip.compress(data))
    elif suffix == ".xz":
        path.write_bytes(lzma.compress(data, check=lzma.CHECK_CRC32))
    else:
        run(["zstd", "-q", "-o", path, SPECIMEN], timeout=10)
    return path


@pytest.mark.parametrize("suffix", sampled([".gz", ".xz", ".zst"], 3))
def test_compressed_module_reads_as_the_plain_one(tmp_path: Path, suffix: str) -> None:
    path = packed(tmp_path / f"specimen.ko{suffix}", suffix)
    plain, module = read_module(SPECIMEN), read_module(path)

    assert module.name == "specimen"
    assert (module.build_id, module.imports) == (plain.build_id, plain.imports)
    assert module.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert decompress(path, tmp_path / "out.ko").read_bytes() == SPECIMEN.read_bytes()


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_truncated_compressed_module_is_damaged(tmp_path: Path, suffix: str) -> None:
    path = packed(tmp_path / f"specimen.ko{suffix}", suffix)
    path.write_bytes(path.read_bytes()[:-500])

    with pytest.raises(NotAModule, match=f"damaged {suffix[1:]} file"):
        decompress(path, tmp_path / "out.ko")
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name]


@pytest.mark.parametrize("suffix", sampled([".gz", ".xz", ".zst"], 3))
def test_bomb_is_refused_and_leaves_nothing(tmp_path: Path, suffix: str) -> None:
    bomb = tmp_path / f"bomb.ko{suffix}"
    zeroes = tmp_path / "zeroes"
    zeroes.write_bytes(bytes(8 << 20))
    if suffix == ".zst":
        run(["zstd", "-q", "-o", bomb, zeroes], timeout=10)
    else:
        compress = gzip.compress if suffix == ".gz" else partial(lzma.compress, preset=0)
        bomb.write_bytes(compress(zeroes.read_bytes()))
    zeroes.unlink()

    with pytest.raises(NotAModule, match="a module of more than 2 MiB is refused"):
        decompress(bomb, tmp_path / "out.ko", limit=2 << 20)
    assert [path.name for path in tmp_path.iterdir()] == [bomb.name]


def test_plain_module_over_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.ko"
    with open(path, "wb") as file:
        file.truncate(compression.MODULE_LIMIT + 1)

    with pytest.raises(NotAModule, match="a module of more than 512 MiB is refused"):
        read_module(path)


def test_missing_zstd_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = packed(tmp_path / "specimen.ko.zst", ".zst")
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ToolMissing, match="cannot start zstd") as info:
        read_module(path)
    assert info.value.hint == "install the package zstd: apt-get install zstd"


@given(st.data())
def test_damaged_real_module_gives_our_errors_only(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    real = bytearray(SPECIMEN.read_bytes())
    table = struct.unpack_from("<Q", real, 40)[0]
    places = st.integers(table, len(real) - 1) | st.integers(0, len(real) - 1)
    for place, value in data.draw(
        st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=8)
    ):
        real[place] = value
    path = tmp_path_factory.getbasetemp() / "damaged.ko"
    path.write_bytes(real)
    with only_our_errors("damaged.ko"):
        parse_module(path)


@given(st.binary(max_size=300), st.sampled_from([b"\x1f\x8b\x08", b"\xfd7zXZ\0"]))
def test_any_bytes_behind_a_compression_magic_give_our_errors_only(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, magic: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "random.ko"
    path.write_bytes(magic + data)

    with pytest.raises(NodesideError, match=r"random\.ko"):
        parse_module(path)
