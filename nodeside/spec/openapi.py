"""The model as a structural schema, which Kubernetes requires in a custom resource definition.

A structural schema allows no $ref, and no `additionalProperties: false` beside properties (unknown
fields are pruned, and kubectl refuses them). CEL expresses what patterns cannot. Every text and
list has a limit, from which the API server computes the cost of a rule.
https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/
"""

from __future__ import annotations

from typing import Any

from nodeside.protocol.node_status import ReportedStatus
from nodeside.spec.editor import JsonSchema, Scalar, Schema
from nodeside.spec.model import Driver
from nodeside.spec.rules import CLUSTER_RULES, rules_of
from nodeside.spec.schema import Field, ListOf, Pattern, Section, Shape, Text, shape_of


def openapi_schema() -> Schema:
    """Return `openAPIV3Schema` of Driver. The controller writes `status` and adds its schema."""
    name, spec = shape_of(Driver).fields
    return {
        "type": "object",
        "description": "A driver for the nodes that have its hardware.",
        "properties": {"metadata": {"type": "object"}, "spec": _OpenApi().field_schema(spec)},
        "required": ["spec"],
        "x-kubernetes-validations": [_name_rule(name)],
    }


def node_driver_schema() -> Schema:
    """Return `openAPIV3Schema` of NodeDriver: what a node reports about a driver."""
    status = _OpenApi().schema_of(shape_of(ReportedStatus))
    return {
        "type": "object",
        "description": "A driver on a node, as the pod on that node sees it.",
        "properties": {"metadata": {"type": "object"}, "status": status},
    }


class _OpenApi(JsonSchema):
    """The differences from a JSON schema for editors."""

    def schema_of(self, shape: Shape) -> Schema:
        # Order matters in all our lists, so a list is atomic: it has one owner.
        whole = {"x-kubernetes-list-type": "atomic"} if isinstance(shape, ListOf) else {}
        return super().schema_of(shape) | whole

    def section_schema(self, shape: Section) -> Schema:
        schema = super().section_schema(shape)
        del schema["additionalProperties"]
        if rules := _cel_rules(shape.kind):
            schema["x-kubernetes-validations"] = rules
        return schema

    def scalar_schema(self, shape: Scalar) -> Schema:
        schema = super().scalar_schema(shape)
        if isinstance(shape, Text) and (rules := _remedy_rules(shape.pattern)):
            schema["x-kubernetes-validations"] = rules
        return schema

    def key_schema(self, pattern: Pattern) -> Schema:
        if not pattern.regex:
            return {}
        rule = f"self.all(key, key.matches({_cel_text(pattern.regex)}))"
        message = f"expected {pattern.words}, as the key"
        free = [
            {"rule": f"self.all(key, !key.matches({_cel_text(regex)}))", "message": words}
            for regex, words in pattern.refused
        ]
        return {"x-kubernetes-validations": [{"rule": rule, "message": message}, *free]}

    def text_or_number_schema(self, pattern: Pattern) -> Schema:
        """Return IntOrString, as in a Deployment. Each limit applies to one of the two types."""
        return {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": pattern.regex,
            "minimum": 0,
            "maximum": 999999,
        }


def _name_rule(name: Field) -> Schema:
    assert isinstance(name.shape, Text)
    pattern = name.shape.pattern
    return {
        "rule": f"self.metadata.name.matches({_cel_text(pattern.regex)})",
        "message": f"metadata.name: expected {pattern.words}",
    }


def _cel_rules(kind: type[Any]) -> list[Schema]:
    pairs = [(rule.cel, rule.message) for rule in rules_of(kind) if rule.cel]
    pairs += [(rule.cel, rule.message) for rule in CLUSTER_RULES if rule.section is kind]
    return [{"rule": cel, "message": message} for cel, message in pairs]


def _remedy_rules(pattern: Pattern) -> list[Schema]:
    """Return rules beside a pattern: the API server's message about one only quotes the regex."""
    return [
        {"rule": f"!self.matches({_cel_text(regex)})", "message": words}
        for regex, words in pattern.refused
    ]


def _cel_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
