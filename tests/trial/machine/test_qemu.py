"""QEMU's command line. A script stands for QEMU; tests/vm boots machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeside import process
from nodeside.trial.machine import qemu
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.machine.qemu import MachineFiles, MachineSettings


def test_the_memory_of_a_machine_and_its_devices_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "qemu"
    script.write_text("#!/bin/sh\nulimit -d\n")
    script.chmod(0o755)
    monkeypatch.setattr(qemu, "QEMU", str(script))
    disk = KernelDisk(tmp_path, "6.1.0", headers=True, compiler="gcc-12")
    files = MachineFiles(disk, tmp_path / "node", tmp_path / "payload", tmp_path / "serial")

    argv = qemu.argv(MachineSettings(memory_mib=1024), files, agent_fd=3)

    assert process.run(argv, timeout=60).output == f"{(1024 + 4096) << 10}\n"
