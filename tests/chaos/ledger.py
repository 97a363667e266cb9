"""What was tried, what came of it, and what should not have come of it.

An experiment that finds nothing may have done nothing. So each round says whether its disturbance
really happened, and an experiment whose disturbances never did is a finding.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from nodeside.text.table import table

_ENOUGH = 10  # findings; after so many an experiment ends, since they repeat themselves
_NOTICE = 15.0  # seconds between two lines of progress
_TRIES = 8  # of which at least one must have hit, where chance decides


@dataclass(frozen=True)
class Finding:
    """Something that does not hold. `experiment` and `round` tell how to try it again."""

    experiment: str
    round: int
    what: str


@dataclass
class Control:
    """How often a disturbance was tried, and hit: at least once in `enough` tries."""

    enough: int = _TRIES
    tries: int = 0
    hits: int = 0

    @property
    def failed(self) -> bool:
        return self.tries >= self.enough and not self.hits


@dataclass
class Ledger:
    """`ends` is a moment of time.monotonic() after which no new round begins; `share` the one for
    the experiment at work."""

    seed: int
    ends: float = float("inf")
    say: Callable[[str], None] = print
    findings: list[Finding] = field(default_factory=list)
    outcomes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    controls: dict[str, dict[str, Control]] = field(default_factory=lambda: defaultdict(dict))
    share: float = float("inf")
    _noticed: float = 0.0

    def allot(self, left: int) -> None:
        """The next of so many experiments begins: each gets the same part of what time is left."""
        now = time.monotonic()
        self.share = now + (self.ends - now) / left

    def rounds(self, experiment: str, count: int) -> Iterator[Round]:
        """Up to `count` rounds, each with a random generator of its own; then the controls."""
        self.outcomes[experiment].update()  # an experiment without a round is reported, too
        turn = None
        for number in range(count):
            if self._is_over(experiment):
                self.say(f"{experiment}: ended after {number} of {count} rounds")
                break
            self._notice(f"{experiment}: round {number + 1} of {count}")
            fate = random.Random(f"{self.seed}/{experiment}/{number}")  # no secret
            yield (turn := Round(self, experiment, number, fate))
        if turn is not None:
            self._judge_controls(turn)

    def _is_over(self, experiment: str) -> bool:
        found = sum(finding.experiment == experiment for finding in self.findings)
        return time.monotonic() >= min(self.share, self.ends) or found >= _ENOUGH

    def _judge_controls(self, last: Round) -> None:
        """What never happened was not tried, whatever the outcomes say."""
        controls = self.controls[last.experiment]
        last.expect(bool(controls), "no round says whether its disturbance happened")
        for what, control in controls.items():
            last.expect(not control.failed, f"in {control.tries} tries never: {what}")

    def _notice(self, text: str) -> None:
        if time.monotonic() - self._noticed >= _NOTICE:
            self._noticed = time.monotonic()
            self.say(text)

    def document(self) -> dict[str, Any]:
        """For machines, and for docs/reliability.md."""
        return {
            "seed": self.seed,
            "tried": {name: dict(sorted(count.items())) for name, count in self.outcomes.items()},
            "happened": {
                name: {what: [control.hits, control.tries] for what, control in found.items()}
                for name, found in self.controls.items()
            },
            "findings": [vars(finding) for finding in self.findings],
        }

    def report(self) -> str:
        """For people."""
        rows = [
            (name, str(count.total()), ", ".join(f"{n} {what}" for what, n in count.most_common()))
            for name, count in self.outcomes.items()
        ]
        text = table(rows, header=("EXPERIMENT", "TIMES", "WHAT CAME OF IT"))
        happened = [
            (name, f"{control.hits} of {control.tries}", what)
            for name, found in self.controls.items()
            for what, control in found.items()
        ]
        text += "\n" + table(happened, header=("EXPERIMENT", "TIMES", "WHAT REALLY HAPPENED"))
        for finding in self.findings:
            text += f"\nFINDING {finding.experiment} round {finding.round}: {finding.what}"
        return f"{text}\nseed {self.seed}: {len(self.findings)} findings\n"


@dataclass(frozen=True)
class Round:
    """One try. It has at least one `outcome`, tells what `happened`, and any number of findings."""

    ledger: Ledger
    experiment: str
    number: int
    fate: random.Random

    def outcome(self, what: str) -> None:
        self.ledger.outcomes[self.experiment][what] += 1

    def happened(self, what: str, hit: bool, *, enough: int = _TRIES) -> None:
        """Whether a disturbance hit this time. Never in `enough` tries is a finding."""
        control = self.ledger.controls[self.experiment].setdefault(what, Control(enough))
        control.tries += 1
        control.hits += hit

    def finding(self, what: str) -> None:
        self.ledger.findings.append(Finding(self.experiment, self.number, what))
        self.ledger.say(f"FINDING {self.experiment} round {self.number}: {what}")

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.finding(what)
