"""A whole driver.yaml: read from a file or from plain values, and written from a Driver.

`load` and `parse` are for documents that a person wrote. `node_load` and `node_parse` are for
documents from a controller, which may be newer than the node's nodeside.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

from nodeside import __version__
from nodeside.errors import SpecError
from nodeside.protocol.labels import API_GROUP, API_VERSION
from nodeside.spec.mistakes import Document, mistakes_error
from nodeside.spec.model import Driver
from nodeside.spec.other_documents import other_document
from nodeside.spec.reader import Newer, Reader
from nodeside.spec.schema import Field, ListOf, MapOf, Section, Shape, shape_of

KIND = "Driver"
SIZE_LIMIT = 256 << 10  # bytes; a long driver.yaml is 5 kB

# ObjectMeta of Kubernetes: accepted and, except for the name, ignored.
_METADATA = (
    "name",
    "namespace",
    "generateName",
    "labels",
    "annotations",
    "finalizers",
    "uid",
    "generation",
    "resourceVersion",
    "selfLink",
    "ownerReferences",
    "managedFields",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
_TOP = ("apiVersion", "kind", "metadata", "spec")


# What `load` has read without a mistake, by text. A driver that runs reads its file again at every
# look, and to parse forty lines takes 15 ms of a processor.
_LOADED: Final[dict[str, Driver]] = {}
_LOADED_MOST = 8


def load(path: Path) -> Driver:
    """Read driver.yaml. Raises SpecError, which lists every mistake, one per line."""
    text = read_file(path)
    driver = _LOADED.get(text)
    if driver is None:
        driver = _read_driver(_parse_yaml(text, str(path)), "refuse")
        if len(_LOADED) == _LOADED_MOST:
            del _LOADED[next(iter(_LOADED))]
        _LOADED[text] = driver
    return driver


def node_load(path: Path) -> Driver:
    """Read a driver.yaml from a controller. Newer fields are logged and ignored."""
    return _read_driver(_read_document(path), "ignore")


def parse(document: object, where: str = "driver.yaml") -> Driver:
    """Do the same as `load` for plain values, such as an object from the API server."""
    return _read_driver(Document(where, document), "refuse")


def node_parse(document: object, where: str = "driver.yaml") -> Driver:
    """Do the same as `node_load` for plain values."""
    return _read_driver(Document(where, document), "ignore")


def read_text(text: str, where: str = "driver.yaml") -> Driver:
    """Do the same as `load` for text."""
    return _read_driver(_parse_yaml(text, where), "refuse")


def peek_driver_name(path: Path) -> tuple[str, str]:
    """Return the name and the version in a driver.yaml; "" for one that is invalid itself.

    What else is wrong with the file does not matter.
    """
    try:
        document = _read_document(path)
    except SpecError:
        return "", ""
    name, spec = shape_of(Driver).fields
    assert isinstance(spec.shape, Section)
    version = next(field for field in spec.shape.fields if field.json_name == "version")
    return (
        _read_if_valid(document, name.shape, "metadata", "name"),
        _read_if_valid(document, version.shape, "spec", "version"),
    )


def to_document(driver: Driver) -> dict[str, Any]:
    """Return the document of a driver. Fields that equal their default are omitted."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": driver.name},
        "spec": _plain_value(shape_of(type(driver.spec)), driver.spec),
    }


def dump(driver: Driver) -> str:
    """Return the text of a driver.yaml, as a person would write it."""
    from nodeside.spec.yamltext import write_yaml  # late: it imports yaml

    return write_yaml(to_document(driver))


def _read_document(path: Path) -> Document:
    return _parse_yaml(read_file(path), str(path))


def _parse_yaml(text: str, where: str) -> Document:
    from nodeside.spec.yamltext import read_yaml  # late: it imports yaml

    return read_yaml(text, where)


def read_file(path: Path) -> str:
    """Return the text of a driver.yaml, which `read_text` reads. Raises SpecError."""
    try:
        data = _read_bytes(path)
    except OSError as exc:
        hint = ""
        if isinstance(exc, FileNotFoundError):
            hint = "name a driver.yaml, or make one: nodeside init"
        raise SpecError(f"cannot read {path}: {exc.strerror}", hint=hint) from exc
    return decode_text(data, str(path))


def decode_text(data: bytes, where: str) -> str:
    """Return the text of a driver.yaml as bytes. Raises SpecError."""
    if len(data) > SIZE_LIMIT:
        raise SpecError(f"{where}: larger than {SIZE_LIMIT >> 10} KiB: not a driver.yaml")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise SpecError(
            f"{where}: not UTF-8: {exc.reason} at byte {exc.start}", hint="save it as UTF-8 text"
        ) from exc


def _read_bytes(path: Path) -> bytes:
    if path.is_dir():
        raise SpecError(f"{path} is a directory", hint=f"name the file: {path / 'driver.yaml'}")
    if path.exists() and not path.is_file():
        raise SpecError(f"{path}: expected a regular file")
    with open(path, "rb") as file:
        return file.read(SIZE_LIMIT + 1)


def _read_driver(document: Document, newer: Newer) -> Driver:
    reader = Reader(document, newer=newer)
    top = document.data
    if not isinstance(top, Mapping):
        reader.add_expected("a mapping with apiVersion, kind, metadata and spec", (), top)
        raise mistakes_error(document, reader.mistakes)
    if other := other_document(top.get("apiVersion"), top.get("kind")):
        words = f"{document.where}: expected kind {KIND}, got {top['kind']} {other.whose}"
        raise SpecError(words, hint=other.remedy.replace("FILE", document.where))
    name, spec = _read_top(reader, top)
    if reader.mistakes:
        raise mistakes_error(document, reader.mistakes)
    return Driver(name, spec)


def _read_top(reader: Reader, top: Mapping[Any, Any]) -> tuple[Any, Any]:
    """Read the parts of a Kubernetes object. `status` belongs to the cluster and is ignored."""
    name, spec = shape_of(Driver).fields
    for field, value in (("apiVersion", API_VERSION), ("kind", KIND)):
        if field not in top:
            reader.add_mistake((field,), "is missing", f"write {field}: {value}")
        elif top[field] != value:
            reader.add_expected(value, (field,), top[field], _other_version_hint(top[field]))
    for key in top:
        if key not in (*_TOP, "status"):
            reader.add_unknown_key(_TOP, key, ())
    if "spec" not in top:
        reader.add_mistake(("spec",), "is missing")
        return _read_name(reader, name, top), None
    return _read_name(reader, name, top), reader.read(spec.shape, top["spec"], ("spec",))


def _other_version_hint(api_version: object) -> str:
    if not str(api_version).startswith(f"{API_GROUP}/"):
        return ""
    return f"it was written for another version of nodeside; this is {__version__}"


def _read_name(reader: Reader, name: Field, top: Mapping[Any, Any]) -> Any:
    metadata, path = top.get("metadata", {}), ("metadata",)
    if not isinstance(metadata, Mapping):
        return reader.add_expected("a mapping", path, metadata, "write metadata: {name: ...}")
    for key in metadata:
        if key not in _METADATA:
            reader.add_unknown_key(("name", "labels", "annotations"), key, path)
    if "name" not in metadata:
        return reader.add_mistake((*path, "name"), "is missing")
    return reader.read(name.shape, metadata["name"], (*path, "name"))


def _read_if_valid(document: Document, shape: Shape, section: str, key: str) -> str:
    top = document.data
    part = top.get(section) if isinstance(top, Mapping) else None
    reader = Reader(document)
    value = reader.read(shape, part.get(key) if isinstance(part, Mapping) else None, (section, key))
    return value if isinstance(value, str) and not reader.mistakes else ""


def _plain_value(shape: Shape, value: Any) -> Any:
    """Return the plain value of a shape: the inverse of reading."""
    match shape:
        case Section():
            return {
                field.json_name: _plain_value(field.shape, getattr(value, field.name))
                for field in shape.fields
                if field.required or getattr(value, field.name) != field.default
            }
        case ListOf():
            return [_plain_value(shape.entry, entry) for entry in value]
        case MapOf():
            return {key: _plain_value(shape.value, entry) for key, entry in value.items()}
    return value.value if isinstance(value, Enum) else value
