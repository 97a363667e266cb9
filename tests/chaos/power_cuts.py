"""Power that goes at a random moment: loads, builds, writes of the cache, `publish`."""

from __future__ import annotations

import threading

from tests.chaos.ledger import Ledger
from tests.chaos.nodes import ACTS, VERSIONS, Target

NAME = "power cut"


def cut_often(ledger: Ledger, target: Target, count: int) -> None:
    for turn in ledger.rounds(NAME, count):
        act = turn.fate.choice(ACTS)
        delay = turn.fate.uniform(0.0, target.typical(act))
        target.prepare(act)
        target.begin(act)
        threading.Event().wait(delay)
        target.cut_power()
        turn.expect(
            not target.pod.ready("tiny"), "the ready file of the boot before is there still"
        )
        target.judge_after(turn, turn.fate.choice(list(VERSIONS)))
        turn.outcome(act.name)
