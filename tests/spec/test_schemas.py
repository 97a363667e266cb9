"""The schemas that are made from the model, and the generated page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from nodeside.spec import (
    json_schema,
    load,
    node_driver_schema,
    openapi_schema,
    parse,
    patterns,
    render_reference,
    to_document,
)
from nodeside.spec.cli import spec
from nodeside.spec.document import read_text
from nodeside.spec.model import DriverSpec
from nodeside.spec.reference import EXAMPLE, SMALLEST, WRONG, mistake_examples
from nodeside.spec.schema import Field, ListOf, Pattern, Section, shape_of
from tests.spec.documents import document

ROOT = Path(__file__).parents[2]


def nodes(schema: Any, path: str = "$") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema inside a schema, with its path."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}.{key}")


def fields(shape: Section) -> Iterator[tuple[Section, Field]]:
    for field in shape.fields:
        yield shape, field
        inner = field.shape.entry if isinstance(field.shape, ListOf) else field.shape
        if isinstance(inner, Section):
            yield from fields(inner)


def test_the_schema_for_editors_is_a_schema() -> None:
    Draft202012Validator.check_schema(json_schema())


def test_the_schema_for_editors_refuses_what_the_parser_refuses() -> None:
    validator = Draft202012Validator(json_schema())
    for wrong in (
        document(modulez=[]),
        document(version=1.1),
        document(reuse="no"),
        document(modules=[{}]),
        document() | {"kind": "Pod"},
        {},
    ):
        assert not validator.is_valid(wrong)
    assert validator.is_valid(document(rollout={"maxFailed": 3}))


@pytest.mark.parametrize("schema", [openapi_schema(), node_driver_schema()], ids=["Driver", "Node"])
def test_the_schemas_for_kubernetes_are_structural_and_have_limits(schema: dict[str, Any]) -> None:
    for path, node in nodes(schema):
        assert "$ref" not in node, path
        assert not ("properties" in node and "additionalProperties" in node), path
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path
        if node.get("type") == "array":
            assert "maxItems" in node, path
            assert node["x-kubernetes-list-type"] == "atomic", path
        if node.get("type") == "string" and "enum" not in node:
            assert "maxLength" in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path


def test_the_driver_schema_has_defaults_descriptions_and_rules() -> None:
    spec = openapi_schema()["properties"]["spec"]
    assert spec["properties"]["upgrade"] == {
        "type": "string",
        "enum": ["live", "onReboot"],
        "default": "live",
        "description": "`live`: a new version replaces the loaded one at once; `onReboot`: a "
        "running node is never touched.",
    }
    messages = [rule["message"] for rule in spec["x-kubernetes-validations"]]
    assert "a cluster needs the pull spec of the driver image" in messages
    assert "the names of the modules must differ (- and _ are the same)" in messages


def test_the_patterns_mean_the_same_in_python_and_in_go() -> None:
    every = [each for each in vars(patterns).values() if isinstance(each, Pattern)]
    assert len(every) > 20
    assert [each for each in every if re.search(r"\\[sSdDwWbB]", each.regex)] == []
    refused = [regex for each in every for regex, _ in each.refused]
    assert [each for each in refused if re.search(r"\\[sSdDwWbB]", each)] == []
    assert patterns.KERNEL_RELEASE.fits("\xa0")


def test_every_field_has_a_description_that_is_a_sentence() -> None:
    for shape, field in fields(shape_of(DriverSpec)):
        assert shape.description.endswith("."), shape.kind
        assert re.fullmatch(r"(?s)\S.*\.", field.item.description), (shape.kind, field.name)


def test_the_page_in_docs_is_the_generated_one() -> None:
    page = (ROOT / "docs" / "driver-yaml.md").read_text(encoding="utf-8")
    assert page == render_reference(), (
        "regenerate it: nodeside spec reference > docs/driver-yaml.md"
    )


def test_the_example_has_every_field_there_is() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    # The two that exclude others of the example have a section of their own in the tests.
    missing = {
        f"{shape.kind.__name__}.{field.json_name}"
        for shape, field in fields(shape_of(DriverSpec))
        if not re.search(rf"\b{field.json_name}:", text)
    }
    assert missing == set()
    assert load(EXAMPLE).name == "edu"


def test_the_small_example_and_the_mistakes_of_the_page_are_real() -> None:
    assert read_text(SMALLEST).spec.version == "1.2.0"
    assert mistake_examples().count("\n") == 2
    assert 'got 1.10; write "1.10"' in mistake_examples()
    assert WRONG.count("\n") > 10


def test_every_link_of_the_page_leads_to_a_section() -> None:
    page = render_reference()
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", line[4:].lower())
        for line in page.splitlines()
        if line.startswith("### ")
    }
    assert set(re.findall(r"\]\(#([^)]*)\)", page)) <= anchors


def test_the_command_prints_each_of_them() -> None:
    assert printed("reference") == render_reference()
    assert json.loads(printed("json-schema")) == json_schema()
    assert json.loads(printed("openapi")) == openapi_schema()
    assert json.loads(printed("openapi", "--kind", "NodeDriver")) == node_driver_schema()


def printed(*words: str) -> str:
    """What `nodeside spec` prints."""
    return CliRunner().invoke(spec, words, catch_exceptions=False).stdout


def test_the_example_survives_being_written_and_read() -> None:
    driver = load(EXAMPLE)
    assert parse(to_document(driver)) == driver


@pytest.mark.parametrize(
    ("hardware", "noted"),
    [({}, True), ({"hardware": {}}, True), ({"hardware": {"nodeSelector": {"a": "b"}}}, False)],
)
def test_a_driver_for_every_node_is_said_to_be_one(
    tmp_path: Path, hardware: dict[str, Any], noted: bool
) -> None:
    (tmp_path / "driver.yaml").write_text(json.dumps(document(**hardware)))
    result = CliRunner().invoke(spec, ["check", str(tmp_path)])
    assert result.exit_code == 0
    assert ("a cluster puts this driver on every node" in result.output) is noted
