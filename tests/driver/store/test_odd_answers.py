"""Every answer of a store is data: whatever it says, the driver goes on to the next source."""

from __future__ import annotations

import os
import shutil
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeside.driver.bundle.bundle import Bundle
from nodeside.driver.bundle.cache import Cache
from nodeside.driver.store.sources import SourceAnswer as Said
from nodeside.driver.store.sources import fetch_first
from nodeside.spec.model import PrebuiltSource, Trust
from tests.driver.fakes.bundles import WANTED, sample_bundle
from tests.driver.fakes.odd_answers import (
    CONVERSATIONS,
    OPTIONS,
    OddServer,
    asked_both_ways,
    hostile_bundles,
    mutated,
    right_directory,
    right_registry,
)
from tests.tries import sampled, tries

SEED = 20261122
COUNT = 60  # of mutated conversations for each kind of store; `make unit`: a tenth


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def server() -> Iterator[OddServer]:
    with OddServer() as found:
        yield found


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return sample_bundle(tmp_path / "bundle")


@pytest.fixture
def into(tmp_path: Path) -> Path:
    (tmp_path / "staging").mkdir()
    return tmp_path / "staging"


@pytest.mark.parametrize("name", sampled(CONVERSATIONS, 4))
def test_an_odd_answer_is_said_and_passed_over(
    name: str, server: OddServer, into: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for outcome in asked_both_ways(server, CONVERSATIONS[name], WANTED, into):
        (result,) = outcome.results
        assert result.answer is not Said.SERVED
        assert str(result).isprintable(), result
        assert "a bug in nodeside" not in str(result)
        assert len(str(result)) < 2000
    assert list(into.iterdir()) == []
    assert "Traceback" not in caplog.text


_ENDLESS = sorted(n for n in CONVERSATIONS if "end" in n or "negative" in n)


@pytest.mark.parametrize("name", sampled(_ENDLESS, 4))
def test_an_endless_answer_takes_no_memory(name: str, server: OddServer, into: Path) -> None:
    tracemalloc.start()
    try:
        list(asked_both_ways(server, CONVERSATIONS[name], WANTED, into))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 32 << 20


def test_the_next_source_is_asked_after_an_odd_answer(
    server: OddServer, bundle: Bundle, tmp_path: Path, into: Path
) -> None:
    from nodeside.driver.store.publish import publish_bundle

    good = PrebuiltSource(directory=str(tmp_path / "store"))
    publish_bundle(bundle, good, OPTIONS)
    server.say(CONVERSATIONS["errors that are words"])

    outcome = fetch_first([*server.sources, good], WANTED, Trust(), OPTIONS, into)

    assert outcome.bundle is not None
    assert [result.answer for result in outcome.results] == [Said.FAILED, Said.FAILED, Said.SERVED]


@pytest.mark.parametrize("kind", ["directory", "registry"])
def test_whatever_a_store_says_ends_in_the_right_bundle_or_in_words(
    kind: str, server: OddServer, bundle: Bundle, tmp_path: Path, into: Path
) -> None:
    right = right_directory if kind == "directory" else right_registry
    conversation = right(bundle, tmp_path)
    source = server.sources[0 if kind == "directory" else 1]
    server.say(conversation)
    served = fetch_first([source], WANTED, Trust(), OPTIONS, into)
    assert served.bundle is not None, served.why
    served.bundle.directory.rename(tmp_path / "served")

    for name, answers in mutated(SEED, tries(COUNT), conversation):
        for outcome in asked_both_ways(server, answers, WANTED, into, sources=[source]):
            assert str(outcome.results[0]).isprintable(), name
            assert "a bug in nodeside" not in str(outcome.results[0]), name
            found = getattr(outcome, "bundle", None)
            if found is not None:
                assert found.manifest == bundle.manifest, name
                found.directory.rename(tmp_path / name)
        assert list(into.iterdir()) == [], name


@pytest.mark.slow
def test_a_hostile_bundle_is_the_right_one_or_refused(
    server: OddServer, bundle: Bundle, tmp_path: Path, into: Path
) -> None:
    """The envelope is right; what is in it was changed by whoever can write to the store."""
    cache = Cache(tmp_path / "cache")
    for hostile in hostile_bundles(SEED, tries(COUNT), bundle):
        for source, answers in zip(
            server.sources, (hostile.directory, hostile.registry), strict=True
        ):
            for outcome in asked_both_ways(server, answers, WANTED, into, sources=[source]):
                said = str(outcome.results[0])
                assert said.isprintable(), hostile.name
                assert len(said) < 2000, hostile.name
                assert "a bug in nodeside" not in said, hostile.name
                found = getattr(outcome, "bundle", None)
                if found is not None:
                    assert found.manifest.key == WANTED.key, hostile.name
                    adopted = cache.adopt_bundle(found.directory)
                    assert cache.peek_bundle(WANTED.tag, WANTED.key, WANTED.driver) is not None
                    cache.remove_other_bundles(WANTED.driver, set())
                    assert not adopted.directory.exists(), hostile.name
                    shutil.rmtree(into / "bundle", ignore_errors=True)
            assert list(into.iterdir()) == [], hostile.name
