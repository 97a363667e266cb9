"""Stores that answer whatever comes to somebody's mind, each answer served by a real server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from nodeside.driver.bundle.bundle import Bundle
from nodeside.driver.store.base import WantedBundle
from nodeside.scratch import scratch_directory
from tests.chaos.attempts import BUG, attempt
from tests.chaos.ledger import Ledger
from tests.driver.fakes.odd_answers import (
    CONVERSATIONS,
    Answer,
    OddServer,
    asked_both_ways,
    mutated,
    right_directory,
    right_registry,
)

NAME = "hostile store"
_LONGEST = 2000  # characters of what a driver says of a store


def ask_often(ledger: Ledger, bundle: Bundle, count: int) -> None:
    """A conversation for each round: one that somebody thought of, or a right one, changed."""
    with OddServer() as server, scratch_directory("chaos-store") as place:
        rights = [make(bundle, place) for make in (right_directory, right_registry)]
        for turn in ledger.rounds(NAME, count):
            kind = turn.fate.randrange(2)
            if turn.fate.random() < 0.1:
                name, answers = turn.fate.choice(list(CONVERSATIONS.items()))
            else:
                [(name, answers)] = mutated(turn.fate.randrange(1 << 30), 1, rights[kind])
            into = place / str(turn.number)
            into.mkdir()
            ended = attempt(lambda: _ask(server, answers, bundle, kind, into))  # noqa: B023
            left = [path.name for path in into.iterdir() if path.name != "bundle"]
            turn.expect(not ended.startswith(BUG), f"{name}: {ended}")
            turn.expect(not left, f"{name}: left behind {left}")
            turn.outcome(ended.partition(":")[0])


def _ask(
    server: OddServer, answers: Sequence[Answer], bundle: Bundle, kind: int, into: Path
) -> str:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        del os.environ[name]
    manifest = bundle.manifest
    wanted = WantedBundle(manifest.driver, manifest.version, manifest.kernel, manifest.key)
    ended = "refused"
    for outcome in asked_both_ways(server, answers, wanted, into, sources=[server.sources[kind]]):
        said = str(outcome.results[0])
        if not said.isprintable() or "a bug in nodeside" in said or len(said) > _LONGEST:
            return f"{BUG}: it says {said!r}"
        found = getattr(outcome, "bundle", None)
        if found is not None:
            ended = "served"
            if found.manifest != manifest:
                return f"{BUG}: another bundle than the wanted one was taken"
    return ended
