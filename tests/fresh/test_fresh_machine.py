"""On a machine that has only Python and make, `scripts/setup` installs what the tests need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nodeside.trial.workshop import Workshop
from tests import TOP
from tests.fresh.machine import FreshMachine, fresh_machine
from tests.fresh.programs import COMMANDS, TESTS, started_by_name
from tests.patience import patience

pytestmark = pytest.mark.toolkit

_SECONDS = patience(1800.0)  # for what takes two minutes on a machine that has nothing else to do
_TIERS = "not vm and not toolkit and not cluster"  # as CONTRIBUTING.md has it
_BROKEN = 'for words; do $words >/dev/null || echo "$words"; done'
_MISSING = 'for name; do command -v "$name" >/dev/null || echo "$name"; done'
_PYTEST = (".venv/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", _TIERS)


@pytest.fixture(scope="module")
def machine() -> Iterator[FreshMachine]:
    with Workshop() as workshop, fresh_machine(workshop) as machine:
        yield machine


def test_where_everything_is_there_setup_does_nothing_and_says_nothing(
    machine: FreshMachine,
) -> None:
    again = machine.run("scripts/setup", "test", timeout=_SECONDS)

    assert (again.output, again.errors) == ("", "")


def test_all_that_the_tests_import_is_there(machine: FreshMachine) -> None:
    """Not rewritten: each file is compiled once, and none of them runs."""
    machine.run(*_PYTEST, "--collect-only", "--assert=plain", timeout=_SECONDS)


def test_each_program_that_setup_installed_is_started_by_a_test_that_passes(
    machine: FreshMachine,
) -> None:
    done = machine.run(*_PYTEST, *sorted(set(TESTS.values())), timeout=_SECONDS, check=False)

    assert done.exit_code == 0, done.output[-20000:] + done.errors
    assert " skipped" not in done.output, done.output[-20000:]


def test_what_no_such_test_starts_is_there_with_its_libraries(machine: FreshMachine) -> None:
    done = machine.run("sh", "-c", _BROKEN, "sh", *COMMANDS.values(), timeout=_SECONDS)

    assert done.output == ""


def test_no_test_starts_a_program_that_is_not_there(machine: FreshMachine) -> None:
    """As far as it is named: what a tool or a script starts is not seen."""
    done = machine.run("sh", "-c", _MISSING, "sh", *started_by_name(TOP), timeout=_SECONDS)

    assert done.output == ""
