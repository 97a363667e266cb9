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
        driver = target.begin(act)
        threading.Event().wait(delay)
        works = driver.poll() is None
        boot = target.machine.boot_id
        target.cut_power()
        turn.happened("the power went while something was done", works, enough=6)
        turn.expect(target.machine.boot_id != boot, "the node has not booted again")
        turn.expect(
            not target.pod.ready("tiny"), "the ready file of the boot before is there still"
        )
        target.judge_after(turn, turn.fate.choice(list(VERSIONS)))
        turn.outcome(f"{act.name}{'' if works else ', which had ended'}")
