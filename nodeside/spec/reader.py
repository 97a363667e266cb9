"""Reads plain values into the model, strictly: one pass finds every mistake.

`newer` selects what happens to a field that this version does not know: a person's file is refused;
a document from a newer controller is read without the field, and the log says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from nodeside.log import warning
from nodeside.spec.mistakes import Document, FieldPath, Mistake, in_brief, path_in_words
from nodeside.spec.model import Kernels
from nodeside.spec.other_documents import other_field
from nodeside.spec.rules import rules_of
from nodeside.spec.schema import (
    Boolean,
    Choice,
    Field,
    Integer,
    ListOf,
    MapOf,
    Number,
    Pattern,
    Section,
    Shape,
    Text,
)

Newer = Literal["refuse", "ignore"]
_CONDITIONS = (Kernels,)  # refused in any case: with a field left out, they would match more nodes


class Unreadable:
    """Stands for the value of a field that could not be read. The mistake is in the list."""


UNREADABLE = Unreadable()


class Reader:
    """A reader of one document's values by shape. `mistakes` is complete after the last read."""

    def __init__(self, document: Document, *, newer: Newer = "refuse") -> None:
        self.document = document
        self.newer = newer
        self.mistakes = list(document.mistakes)

    def read(self, shape: Shape, value: object, path: FieldPath) -> Any:
        """Return the value read by its shape; UNREADABLE if that has a mistake."""
        return _READERS[type(shape)](self, shape, value, path)

    def add_mistake(self, path: FieldPath, message: str, hint: str = "") -> Unreadable:
        self.mistakes.append(Mistake(path, message, hint))
        return UNREADABLE

    def add_expected(self, what: str, path: FieldPath, value: object, hint: str = "") -> Unreadable:
        return self.add_mistake(
            path, f"expected {what}, got {self.document.excerpt(path, value)}", hint
        )

    # --- containers ---

    def _read_section(self, shape: Section, value: object, path: FieldPath) -> Any:
        if not isinstance(value, Mapping):
            return self.add_expected("a mapping", path, value, _section_hint(shape, value))
        for key in value:
            if not isinstance(key, str) or shape.field(key) is None:
                known = [field.json_name for field in shape.fields]
                self.add_unknown_key(known, key, path, is_condition=shape.kind in _CONDITIONS)
        values = {field.name: self._read_field(field, value, path) for field in shape.fields}
        self._check_rules(shape, values, path)
        if any(isinstance(each, Unreadable) for each in values.values()):
            return UNREADABLE
        return shape.kind(**values)

    def _read_field(self, field: Field, values: Mapping[Any, Any], path: FieldPath) -> Any:
        if field.json_name in values:
            return self.read(field.shape, values[field.json_name], (*path, field.json_name))
        if field.required:
            return self.add_mistake((*path, field.json_name), _missing_message(field))
        return field.default

    def add_unknown_key(
        self, known: Sequence[str], key: object, path: FieldPath, *, is_condition: bool = False
    ) -> None:
        """Add a mistake for a field that the schema does not have, or log it: see `newer`."""
        place = (*path, key if isinstance(key, str) else in_brief(key))
        if self.newer == "ignore" and not is_condition:
            warning("unknown field ignored: newer than this nodeside", field=path_in_words(place))
        else:
            hint = other_field(path, str(place[-1])) or _did_you_mean(known, str(place[-1]))
            self.add_mistake(place, "unknown field", hint)

    def _check_rules(self, shape: Section, values: Mapping[str, Any], path: FieldPath) -> None:
        """Check the section's rules, except those with a field that could not be read."""
        rules = rules_of(shape.kind)
        if not rules:
            return
        readable = shape.kind(**values)
        for rule in rules:
            if any(isinstance(values[name], Unreadable) for name in rule.fields):
                continue
            if message := rule.find_mistake(readable):
                alone = json_name_of(shape, rule.fields[0]) if len(rule.fields) == 1 else ""
                self.add_mistake((*path, alone) if alone else path, message)

    def _read_list(self, shape: ListOf, value: object, path: FieldPath) -> Any:
        if not isinstance(value, list | tuple):
            return self.add_expected("a list", path, value, _list_hint(shape, value))
        if not shape.min_items <= len(value) <= shape.max_items:
            return self.add_mistake(
                path, f"expected {_entries_in_words(shape)} entries, got {len(value)}"
            )
        entries = [self.read(shape.entry, entry, (*path, n)) for n, entry in enumerate(value)]
        if any(isinstance(entry, Unreadable) for entry in entries):
            return UNREADABLE
        return tuple(entries)

    def _read_map(self, shape: MapOf, value: object, path: FieldPath) -> Any:
        if not isinstance(value, Mapping):
            return self.add_expected("a mapping", path, value)
        if len(value) > shape.max_items:
            return self.add_mistake(
                path, f"expected at most {shape.max_items} entries, got {len(value)}"
            )
        entries = dict(self._read_entries(shape, value, path))
        if any(isinstance(entry, Unreadable) for entry in entries.values()):
            return UNREADABLE
        return entries

    def _read_entries(
        self, shape: MapOf, value: Mapping[Any, Any], path: FieldPath
    ) -> Iterator[tuple[str, Any]]:
        for key, entry in value.items():
            name = key if isinstance(key, str) else in_brief(key)
            if not isinstance(key, str) or not shape.key_pattern.fits(key):
                words = shape.key_pattern.words
                remedy = shape.key_pattern.remedy(name)
                yield name, self.add_mistake((*path, name), f"expected {words}, as the key", remedy)
            else:
                yield name, self.read(shape.value, entry, (*path, name))

    # --- scalars ---

    def _read_text(self, shape: Text, value: object, path: FieldPath) -> Any:
        if shape.or_number and isinstance(value, int) and not isinstance(value, bool):
            value = in_brief(value)
        if not isinstance(value, str):
            return self.add_expected("a string", path, value, self._quote_hint(value, path))
        if len(value) > shape.max_length:
            return self.add_mistake(
                path, f"expected at most {shape.max_length} characters, got {len(value)}"
            )
        if not shape.pattern.fits(value) or not _is_unicode(value):
            hint = shape.pattern.remedy(value) or _correction_hint(shape.pattern, value)
            return self.add_expected(shape.pattern.words, path, value, hint)
        return value

    def _quote_hint(self, value: object, path: FieldPath) -> str:
        """Return a hint to quote a value: YAML does not read 3, 11e8, on or y as text."""
        if isinstance(value, bool | int | float):
            return f'write "{self.document.excerpt(path, value)}"'
        return ""

    def _read_choice(self, shape: Choice, value: object, path: FieldPath) -> Any:
        if isinstance(value, str) and value in shape.words:
            return shape.kind(value)
        hint = _near_word(shape.words, value) if isinstance(value, str) else ""
        return self.add_expected(f"one of {', '.join(shape.words)}", path, value, hint)

    def _read_integer(self, shape: Integer, value: object, path: FieldPath) -> Any:
        what = f"a whole number{_range_in_words(shape)}"
        if not isinstance(value, int) or isinstance(value, bool):
            return self.add_expected(what, path, value, _unquote_hint(value, str.isdecimal))
        too_small = shape.minimum is not None and value < shape.minimum
        too_large = shape.maximum is not None and value > shape.maximum
        return self.add_expected(what, path, value) if too_small or too_large else value

    def _read_number(self, _: Number, value: object, path: FieldPath) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        return self.add_expected("a number", path, value)

    def _read_boolean(self, _: Boolean, value: object, path: FieldPath) -> Any:
        if isinstance(value, bool):
            return value
        hint = _unquote_hint(value, lambda text: text in ("true", "false"))
        return self.add_expected("true or false", path, value, hint)


_READERS: dict[type[Any], Callable[[Reader, Any, object, FieldPath], Any]] = {
    Section: Reader._read_section,
    ListOf: Reader._read_list,
    MapOf: Reader._read_map,
    Text: Reader._read_text,
    Choice: Reader._read_choice,
    Integer: Reader._read_integer,
    Number: Reader._read_number,
    Boolean: Reader._read_boolean,
}


def json_name_of(shape: Section, name: str) -> str:
    """Return the name that an attribute of a section has in the document."""
    return next(field.json_name for field in shape.fields if field.name == name)


def _missing_message(field: Field) -> str:
    """Return the message for a missing field: the first sentence of its description."""
    sentence = field.item.description.split(". ")[0].rstrip(".")
    about = sentence if sentence[:2].isupper() else sentence[:1].lower() + sentence[1:]
    return f"is missing: {about}" if about else "is missing"


def _entries_in_words(shape: ListOf) -> str:
    if shape.min_items:
        return f"{shape.min_items} to {shape.max_items}"
    return f"at most {shape.max_items}"


def _is_unicode(text: str) -> bool:
    """Return False for half a surrogate pair, which no file name and no argument can carry."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _range_in_words(shape: Integer) -> str:
    match shape.minimum, shape.maximum:
        case None, None:
            return ""
        case low, None:
            return f" from {low}"
        case None, high:
            return f" up to {high}"
        case low, high:
            return f" from {low} to {high}"


def _unquote_hint(value: object, fits: Any) -> str:
    return f"write {value} without quotes" if isinstance(value, str) and fits(value) else ""


def _list_hint(shape: ListOf, value: object) -> str:
    if isinstance(shape.entry, Text) and isinstance(value, str):
        return f"write [{in_brief(value)}]"
    if isinstance(value, Mapping):
        return "begin each entry with -"
    return ""


def _section_hint(shape: Section, value: object) -> str:
    """Return a hint for a plain value such as `- edu`, which should be `- name: edu`."""
    needed = [field for field in shape.fields if field.required]
    if isinstance(value, str) and len(needed) == 1 and isinstance(needed[0].shape, Text):
        return f"write {needed[0].json_name}: {value}"
    return ""


# Quotes of word processors and web pages, which are part of a text in YAML; and those of a shell.
_QUOTES = "\u201c\u201d\u201e\u2018\u2019\u201a\u00ab\u00bb\"'`"


def _correction_hint(pattern: Pattern, value: str) -> str:
    """Return a hint to write what the value would be without a usual slip, if that fits."""
    slips: tuple[Callable[[str], str], ...] = (
        str.strip,
        lambda text: text.strip(_QUOTES),
        lambda text: text.removesuffix(".ko"),
        lambda text: text.lower().removeprefix("0x"),
        lambda text: text.lower().replace("_", "-"),
    )
    corrected = (slip(value) for slip in slips)
    fitting = (text for text in corrected if text != value and pattern.fits(text))
    return next((f"write {in_brief(text)}" for text in fitting), "")


def _near_word(words: Sequence[str], value: str) -> str:
    from difflib import get_close_matches  # late: only a wrong document needs it

    near = get_close_matches(value[:64].lower(), words, n=1)
    return f"did you mean {near[0]}?" if near else ""


def _did_you_mean(known: Sequence[str], key: str) -> str:
    from difflib import get_close_matches  # late: only a wrong document needs it

    names = {name.lower(): name for name in known}
    if close := get_close_matches(key.lower().replace("_", ""), names, n=1, cutoff=0.7):
        return f"did you mean {names[close[0]]}?"
    return f"known fields: {', '.join(known)}"
