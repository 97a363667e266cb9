"""Booting again where the emulator failed. A script stands for QEMU; tests/vm boots machines."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from nodeside.trial.errors import TrialError
from nodeside.trial.machine import qemu
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.machine.machine import Machine
from nodeside.trial.machine.qemu import MachineFiles, MachineSettings

STALE = "[    5.427700] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI"
PANIC = "[    1.200000] Kernel panic - not syncing: VFS: Unable to mount root fs"

# Says the next line of `script` on the console and ends; `boots` becomes a running machine.
QEMU = """
import os, signal, socket, sys, time
script, serial, fd = sys.argv[1:]
said = open(script).read().splitlines()
open(script, "w").write("\\n".join(said[1:]))
open(serial, "w").write(said[0])
if said[0] == "crashes":
    os.kill(os.getpid(), signal.SIGSEGV)
if said[0] == "boots":
    hello = b'{"event": "hello", "id": 0, "boot_id": "b", "kernel": "k"}\\n'
    socket.socket(fileno=int(fd)).sendall(hello)
    time.sleep(60)
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine whose boots say, each, a line of the file `script`."""

    def argv(settings: MachineSettings, files: MachineFiles, agent_fd: int) -> list[str]:
        return [sys.executable, "-c", QEMU, f"{script}", f"{files.serial}", f"{agent_fd}"]

    script = tmp_path / "script"
    monkeypatch.setattr(qemu, "make_argv", argv)
    disk = KernelDisk(tmp_path, "6.1.0", headers=True, compiler="gcc-12")
    files = MachineFiles(disk, tmp_path / "node", tmp_path / "payload", tmp_path / "serial")
    return Machine(MachineSettings(), files, allow_splats=True)


def boots(machine: Machine, *script: str) -> Sequence[str]:
    """Switch the machine on; what it had no need to say."""
    place = machine.files.serial.with_name("script")
    place.write_text("\n".join(script))
    with machine:
        assert machine.boot_id == "b"
    return place.read_text().splitlines()


@pytest.mark.slow
def test_a_boot_that_the_emulator_broke_is_tried_again(machine: Machine) -> None:
    assert boots(machine, STALE, STALE, "boots", "unused") == ["unused"]


def test_a_boot_in_which_the_emulator_crashed_is_tried_again(machine: Machine) -> None:
    assert boots(machine, "crashes", "boots", "unused") == ["unused"]


@pytest.mark.slow
def test_three_boots_are_enough(machine: Machine) -> None:
    with pytest.raises(TrialError, match=r"(?s)did not boot.*int3"):
        boots(machine, STALE, STALE, STALE, "boots")


def test_a_kernel_that_panics_for_a_reason_of_its_own_is_not_tried_again(machine: Machine) -> None:
    with pytest.raises(TrialError, match=r"(?s)did not boot.*Unable to mount root"):
        boots(machine, PANIC, "boots")


def test_one_cpu_has_nobody_to_patch_what_it_runs(machine: Machine) -> None:
    machine.settings = MachineSettings(cpus=1)
    with pytest.raises(TrialError, match="did not boot"):
        boots(machine, STALE, "boots")


@pytest.mark.slow
def test_of_a_console_without_end_some_short_lines_are_reported(machine: Machine) -> None:
    text = f"BUG: unable to handle page fault for address: {'x' * 5000}"
    lines = [f"[    1.{n:06}] {text}" for n in range(3000)]
    machine.files.serial.write_text("\n".join(lines))
    found = machine.splats()
    assert len(found) == 100
    assert max(map(len, found)) == 1000
