"""`nodeside try --watch`: an engineer who saves a file, makes mistakes, and crashes the kernel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeside.errors import ExitCode
from nodeside.trial.machine.kernel_disk import KernelDisk
from tests.patience import patience
from tests.vm.variants import EDU, variant

pytestmark = pytest.mark.vm

LONG = patience(900.0)
WAITS = "waiting for a change"


class Engineer:
    """Somebody at a terminal with `nodeside try --watch`, and an editor in another one."""

    def __init__(self, directory: Path, kernel: str) -> None:
        self.source = directory / "src" / "edu.c"
        code = "from nodeside.__main__ import main; main()"
        words = ["try", str(directory), "--watch", "--kernel", kernel]
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self._more = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._more:
                self.lines.append(line.rstrip())
                self._more.notify_all()

    def sees(self) -> str:
        """What is said until it waits again; the next call is about the next time."""
        until = time.monotonic() + LONG
        with self._more:
            while not any(WAITS in line for line in self.lines):
                assert self.process.poll() is None, self.lines
                assert self._more.wait(until - time.monotonic()), self.lines
            seen, self.lines = "\n".join(self.lines), []
            return seen

    def saves(self, text: str) -> str:
        other = self.source.with_suffix(".saving")
        other.write_text(text)
        os.replace(other, self.source)
        return self.sees()


@pytest.fixture
def engineer(newest: KernelDisk, tmp_path: Path) -> Iterator[Engineer]:
    engineer = Engineer(variant(EDU, tmp_path / "edu", {}), newest.release)
    yield engineer
    engineer.process.send_signal(signal.SIGTERM)
    engineer.process.wait(LONG)


def test_each_change_is_tried_and_no_mistake_ends_it(engineer: Engineer) -> None:
    assert "ready: edu 1.0.0" in engineer.sees()
    good = engineer.source.read_text()

    said = engineer.saves(good.replace("edu: probe", "edu: found"))
    assert "driver module unloaded module=edu" in said
    assert "edu: found" in said, "what the kernel logs is shown"
    assert "ready: edu 1.0.0" in said
    assert "booting" not in said

    said = engineer.saves(f"{good}\n#error no\n")
    assert "failed: exit code 10" in said
    assert "first error: edu.c:" in said

    probe = "static int edu_probe("
    assert probe in good
    head, _, body = good.partition(probe)
    said = engineer.saves(f"{head}{probe}{body.replace('{', '{ BUG();', 1)}")
    assert "failed: exit code 41" in said
    assert "the kernel crashed in edu_probe" in said

    said = engineer.saves(good)
    assert "booting" in said
    assert "ready: edu 1.0.0" in said

    engineer.process.send_signal(signal.SIGTERM)
    assert engineer.process.wait(LONG) == ExitCode.OK
