"""Leaders of the controller that are killed, and an API server that breaks.

On a real control plane: these are the end-to-end tests, each round with another seed.
"""

from __future__ import annotations

import re
import sys

from nodeside.system import process
from tests.chaos.ledger import Ledger
from tests.cluster.e2e.faults import SEED
from tests.patience import patience

NAME = "killed leaders"
KILLS = 50  # in a round
_KILLED = "test_a_leader_killed_often_changes_no_end_builds_nothing_twice_and_writes_little_more"
TESTS = (
    f"tests/cluster/e2e/test_kills.py::{_KILLED}[{KILLS}]",
    "tests/cluster/e2e/test_faults.py",
)
_SECONDS = patience(3600.0)
_SHOWN = 4000  # characters of what failed


def all_ran(said: str) -> bool:
    """By pytest's last line. The tests themselves see that the lease changes its holder, and count
    the requests that the API server failed; a test that is skipped sees nothing."""
    last = said.strip().rpartition("\n")[2]
    return re.fullmatch(r"[=\s]*[1-9][0-9]* passed in .*", last) is not None


def kill_often(ledger: Ledger, count: int) -> None:
    for turn in ledger.rounds(NAME, count):
        words = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
        words += ["--every-chapter", *TESTS]
        chosen = str(turn.fate.randrange(10**6))
        done = process.run(words, timeout=_SECONDS, check=False, env={SEED: chosen})
        turn.expect(done.exit_code == 0, f"{SEED}={chosen}: {done.output[-_SHOWN:]}")
        turn.happened("every test was run, and none skipped", all_ran(done.output), enough=1)
        turn.outcome(f"{KILLS} kills, and an API server that fails")
