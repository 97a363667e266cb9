"""`make chaos`: try to break it, and say what broke.

    python -m tests.chaos                          a long run of everything: hours
    python -m tests.chaos --minutes 60 node        an hour of what concerns a node
    python -m tests.chaos --seed 7 --rounds 40 SIGKILL

A finding names its seed, experiment and round. The exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable

from nodeside.driver.bundle.bundle import Bundle
from nodeside.system.scratch import scratch_directory
from nodeside.trial.workshop import Workshop
from tests.chaos import bundles, histories, kills, leaders, pairs, power_cuts, scarcity, stores
from tests.chaos.ledger import Ledger
from tests.chaos.nodes import Target, target

NODE, CONTROLLER = "node", "controller"

# Name, what runs it, and the rounds of a long run.
ON_A_NODE: tuple[tuple[str, Callable[[Ledger, Target, int], None], int], ...] = (
    (kills.NAME, kills.kill_often, 240 // kills.KILLS),
    (power_cuts.NAME, power_cuts.cut_often, 50),
    (scarcity.NAME, scarcity.endure, 90),
    (bundles.INSIDE, bundles.offer_inside, 50),
)
OF_A_BUNDLE: tuple[tuple[str, Callable[[Ledger, Bundle, int], None], int], ...] = (
    (bundles.OUTSIDE, bundles.offer_outside, 1000),
    (stores.NAME, stores.ask_often, 1000),
)
OF_THE_CONTROLLER: tuple[tuple[str, Callable[[Ledger, int], None], int], ...] = (
    (histories.NAME, histories.live_often, 10_000 // histories.BATCH),
    (leaders.NAME, leaders.kill_often, 200 // leaders.KILLS),
)
NAMES = [name for name, _, _ in (*OF_THE_CONTROLLER, *OF_A_BUNDLE, *ON_A_NODE)] + [pairs.NAME]


def run(ledger: Ledger, only: str = "", rounds: int | None = None) -> None:
    """All experiments, those of one side, or one of them."""
    of_controller = [each for each in OF_THE_CONTROLLER if only in ("", CONTROLLER, each[0])]
    of_a_bundle = [each for each in OF_A_BUNDLE if only in ("", NODE, each[0])]
    on_a_node = [each for each in ON_A_NODE if only in ("", NODE, each[0])]
    of_a_pair = only in ("", pairs.NAME)
    left = len(of_controller) + len(of_a_bundle) + of_a_pair + len(on_a_node)
    for number, (_, live, usual) in enumerate(of_controller):
        ledger.allot(left - number)
        live(ledger, usual if rounds is None else rounds)
    with scratch_directory("chaos-bundle") as place:
        for number, (_, offer, usual) in enumerate(of_a_bundle):
            ledger.allot(left - len(of_controller) - number)
            offer(ledger, bundles.honest_bundle(place), usual if rounds is None else rounds)
    if of_a_pair:
        ledger.allot(len(on_a_node) + 1)
        with Workshop() as workshop:
            kernel = workshop.kernel("cloud-amd64")
            pairs.trouble(ledger, workshop, kernel, pairs.ROUNDS if rounds is None else rounds)
    if not on_a_node:
        return
    with Workshop() as workshop, target(workshop, workshop.kernel("cloud-amd64")) as node:
        for number, (_, try_it, usual) in enumerate(on_a_node):
            ledger.allot(len(on_a_node) - number)
            try_it(ledger, node, usual if rounds is None else rounds)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("only", nargs="?", default="", choices=["", NODE, CONTROLLER, *NAMES])
    parser.add_argument("--seed", type=int, default=None, help="repeat the run of this seed")
    parser.add_argument("--rounds", type=int, help="rounds of each experiment, instead of many")
    parser.add_argument("--minutes", type=float, help="for all of it, each experiment its part")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    asked = parser.parse_args()
    seed = random.randrange(1 << 32) if asked.seed is None else asked.seed
    ends = float("inf") if asked.minutes is None else time.monotonic() + 60 * asked.minutes
    ledger = Ledger(seed, ends, lambda text: print(text, file=sys.stderr, flush=True))  # noqa: T201
    ledger.say(f"seed {seed}")
    run(ledger, asked.only, asked.rounds)
    as_json = asked.output == "json"
    print(json.dumps(ledger.document(), indent=2) if as_json else ledger.report())  # noqa: T201
    return 1 if ledger.findings else 0


if __name__ == "__main__":
    sys.exit(main())
