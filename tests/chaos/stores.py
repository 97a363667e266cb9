"""Stores that answer whatever comes to somebody's mind, each answer served by a real server.

The server is of this process, and what asks it a limited child: memory and threads of the server
are none of the driver's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from nodeside.driver.bundle.bundle import Bundle
from nodeside.driver.store.base import WantedBundle
from nodeside.driver.store.sources import SourceResult, fetch_first, find_manifest
from nodeside.spec.model import PrebuiltSource, Trust
from nodeside.system.scratch import scratch_directory
from tests.chaos.attempts import BUG, attempt
from tests.chaos.ledger import Ledger, Round
from tests.driver.fakes.odd_answers import (
    CONVERSATIONS,
    OPTIONS,
    Answer,
    OddServer,
    mutated,
    right_directory,
    right_registry,
)

NAME = "hostile store"
_LONGEST = 2000  # characters of what a driver says of a store
_KINDS = ("directory", "registry")

Ask = Callable[[PrebuiltSource, Bundle, Path], str]


def ask_often(ledger: Ledger, bundle: Bundle, count: int) -> None:
    """A conversation for each round: one that somebody thought of, or a right one, changed."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        del os.environ[name]
    with OddServer() as server, scratch_directory("chaos-store") as place:
        rights = [make(bundle, place) for make in (right_directory, right_registry)]
        for turn in ledger.rounds(NAME, count):
            if turn.number == 0:
                _ask_honest_ones(turn, server, rights, bundle)
            kind = turn.fate.randrange(2)
            if turn.fate.random() < 0.1:
                name, answers = turn.fate.choice(list(CONVERSATIONS.items()))
            else:
                [(name, answers)] = mutated(turn.fate.randrange(1 << 30), 1, rights[kind])
            server.say(answers)
            turn.outcome(_ask_twice(turn, server, name, kind, bundle))


def _ask_honest_ones(
    turn: Round, server: OddServer, rights: Sequence[Sequence[Answer]], bundle: Bundle
) -> None:
    """Through the same door: who refuses these refuses every store, and finds nothing."""
    for kind, answers in enumerate(rights):
        name = f"an honest {_KINDS[kind]}"
        server.say(answers)
        ended = _ask_twice(turn, server, name, kind, bundle)
        turn.expect(ended == "served", f"{name}: {ended}")
        turn.happened(f"a bundle of {name} was taken", ended == "served", enough=1)


def _ask_twice(turn: Round, server: OddServer, name: str, kind: int, bundle: Bundle) -> str:
    """For the bundle, and for its manifest only: `served`, `refused` or `bug`, of the bundle."""
    ends = []
    for ask in (_fetch, _describe):
        server.begin_again()
        before = server.served
        with scratch_directory("chaos-into") as scratch:
            into = scratch / "into"
            into.mkdir()
            ended = attempt(lambda: ask(server.sources[kind], bundle, into))  # noqa: B023
            left = [path.name for path in into.iterdir() if path.name != "bundle"]
        turn.expect(not ended.startswith(BUG), f"{name}: {ended}")
        turn.expect(not left, f"{name}: left behind {left}")
        turn.expect(server.served > before, f"{name}: no answer was served")
        turn.happened("a driver was given answers", server.served > before, enough=1)
        ends.append(ended.partition(":")[0])
    return ends[0]


def _fetch(source: PrebuiltSource, bundle: Bundle, into: Path) -> str:
    outcome = fetch_first([source], _wanted(bundle), Trust(), OPTIONS, into)
    if outcome.bundle is None:
        return _refusal(outcome.results[0])
    right = outcome.bundle.manifest == bundle.manifest
    return "served" if right else f"{BUG}: another bundle than the wanted one was taken"


def _describe(source: PrebuiltSource, bundle: Bundle, _: Path) -> str:
    outcome = find_manifest([source], _wanted(bundle), Trust(), OPTIONS)
    return "served" if outcome.manifest is not None else _refusal(outcome.results[0])


def _refusal(result: SourceResult) -> str:
    said = str(result)
    right = said.isprintable() and "a bug in nodeside" not in said and len(said) <= _LONGEST
    return "refused" if right else f"{BUG}: it says {said!r}"


def _wanted(bundle: Bundle) -> WantedBundle:
    manifest = bundle.manifest
    return WantedBundle(manifest.driver, manifest.version, manifest.kernel, manifest.key)
