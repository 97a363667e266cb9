"""SIGKILL of any process of driver and sidecar, at a random moment of everything they do."""

from __future__ import annotations

import signal
import threading

from nodeside.errors import DeadlinePassed
from nodeside.trial.machine.machine import GuestProcess
from tests.chaos.ledger import Ledger, Round
from tests.chaos.nodes import ACTS, VERSIONS, Act, Target
from tests.patience import patience
from tests.vm.pod import Pod

NAME = "SIGKILL"
HAD_ENDED = "had ended"
KILLS = 3  # in a round, each while what the one before broke is mended
_LATER = 1.15  # a kill may also come when the act has just ended
_LONGEST = patience(300.0)  # seconds that the survivors take to their end
_IDLE, _BUILDING = 0.3, 0.7  # the part of the kills that meet the sidecar
_FIRST = 0.4  # the part of the kills that meet the first process of a container: all die then


def kill_often(ledger: Ledger, target: Target, count: int) -> None:
    """The histories of the rounds are one: each begins where the one before ended."""
    for turn in ledger.rounds(NAME, count):
        kill_some(turn, target, turn.fate.choice(ACTS))
        target.judge_after(turn, turn.fate.choice(list(VERSIONS)))


def kill_some(turn: Round, target: Target, act: Act) -> None:
    """Begin an act, kill something in the middle, look at once, and again while it recovers."""
    typical = target.typical(act)
    target.prepare(act)
    driver = target.begin(act)
    for _ in range(KILLS):
        threading.Event().wait(turn.fate.uniform(0.0, typical * _LATER))
        victim, container = _victim(turn, target, driver)
        killed = _kill(turn, target, container)
        turn.happened("a process that lived was killed", killed != HAD_ENDED, enough=6)
        turn.happened(f"a process of the {victim} was killed", killed != HAD_ENDED)
        target.judge_at_once(turn)
        turn.outcome(f"{victim}: {killed}")
        target.restart_sidecar()
        if driver.poll() is not None:
            driver = target.begin(act)
    _end(turn, driver, act)


def _victim(turn: Round, target: Target, driver: GuestProcess) -> tuple[str, GuestProcess]:
    """The driver more often than the sidecar, unless the sidecar builds: that is soon over."""
    sidecar = target.pod.sidecar
    if sidecar is None:
        return "driver", driver
    builds = len(target.processes(sidecar)) > 1
    if turn.fate.random() < (_BUILDING if builds else _IDLE):
        return "sidecar", sidecar
    return "driver", driver


def _kill(turn: Round, target: Target, container: GuestProcess) -> str:
    """Kill one process of a container; what it was to it, if it still lived."""
    processes = target.processes(container)
    if not processes:
        return HAD_ENDED
    if turn.fate.random() < _FIRST or len(processes) == 1:
        return "all" if kill_all(container) else HAD_ENDED
    number = turn.fate.choice(processes[1:])
    return "a child" if kill_one(target.pod, number) else HAD_ENDED


def kill_all(container: GuestProcess) -> bool:
    """Kill the first process of a container; whether that is what it died of."""
    container.kill()
    return container.wait(60).exit_code == -signal.SIGKILL


def kill_one(pod: Pod, number: int) -> bool:
    """Kill a process by the node's number; whether there was one."""
    return "hit" in pod.node("sh", "-c", f"kill -9 {number} && echo hit; true")


def _end(turn: Round, driver: GuestProcess, act: Act) -> None:
    """Whoever survived goes on to its end; what runs for ever is ended."""
    if act.verb == ("run",):
        driver.kill()
    try:
        driver.wait(_LONGEST)
    except DeadlinePassed:
        turn.finding(f"{act.name}: no end after {_LONGEST:g} s")
        driver.kill()
        driver.wait(60)
