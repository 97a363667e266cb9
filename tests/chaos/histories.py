"""Random histories of a cluster, in which people, nodes, watches and leaders misbehave.

Hypothesis makes them and shortens what fails. A round is a hundred histories of one kind.
"""

from __future__ import annotations

import inspect
import traceback
from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import seed, settings
from hypothesis.stateful import RULE_MARKER, RuleBasedStateMachine, run_state_machine_as_test

from tests.chaos.ledger import Ledger
from tests.cluster.plan.evicting_histories import Emptied
from tests.cluster.plan.histories import LIFE, History, Liars, OnReboot
from tests.cluster.plan.staged_histories import Staged, StagedWithJobs
from tests.cluster.plan.unreliable_histories import Unreliable

NAME = "histories of a cluster"
BATCH = 100
_KINDS: tuple[type[RuleBasedStateMachine], ...] = (
    History,
    OnReboot,
    Liars,
    Unreliable,
    Emptied,
    Staged,
    StagedWithJobs,
)
_NEW_ONES = settings(LIFE, database=None, derandomize=False)
_SHOWN = 4000  # characters of what failed


def live_often(ledger: Ledger, count: int) -> None:
    for turn in ledger.rounds(NAME, count):
        kind = turn.fate.choice(_KINDS)
        lived: Counter[str] = Counter()
        seeded = seed(turn.fate.randrange(1 << 32))(_counted(kind, lived))
        try:
            run_state_machine_as_test(seeded, settings=settings(_NEW_ONES, max_examples=BATCH))
        except Exception:
            turn.finding(f"{kind.__name__}: {traceback.format_exc()[-_SHOWN:]}")
        turn.outcome(f"{kind.__name__} x {BATCH}")
        for name in _rules(kind):
            turn.happened(f"{kind.__name__}: {name}", lived[name] > 0, enough=1)


def _rules(kind: type[RuleBasedStateMachine]) -> list[str]:
    """What may happen in a history, by the names of the rules."""
    return [name for name, each in inspect.getmembers(kind) if hasattr(each, RULE_MARKER)]


def _counted(kind: type[RuleBasedStateMachine], lived: Counter[str]) -> type[RuleBasedStateMachine]:
    """The same machine, which counts how often each rule was carried out."""

    def counted(name: str) -> Any:
        found = getattr(getattr(kind, name), RULE_MARKER)

        def rule(self: RuleBasedStateMachine, *given: Any, **more: Any) -> Any:
            lived[name] += 1
            return found.function(self, *given, **more)

        setattr(rule, RULE_MARKER, replace(found, function=rule))
        return rule

    return type(kind.__name__, (kind,), {name: counted(name) for name in _rules(kind)})
