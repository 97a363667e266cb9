"""What the bench of the cluster side waits for ends with the first word of what broke."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import waiting
from bench.cluster.speakers import Heard
from bench.cluster.stage import Controller, Stage
from bench.room import BenchError
from nodeside.system import process


def stage(monkeypatch: pytest.MonkeyPatch, heard: Heard) -> Stage:
    monkeypatch.setattr(waiting, "_ASK", 0.0)
    made, played = Stage(25, print), SimpleNamespace(heard=lambda: heard)
    monkeypatch.setattr(made, "speakers", played)
    return made


def wait(made: Stage, seen: Any = "nothing") -> str:
    with pytest.raises(BenchError) as error:
        made.wait_for(lambda: False, "all to speak", lambda: seen)
    return str(error.value)


def test_the_node_that_cannot_speak_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    made = stage(monkeypatch, Heard(broken="node-0001 said: it may not"))

    assert wait(made) == "waited for 25 nodes: all to speak, but node-0001 said: it may not"


def test_the_last_words_of_a_controller_that_ended_are_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, log = stage(monkeypatch, Heard()), tmp_path / "log"
    log.write_text("error: no kubeconfig\n")
    child = process.start([sys.executable, "-c", ""])
    child.wait(60)
    controller = Controller(child, 0, log, "", time.monotonic())
    made._controllers.append(controller)

    words = "all to speak, but the controller ended by itself\nerror: no kubeconfig"
    assert words in wait(made)

    controller.stop()
    assert controller.broken == "", "it ended because it was told to"
