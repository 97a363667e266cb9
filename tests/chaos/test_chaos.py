"""A short run of the saboteur, always the same; `make chaos` takes a new seed each time."""

from __future__ import annotations

import pytest

from tests import TOP
from tests.chaos.__main__ import NODE, run
from tests.chaos.attempts import BUG, attempt
from tests.chaos.bundles import OUTSIDE
from tests.chaos.histories import NAME as HISTORIES
from tests.chaos.judging import Sight, faults, lies
from tests.chaos.leaders import KILLS, TESTS, all_ran
from tests.chaos.ledger import Ledger
from tests.chaos.stores import NAME as STORES
from tests.driver.fakes.odd_answers import Answer, OddServer
from tests.loopback import TcpServer

SEED = 11
IDS = {"1.0": "aa" * 20, "2.0": "bb" * 20}
READY = '{"version": "1.0"}'


def sight(**found: str) -> Sight:
    usual = {"loaded": IDS["1.0"], "initstate": "live", "ready": READY, "mounts": "20"}
    return Sight(tuple({**usual, **found}.items()))


def judged(found: Sight) -> list[str]:
    return list(faults(found, "1.0", IDS, mounts=20, sidecar=7))


def test_a_node_where_all_is_right_has_no_fault() -> None:
    assert judged(sight(group="2 7", entries="3 /shared/out")) == []


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"loaded": IDS["2.0"]}, "the ready file says 1.0, and the kernel has bb"),
        ({"initstate": "coming"}, "the ready file says 1.0, and no module is live"),
        ({"ready": '{"version": "2.0"}'}, "was brought up, and the ready file says"),
        ({"leftover": "/var/lib/nodeside/cache/.tmp-x"}, "left behind: /var/lib/nodeside/cache"),
        ({"entries": "99 /shared/out"}, "99 entries in /shared/out"),
        ({"group": "1 8"}, "a container that ended still has 1 processes"),
        ({"mounts": "21"}, "21 mounts, at first 20"),
        ({"zombie": "(make)"}, "a zombie: (make)"),
        ({"descriptors": "50 of pid 3"}, "open files: 50 of pid 3"),
    ],
)
def test_each_fault_of_a_node_is_found(found: dict[str, str], words: str) -> None:
    assert any(words in each for each in judged(sight(**found)))


@pytest.mark.parametrize(
    ("last", "all_of_them"),
    [
        ("10 passed in 1802.11s (0:30:02)", True),
        ("9 passed, 1 skipped in 900.00s (0:15:00)", False),
        ("10 skipped in 0.03s", False),
        ("no tests ran in 0.03s", False),
    ],
)
def test_killed_leaders_were_killed_only_if_no_test_was_skipped(
    last: str, all_of_them: bool
) -> None:
    assert all_ran(f"..........\n{last}\n") is all_of_them


def test_the_test_that_kills_a_leader_as_often_as_a_round_does_is_there() -> None:
    path, _, name = TESTS[0].removesuffix(f"[{KILLS}]").partition("::")

    assert f"\ndef {name}(" in (TOP / path).read_text()


def test_a_ready_file_without_its_module_is_a_lie_at_any_moment() -> None:
    assert list(lies(sight(initstate=""), IDS))
    assert not list(lies(Sight(()), IDS))


def test_what_crashes_fills_or_ends_itself_is_a_bug_and_an_answer_is_one() -> None:
    def fills() -> str:
        return str(len(bytearray(4 << 30)))

    assert attempt(lambda: "refused: so") == "refused: so"
    assert "MemoryError" in attempt(fills)
    assert attempt(lambda: "x"[1]).startswith(BUG)


def whats(ledger: Ledger) -> list[str]:
    return [finding.what for finding in ledger.findings]


@pytest.mark.parametrize(("hits", "found"), [(0, ["in 8 tries never: it rained"]), (1, [])])
def test_a_disturbance_that_never_happened_is_a_finding(hits: int, found: list[str]) -> None:
    ledger = Ledger(SEED, say=lambda _: None)
    for turn in ledger.rounds("weather", 8):
        turn.happened("it rained", turn.number < hits)

    assert whats(ledger) == found
    assert ledger.document()["happened"] == {"weather": {"it rained": [hits, 8]}}
    assert f"{hits} of 8" in ledger.report()


def test_rounds_that_do_not_say_what_happened_are_a_finding() -> None:
    ledger = Ledger(SEED, say=lambda _: None)
    for turn in ledger.rounds("weather", 1):
        turn.outcome("dry")

    assert whats(ledger) == ["no round says whether its disturbance happened"]


@pytest.mark.slow
def test_hostile_stores_and_bundles_find_nothing_and_the_honest_ones_are_taken() -> None:
    ledger = Ledger(SEED, say=lambda _: None)
    for name in (STORES, OUTSIDE):
        run(ledger, name, rounds=12)

    assert not ledger.findings, ledger.report()
    happened = ledger.document()["happened"]
    assert happened[STORES]["a bundle of an honest directory was taken"] == [1, 1]
    assert happened[STORES]["a bundle of an honest registry was taken"] == [1, 1]
    assert happened[STORES]["a driver was given answers"] == [28, 28]
    assert happened[OUTSIDE]["the honest bundle, pinned was taken"] == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("conversation", "found"),
    [
        ([Answer(b"")], "an honest directory: refused"),
        ([], "an honest directory: no answer was served"),
    ],
)
def test_a_run_in_which_no_honest_store_is_taken_is_a_finding(
    conversation: list[Answer], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OddServer, "_next", lambda _: conversation[0])
    monkeypatch.setattr(TcpServer, "went_away", (IndexError,))
    ledger = Ledger(SEED, say=lambda _: None)
    run(ledger, STORES, rounds=1)

    assert found in whats(ledger)


@pytest.mark.slow
def test_some_histories_of_a_cluster_hold_what_is_promised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are of another kind with another seed; how they hold is in tests/cluster/plan."""
    monkeypatch.setattr("tests.chaos.histories.BATCH", 10)
    ledger = Ledger(SEED, say=lambda _: None)
    run(ledger, HISTORIES, rounds=1)
    assert not ledger.findings, ledger.report()


@pytest.mark.vm
def test_a_short_run_against_a_node_finds_nothing() -> None:
    ledger = Ledger(SEED, say=lambda _: None)
    run(ledger, NODE, rounds=1)
    assert not ledger.findings, ledger.report()
