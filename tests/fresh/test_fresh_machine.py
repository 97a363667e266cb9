"""On a machine that has only Python and make, `scripts/setup` installs what the tests need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nodeside.trial.workshop import Workshop
from tests.fresh.machine import FreshMachine, fresh_machine

pytestmark = pytest.mark.toolkit

_SECONDS = 1800.0  # for what takes two minutes on a machine that has nothing else to do
_TIERS = "not vm and not toolkit and not cluster"  # as CONTRIBUTING.md has it
# What takes minutes, and starts nothing that is installed; that it can be imported is seen.
_PURE = [
    "--ignore=tests/spec",
    "--ignore=tests/devices",
    "--ignore=tests/cluster/model",
    "--ignore=tests/cluster/plan",
    "--ignore=tests/cluster/render",
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


def test_the_tests_that_need_no_kernel_pass_there_and_none_is_skipped(
    machine: FreshMachine,
) -> None:
    machine.run(*_PYTEST, "--collect-only", timeout=_SECONDS)
    done = machine.run(*_PYTEST, *_PURE, timeout=_SECONDS, check=False)

    assert done.exit_code == 0, done.output[-20000:] + done.errors
    assert " skipped" not in done.output, done.output[-20000:]
