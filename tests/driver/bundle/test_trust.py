"""What makes a bundle trusted: stores that lie, a trust that is tightened, what the cache has.

The signatures are real.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeside.driver.bringup.bringup import NoRungServed
from nodeside.driver.bundle.bundle import SIGNATURE, Bundle, read_manifest, verify_bundle
from nodeside.driver.bundle.manifest import BundleError
from nodeside.driver.ladder import plan
from nodeside.driver.ladder.rungs import fetch_options
from nodeside.driver.module.signing import (
    BadSignature,
    SigningError,
    _make_message,
    sign_manifest,
    sign_module,
    verify_manifest,
)
from nodeside.driver.node.modules import LoadedState
from nodeside.driver.node.run_directory import clear_loaded
from nodeside.driver.store.publish import publish_bundle
from nodeside.driver.store.sources import FetchOutcome, fetch_first, find_manifest
from nodeside.protocol.node_status import Rung
from nodeside.spec.model import Module, PrebuiltSource, Trust
from nodeside.system.process import run
from tests.driver.fakes.bundles import KEY, TAG, WANTED, sample_bundle
from tests.driver.fakes.keys import SPECIMEN, Pair, make_pair
from tests.driver.fakes.node import FakeNode, whys
from tests.driver.fakes.odd_answers import OPTIONS, OddServer, right_directory, right_registry
from tests.driver.fakes.registry import registry
from tests.tries import sampled


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("acme"), "Acme")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("other"), "Other")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def signed_module(scratch: Path, pair: Pair) -> bytes:
    """What the vendor signed once."""
    path = Path(shutil.copy(SPECIMEN, scratch / "specimen.ko"))
    sign_module(path, pair.key, pair.certificate)
    return path.read_bytes()


def by(pair: Pair) -> Callable[[bytes], bytes]:
    return lambda data: sign_manifest(data, pair.key, pair.certificate)


def trusting(pair: Pair) -> Trust:
    return Trust(certificate=str(pair.certificate))


# --- the signature of a manifest -----------------------------------------------------------------


@pytest.mark.slow
def test_a_manifest_verifies_with_the_certificate_of_its_key_only(acme: Pair, other: Pair) -> None:
    signature = sign_manifest(b"{}\n", acme.key, acme.certificate)

    verify_manifest(b"{}\n", signature, acme.certificate)
    with pytest.raises(BadSignature, match=r"signed by 'Acme' \(key id .*, expected Other"):
        verify_manifest(b"{}\n", signature, other.certificate)
    with pytest.raises(BadSignature, match="the manifest was changed after it was signed"):
        verify_manifest(b"{} \n", signature, acme.certificate)


@pytest.mark.parametrize(
    ("damage", "words"),
    sampled(
        [
            (lambda signature: b"", "the manifest is not signed; expected a signature by Acme"),
            (lambda signature: b"\0" * 99, "signed by 'an unnamed signer'"),
            (lambda signature: signature[:-1], "signed by 'an unnamed signer'|was changed"),
            (lambda signature: signature[:-1] + b"?", "was changed after it was signed"),
        ],
        4,
    ),
)
def test_a_signature_that_is_none_is_refused(
    acme: Pair, damage: Callable[[bytes], bytes], words: str
) -> None:
    signature = sign_manifest(b"{}\n", acme.key, acme.certificate)

    with pytest.raises(BadSignature, match=words):
        verify_manifest(b"{}\n", damage(signature), acme.certificate)


def test_a_message_that_brings_its_own_content_signs_nothing_else(
    acme: Pair, tmp_path: Path
) -> None:
    """The content in the message is well signed; what is asked about is another one."""
    old, whole = tmp_path / "old", tmp_path / "whole"
    old.write_bytes(b'{"version": "1.0"}\n')
    run(
        ["openssl", "cms", "-sign", "-binary", "-nodetach", "-nocerts", "-noattr", "-outform",
         "DER", "-signer", acme.certificate, "-inkey", acme.key, "-in", old, "-out", whole],
        timeout=30,
    )  # fmt: skip

    with pytest.raises(BadSignature):
        verify_manifest(b'{"version": "2.0"}\n', whole.read_bytes(), acme.certificate)


def test_the_signature_of_a_module_is_none_of_a_manifest(acme: Pair, tmp_path: Path) -> None:
    message = tmp_path / "message"
    _make_message(SPECIMEN, acme.key, acme.certificate, "sha256", message)

    with pytest.raises(BadSignature):
        verify_manifest(b"{}\n", message.read_bytes(), acme.certificate)


# --- stores that lie -----------------------------------------------------------------------------


class Shelf:
    """A store of one kind that has what it was given, whoever asks."""

    def __init__(self, kind: str, directory: Path, server: OddServer) -> None:
        self._kind, self._directory, self._server = kind, directory, server
        directory.mkdir()
        at = {"http": 0, "oci": 1}
        self.source = PrebuiltSource(directory=str(directory / "store"))
        if kind in at:
            self.source = server.sources[at[kind]]

    def put(self, bundle: Bundle) -> None:
        if self._kind == "directory":
            publish_bundle(bundle, self.source, OPTIONS, overwrite=True)
            return
        right = right_directory if self._kind == "http" else right_registry
        shutil.rmtree(self._directory)
        self._directory.mkdir()
        self._answers = right(bundle, self._directory)

    def fetch(self, trust: Trust, into: Path) -> FetchOutcome:
        """Fetch what is there, and ask for the manifest: both must come to the same."""
        into.mkdir()
        self._rewind()
        outcome = fetch_first([self.source], WANTED, trust, OPTIONS, into)
        if self._kind == "http":
            self._answers = self._answers[1:]  # who asks for the manifest asks for no checksum
        self._rewind()
        found = find_manifest([self.source], WANTED, trust, OPTIONS).manifest
        assert (found is None) == (outcome.bundle is None)
        return outcome

    def _rewind(self) -> None:
        if self._kind != "directory":
            self._server.say(self._answers)


@pytest.fixture(params=["directory", "http", "oci"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shelf]:
    with OddServer() as server:
        yield Shelf(request.param, tmp_path / "shelf", server)


@pytest.mark.slow
def test_a_signed_bundle_is_served_and_its_signature_stays_with_it(
    shelf: Shelf, acme: Pair, tmp_path: Path
) -> None:
    modules = {"specimen": signed_module(tmp_path, acme)}
    bundle = sample_bundle(tmp_path / "b", contents=modules, sign=by(acme))
    shelf.put(bundle)

    outcome = shelf.fetch(trusting(acme), tmp_path / "into")

    assert outcome.bundle is not None, outcome.why
    verify_bundle(outcome.bundle)
    assert outcome.description.endswith(
        f"manifest and modules are signed by the key of {acme.certificate}"
    )
    assert read_manifest(outcome.bundle.directory) == read_manifest(bundle.directory)


def test_an_old_signed_module_in_a_forged_manifest_is_no_new_version(
    shelf: Shelf, acme: Pair, tmp_path: Path
) -> None:
    shelf.put(sample_bundle(tmp_path / "b", contents={"specimen": signed_module(tmp_path, acme)}))

    outcome = shelf.fetch(trusting(acme), tmp_path / "into")

    assert outcome.bundle is None
    assert "the manifest is not signed; expected a signature by Acme" in outcome.why


@pytest.mark.slow
def test_the_signature_of_another_manifest_is_none(
    shelf: Shelf, acme: Pair, tmp_path: Path
) -> None:
    modules = {"specimen": signed_module(tmp_path, acme)}
    old = sample_bundle(tmp_path / "old", contents=modules, created="then", sign=by(acme))
    signature = read_manifest(old.directory).signature
    shelf.put(sample_bundle(tmp_path / "b", contents=modules, sign=lambda _: signature))

    outcome = shelf.fetch(trusting(acme), tmp_path / "into")

    assert outcome.bundle is None
    assert "the manifest was changed after it was signed" in outcome.why


@pytest.mark.slow
def test_a_manifest_signed_by_somebody_else_is_refused(
    shelf: Shelf, acme: Pair, other: Pair, tmp_path: Path
) -> None:
    modules = {"specimen": signed_module(tmp_path, acme)}
    shelf.put(sample_bundle(tmp_path / "b", contents=modules, sign=by(other)))

    assert "signed by 'Other'" in shelf.fetch(trusting(acme), tmp_path / "into").why


def test_a_store_that_nobody_trusts_cannot_call_an_old_module_the_new_one(
    acme: Pair, tmp_path: Path
) -> None:
    """A forged manifest with the build-ids of what is loaded would freeze a node where it is."""
    place = PrebuiltSource(directory=str(tmp_path / "store"))
    publish_bundle(sample_bundle(tmp_path / "b"), place, OPTIONS)
    loaded = {
        name: LoadedState(name, build_id="ab" * 20, initstate="live") for name in ("edu", "edu_dma")
    }
    modules = (Module(name="edu"), Module(name="edu_dma"))
    wanted = plan.WantedDriver("edu", "1.2.0", KEY, TAG, modules, prebuilt=True, toolkit=False)

    def verdict(trust: Trust) -> bool:
        found = find_manifest([place], WANTED, trust, OPTIONS).manifest
        return (
            plan.prove_loaded(wanted, plan.Observed(loaded, None, (found,) if found else ()))[0]
            is not None
        )

    assert verdict(Trust())
    assert not verdict(trusting(acme))


@pytest.mark.slow
def test_a_registry_may_not_change_the_signature_between_annotation_and_archive(
    acme: Pair, other: Pair, tmp_path: Path
) -> None:
    modules = {"specimen": signed_module(tmp_path, acme)}
    bundle = sample_bundle(tmp_path / "b", contents=modules, sign=by(acme))
    (tmp_path / "right").mkdir()
    right = right_registry(bundle, tmp_path / "right")
    signature = bundle.directory / SIGNATURE
    signature.write_bytes(by(other)(b"{}"))
    (tmp_path / "wrong").mkdir()
    layer = tmp_path / "wrong"
    wrong = right_registry(bundle, layer)
    trust = trusting(acme)
    with OddServer() as server:
        (tmp_path / "into").mkdir()
        server.say([wrong[0], *right[1:]])
        changed = fetch_first(server.sources[1:], WANTED, trust, OPTIONS, tmp_path / "into")

    assert changed.bundle is None
    assert "signed by 'Other'" in changed.why


# --- publishing ----------------------------------------------------------------------------------


@pytest.mark.registry
def test_a_real_registry_carries_the_signature(acme: Pair, tmp_path: Path) -> None:
    modules = {"specimen": signed_module(tmp_path, acme)}
    bundle = sample_bundle(tmp_path / "b", contents=modules, sign=by(acme))
    (tmp_path / "into").mkdir()
    with registry(tmp_path / "registry") as host:
        place = PrebuiltSource(oci=f"{host}/team/edu", insecure=True)
        publish_bundle(bundle, place, OPTIONS)
        assert publish_bundle(bundle, place, OPTIONS).already
        outcome = fetch_first([place], WANTED, trusting(acme), OPTIONS, tmp_path / "into")

    assert outcome.bundle is not None, outcome.why


def test_a_bundle_for_signed_modules_is_not_published_without_its_own_signature(
    tmp_path: Path,
) -> None:
    bundle = sample_bundle(tmp_path / "b", certificate="c" * 64)
    modules = tuple(dataclasses.replace(m, signer="Acme") for m in bundle.manifest.modules)
    manifest = dataclasses.replace(bundle.manifest, modules=modules)
    with pytest.raises(BundleError, match="the manifest is not signed, but the bundle is for"):
        publish_bundle(
            dataclasses.replace(bundle, manifest=manifest),
            PrebuiltSource(directory=str(tmp_path / "store")),
            OPTIONS,
        )


def test_what_was_published_unsigned_is_replaced_by_the_same_modules_signed(
    acme: Pair, tmp_path: Path
) -> None:
    place = PrebuiltSource(directory=str(tmp_path / "store"))
    publish_bundle(sample_bundle(tmp_path / "old", created="then"), place, OPTIONS)
    signed = sample_bundle(tmp_path / "b", sign=by(acme))

    assert not publish_bundle(signed, place, OPTIONS).already
    assert publish_bundle(signed, place, OPTIONS).already
    found = find_manifest([place], WANTED, trusting(acme), OPTIONS)
    assert found.manifest == signed.manifest


# --- a trust that is tightened -------------------------------------------------------------------

_STRICT = {"digests": ["sha256:" + "0" * 64]}


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


def fetched(node: FakeNode) -> Bundle:
    """Load what a directory has, without any trust asked for."""
    store = node.directory / "store"
    task = node.task(prebuilt={"sources": [{"directory": str(store)}]})
    bundle = node.put_bundle(task)
    publish_bundle(bundle, PrebuiltSource(directory=str(store)), fetch_options(task))
    node.forget_cache()
    assert node.bring_up(task).source is Rung.FETCHED
    node.kernel.loads.clear()
    return bundle


def tightened(node: FakeNode, **trust: Any) -> Any:
    return node.task(prebuilt={**node.spec["prebuilt"], "trust": trust or _STRICT})


def test_what_was_fetched_before_the_trust_was_tightened_is_not_loaded_from_the_cache(
    node: FakeNode,
) -> None:
    fetched(node)
    node.kernel.delete_module("straw")

    with pytest.raises(
        NoRungServed, match=r"cached: the cache holds .*, which does not meet spec.prebuilt.trust"
    ):
        node.bring_up(tightened(node))
    assert node.kernel.loads == []


def test_nor_does_it_prove_what_is_loaded(node: FakeNode) -> None:
    fetched(node)
    with pytest.raises(NoRungServed, match=r"loaded under a different spec.prebuilt.trust"):
        node.bring_up(tightened(node))

    clear_loaded(node.host, "straw")
    with pytest.raises(NoRungServed, match=r"straw loaded, but there is no bundle of 1.0"):
        node.bring_up(tightened(node))


def test_a_trust_that_it_satisfies_changes_nothing_and_is_remembered(node: FakeNode) -> None:
    digest = fetched(node).digest

    report = node.bring_up(tightened(node, digests=[digest]))

    assert (report.source, node.kernel.loads) == (Rung.LOADED, [])
    node.forget_cache()
    shutil.rmtree(node.directory / "store")
    assert node.bring_up(node.task()).source is Rung.LOADED, "loaded.json proves it now"


def test_a_certificate_that_comes_later_is_asked_of_the_cache_too(
    node: FakeNode, acme: Pair
) -> None:
    fetched(node)
    with pytest.raises(NoRungServed, match=r"the manifest is not signed"):
        node.bring_up(tightened(node, certificate=str(acme.certificate)))


def test_while_the_certificate_is_missing_nothing_is_judged_and_nothing_touched(
    node: FakeNode,
) -> None:
    fetched(node)
    with pytest.raises(SigningError, match=r"cannot read the certificate /nowhere/vendor.pem"):
        node.bring_up(tightened(node, certificate="/nowhere/vendor.pem"))
    assert node.loaded == ("straw",)
    assert node.kernel.unloads == []


def test_what_was_built_here_needs_no_trust_in_a_store(node: FakeNode) -> None:
    task = node.task(prebuilt={"sources": [{"directory": "/nowhere"}], "trust": _STRICT})
    node.put_bundle(task, built_here=True)
    assert node.bring_up(task).source is Rung.CACHED

    assert node.bring_up(task).source is Rung.LOADED
    digest = read_manifest(node.cache.root / "straw" / task.tag).digest
    assert node.cache.built_here("straw", digest)
    node.cache.remove_other_bundles("straw", set())
    assert not node.cache.built_here("straw", digest)


def test_a_bundle_of_another_kernel_is_judged_too(node: FakeNode) -> None:
    from tests.driver.fakes.compatible import compatible

    compatible(node)
    assert whys(node.bring_up(node.task()))["compatible"].startswith("built for 6.0.0-other")
    node.kernel.delete_module("straw")
    with pytest.raises(
        NoRungServed, match=r"the one for 6.0.0-other does not meet spec.prebuilt.trust"
    ):
        node.bring_up(node.task(prebuilt={"trust": _STRICT}))


def test_a_bundle_that_is_signed_now_replaces_the_same_one_without_a_signature(
    node: FakeNode, acme: Pair, tmp_path: Path
) -> None:
    from nodeside.driver.bundle.cache import Cache

    cache = Cache(tmp_path / "cache")
    for sign_it in (lambda _: b"", by(acme)):
        with cache.staging_directory() as staging:
            found = cache.adopt_bundle(sample_bundle(staging / "bundle", sign=sign_it).directory)

    assert read_manifest(found.directory).signature
    assert cache.look_up_bundle(TAG, KEY, "edu") == found
