"""What of a driver changes without a new revision, and how a node reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nodeside.errors import SpecError
from nodeside.spec import Driver, parse
from nodeside.spec.model import Unload, UnloadPolicy, Upgrade
from nodeside.spec.policy import policy_of, retry_time, with_policy, with_policy_of_file
from tests.spec.documents import document


def driver(**spec: Any) -> Driver:
    return parse(document(**spec))


def test_only_what_is_no_default_is_written() -> None:
    assert policy_of(driver()) == {}
    assert policy_of(driver(upgrade="onReboot", unload={"policy": "never"})) == {
        "upgrade": "onReboot",
        "unload": {"policy": "never"},
    }


def test_the_file_wins_over_what_the_revision_says() -> None:
    old = driver(upgrade="onReboot", unload={"policy": "never"})

    assert with_policy(old, "{}", "x").spec.upgrade is Upgrade.LIVE
    assert with_policy(old, "{}", "x").spec.unload == Unload()
    never = with_policy(driver(), '{"unload": {"policy": "never"}}', "x")
    assert never.spec.unload.policy is UnloadPolicy.NEVER
    assert never.spec.modules == old.spec.modules


def test_nothing_else_of_a_driver_comes_from_there() -> None:
    assert with_policy(driver(), '{"version": "9", "modules": []}', "x") == driver()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "policy.json: not JSON"),
        ("[]", "policy.json: expected a mapping with upgrade and unload"),
        ('{"upgrade": "now"}', "policy.json: $.spec.upgrade: expected"),
    ],
)
def test_a_file_that_is_wrong_is_named_and_nothing_is_guessed(
    text: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "policy.json"
    path.write_text(text)

    with pytest.raises(SpecError) as raised:
        with_policy_of_file(driver(), path)

    assert words in str(raised.value)


def test_a_file_that_is_not_there_is_no_permission_to_do_anything(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"cannot read .*policy\.json") as raised:
        with_policy_of_file(driver(), tmp_path / "policy.json")

    assert "ConfigMap <driver>-node-policy" in raised.value.hint


_DAY, _NEXT = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
_AT = 1767225600.0


@pytest.mark.parametrize(
    ("text", "time"),
    [
        (f'{{"retry": {{"n1": "{_DAY}", "n2": "{_NEXT}"}}}}', _AT),
        (f'{{"retry": {{"n1": "{_DAY}", "*": "{_NEXT}"}}}}', _AT + 86400),
        (f'{{"retry": {{"n1": "tuesday", "*": "{_DAY}"}}}}', _AT),
        (f'{{"retry": {{"n2": "{_DAY}"}}}}', 0.0),
        ('{"retry": {"n1": 1}}', 0.0),
        ('{"retry": 1}', 0.0),
        ("{}", 0.0),
        ("[", 0.0),
        ("[]", 0.0),
        ("[" * 100_000, 0.0),
    ],
)
def test_a_node_reads_its_orders_beside_the_policy(text: str, time: float, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(text)
    assert retry_time(path, "n1") == time
    assert retry_time(tmp_path / "absent", "n1") == 0.0
    if text.startswith("{"):
        assert with_policy_of_file(driver(), path) == driver()
