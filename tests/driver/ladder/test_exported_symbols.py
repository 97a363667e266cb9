"""What the modules of one driver export, as the build and the key of another one have it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from nodeside.driver.bundle.manifest import BundleManifest
from nodeside.driver.ladder.exported_symbols import (
    clear_symbols,
    join_exports,
    symbols_of_loaded,
    symvers_of,
    symvers_path,
    write_symbols,
)
from nodeside.driver.ladder.task import resolve_task
from nodeside.driver.module.symvers import parse_symvers
from nodeside.driver.node.run_directory import write_loaded
from nodeside.errors import UsageError
from nodeside.system.host import Kernel
from tests.driver.fakes.node import BOOT_ID, FakeNode

CRC = {"straw_bend": "0x0000beef", "straw_burn": "0x0000f00d"}


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


def manifest(node: FakeNode, exports: Mapping[str, str] = CRC) -> BundleManifest:
    found = node.put_bundle(node.task()).manifest
    [module] = found.modules
    return dataclasses.replace(found, modules=(dataclasses.replace(module, exports=exports),))


def loaded(node: FakeNode, given: BundleManifest, boot_id: str = BOOT_ID) -> None:
    node.bring_up(node.task())
    record = node.record
    assert record is not None
    write_symbols(node.host, given)
    write_loaded(node.host, dataclasses.replace(record, key=given.key, boot_id=boot_id))


def test_a_list_has_every_symbol_with_its_crc_and_module(node: FakeNode) -> None:
    found = parse_symvers(symvers_of(manifest(node)))
    assert {name: (each.crc, each.module) for name, each in found.items()} == {
        "straw_bend": (0xBEEF, "straw"),
        "straw_burn": (0xF00D, "straw"),
    }


def test_a_symbol_that_no_kernel_has_does_not_spoil_the_list(node: FakeNode) -> None:
    hostile = {"a b": "0x00000001", "ß": "0x00000001", "": "", **CRC}
    assert parse_symvers(symvers_of(manifest(node, hostile))).keys() == CRC.keys()


def test_what_is_loaded_counts_in_this_boot_only(node: FakeNode) -> None:
    given = manifest(node)
    assert symbols_of_loaded(node.host, ["straw"], BOOT_ID).digest == ""
    loaded(node, given)
    found = symbols_of_loaded(node.host, ["straw", "nobody"], BOOT_ID)
    assert found == join_exports([(symvers_of(given), given.key)])
    assert symbols_of_loaded(node.host, ["straw"], "another").text == ""
    node.forget_cache()
    assert symbols_of_loaded(node.host, ["straw"], BOOT_ID) == found
    clear_symbols(node.host, "straw")
    assert symbols_of_loaded(node.host, ["straw"], BOOT_ID).text == ""
    assert not symvers_path(node.host, "straw").exists()


def test_without_crcs_the_key_tells_two_versions_apart() -> None:
    plain, bare = "0x0000beef\ta\tstraw\tEXPORT_SYMBOL\t\n", "0x00000000\ta\tm\tEXPORT_SYMBOL\t\n"
    assert join_exports([(plain, "one")]) == join_exports([(plain, "two")])
    assert join_exports([(bare, "one")]).digest != join_exports([(bare, "two")]).digest
    assert join_exports([("", "one")]).digest == ""


def test_the_key_of_a_driver_has_the_symbols_of_those_before_it(
    node: FakeNode, tmp_path: Path
) -> None:
    first = manifest(node)
    other = FakeNode(tmp_path / "other", "hay", {"after": ["straw"]})
    alone = other.task()
    keys = {alone.key}
    for exports in (CRC, CRC | {"straw_burn": "0x00000001"}):
        bundle = dataclasses.replace(first, kernel=alone.kernel)
        [module] = bundle.modules
        bundle = dataclasses.replace(
            bundle, modules=(dataclasses.replace(module, exports=exports),)
        )
        config = dataclasses.replace(other.config(), after=(bundle,))
        task = resolve_task(config)
        assert task.settings.symbols == task.symbols.digest != ""
        keys.add(task.key)
        assert resolve_task(config).key == task.key
    assert len(keys) == 3
    other.write_driver(after=[])
    assert other.task().key == alone.key, "a driver alone has the key that it always had"


def test_a_bundle_of_another_driver_or_kernel_is_refused(node: FakeNode, tmp_path: Path) -> None:
    given = manifest(node)
    other = FakeNode(tmp_path / "other", "hay", {"after": ["wood"]})
    other.write_driver()
    config = dataclasses.replace(other.config(), after=(given,))
    with pytest.raises(UsageError, match=r"straw .* not in the spec\.after of hay"):
        resolve_task(config)
    other.write_driver(after=["straw"])
    with pytest.raises(UsageError, match=r"the bundle of straw is for .* expected 9\.9"):
        resolve_task(config, Kernel("9.9", "#1", "x86_64"))
