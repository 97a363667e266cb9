"""Bundles on disk and their manifests."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeside.driver.bundle.bundle import Bundle, read_bundle, verify_bundle, write_bundle
from nodeside.driver.bundle.manifest import (
    MANIFEST_LIMIT,
    BundleError,
    bundle_digest,
    canonical_bytes,
    describe_module,
    parse_manifest,
    same_modules,
)
from nodeside.driver.module.modulefile import ModuleFile
from nodeside.driver.module.signature import Signature
from nodeside.errors import ExitCode
from nodeside.protocol.records import encode
from tests.driver.fakes.bundles import sample_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return sample_bundle(tmp_path / "bundle")


def test_what_was_written_is_read_again_and_verifies(bundle: Bundle) -> None:
    again = read_bundle(bundle.directory)

    verify_bundle(again)
    assert again == bundle
    assert again.module_path("edu-dma").read_bytes() == b"\x7fELF dma"


def test_the_digest_is_what_sha256sum_shows_for_the_manifest(bundle: Bundle) -> None:
    shown = hashlib.sha256((bundle.directory / "manifest.json").read_bytes()).hexdigest()

    assert bundle.digest == bundle_digest(bundle.manifest) == f"sha256:{shown}"


def test_the_same_bundle_has_the_same_digest(tmp_path: Path) -> None:
    assert sample_bundle(tmp_path / "a").digest == sample_bundle(tmp_path / "b").digest


def test_a_bundle_built_at_another_time_holds_the_same_modules(tmp_path: Path) -> None:
    one = sample_bundle(tmp_path / "a")
    other = sample_bundle(tmp_path / "b", created="2027-01-01T00:00:00+00:00")

    assert one.digest != other.digest
    assert same_modules(one.manifest, other.manifest)


def test_a_module_that_is_not_in_the_bundle_is_named_with_those_that_are(bundle: Bundle) -> None:
    with pytest.raises(BundleError, match=r"has no module edu_irq; its modules are edu, edu_dma"):
        bundle.module_path("edu-irq")


def test_a_file_that_is_not_the_described_one_is_refused_and_nothing_appears(
    bundle: Bundle, tmp_path: Path
) -> None:
    other = tmp_path / "other.ko"
    other.write_bytes(b"another build")
    with pytest.raises(BundleError, match=r"other\.ko is not the file that the manifest describes"):
        write_bundle(tmp_path / "new", bundle.manifest, {"edu": other, "edu_dma": other})

    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_manifest_of_too_many_modules_is_refused(bundle: Bundle) -> None:
    one = encode(bundle.manifest.modules[0])
    record = encode(bundle.manifest)
    record["modules"] = [
        one | {"name": f"m{number}", "file": f"modules/m{number}.ko"} for number in range(2_001)
    ]

    with pytest.raises(BundleError, match="list of modules has more than 2000"):
        parse_manifest(json.dumps(record).encode(), "manifest.json")


def test_a_bundle_is_never_written_over_another(bundle: Bundle) -> None:
    manifest = bundle.manifest
    files = {m.name: bundle.module_path(m.name) for m in manifest.modules}

    with pytest.raises(BundleError, match="already exists"):
        write_bundle(bundle.directory, manifest, files)

    verify_bundle(read_bundle(bundle.directory))


def test_a_changed_byte_is_found_and_named(bundle: Bundle) -> None:
    path = bundle.module_path("edu_dma")
    path.write_bytes(b"\x7fELF dmb")

    with pytest.raises(BundleError, match=r"edu_dma\.ko has sha256 \w{64}, expected \w{64}"):
        verify_bundle(bundle)


def test_a_truncated_module_is_found_and_named(bundle: Bundle) -> None:
    os.truncate(bundle.module_path("edu"), 100)

    with pytest.raises(BundleError, match=r"edu\.ko has 100 bytes, expected 8991"):
        verify_bundle(bundle)


def test_a_missing_module_is_found_and_named(bundle: Bundle) -> None:
    bundle.module_path("edu").unlink()

    with pytest.raises(BundleError, match=r"modules/edu\.ko is missing"):
        verify_bundle(bundle)


def test_a_file_that_the_manifest_does_not_know_is_refused(bundle: Bundle) -> None:
    (bundle.directory / "modules" / "extra.ko").write_bytes(b"x")

    with pytest.raises(BundleError, match=r"modules/extra\.ko is not in the manifest"):
        verify_bundle(bundle)


def test_a_link_in_place_of_a_module_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    path = bundle.module_path("edu")
    path.rename(tmp_path / "away.ko")
    path.symlink_to(tmp_path / "away.ko")

    with pytest.raises(BundleError, match=r"edu\.ko is neither a file nor a directory"):
        verify_bundle(bundle)


def test_a_directory_without_a_manifest_is_no_bundle(bundle: Bundle) -> None:
    (bundle.directory / "manifest.json").unlink()

    with pytest.raises(BundleError, match=r"no manifest\.json, so it is not a bundle") as caught:
        read_bundle(bundle.directory)
    assert caught.value.exit_code is ExitCode.BUNDLE


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 2}, "the manifest has schema 2, this nodeside reads 1"),
        ({"key": "../../etc"}, r"the manifest's key is not 64 hex digits: '../../etc'"),
        ({"driver": "../evil"}, "the manifest's driver is not a valid driver name"),
        ({"modules": []}, "list of modules is empty"),
        ({"kernel": 3}, r"manifest\.kernel: expected Kernel, got 3"),
        ({"kernel": "x" * 9999}, r"manifest\.kernel: expected Kernel, got 'x{199}$"),
        ({"version": "1\x1b[2J"}, "the manifest's text has control characters"),
        ({"version": ".tmp-x"}, "the manifest's version is not a valid driver version: '.tmp-x'"),
        ({"version": "x" * 300}, "the manifest's version is not a valid driver version: 'xxx"),
        (
            {"created": "x" * 2000},
            "the manifest's text has a value of 2000 characters, expected at most 1024: 'xxx",
        ),
    ],
)
def test_a_manifest_that_means_harm_or_nothing_is_refused(
    bundle: Bundle, change: dict[str, Any], words: str
) -> None:
    record = json.loads(canonical_bytes(bundle.manifest)) | change

    with pytest.raises(BundleError, match=words):
        parse_manifest(json.dumps(record).encode(), "x.tar.gz")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"file": "/etc/passwd"}, "has an invalid file name: '/etc/passwd'"),
        ({"file": "modules/../x.ko"}, r"has an invalid file name: 'modules/\.\./x\.ko'"),
        ({"file": "modules/edu_dma.ko"}, r"modules/edu_dma\.ko appears twice"),
        ({"name": "edu_dma"}, "edu_dma appears twice"),
        ({"name": "edu drv"}, "include an invalid module name: 'edu drv'"),
        ({"sha256": "00"}, "is not 64 hex digits: '00'"),
        ({"size": -1}, "is negative: -1"),
        ({"size": True}, r"manifest\.modules\[0\]\.size: expected int, got True"),
        ({"imports": {"printk": "zero"}}, "has an invalid symbol or CRC: 'printk': 'zero'"),
        ({"imports": {"\x1b[2J": 3}}, r"imports\.'\\x1b\[2J': expected str, got 3"),
    ],
)
def test_a_module_that_means_harm_or_nothing_is_refused(
    bundle: Bundle, change: dict[str, Any], words: str
) -> None:
    record = json.loads(canonical_bytes(bundle.manifest))
    record["modules"][0] |= change

    with pytest.raises(BundleError, match=words):
        parse_manifest(json.dumps(record).encode(), "x.tar.gz")


def test_a_manifest_of_any_size_is_not_read(bundle: Bundle) -> None:
    path = bundle.directory / "manifest.json"
    os.truncate(path, MANIFEST_LIMIT + 1)

    with pytest.raises(BundleError, match=f"at most {MANIFEST_LIMIT} are read"):
        read_bundle(bundle.directory)


def test_a_manifest_that_is_nested_without_end_is_refused() -> None:
    with pytest.raises(BundleError, match="the manifest is not JSON"):
        parse_manifest(b'{"a":' * 100_000, "x.tar.gz")


def test_fields_that_are_newer_than_us_are_ignored_and_the_digest_covers_them(
    bundle: Bundle,
) -> None:
    path = bundle.directory / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"mood": "sunny"}))

    again = read_bundle(bundle.directory)

    verify_bundle(again)
    assert again.manifest == bundle.manifest
    assert again.digest == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def test_a_manifest_says_of_a_module_what_it_asks_of_a_kernel(tmp_path: Path) -> None:
    module = ModuleFile(
        path=tmp_path / "edu.ko",
        name="edu",
        sha256="0" * 64,
        license="GPL",
        imports={"printk": 0x1234, "pci_enable_device": 0xDEADBEEF, "no_crc": None},
        weak_imports={"maybe": 1},
        exports={"edu_register": 5},
        import_namespaces=("DMA_BUF",),
        signature=Signature(signer="vendor"),
    )
    described = describe_module(module, "modules/edu.ko")

    assert described.signer == "vendor"
    assert described.imports["pci_enable_device"] == "0xdeadbeef"
    assert described.imports["no_crc"] == ""
    assert described.weak_imports == {"maybe": "0x00000001"}
    assert described.exports == {"edu_register": "0x00000005"}
    assert described.import_namespaces == ("DMA_BUF",)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)


@settings(deadline=None)
@given(data=st.data())
def test_whatever_stands_in_a_manifest_it_is_parsed_or_refused(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("fuzz")
    record: Any = json.loads(canonical_bytes(sample_bundle(directory / "b").manifest))
    here = record
    for _ in range(data.draw(st.integers(0, 3))):
        inner = [v for v in (here.values() if isinstance(here, dict) else here) if v]
        inner = [v for v in inner if isinstance(v, dict | list)]
        if not inner:
            break
        here = data.draw(st.sampled_from(inner))
    if isinstance(here, dict):
        here[data.draw(st.sampled_from(sorted(here)) | st.text(max_size=5))] = data.draw(_JSON)
    else:
        here[data.draw(st.integers(0, len(here) - 1))] = data.draw(_JSON)

    _parsed_or_refused(json.dumps(record).encode())


@given(st.binary(max_size=200))
def test_whatever_bytes_are_a_manifest_they_are_refused(data: bytes) -> None:
    with pytest.raises(BundleError):
        parse_manifest(data, "x.tar.gz")


def test_the_untouched_manifest_is_parsed_where_the_changed_ones_are_tried(tmp_path: Path) -> None:
    record: Any = json.loads(canonical_bytes(sample_bundle(tmp_path / "b").manifest))
    assert _parsed_or_refused(json.dumps(record).encode())
    del record["driver"]
    assert not _parsed_or_refused(json.dumps(record).encode())


def _parsed_or_refused(data: bytes) -> bool:
    """Return whether it was parsed."""
    try:
        manifest = parse_manifest(data, "x.tar.gz")
    except BundleError:
        return False
    assert parse_manifest(canonical_bytes(manifest), "again") == manifest
    for file in manifest.files():
        parts = Path(file.file).parts
        assert parts[0] == "modules"
        assert ".." not in parts
    return True
