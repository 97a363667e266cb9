"""What proves that the right modules are loaded, and which bundles may be loaded at all.

The cache, prebuilt sources, loaded.json, bundles of other kernels, signatures; the kernel is fake.
"""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from nodeside.driver.bringup.bringup import NoRungServed
from nodeside.driver.bundle.cache import Cache
from nodeside.driver.bundle.retention import KERNELS, VERSIONS
from nodeside.driver.ladder.compatible import look_for_compatible
from nodeside.driver.ladder.exported_symbols import ExportedSymbols
from nodeside.driver.ladder.rungs import fetch_options
from nodeside.driver.ladder.task import Task
from nodeside.driver.module.signing import SigningError, sign_module
from nodeside.driver.node.loaded_record import LoadedRecord
from nodeside.driver.node.run_directory import clear_loaded, loaded_path
from nodeside.driver.store.publish import publish_bundle
from nodeside.errors import NoSpace
from nodeside.protocol.bundle_key import bundle_key
from nodeside.protocol.node_status import Rung
from nodeside.spec.model import PrebuiltSource
from nodeside.system.host import Kernel
from tests.driver.fakes.compatible import compatible
from tests.driver.fakes.kernel import write_bytes
from tests.driver.fakes.keys import Pair, make_pair
from tests.driver.fakes.node import FakeNode, module_bytes, whys


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("signer"), "Acme module key")


# --- what proves a loaded module -------------------------------------------------------------


def published(node: FakeNode, tmp_path: Path) -> Path:
    """A prebuilt source with the bundle of the task, named in driver.yaml."""
    store = tmp_path / "store"
    store.mkdir()
    task = node.task(prebuilt={"sources": [{"directory": str(store)}]})
    bundle = node.put_bundle(task)
    publish_bundle(bundle, PrebuiltSource(directory=str(store)), fetch_options(task))
    return store


def test_where_nothing_is_known_on_the_node_a_prebuilt_source_proves_the_loaded_module(
    node: FakeNode, tmp_path: Path
) -> None:
    published(node, tmp_path)
    node.bring_up(node.task())
    node.forget_cache()
    clear_loaded(node.host, "straw")
    node.kernel.loads.clear()

    report = node.bring_up(node.task())

    assert report.source is Rung.LOADED
    assert (node.kernel.loads, node.kernel.unloads) == ([], [])
    assert node.record is not None
    assert node.record.key == node.task().key


def test_where_the_cache_was_lost_the_record_of_this_boot_proves_the_loaded_module(
    node: FakeNode,
) -> None:
    node.fill()
    node.forget_cache()
    report = node.bring_up(node.task())
    assert report.source is Rung.LOADED
    assert node.kernel.loads == []


def test_a_record_of_another_boot_proves_nothing(node: FakeNode) -> None:
    node.fill()
    node.forget_cache()
    path = loaded_path(node.host, "straw")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"boot_id": "another"}))
    with pytest.raises(NoRungServed, match=r"no bundle of 1.0 for this kernel to compare with"):
        node.bring_up(node.task())


def test_a_fetched_bundle_is_loaded_and_stays_in_the_cache(node: FakeNode, tmp_path: Path) -> None:
    published(node, tmp_path)
    node.forget_cache()
    report = node.bring_up(node.task())
    assert report.source is Rung.FETCHED
    assert node.cache.look_up_bundle(node.task().tag, node.task().key, "straw") is not None


def test_a_disk_that_is_full_while_a_bundle_is_adopted_is_said_as_that(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(node, tmp_path)
    node.forget_cache()

    def full(self: Cache, directory: Path) -> None:
        raise NoSpace(f"no space left writing {directory}")

    monkeypatch.setattr(Cache, "adopt_bundle", full)
    with pytest.raises(NoSpace) as caught:
        node.bring_up(node.task())
    assert caught.value.retryable
    assert node.kernel.loads == []


# --- other kernels' bundles ------------------------------------------------------------------


def test_a_bundle_of_another_kernel_with_equal_crcs_is_loaded_and_recognised_later(
    node: FakeNode,
) -> None:
    compatible(node)
    first = node.bring_up(node.task())
    assert first.source is Rung.COMPATIBLE
    assert whys(first)["compatible"] == (
        "built for 6.0.0-other; all 2 imported symbols have this kernel's CRCs"
    )
    node.kernel.loads.clear()

    again = node.bring_up(node.task())

    assert again.source is Rung.LOADED
    assert (node.kernel.loads, node.kernel.unloads) == ([], [])


def test_a_bundle_of_another_kernel_with_other_crcs_is_refused_with_the_symbols(
    node: FakeNode,
) -> None:
    compatible(node, crc=0x9999)
    with pytest.raises(NoRungServed, match=r"the one for 6.0.0-other differs in printk"):
        node.bring_up(node.task())


def test_a_compatible_bundle_may_import_what_a_driver_before_it_exports(node: FakeNode) -> None:
    compatible(node, more={"frob_get": 0x77})
    task = node.task(reuse="crc")
    symbols = "0x000000{}\tfrob_get\tprovider\tEXPORT_SYMBOL\t\n"
    same = replace(task, symbols=ExportedSymbols(symbols.format(77), "77"))
    other = replace(task, symbols=ExportedSymbols(symbols.format(78), "78"))

    assert look_for_compatible(same, None).bundle is not None
    assert look_for_compatible(task, None).bundle is None
    assert look_for_compatible(other, None).why == ("the one for 6.0.0-other differs in frob_get")


def test_a_damaged_bundle_of_another_kernel_is_not_used(node: FakeNode) -> None:
    compatible(node)
    file = next(node.cache.root.rglob("straw.ko"))
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(NoRungServed, match=r"the one for 6.0.0-other is damaged"):
        node.bring_up(node.task())
    assert node.kernel.loads == []


# --- what the cache keeps --------------------------------------------------------------------


def test_some_earlier_versions_and_the_bundles_of_the_last_kernels_are_kept(
    node: FakeNode,
) -> None:
    ages = itertools.count(1000)

    def put(task: Task) -> str:
        directory = node.put_bundle(task).directory
        os.utime(directory, (now := next(ages), now))
        return directory.name

    kernels = [Kernel(f"5.{n}", "#1", node.host.kernel.architecture) for n in range(4)]
    others = [put(node.task(kernel)) for kernel in kernels]
    versions = []
    for number in range(VERSIONS + 2):
        node.source(f"# {number}\n")
        versions.append(put(node.task(version=f"1.{number}")))

    node.bring_up(node.task())

    kept = {path.name for path in (node.cache.root / "straw").iterdir() if path.is_dir()}
    assert kept == {*others[-KERNELS:], *versions[-1 - VERSIONS :]}


def test_the_bundle_that_is_loaded_is_kept_whatever_it_is_for(node: FakeNode) -> None:
    compatible(node)
    node.bring_up(node.task())
    record = node.record
    assert isinstance(record, LoadedRecord)
    assert any(c.manifest.key == record.key for c in node.cache.list_manifests("straw"))


# --- signing ---------------------------------------------------------------------------------


def signing(pair: Pair) -> dict[str, str]:
    return {"key": str(pair.key), "certificate": str(pair.certificate)}


@pytest.mark.slow
def test_with_a_key_configured_an_unsigned_bundle_is_never_loaded(
    node: FakeNode, pair: Pair
) -> None:
    task = node.task(signing=signing(pair))
    node.put_bundle(task)
    with pytest.raises(NoRungServed, match=r"not signed as spec.signing requires"):
        node.bring_up(task)
    assert node.kernel.loads == []


@pytest.mark.slow
def test_with_a_key_configured_a_fetched_bundle_must_be_signed_by_it(
    node: FakeNode, pair: Pair, tmp_path: Path
) -> None:
    store = Cache(tmp_path / "store")
    task = node.task(
        signing=signing(pair), prebuilt={"sources": [{"directory": str(tmp_path / "archives")}]}
    )
    (tmp_path / "archives").mkdir()
    # A publisher who says that there was no certificate is not stopped by `publish`.
    bundle = node.put_bundle(task, cache=store, certificate="")
    publish_bundle(
        bundle, PrebuiltSource(directory=str(tmp_path / "archives")), fetch_options(task)
    )

    with pytest.raises(NoRungServed, match=r"fetched: not signed as spec.signing requires"):
        node.bring_up(task)
    assert node.kernel.loads == []
    assert node.cache.look_up_bundle(task.tag, task.key, "straw") is None


@pytest.mark.slow
def test_a_bundle_signed_by_the_configured_key_is_loaded(node: FakeNode, pair: Pair) -> None:
    task = node.task(signing=signing(pair))
    plain = write_bytes(node.directory / "straw.ko", module_bytes("straw"))
    sign_module(plain, pair.key, pair.certificate)
    node.put_bundle(task, {"straw": plain.read_bytes()})
    assert node.bring_up(task).source is Rung.CACHED


def test_the_certificate_is_part_of_the_key(node: FakeNode, pair: Pair) -> None:
    unsigned, signed = node.task().key, node.task(signing=signing(pair)).key
    assert unsigned != signed
    task = node.task()
    assert signed == bundle_key(task.source_digest, task.settings, task.kernel, task.certificate)


def test_a_certificate_that_cannot_be_read_is_said_before_anything_is_done(
    node: FakeNode, tmp_path: Path
) -> None:
    missing = {"key": str(tmp_path / "k"), "certificate": str(tmp_path / "c.pem")}
    with pytest.raises(SigningError, match=r"cannot read the certificate .*c\.pem"):
        node.task(signing=missing)
