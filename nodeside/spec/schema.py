"""Declarations for the fields of the model, and the document shape that is derived from them.

`section` and `item` declare the classes of `model.py`. `shape_of` turns such a class into a tree of
shapes. The reader, the Kubernetes schema, the JSON schema and the documentation all walk that one
tree, so they cannot disagree.

Imports nothing heavy: every component imports the model.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from enum import Enum
from functools import cached_property
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, dataclass_transform, get_args, get_origin, get_type_hints

from nodeside.protocol.node_status import REPORT_ITEMS, REPORT_TEXT
from nodeside.values import frozen

T = TypeVar("T")

TEXT_LIMIT = 1024  # characters of a text, unless its field says otherwise
LIST_LIMIT = 64  # entries of a list or mapping, unless its field says otherwise


@frozen
class Pattern:
    """A regular expression, and the same in words for people.

    Python, Go (in Kubernetes) and editors match it against the whole text: no look-around, no named
    groups. An empty one matches everything. `refused` are regular expressions of texts that are
    wrong in a way that has a remedy, with the remedy; editors do not have them.
    """

    regex: str
    words: str
    refused: tuple[tuple[str, str], ...] = ()

    def fits(self, text: str) -> bool:
        whole = not self.regex or re.fullmatch(self.regex, text) is not None
        return whole and not self.remedy(text)

    def remedy(self, text: str) -> str:
        """Return what to do about a text that does not fit, "" if that is not known."""
        return next((words for regex, words in self.refused if re.search(regex, text)), "")


SOME_TEXT = Pattern(r"^[^\x00-\x08\x0b-\x1f\x7f]+$", "some text, without control characters")
ANY_TEXT = Pattern(r"^[^\x00-\x08\x0b-\x1f\x7f]*$", "text without control characters")
ANYTHING = Pattern("", "any text")


@frozen
class Item:
    """The attributes of a field except its name, its type and its default.

    For a list or mapping of texts, `pattern` and `max_length` apply to each text; `key_pattern`
    applies to the keys of a mapping. `or_number` accepts a whole number where a text is expected.
    """

    description: str
    pattern: Pattern | None = None
    key_pattern: Pattern | None = None
    minimum: int | None = None
    maximum: int | None = None
    min_items: int = 0
    max_items: int = LIST_LIMIT
    max_length: int = TEXT_LIMIT
    or_number: bool = False
    default_words: str = ""


_REPORTED = Item(
    "",
    pattern=ANYTHING,
    key_pattern=ANYTHING,
    max_items=REPORT_ITEMS,
    max_length=REPORT_TEXT,
)


def item(
    description: str,
    *,
    default: Any = MISSING,
    default_factory: Callable[[], Any] | None = None,
    **rest: Any,
) -> Any:
    """Declare a field of a section; `rest` are the other attributes of `Item`.

    A field without a default is required.
    """
    metadata = {"item": Item(description, **rest)}
    if default_factory is not None:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass_transform(frozen_default=True, field_specifiers=(item,))
def section(kind: type[T]) -> type[T]:
    """Make a frozen dataclass for a mapping of the document; its docstring is its description."""
    return frozen(kind)


# --- shapes ----------------------------------------------------------------------------------


@frozen
class Text:
    pattern: Pattern
    max_length: int
    or_number: bool


@frozen
class Integer:
    minimum: int | None
    maximum: int | None


@frozen
class Number:
    """A number such as seconds; only in a node's report, never in driver.yaml."""


@frozen
class Boolean:
    pass


@frozen
class Choice:
    """One of the values of an enum."""

    kind: type[Enum]

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(str(member.value) for member in self.kind)


@frozen
class ListOf:
    entry: Shape
    min_items: int
    max_items: int


@frozen
class MapOf:
    """A mapping with free keys."""

    value: Shape
    key_pattern: Pattern
    max_items: int


@frozen
class Section:
    """A mapping with fixed fields. `kind` is the dataclass that it is read into."""

    kind: type[Any]
    fields: tuple[Field, ...]

    @property
    def description(self) -> str:
        return " ".join((self.kind.__doc__ or "").split())

    def field(self, json_name: str) -> Field | None:
        return next((field for field in self.fields if field.json_name == json_name), None)


Shape = Text | Integer | Number | Boolean | Choice | ListOf | MapOf | Section


@frozen
class Field:
    """A field of a section. `default` is a value, or None if `required`."""

    name: str
    shape: Shape
    item: Item
    required: bool
    default: Any

    @cached_property
    def json_name(self) -> str:
        return camel_case(self.name)


def camel_case(name: str) -> str:
    """Return the name of a field in a document."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def shape_of(kind: type[Any]) -> Section:
    """Return the shape of a section, or of a record of `protocol/`, whose texts are unchecked."""
    if kind not in _SHAPES:
        hints = get_type_hints(kind)
        declared = dataclasses.fields(kind)
        _SHAPES[kind] = Section(
            kind, tuple(_make_field(field, hints[field.name]) for field in declared)
        )
    return _SHAPES[kind]


_SHAPES: dict[type[Any], Section] = {}


def _make_field(field: dataclasses.Field[Any], hint: Any) -> Field:
    attrs = field.metadata.get("item", _REPORTED)
    required = field.default is MISSING and field.default_factory is MISSING
    default = None if required or field.default is MISSING else field.default
    if field.default_factory is not MISSING:
        default = field.default_factory()
    return Field(field.name, _shape_of_type(hint, attrs), attrs, required, default)


def _shape_of_type(hint: Any, attrs: Item, text: Pattern = SOME_TEXT) -> Shape:
    """Return the shape of a type; `text` is the pattern of a text if the item has none."""
    origin = get_origin(hint)
    if origin is UnionType:
        (inner,) = (arg for arg in get_args(hint) if arg is not NoneType)
        return _shape_of_type(inner, attrs)
    if origin is tuple:
        return ListOf(_shape_of_type(get_args(hint)[0], attrs), attrs.min_items, attrs.max_items)
    if origin is Mapping:
        value = _shape_of_type(get_args(hint)[1], attrs, ANY_TEXT)
        return MapOf(value, attrs.key_pattern or SOME_TEXT, attrs.max_items)
    if dataclasses.is_dataclass(hint):
        return shape_of(cast("type[Any]", hint))
    if issubclass(hint, Enum):
        return Choice(hint)
    return _scalar_shape(hint, attrs, text)


def _scalar_shape(hint: Any, attrs: Item, text: Pattern) -> Shape:
    if hint is str:
        return Text(attrs.pattern or text, attrs.max_length, attrs.or_number)
    if hint is bool:
        return Boolean()
    return Integer(attrs.minimum, attrs.maximum) if hint is int else Number()
