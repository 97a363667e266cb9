"""The Drivers of a file as `kubectl apply -f` takes it: one YAML document or several, or stdin.

Each document is read as `nodeside spec check` reads a file, with the same errors. What is no Driver
is named, and left to kubectl.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodeside.errors import SpecError
from nodeside.protocol.labels import API_GROUP
from nodeside.spec import Driver
from nodeside.spec.document import SIZE_LIMIT, decode_text, read_file, read_text
from nodeside.spec.mistakes import Document
from nodeside.spec.other_documents import other_document
from nodeside.spec.yamltext import read_yaml

STDIN = "-"
# Also within a block of text, `---` at the start of a line begins a document.
# https://yaml.org/spec/1.2.2/#912-document-markers
_BEGIN = re.compile(r"^---(?=\s|$)", re.MULTILINE)
_NO_CONTENT = re.compile(r"^(?:---|\.\.\.)?[ \t]*(?:#.*)?\r?$", re.MULTILINE)
_SENT = ("name", "labels", "annotations")  # of the metadata; the rest belongs to the API server


@dataclass(frozen=True)
class DriverDocument:
    """A Driver of a file. `data` is the document as it is sent to the API server."""

    where: str
    driver: Driver
    data: Mapping[str, Any]


@dataclass(frozen=True)
class OtherDocument:
    """A document that is no Driver. `words` name it, with its place."""

    words: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class DriverFile:
    """The Drivers of a file. `others` are the documents of other kinds."""

    drivers: tuple[DriverDocument, ...]
    others: tuple[OtherDocument, ...] = ()


def read_drivers(path: Path) -> DriverFile:
    """Read a file, the driver.yaml of a directory, or stdin (`-`). Raises SpecError."""
    if str(path) == STDIN:
        where = "stdin"
        text = decode_text(sys.stdin.buffer.read(SIZE_LIMIT + 1), where)
    else:
        path = path / "driver.yaml" if path.is_dir() else path
        where, text = str(path), read_file(path)
    return split_drivers(text, where)


def split_drivers(text: str, where: str) -> DriverFile:
    """Return the Drivers of a text. Raises SpecError, which names the line."""
    parts = list(_split_documents(text))
    if len(parts) < 2:  # also none: `read_text` says that the file is empty
        return DriverFile((_driver_document(text, read_yaml(text, where)),))
    documents = [(part, read_yaml(part, where)) for part in parts]
    if all(_is_foreign(document.data) for _, document in documents):
        read_text(parts[0], where)  # the error says what was expected
    drivers: dict[str, DriverDocument] = {}
    others: list[OtherDocument] = []
    for part, document in documents:
        if _is_foreign(document.data):
            others.append(_other_document(document))
            continue
        found = _driver_document(part, document)
        if earlier := drivers.get(found.driver.name):
            words = f"driver {found.driver.name} is in this file twice, first at {earlier.where}"
            where = found.where
            raise SpecError(f"{where}: {words}", hint="leave one of the two", places=[where])
        drivers[found.driver.name] = found
    return DriverFile(tuple(drivers.values()), tuple(others))


def _split_documents(text: str) -> Iterator[str]:
    """Yield the documents that are not empty, each behind as many empty lines as were before it."""
    starts = [0, *(found.start() for found in _BEGIN.finditer(text))]
    for begin, end in zip(starts, [*starts[1:], len(text)], strict=True):
        part = text[begin:end]
        if _NO_CONTENT.sub("", part).strip():
            yield "\n" * text.count("\n", 0, begin) + part


def _driver_document(text: str, document: Document) -> DriverDocument:
    driver = read_text(text, document.where)
    data = document.data
    assert isinstance(data, Mapping)  # it is a Driver
    metadata = {key: value for key, value in data["metadata"].items() if key in _SENT}
    sent = {"apiVersion": data["apiVersion"], "kind": data["kind"], "metadata": metadata}
    place = f"{document.where}:{document.line(('apiVersion',))}"
    return DriverDocument(place, driver, {**sent, "spec": data["spec"]})


def _is_foreign(data: object) -> bool:
    """Return whether a document is of a kind that neither nodeside nor its errors know."""
    if not isinstance(data, Mapping) or not isinstance(data.get("kind"), str):
        return False
    version = data.get("apiVersion")
    if str(version).partition("/")[0] == API_GROUP:
        return False
    return data["kind"] != "Driver" and other_document(version, data["kind"]) is None


def _other_document(document: Document) -> OtherDocument:
    data = document.data
    assert isinstance(data, Mapping)
    metadata = data.get("metadata")
    name = metadata.get("name", "") if isinstance(metadata, Mapping) else ""
    words = " ".join(filter(None, (data["kind"], str(name))))
    return OtherDocument(f"{words} ({document.where}:{document.line(('kind',))})", data)
