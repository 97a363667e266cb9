"""Documents for the tests of the spec: the smallest good one, and hypothesis making any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hypothesis import reject
from hypothesis import strategies as st

from nodeside.protocol.labels import API_VERSION
from nodeside.spec.model import Driver, DriverSpec
from nodeside.spec.patterns import DRIVER_NAME
from nodeside.spec.rules import rules_of
from nodeside.spec.schema import (
    ANY_TEXT,
    SOME_TEXT,
    Boolean,
    Choice,
    Field,
    Integer,
    ListOf,
    MapOf,
    Pattern,
    Section,
    Shape,
    Text,
    shape_of,
)
from tests.spec.regex_texts import text_of

_TRIES: Final = 6  # of one part of a driver; more make drivers larger than Hypothesis takes

SMALLEST: dict[str, Any] = {"version": "1.0", "modules": [{"name": "edu"}]}


def document(**spec: Any) -> dict[str, Any]:
    """A good document with these fields of the spec besides the required ones."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Driver",
        "metadata": {"name": "edu"},
        "spec": {**SMALLEST, **spec},
    }


def drivers() -> st.SearchStrategy[Driver]:
    """Any driver that the schema and its rules allow."""
    return st.builds(Driver, _text(DRIVER_NAME, 40), _section(shape_of(DriverSpec)))


def yamlish() -> st.SearchStrategy[Any]:
    """Anything that YAML or JSON can give, with some words that the schema knows."""
    words = st.sampled_from(
        "apiVersion kind metadata spec name modules build command pci Driver edu kbuild validate "
        f"sysfs rollout canary {API_VERSION}".split()
    )
    keys: st.SearchStrategy[Any] = words | st.text(max_size=5) | st.integers() | st.none()
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | words
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=6),
        max_leaves=25,
    )


def _section(shape: Section) -> st.SearchStrategy[Any]:
    values = {field.name: _field(field) for field in shape.fields}
    made, rules = st.builds(shape.kind, **values), rules_of(shape.kind)

    @st.composite
    def keeping(draw: st.DrawFn) -> Any:
        """One that keeps all rules: `filter` gives a whole driver up after three tries of it."""
        for _ in range(_TRIES):
            value = draw(made)
            if all(rule.holds(value) for rule in rules):
                return value
        return reject()

    return keeping() if rules else made


def _field(field: Field) -> st.SearchStrategy[Any]:
    given = _of(field.shape)
    return given if field.required else st.just(field.default) | given


def _of(shape: Shape) -> st.SearchStrategy[Any]:
    match shape:
        case Section():
            return _section(shape)
        case ListOf(entry, least, _):
            return st.lists(_of(entry), min_size=least, max_size=2).map(tuple)
        case MapOf(value, keys, _):
            made: st.SearchStrategy[Mapping[str, Any]] = st.dictionaries(
                _text(keys, 1024), _of(value), max_size=2
            )
            return made
        case Text(pattern, limit, _):
            return _text(pattern, limit)
        case Integer(minimum, maximum):
            return st.integers(minimum, maximum)
        case Choice(kind):
            return st.sampled_from(kind)
        case Boolean():
            return st.booleans()
    raise AssertionError(shape)


def _text(pattern: Pattern, limit: int) -> st.SearchStrategy[str]:
    if pattern in (SOME_TEXT, ANY_TEXT):
        least = 1 if pattern is SOME_TEXT else 0
        letters = st.characters(codec="utf-8", exclude_categories=["Cc"])
        return st.text(letters | st.sampled_from("\n\t"), min_size=least, max_size=20)
    made = st.integers(0, 2**32).map(lambda number: text_of(pattern.regex, number))
    return made.filter(lambda text: len(text) <= limit and pattern.fits(text))
