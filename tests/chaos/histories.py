"""Random histories of a cluster, in which people, nodes, watches and leaders misbehave.

Hypothesis makes them and shortens what fails. A round is a hundred histories of one kind.
"""

from __future__ import annotations

import traceback

from hypothesis import seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.chaos.ledger import Ledger
from tests.cluster.plan.evicting_histories import Emptied
from tests.cluster.plan.histories import History, Liars, OnReboot, often
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
_NEW_ONES = settings(often(BATCH), database=None, derandomize=False)
_SHOWN = 4000  # characters of what failed


def live_often(ledger: Ledger, count: int) -> None:
    for turn in ledger.rounds(NAME, count):
        kind = turn.fate.choice(_KINDS)
        seeded = seed(turn.fate.randrange(1 << 32))(type(kind.__name__, (kind,), {}))
        try:
            run_state_machine_as_test(seeded, settings=_NEW_ONES)
        except Exception:
            turn.finding(f"{kind.__name__}: {traceback.format_exc()[-_SHOWN:]}")
        turn.outcome(f"{kind.__name__} x {BATCH}")
