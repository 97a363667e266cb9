"""A killed bench leaves nothing for good: who needs a temporary directory next removes its own.

Nor does a process of it stay: one that has inherited the lock of a directory would keep it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from nodeside.system import process
from nodeside.system.scratch import remove_abandoned
from tests import TOP
from tests.patience import patience

_HANG = patience(600.0)  # seconds

# Both stand where the bench measures, and say where its directories are.
_MEASURES = """
import signal
from pathlib import Path
from bench import ground
from nodeside.trial.progress import Progress

ground._MEMORY = Path({memory!r})
with ground.Ground(Progress()) as made:
    print("in", made.scratch, made._memory, flush=True)
    signal.pause()
"""
_PLAYS = """
import signal
from types import SimpleNamespace
from bench.cluster import speakers
from nodeside.system.scratch import scratch_directory

speakers.connect = lambda _: SimpleNamespace()
there = SimpleNamespace(forget_connections=lambda: None, kubeconfig="")
with scratch_directory("bench-cluster") as scratch, speakers.Speakers(there, scratch) as played:
    played.heard()
    print("in", scratch, played._process.pid, flush=True)
    signal.pause()
"""


def killed(program: str, directory: Path) -> list[str]:
    """Starts a program, and kills it once it says something. Returns that."""
    end, write = os.pipe()
    argv = [sys.executable, "-c", program]
    child = process.start(argv, stdout=write, cwd=TOP, env={"TMPDIR": str(directory)})
    os.close(write)
    try:
        with os.fdopen(end) as said:
            assert select.select([said], [], [], _HANG)[0], "it says nothing"
            words = said.readline().split()
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait(_HANG)
    assert words[:1] == ["in"], words
    return words[1:]


def found_later(parent: Path) -> list[Path]:
    """What is left for who comes an hour later, and looks for what is abandoned."""
    for left in parent.glob("nodeside-scratch-*"):
        os.utime(left, (left.stat().st_mtime - 3600,) * 2)
    remove_abandoned(parent)
    return list(parent.glob("nodeside-scratch-*"))


def await_end(pid: int) -> None:
    with suppress(ProcessLookupError):  # it has ended before we look
        ended = os.pidfd_open(pid)
        assert select.select([ended], [], [], _HANG)[0], "it lives on"
        os.close(ended)


@pytest.mark.toolkit
def test_of_what_is_measured_nothing_is_left(tmp_path: Path) -> None:
    memory = tmp_path / "memory"  # stands for /dev/shm
    memory.mkdir()

    scratch, more = map(Path, killed(_MEASURES.format(memory=str(memory)), tmp_path))

    assert (scratch.parent, more.parent) == (tmp_path, memory)
    assert scratch.is_dir()
    assert more.is_dir()
    assert found_later(tmp_path) == []
    assert found_later(memory) == []


@pytest.mark.slow
def test_the_process_that_plays_the_nodes_ends_with_the_bench(tmp_path: Path) -> None:
    scratch, pid = killed(_PLAYS, tmp_path)

    await_end(int(pid))
    assert Path(scratch).is_dir()
    assert found_later(tmp_path) == []
