"""driver.yaml as a JSON schema (draft 2020-12), for editors.

Rules over several fields are not in it: the parser and the API server check those. `openapi.py`
overrides the few parts that Kubernetes requires differently.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from nodeside.protocol.labels import API_VERSION
from nodeside.spec.model import Driver
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
    shape_of,
)

Schema = dict[str, Any]
Scalar = Text | Integer | Number | Boolean | Choice


def json_schema() -> Schema:
    """Return the schema of a whole document."""
    name, spec = (JsonSchema().field_schema(field) for field in shape_of(Driver).fields)
    metadata = {"type": "object", "properties": {"name": name}, "required": ["name"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "nodeside driver.yaml",
        "type": "object",
        "properties": {
            "apiVersion": {"const": API_VERSION},
            "kind": {"const": "Driver"},
            "metadata": metadata,
            "spec": spec,
            "status": {"description": "Written by the cluster, ignored elsewhere."},
        },
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "additionalProperties": False,
    }


def document_value(value: Any) -> Any:
    """Return a default as written in a document; None if the document would omit it."""
    if isinstance(value, Enum):
        return value.value
    return value if isinstance(value, bool | int | str) and value != "" else None


class JsonSchema:
    """A converter from shapes to schemas."""

    def field_schema(self, field: Field) -> Schema:
        schema = self.schema_of(field.shape)
        if field.item.description:
            schema["description"] = field.item.description
        if (default := document_value(field.default)) is not None:
            schema["default"] = default
        return schema

    def schema_of(self, shape: Shape) -> Schema:
        match shape:
            case Section():
                return self.section_schema(shape)
            case ListOf(entry, least, most):
                minimum = {"minItems": least} if least else {}
                return {
                    "type": "array",
                    "items": self.schema_of(entry),
                    **minimum,
                    "maxItems": most,
                }
            case MapOf(value, keys, most):
                values = {"additionalProperties": self.schema_of(value), "maxProperties": most}
                return {"type": "object", **values, **self.key_schema(keys)}
        return self.scalar_schema(shape)

    def scalar_schema(self, shape: Scalar) -> Schema:
        match shape:
            case Text(pattern, limit, or_number):
                text = {"type": "string", **_pattern_schema(pattern), "maxLength": limit}
                return self.text_or_number_schema(pattern) if or_number else text
            case Integer(minimum, maximum):
                limits = {"minimum": minimum, "maximum": maximum}
                return {"type": "integer"} | {k: v for k, v in limits.items() if v is not None}
            case Number():
                return {"type": "number"}
            case Boolean():
                return {"type": "boolean"}
            case Choice():
                return {"type": "string", "enum": list(shape.words)}

    def section_schema(self, shape: Section) -> Schema:
        required = [field.json_name for field in shape.fields if field.required]
        return {
            "type": "object",
            "description": shape.description,
            "properties": {field.json_name: self.field_schema(field) for field in shape.fields},
            **({"required": required} if required else {}),
            "additionalProperties": False,
        }

    def key_schema(self, pattern: Pattern) -> Schema:
        return {"propertyNames": _pattern_schema(pattern)}

    def text_or_number_schema(self, pattern: Pattern) -> Schema:
        whole = {"type": "integer", "minimum": 0, "maximum": 999999}
        return {"anyOf": [{"type": "string", **_pattern_schema(pattern)}, whole]}


def _pattern_schema(pattern: Pattern) -> Schema:
    return {"pattern": pattern.regex} if pattern.regex else {}
