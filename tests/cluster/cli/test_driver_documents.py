"""The Drivers of a file: several documents, foreign ones, mistakes with their line, stdin."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from cluster.cli.driver_documents import read_drivers, split_drivers
from nodeside.errors import SpecError
from nodeside.failures import show_failure
from nodeside.spec.yamltext import write_yaml
from tests.cluster.fakes.model import document
from tests.console import nodeside

CONFIG_MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: edu-manifests, namespace: x}\n"
MODULE = "apiVersion: kmm.sigs.x-k8s.io/v1beta1\nkind: Module\nmetadata: {name: a}\nspec: {}\n"


def text(name: str = "edu", **spec: object) -> str:
    return write_yaml(document(name, **spec))


def test_each_driver_of_a_file_is_read_and_what_is_none_is_named() -> None:
    whole = f"# a comment\n---\n{text()}---\n\n---\n{CONFIG_MAP}--- # two\n{text('two')}...\n---\n"

    found = split_drivers(whole, "f.yaml")

    assert [each.driver.name for each in found.drivers] == ["edu", "two"]
    line = whole.splitlines().index("kind: ConfigMap") + 1
    assert [each.words for each in found.others] == [f"ConfigMap edu-manifests (f.yaml:{line})"]
    assert found.others[0].data["metadata"] == {"name": "edu-manifests", "namespace": "x"}


def test_only_what_a_person_writes_is_sent() -> None:
    written = document()
    written["metadata"] |= {"uid": "u", "resourceVersion": "7", "labels": {"a": "b"}}
    written["status"] = {"revision": "x"}

    [found] = split_drivers(write_yaml(written), "f.yaml").drivers

    assert found.data["metadata"] == {"name": "edu", "labels": {"a": "b"}}
    assert set(found.data) == {"apiVersion", "kind", "metadata", "spec"}


def test_a_mistake_is_said_as_spec_check_says_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "driver.yaml"
    file.write_text(text(modules=[{"name": "x", "parametres": {}}]))

    with pytest.raises(SpecError) as caught:
        read_drivers(file)

    show_failure(caught.value)
    assert capsys.readouterr().err == nodeside("spec", "check", file).errors
    assert str(caught.value).startswith(f"{file}:")


def test_a_mistake_in_a_later_document_has_the_line_of_the_file() -> None:
    whole = f"{text()}---\n{text('two', modules=[{'name': 'x', 'parametres': {}}])}"
    line = next(n for n, each in enumerate(whole.splitlines(), 1) if "parametres" in each)

    with pytest.raises(SpecError, match=rf"^f\.yaml:{line}: .*parametres"):
        split_drivers(whole, "f.yaml")


def test_a_driver_that_is_there_twice_is_refused_with_both_places() -> None:
    with pytest.raises(SpecError, match=r"^f\.yaml:\d+: driver edu is in this file twice, first"):
        split_drivers(f"{text()}---\n{text()}", "f.yaml")


@pytest.mark.parametrize(
    ("whole", "words"),
    [
        ("", "f.yaml: is empty"),
        ("---\n# nothing\n---\n", "f.yaml: is empty"),
        (MODULE, "expected kind Driver, got Module of Kernel Module Management"),
        (f"{MODULE}---\n{text()}", "expected kind Driver, got Module of Kernel Module Management"),
        (CONFIG_MAP, "expected .*Driver"),
        (f"{CONFIG_MAP}---\n{CONFIG_MAP}", "expected .*Driver"),
    ],
)
def test_a_file_without_a_driver_says_what_was_expected(whole: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        split_drivers(whole, "f.yaml")


def test_stdin_is_read_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def give(words: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(words)))

    give(text().encode())
    [found] = read_drivers(Path("-")).drivers
    assert found.driver.name == "edu"
    give(b"kind: [")
    with pytest.raises(SpecError, match=r"^stdin:"):
        read_drivers(Path("-"))
    give(b"\xff")
    with pytest.raises(SpecError, match=r"^stdin: not UTF-8"):
        read_drivers(Path("-"))
    give(b"#" * ((256 << 10) + 1))
    with pytest.raises(SpecError, match=r"^stdin: larger than 256 KiB"):
        read_drivers(Path("-"))


def test_the_directory_of_a_driver_will_do(tmp_path: Path) -> None:
    (tmp_path / "driver.yaml").write_text(text())
    assert [each.driver.name for each in read_drivers(tmp_path).drivers] == ["edu"]
