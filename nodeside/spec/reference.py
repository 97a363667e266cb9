"""Generate docs/driver-yaml.md from the model: introduction, example, a table for each section.

`nodeside spec reference` prints the page; a test compares it with the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nodeside.spec.editor import document_value
from nodeside.spec.model import Driver, DriverSpec
from nodeside.spec.rules import rules_of
from nodeside.spec.schema import (
    Boolean,
    Choice,
    Field,
    Integer,
    ListOf,
    MapOf,
    Number,
    Section,
    Shape,
    Text,
    shape_of,
)

EXAMPLE = Path(__file__).with_name("example.yaml")

_INTRODUCTION = """\
# driver.yaml

<!-- Generated: nodeside spec reference > docs/driver-yaml.md -->

A `driver.yaml` says what a driver is: its modules, the hardware it is for, how it is built, and
what proves that it works. The same document is a file beside the driver's source, and the custom
resource `Driver` of a cluster. `nodeside try .` tries it in a throwaway virtual machine.

The smallest one, for a source tree that has a Makefile for kbuild, or a `dkms.conf`:

```yaml
{smallest}```

It is read strictly. Every command reports all mistakes at once, with line and path;
`nodeside spec check` does nothing else:

```
{mistakes}
```

- Names of fields are camelCase. An unknown field is a mistake. (On a node of a cluster it is
  ignored and logged: the controller may be newer than the node.)
- Text that YAML takes for something else is quoted: `"10"`, `"11e8"`, `"1.10"`, `"on"`, `"y"`.
- Leave out a field that you do not need; do not leave it empty.
- `metadata.name` is {name}.
  Other metadata is accepted and ignored, as is `status`.
- Paths are absolute, or relative to the directory of `driver.yaml`, unless the field says
  otherwise.

`nodeside spec json-schema > driver.schema.json` makes a JSON schema for editors.
"""

SMALLEST = """\
apiVersion: nodeside.io/v1alpha1
kind: Driver
metadata:
  name: edu
spec:
  version: "1.2.0"
  modules:
    - name: edu
"""

# The introduction shows the reader's messages about this document.
WRONG = """\
apiVersion: nodeside.io/v1alpha1
kind: Driver
metadata:
  name: edu
spec:
  version: 1.10
  modules:
    - name: edu
      parameters:
        debug: 3
  hardwere:
    pci:
      - vendor: "1234"
"""


def render_reference() -> str:
    """Return the whole page."""
    example = EXAMPLE.read_text(encoding="utf-8")
    parts = [_introduction_text(), f"## A complete example\n\n```yaml\n{example}```\n"]
    parts += ["## Fields\n"]
    parts += [
        _section_text(path, shape) for path, shape in _list_sections(shape_of(DriverSpec), "spec")
    ]
    return "\n".join(parts)


def mistake_examples() -> str:
    """Return the parser's messages about WRONG."""
    from nodeside.errors import SpecError
    from nodeside.spec.document import read_text

    try:
        read_text(WRONG, "driver.yaml")
    except SpecError as error:
        return str(error)
    return ""


def _introduction_text() -> str:
    name = shape_of(Driver).fields[0].shape
    assert isinstance(name, Text)
    return _INTRODUCTION.format(
        smallest=SMALLEST, mistakes=mistake_examples(), name=name.pattern.words
    )


def _list_sections(shape: Section, path: str) -> list[tuple[str, Section]]:
    """Return a section and all sections below it, each with its path."""
    sections = [(path, shape)]
    for field in shape.fields:
        place = f"{path}.{field.json_name}"
        match field.shape:
            case Section():
                sections += _list_sections(field.shape, place)
            case ListOf(entry=Section() as entry):
                sections += _list_sections(entry, f"{place}[]")
    return sections


def _section_text(path: str, shape: Section) -> str:
    rows = [_field_row(path, field) for field in shape.fields]
    table = ["| field | type | default | meaning |", "|---|---|---|---|", *rows]
    parts = [f"### {path}", shape.description, "\n".join(table), *_rules_of_section(shape)]
    return "\n\n".join(parts) + "\n"


def _rules_of_section(shape: Section) -> list[str]:
    """Return the rules over several fields; a rule over one field is in its description."""
    messages = [rule.message for rule in rules_of(shape.kind) if len(rule.fields) > 1]
    return ["Rules:\n" + "".join(f"\n- {message}" for message in messages)] if messages else []


def _field_row(path: str, field: Field) -> str:
    words = [
        f"`{field.json_name}`",
        _type_in_words(path, field),
        _default_in_words(field),
        _meaning_in_words(field),
    ]
    return "| " + " | ".join(word.replace("|", "\\|") for word in words) + " |"


def _type_in_words(path: str, field: Field) -> str:
    place = f"{path}.{field.json_name}"
    match field.shape:
        case Section():
            return _section_link(place)
        case ListOf(entry=Section()):
            return f"list of {_section_link(f'{place}[]')}"
        case ListOf(entry=entry):
            return f"list of {_scalars_in_words(entry)}"
        case MapOf(value=value):
            return f"mapping of {_scalars_in_words(value)}"
    return _scalar_in_words(field.shape)


def _scalar_in_words(shape: Shape) -> str:
    match shape:
        case Text(or_number=True):
            return "string or number"
        case Choice():
            return ", ".join(f"`{word}`" for word in shape.words)
        case Integer():
            return "whole number"
        case Number():
            return "number"
        case Boolean():
            return "true or false"
    return "string"


def _scalars_in_words(shape: Shape) -> str:
    return f"{_scalar_in_words(shape)}s"


def _section_link(path: str) -> str:
    anchor = "".join(c for c in path.lower() if c.isalnum())
    return f"[{path.removeprefix('spec.')}](#{anchor})"


def _default_in_words(field: Field) -> str:
    if field.required:
        return "**required**"
    if field.item.default_words:
        return field.item.default_words
    value: Any = document_value(field.default)
    if value is None:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _meaning_in_words(field: Field) -> str:
    """Return the description, and the limits that it does not mention."""
    limits = []
    if isinstance(field.shape, Integer) and field.shape.minimum is not None:
        limits.append(f"{field.shape.minimum} to {field.shape.maximum}")
    for pattern in (field.item.key_pattern, field.item.pattern):
        if pattern and pattern.words not in field.item.description:
            keys = ", as the key" if pattern is field.item.key_pattern else ""
            limits.append(f"{pattern.words}{keys}")
    return field.item.description + "".join(f" *({limit})*" for limit in limits)
