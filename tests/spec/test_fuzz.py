"""Nothing that can stand in a file makes the readers fail in another way than by SpecError."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from nodeside.errors import SpecError
from nodeside.spec import Driver, dump, json_schema, load, node_parse, parse, to_document
from nodeside.spec.document import read_text
from nodeside.spec.yamltext import write_yaml
from tests.spec.documents import document, drivers, yamlish
from tests.tries import tries

CORPUS = Path(__file__).with_name("corpus")

SLOW = settings(
    max_examples=tries(25),
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
    ],
)
VALIDATOR = Draft202012Validator(json_schema())


@given(yamlish())
def test_any_value_is_a_driver_or_a_spec_error(value: Any) -> None:
    for read in (parse, node_parse):
        with suppress(SpecError):
            read(value)


@given(
    st.dictionaries(
        st.sampled_from(sorted(json_schema()["properties"]["spec"]["properties"])), yamlish()
    )
)
def test_any_value_in_a_field_is_a_driver_or_a_spec_error(fields: dict[str, Any]) -> None:
    with suppress(SpecError):
        parse(document(**fields))


@given(st.text(max_size=200) | st.text(alphabet="-: \n\t{}[]&*!|>'\"%@`#?,ab<1", max_size=80))
def test_any_text_is_a_driver_or_a_spec_error(text: str) -> None:
    with suppress(SpecError):
        read_text(text)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_driver_or_a_spec_error(tmp_path_factory: Any, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(data)
    with suppress(SpecError):
        load(path)


def test_a_driver_is_one_for_each_reader_that_the_others_are_tried_with(tmp_path: Path) -> None:
    text = yaml.safe_dump(document())
    (tmp_path / "driver.yaml").write_text(text)
    expected = parse(document())
    assert [node_parse(document()).name, read_text(text), load(tmp_path / "driver.yaml")] == [
        expected.name,
        expected,
        expected,
    ]


@pytest.mark.slow
def test_every_file_of_the_corpus_is_a_spec_error() -> None:
    files = sorted(CORPUS.glob("*.yaml"))
    assert len(files) > 10
    accepted = []
    for path in files:
        with suppress(SpecError):
            load(path)
            accepted.append(path.name)
    assert accepted == []


@SLOW
@given(drivers())
def test_a_driver_survives_being_written_and_read_and_the_schema_for_editors_takes_it(
    driver: Driver,
) -> None:
    """One test, since making a driver takes longer than looking at it."""
    assert parse(to_document(driver)) == driver
    assert read_text(dump(driver)) == driver
    VALIDATOR.validate(to_document(driver))


def test_a_line_break_that_only_yaml_knows_is_escaped() -> None:
    text = write_yaml({"path": "a\x85b\u2028c\u2029d"})
    assert yaml.safe_load(text) == {"path": "a\x85b\u2028c\u2029d"}
