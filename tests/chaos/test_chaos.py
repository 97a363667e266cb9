"""A short run of the saboteur, always the same; `make chaos` takes a new seed each time."""

from __future__ import annotations

import pytest

from tests.chaos.__main__ import NODE, run
from tests.chaos.attempts import BUG, attempt
from tests.chaos.histories import NAME as HISTORIES
from tests.chaos.judging import Sight, faults, lies
from tests.chaos.ledger import Ledger

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


def test_a_ready_file_without_its_module_is_a_lie_at_any_moment() -> None:
    assert list(lies(sight(initstate=""), IDS))
    assert not list(lies(Sight(()), IDS))


def test_what_crashes_fills_or_ends_itself_is_a_bug_and_an_answer_is_one() -> None:
    def fills() -> str:
        return str(len(bytearray(4 << 30)))

    assert attempt(lambda: "refused: so") == "refused: so"
    assert "MemoryError" in attempt(fills)
    assert attempt(lambda: "x"[1]).startswith(BUG)


def test_some_histories_of_a_cluster_hold_what_is_promised() -> None:
    ledger = Ledger(SEED, say=lambda _: None)
    run(ledger, HISTORIES, rounds=1)
    assert not ledger.findings, ledger.report()


@pytest.mark.vm
def test_a_short_run_against_a_node_finds_nothing() -> None:
    ledger = Ledger(SEED, say=lambda _: None)
    run(ledger, NODE, rounds=2)
    assert not ledger.findings, ledger.report()
