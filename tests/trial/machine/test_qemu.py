"""QEMU's command line. A script stands for QEMU; tests/vm boots machines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nodeside.errors import UsageError
from nodeside.system import process
from nodeside.trial.architecture import AMD64, ARM64
from nodeside.trial.cache import TrialCache
from nodeside.trial.machine import qemu
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.machine.qemu import MachineFiles, MachineSettings


def test_the_memory_of_a_machine_and_its_devices_is_limited(tmp_path: Path) -> None:
    script = tmp_path / "qemu"
    script.write_text("#!/bin/sh\nulimit -d\n")
    script.chmod(0o755)
    disk = KernelDisk(tmp_path, "6.1.0", True, "gcc-12", replace(AMD64, qemu=str(script)))
    files = MachineFiles(disk, tmp_path / "node", tmp_path / "payload", tmp_path / "serial")

    argv = qemu.make_argv(MachineSettings(memory_mib=1024), files, agent_fd=3)

    assert process.run(argv, timeout=60).output == f"{(1024 + 4096) << 10}\n"


def test_another_architecture_has_its_own_qemu_machine_and_console(tmp_path: Path) -> None:
    disk = KernelDisk(tmp_path, "6.1.0-1-arm64", True, "gcc-12", ARM64)
    files = MachineFiles(disk, tmp_path / "node", tmp_path / "payload", tmp_path / "serial")

    argv = qemu.make_argv(MachineSettings(), files, agent_fd=3)

    assert "qemu-system-aarch64" in argv
    assert argv[argv.index("-machine") + 1].startswith("virt,")
    words = argv[argv.index("-append") + 1].split()
    assert "console=ttyAMA0" in words
    assert "tsc=reliable" not in words


def test_kvm_is_refused_for_another_architecture_and_never_tried(tmp_path: Path) -> None:
    disk = KernelDisk(tmp_path, "6.1.0-1-arm64", True, "gcc-12", ARM64)
    cache = TrialCache(tmp_path)

    with pytest.raises(UsageError, match="KVM runs only machines of this host's architecture"):
        qemu.check_accelerator("kvm", ARM64)
    assert qemu.choose_accelerator("auto", disk, cache) == "tcg"
