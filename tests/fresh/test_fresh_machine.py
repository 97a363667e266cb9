"""On a machine that has only Python and make, `scripts/setup` installs what the tests need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nodeside.trial.workshop import Workshop
from tests.fresh.machine import FreshMachine, fresh_machine

pytestmark = pytest.mark.toolkit

_SECONDS = 1800.0  # for what takes two minutes on a machine that has nothing else to do
_TIERS = "not vm and not toolkit and not cluster"  # as CONTRIBUTING.md has it
# What starts programs that setup installed. That all the rest can be imported is seen.
_PROGRAMS = [
    *("tests/bench", "tests/driver/bundle", "tests/driver/module", "tests/driver/store"),
    *("tests/helm", "tests/images", "tests/monitoring", "tests/toolkit_sidecar", "tests/trial"),
    *("tests/test_cli.py", "tests/test_handoff.py", "tests/test_process.py"),
]
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


def test_the_tests_of_installed_programs_pass_there_and_none_is_skipped(
    machine: FreshMachine,
) -> None:
    machine.run(*_PYTEST, "--collect-only", timeout=_SECONDS)
    done = machine.run(*_PYTEST, *_PROGRAMS, timeout=_SECONDS, check=False)

    assert done.exit_code == 0, done.output[-20000:] + done.errors
    assert " skipped" not in done.output, done.output[-20000:]
