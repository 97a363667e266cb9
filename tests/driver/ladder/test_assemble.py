"""What a build delivers is the vendor's: it becomes a bundle, or it is refused as a delivery."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from nodeside.driver.bundle.bundle import Bundle
from nodeside.driver.bundle.manifest import BundleError
from nodeside.driver.handoff.listener import Listener
from nodeside.driver.handoff.request import refuse_repetition
from nodeside.driver.ladder import rungs
from nodeside.driver.ladder.assemble import assemble_bundle
from nodeside.driver.module.signature import ID_PKCS7, MARKER, TRAILER
from nodeside.driver.module.signing import SigningError
from nodeside.protocol.build_records import BuiltModule
from nodeside.protocol.shared_directory import SharedDir
from tests.driver.fakes.handoff import succeeded
from tests.driver.fakes.keys import make_pair
from tests.driver.fakes.node import FakeNode, module_bytes


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    found = FakeNode(tmp_path)
    found.shared = SharedDir(tmp_path / "shared")
    found.shared.create()
    return found


def deliver(node: FakeNode, files: Mapping[str, bytes]) -> tuple[BuiltModule, ...]:
    """Put modules where the sidecar would, and return its report of them."""
    assert node.shared is not None
    out = node.shared.out_dir(rungs.request_of(node.task()).id) / "modules"
    out.mkdir(parents=True)
    for name, data in files.items():
        (out / f"{name}.ko").write_bytes(data)
    return tuple(
        BuiltModule(name, f"modules/{name}.ko", hashlib.sha256(data).hexdigest(), len(data))
        for name, data in files.items()
    )


def assemble(node: FakeNode, files: Mapping[str, bytes]) -> Bundle:
    assert node.shared is not None
    task = node.task()
    result = succeeded(rungs.request_of(task), *deliver(node, files))
    return assemble_bundle(task, node.shared, result)


def with_nine_signatures() -> bytes:
    signature = b"x" + TRAILER.pack(0, 0, ID_PKCS7, 0, 0, 1) + MARKER
    return module_bytes("straw") + 9 * signature


@pytest.mark.slow
def test_a_long_chain_of_modules_becomes_a_bundle(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # of 1,200 files, which takes long
    chain = {f"m{n}": module_bytes(f"m{n}", depends=[f"m{n + 1}"]) for n in range(1200)}

    bundle = assemble(node, {"straw": module_bytes("straw", depends=["m0"])} | chain)

    names = [module.name for module in bundle.manifest.modules]
    assert names == [*(f"m{n}" for n in reversed(range(1200))), "straw"]


def test_more_modules_than_a_bundle_may_have_are_refused(node: FakeNode) -> None:
    many = {f"m{n}": b"" for n in range(2000)}

    with pytest.raises(BundleError, match="cannot be used: the sidecar reports 2001 modules"):
        assemble(node, {"straw": module_bytes("straw")} | many)


@pytest.mark.slow
def test_signatures_without_end_are_refused_and_not_built_again(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes are the vendor's: a retry would join the same result for ever."""
    pair = make_pair(tmp_path, "Acme")
    for path in (pair.key, pair.certificate):
        shutil.copy(path, node.image)
    node.write_driver(signing={"key": pair.key.name, "certificate": pair.certificate.name})
    task, shared = node.task(), node.shared
    assert shared is not None
    result = succeeded(rungs.request_of(task), *deliver(node, {"straw": with_nine_signatures()}))
    monkeypatch.setattr(rungs, "await_result", lambda *_: result)

    with pytest.raises(BundleError, match=r"cannot be used: .* more than 8 consecutive signatures"):
        rungs.build_bundle(task, Listener(repeat_failed=True))

    assert shared.request_ids() == ()
    with pytest.raises(BundleError, match="consecutive signatures"):
        refuse_repetition(shared, rungs.request_of(task))


@pytest.mark.slow
def test_a_key_of_another_certificate_is_refused_before_anything_is_built(
    node: FakeNode, tmp_path: Path
) -> None:
    one, other = make_pair(tmp_path, "Acme"), make_pair(tmp_path, "Other")
    for path in (one.key, other.certificate):
        shutil.copy(path, node.image)
    node.write_driver(signing={"key": one.key.name, "certificate": other.certificate.name})
    task, shared = node.task(), node.shared
    assert shared is not None

    with pytest.raises(SigningError, match="does not belong to the certificate"):
        rungs.build_bundle(task, Listener())

    assert shared.request_ids() == ()
