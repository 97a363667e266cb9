"""Archives: ours are always the same, those of others may be anything."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeside.driver.bundle.archive import pack_bundle, peek_manifest, unpack_bundle
from nodeside.driver.bundle.bundle import Bundle, verify_bundle
from nodeside.driver.bundle.manifest import BundleError, StoredManifest, canonical_bytes
from nodeside.errors import ExitCode
from tests.driver.fakes.bundles import END, sample_bundle, tar_entry, tar_of

LIMIT = 1 << 20


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return sample_bundle(tmp_path / "bundle")


@pytest.fixture
def archive(bundle: Bundle, tmp_path: Path) -> Path:
    pack_bundle(bundle, tmp_path / "edu.tar.gz")
    return tmp_path / "edu.tar.gz"


def refused(data: bytes, tmp_path: Path, words: str, *, limit: int = LIMIT) -> BundleError:
    """Unpack these bytes; they must be refused with these words, and nothing may be left."""
    place = tmp_path / "hostile"
    place.mkdir()
    (tmp_path / "hostile.tar.gz").write_bytes(data)
    with pytest.raises(BundleError, match=words) as caught:
        unpack_bundle(tmp_path / "hostile.tar.gz", place / "new", limit)
    assert "hostile.tar.gz" in str(caught.value)
    assert caught.value.exit_code is ExitCode.BUNDLE
    assert not list(place.iterdir())
    return caught.value


def test_a_packed_bundle_is_the_same_after_unpacking(
    bundle: Bundle, archive: Path, tmp_path: Path
) -> None:
    again = unpack_bundle(archive, tmp_path / "new", LIMIT)

    verify_bundle(again)
    assert again.digest == bundle.digest
    assert again.manifest == bundle.manifest
    assert again.module_path("edu").read_bytes() == bundle.module_path("edu").read_bytes()


def test_the_same_bundle_gives_the_same_archive(
    archive: Path, tmp_path: Path, bundle: Bundle
) -> None:
    for path in bundle.directory.rglob("*"):
        os.utime(path, (1, 1))
    bundle.module_path("edu").chmod(0o600)
    pack_bundle(bundle, tmp_path / "second.tar.gz")

    assert archive.read_bytes() == (tmp_path / "second.tar.gz").read_bytes()


def test_other_tools_can_read_our_archive(archive: Path) -> None:
    with tarfile.open(archive) as tar:
        members = tar.getmembers()

    assert [m.name for m in members] == [
        "manifest.json",
        "modules/edu.ko",
        "modules/edu_dma.ko",
    ]
    assert {(m.uid, m.gid, m.mtime, m.mode) for m in members} == {(0, 0, 0, 0o644)}


def test_an_archive_that_other_tools_made_is_read(bundle: Bundle, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz", format=tarfile.GNU_FORMAT) as tar:
        for name in ("modules", "manifest.json"):
            tar.add(bundle.directory / name, name)

    assert unpack_bundle(tmp_path / "x.tar.gz", tmp_path / "new", LIMIT).digest == bundle.digest


def test_the_manifest_is_read_from_the_beginning_of_an_archive(
    bundle: Bundle, archive: Path
) -> None:
    beginning = archive.read_bytes()[:-40]

    described = peek_manifest(io.BytesIO(beginning), LIMIT, "edu.tar.gz")

    assert (described.manifest, described.digest) == (bundle.manifest, bundle.digest)
    assert described.signature == b""


def test_the_signature_comes_next_and_is_read_with_it(tmp_path: Path) -> None:
    signed = sample_bundle(tmp_path / "signed", sign=lambda data: data[:3] + b"signed")
    pack_bundle(signed, tmp_path / "signed.tar.gz")
    beginning = (tmp_path / "signed.tar.gz").read_bytes()[:-40]

    described = peek_manifest(io.BytesIO(beginning), LIMIT, "edu.tar.gz")
    again = unpack_bundle(tmp_path / "signed.tar.gz", tmp_path / "new", LIMIT)

    verify_bundle(again)
    assert described.signature.endswith(b"signed")
    assert (again.directory / "manifest.json.p7s").read_bytes() == described.signature


@pytest.mark.slow
def test_many_small_files_cost_the_disk_nothing_before_they_are_accepted(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    many = b"".join(tar_entry(f"modules/m{number}.ko") for number in range(2_000))

    refused(
        gzip.compress(tar_of(bundle) + many + END),
        tmp_path,
        "is not in the manifest",
        limit=8 << 20,
    )

    assert synced == []


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (tar_entry("/etc/cron.d/x", b"x"), "unexpected entry '/etc/cron.d/x'; only manifest.json"),
        (tar_entry("../x", b"x"), r"unexpected entry '\.\./x'"),
        (tar_entry("modules/../../x.ko", b"x"), r"unexpected entry 'modules/\.\./\.\./x\.ko'"),
        (tar_entry("modules//x.ko", b"x"), r"unexpected entry 'modules//x\.ko'"),
        (tar_entry("modules/.tmp-x", b"x"), r"unexpected entry 'modules/\.tmp-x'"),
        (tar_entry("firmware/x", b"x"), "unexpected entry 'firmware/x'"),
        (tar_entry("./modules/x.ko", b"x"), r"unexpected entry '\./modules/x\.ko'"),
        (tar_entry("modules/x.ko.gz", b"x"), r"unexpected entry 'modules/x\.ko\.gz'"),
        (tar_entry("README", b"x"), "unexpected entry 'README'"),
        (tar_entry("modules/x\n.ko", b"x"), r"unexpected entry 'modules/x\\n\.ko'"),
        (tar_entry("modules/x.ko", kind=tarfile.SYMTYPE, link="/etc/passwd"), "a symbolic link"),
        (tar_entry("modules/x.ko", kind=tarfile.LNKTYPE, link="manifest.json"), "a hard link"),
        (tar_entry("modules/x.ko", kind=tarfile.CHRTYPE), "is a character device"),
        (tar_entry("modules/x.ko", kind=tarfile.BLKTYPE), "is a block device"),
        (tar_entry("modules/x.ko", kind=tarfile.FIFOTYPE), "is a fifo"),
        (tar_entry("etc", kind=tarfile.DIRTYPE), "'etc' is a directory"),
        (tar_entry("modules/..", kind=tarfile.DIRTYPE), r"'modules/\.\.' is a directory"),
        (tar_entry("x", b"1 path=/x\n", kind=tarfile.XHDTYPE), r"an extended header \(pax\)"),
        (tar_entry("x", b"y", kind=tarfile.GNUTYPE_LONGNAME), r"a long name \(GNU\)"),
        (tar_entry("modules/x.ko", b"y", kind=b"Z"), "of type b'Z'"),
        (tar_entry("modules/more.ko", b"x"), r"modules/more\.ko is not in the manifest"),
        (tar_entry("modules/edu.ko", b"x"), r"modules/edu\.ko appears twice"),
        (tar_entry("manifest.json", b"{}"), r"manifest\.json appears twice"),
        (tar_entry("manifest.json.p7s", bytes(1 << 17)), "the signature has more than 64 KiB"),
        (tar_entry("modules", b"x"), "unexpected entry 'modules'"),
        (tar_entry("modules/edu.ko/x.ko", b"x"), r"unexpected entry 'modules/edu\.ko/x\.ko'"),
    ],
)
def test_what_may_not_be_in_an_archive_is_refused_by_name(
    bundle: Bundle, tmp_path: Path, entry: bytes, words: str
) -> None:
    refused(gzip.compress(tar_of(bundle) + entry + END), tmp_path, words)


def test_an_empty_manifest_before_the_real_one_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    data = tar_entry("manifest.json") + tar_of(bundle) + END

    refused(gzip.compress(data), tmp_path, r"manifest\.json appears twice")


def test_a_module_that_is_not_the_described_one_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    data = tar_of(bundle).replace(b"ELF dma", b"ELF bad")

    refused(gzip.compress(data + END), tmp_path, r"modules/edu_dma\.ko has 8 bytes and sha256 \w+,")


def test_a_missing_module_is_named(bundle: Bundle, tmp_path: Path) -> None:
    data = tar_entry("manifest.json", canonical_bytes(bundle.manifest))

    refused(gzip.compress(data + END), tmp_path, r"modules/edu\.ko is missing")


def test_an_archive_without_a_manifest_is_refused(tmp_path: Path) -> None:
    data = tar_entry("modules/edu.ko", b"x")

    refused(gzip.compress(data + END), tmp_path, r"it has no manifest\.json")


@pytest.mark.parametrize("keep", [0, 1, 10, 100, -1, -8, -9, -20])
def test_a_truncated_archive_is_refused(archive: Path, tmp_path: Path, keep: int) -> None:
    refused(archive.read_bytes()[:keep], tmp_path, "the archive is truncated")


def test_a_tar_without_its_end_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    refused(gzip.compress(tar_of(bundle)), tmp_path, "the archive is truncated")


def test_a_header_is_not_looked_for_in_a_mebibyte_of_packed_bytes(archive: Path) -> None:
    asked: list[int] = []

    class Recording(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            asked.append(size if size is not None else -1)
            return super().read(size)

    peek_manifest(Recording(archive.read_bytes()), 1 << 20, "a test")

    assert 0 < max(asked) <= 1 << 16
    assert min(asked) > 0


def test_garbage_is_refused(tmp_path: Path) -> None:
    refused(b"<html>not found</html>" * 100, tmp_path, "not a gzip file, or damaged")


def test_a_gzip_of_something_else_is_refused(tmp_path: Path) -> None:
    refused(gzip.compress(b"hello " * 1000), tmp_path, "not a tar archive, or damaged")


def test_what_follows_the_end_is_refused(archive: Path, bundle: Bundle, tmp_path: Path) -> None:
    inside = gzip.compress(tar_of(bundle) + END + b"more")
    refused(inside, tmp_path, "data follows the end of the archive")
    (tmp_path / "hostile").rmdir()
    refused(
        archive.read_bytes() + archive.read_bytes(),
        tmp_path,
        "data follows the end of the compressed data",
    )


def test_a_bomb_is_given_up_at_the_limit(bundle: Bundle, tmp_path: Path) -> None:
    bomb = tarfile.TarInfo("modules/bomb.ko")
    bomb.size = 1 << 40
    head = tar_of(bundle) + bomb.tobuf(tarfile.GNU_FORMAT)
    packer = zlib.compressobj(1, wbits=31)
    data = packer.compress(head) + b"".join(packer.compress(bytes(1 << 20)) for _ in range(64))
    assert len(data) < LIMIT

    error = refused(data + packer.flush(), tmp_path, f"it unpacks to more than {LIMIT} bytes")

    assert "sizeLimitMib" in error.hint


def test_a_bomb_behind_the_end_is_given_up_at_the_limit(bundle: Bundle, tmp_path: Path) -> None:
    data = gzip.compress(tar_of(bundle) + bytes(8 << 20))

    refused(data, tmp_path, f"it unpacks to more than {LIMIT} bytes")


def test_an_archive_that_is_too_large_is_not_even_opened(archive: Path, tmp_path: Path) -> None:
    size = archive.stat().st_size

    refused(archive.read_bytes(), tmp_path, f"{size} bytes, at most 100 are read", limit=100)


def test_a_manifest_of_any_size_is_not_read(tmp_path: Path) -> None:
    info = tarfile.TarInfo("manifest.json")
    info.size = 100 << 20
    data = gzip.compress(info.tobuf(tarfile.USTAR_FORMAT) + bytes(1024))

    refused(data, tmp_path, "the manifest has more than 8 MiB")


@pytest.mark.slow
def test_too_many_entries_are_refused(tmp_path: Path) -> None:
    entry = tar_entry("modules", kind=tarfile.DIRTYPE)

    refused(
        gzip.compress(entry * 10_001 + END, 1),
        tmp_path,
        "it has more than 10000 entries",
        limit=16 << 20,
    )


@pytest.mark.slow
def test_as_many_entries_as_are_allowed_are_read_to_the_end(bundle: Bundle, tmp_path: Path) -> None:
    tar = tar_of(bundle)
    with tarfile.open(fileobj=io.BytesIO(tar + END)) as opened:
        left = 10_000 - len(opened.getmembers())
    archive = tmp_path / "full.tar.gz"
    entry = tar_entry("modules", kind=tarfile.DIRTYPE)
    archive.write_bytes(gzip.compress(tar + entry * left + END, 1))

    assert unpack_bundle(archive, tmp_path / "new", 16 << 20).digest == bundle.digest


def test_a_bundle_that_is_not_the_accepted_one_never_appears(archive: Path, tmp_path: Path) -> None:
    def accept(described: StoredManifest) -> None:
        raise BundleError(f"not {described.digest}")

    with pytest.raises(BundleError, match="not sha256:"):
        unpack_bundle(archive, tmp_path / "new", LIMIT, accept=accept)
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob(".tmp-*"))


@dataclass(frozen=True)
class Valid:
    """The tar inside a valid archive, small enough that a mutation hits something."""

    tar: bytes = field(repr=False)


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Valid:
    directory = tmp_path_factory.mktemp("valid")
    return Valid(tar_of(sample_bundle(directory / "b", contents={"edu": b"x" * 9})) + END)


_FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
_EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.binary(max_size=12), st.integers(0, 600)), min_size=1, max_size=4
)


@_FUZZ
@given(edits=_EDITS, compressed=st.booleans())
def test_whatever_happened_to_an_archive_it_is_whole_or_refused(
    valid: Valid, edits: list[tuple[float, bytes, int]], compressed: bool, tmp_path: Path
) -> None:
    """Edits of the compressed bytes, which the checksum finds, and of the tar below it."""
    data = gzip.compress(valid.tar, mtime=0) if compressed else valid.tar
    for where, new, removed in edits:
        at = int(where * len(data))
        data = data[:at] + new + data[at + removed :]
    _whole_or_refused(data if compressed else gzip.compress(data, 1), tmp_path)


@_FUZZ
@given(
    name=st.text(max_size=40) | st.sampled_from(["modules/edu.ko", "modules/x", "manifest.json"]),
    kind=st.binary(min_size=1, max_size=1),
    size=st.integers(-(1 << 62), 1 << 62),
)
def test_whatever_stands_in_a_header_the_archive_is_whole_or_refused(
    valid: Valid, name: str, kind: bytes, size: int, tmp_path: Path
) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    try:
        header = info.tobuf(tarfile.GNU_FORMAT)
    except (ValueError, OverflowError):
        return
    _whole_or_refused(gzip.compress(header + valid.tar, 1), tmp_path)


@pytest.mark.parametrize("compressed", [True, False])
def test_the_untouched_archive_is_whole_where_the_edited_ones_are_tried(
    valid: Valid, compressed: bool, tmp_path: Path
) -> None:
    level = 9 if compressed else 1
    assert _whole_or_refused(gzip.compress(valid.tar, level, mtime=0), tmp_path)
    assert not _whole_or_refused(gzip.compress(valid.tar[:-1500], level, mtime=0), tmp_path)


def _whole_or_refused(data: bytes, tmp_path: Path) -> bool:
    """Return whether it is whole."""
    place = tmp_path / "place"
    place.mkdir(exist_ok=True)
    (tmp_path / "x.tar.gz").write_bytes(data)
    try:
        bundle = unpack_bundle(tmp_path / "x.tar.gz", place / "new", LIMIT)
    except BundleError:
        assert not list(place.iterdir())
        return False
    verify_bundle(bundle)
    assert json.loads((place / "new/manifest.json").read_bytes())["driver"] == "edu"
    for path in sorted(place.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    return True
