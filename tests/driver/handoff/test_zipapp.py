"""What the sidecar's program and its Python are compiled to."""

from __future__ import annotations

import marshal
import sys
import zipfile
from pathlib import Path
from types import CodeType

import pytest

from nodeside.driver.handoff import zipapp

SOURCE = b'first, rest, table = words[0], words[1:], grid[1:, :-1]\nsign = "\\xa7"\n'


def compiled() -> CodeType:
    return compile(SOURCE, "words.py", "exec", dont_inherit=True)


def test_the_program_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    (tmp_path / "one.pyz").write_bytes(zipapp.build_zipapp())
    (tmp_path / "two.pyz").write_bytes(zipapp.build_zipapp())
    assert (tmp_path / "one.pyz").read_bytes() == (tmp_path / "two.pyz").read_bytes()


@pytest.mark.usefixtures("compiled_once")
def test_the_program_holds_the_sidecar_and_its_common_ground_alone(tmp_path: Path) -> None:
    (tmp_path / "toolkit.pyz").write_bytes(zipapp.build_zipapp())
    with zipfile.ZipFile(tmp_path / "toolkit.pyz") as archive:
        names = {name for name in archive.namelist() if name.endswith(".py")}
    shared = {f"nodeside/{stem}.py" for stem in zipapp.SHARED}
    assert shared < names
    assert all("/toolkit_sidecar/" in name for name in names - shared - {"__main__.py"})


@pytest.mark.usefixtures("compiled_once")
def test_a_program_that_was_packed_is_not_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "packed.pyz"
    packed.write_bytes(zipapp.build_zipapp())
    monkeypatch.setattr(zipapp, "compile_pyc", None)

    assert zipapp.build_zipapp(packed) == packed.read_bytes()


@pytest.mark.usefixtures("compiled_once")
def test_a_packed_program_of_other_sources_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, current = tmp_path / "packed.pyz", zipapp.build_zipapp()
    sources = [
        (name, text.replace(b"sidecar", b"Sidecar")) for name, text in zipapp._program_sources()
    ]
    with monkeypatch.context() as patch:
        patch.setattr(zipapp, "_program_sources", lambda: iter(sources))
        packed.write_bytes(zipapp.build_zipapp())

    assert zipapp.build_zipapp(packed) == current


@pytest.mark.usefixtures("compiled_once")
@pytest.mark.parametrize("length", [0, 1000, -1])
def test_a_packed_program_that_was_cut_is_not_taken(tmp_path: Path, length: int) -> None:
    packed, current = tmp_path / "packed.pyz", zipapp.build_zipapp()
    packed.write_bytes(current[:length])

    assert zipapp.build_zipapp(packed) == current


@pytest.mark.usefixtures("compiled_once")
def test_without_a_packed_program_one_is_made(tmp_path: Path) -> None:
    assert zipapp.build_zipapp(tmp_path / "none") == zipapp.build_zipapp()


@pytest.mark.usefixtures("compiled_once")
def test_a_packed_program_of_another_python_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, current = tmp_path / "packed.pyz", zipapp.build_zipapp()
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.MAGIC_NUMBER", b"1\r\r\n")
        packed.write_bytes(zipapp.build_zipapp())

    assert zipapp.build_zipapp(packed) == current


def test_what_else_the_process_has_loaded_does_not_show_in_it() -> None:
    before = zipapp.compile_pyc(SOURCE, "words.py")

    loaded = [sys.intern("\xa7"), compiled()]

    assert zipapp.compile_pyc(SOURCE, "words.py") == before, loaded


def test_this_python_reads_what_it_has_written() -> None:
    assert marshal.loads(zipapp.marshal_code(compiled())) == compiled()


def test_slices_among_the_constants_are_written_as_python_3_14_reads_them() -> None:
    """Code of Python 3.14 has them, also in tuples; see w_complex_object in Python/marshal.c."""
    constants = (None, slice(1, None, -1), ("a", slice(None, 7)))
    code = compiled().replace(co_consts=constants)

    data = zipapp.marshal_code(code)

    assert b":i\x01\0\0\0Ni\xff\xff\xff\xff" in data
    assert b"(\x02\0\0\0u\x01\0\0\0a:Ni\x07\0\0\0N" in data
    assert code.co_consts == constants
