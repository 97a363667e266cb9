"""`--symbols-of`: bundles of other drivers."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeside.driver.bundle.bundle import Bundle
from nodeside.errors import ExitCode
from tests.console import nodeside
from tests.driver.fakes.node import FakeNode


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    node = FakeNode(tmp_path)
    return node.put_bundle(node.task())


@pytest.fixture
def hay(tmp_path: Path) -> FakeNode:
    node = FakeNode(tmp_path / "hay", "hay", {"after": ["straw"]})
    node.write_driver()
    return node


def test_a_directory_with_a_bundle_is_taken(bundle: Bundle, hay: FakeNode) -> None:
    done = nodeside(*hay.command("plan", "--symbols-of", bundle.directory, "-o", "json"))
    assert done.code == ExitCode.OK, done.errors
    assert done.document["driver"] == "hay"


@pytest.mark.parametrize(
    ("place", "code", "words"),
    [
        ("nowhere", ExitCode.USAGE, "expected the directory of a bundle, oci:REPOSITORY:TAG"),
        ("oci:", ExitCode.USAGE, "expected the directory of a bundle"),
        ("oci:127.0.0.1:1/x:tag", ExitCode.FETCH, "127.0.0.1:1"),
    ],
)
def test_a_place_without_a_bundle_is_explained(
    hay: FakeNode, place: str, code: ExitCode, words: str
) -> None:
    done = nodeside(*hay.command("plan", "--symbols-of", place))
    assert (done.code, words in done.errors) == (code, True), done.errors


def test_a_directory_that_is_no_bundle_is_explained(hay: FakeNode, tmp_path: Path) -> None:
    done = nodeside(*hay.command("plan", "--symbols-of", tmp_path))
    assert done.code == ExitCode.BUNDLE
    assert "is not a bundle" in done.errors
