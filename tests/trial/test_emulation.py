"""Whether programs of another architecture run here; a script stands for the kernel's answer."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from nodeside.errors import ExitCode
from nodeside.system import process
from nodeside.trial import emulation
from nodeside.trial.architecture import AMD64, ARM64
from nodeside.trial.emulation import exit_program, explain_failure, require_emulation
from nodeside.trial.errors import TrialError

ENTRY = "enabled\ninterpreter /usr/libexec/qemu-binfmt/aarch64-binfmt-P\nflags: {}\noffset 0\n"


def entries(tmp_path: Path, entry: str = "") -> Path:
    (tmp_path / "status").write_text("enabled\n")
    if entry:
        (tmp_path / "qemu-aarch64").write_text(entry)
    return tmp_path


def test_this_hosts_own_programs_take_no_emulation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation, "runs_here", lambda _: pytest.fail("nothing is to be tried"))

    require_emulation(AMD64)


def test_without_emulation_it_is_said_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulation, "runs_here", lambda _: False)
    monkeypatch.setattr(
        emulation, "explain_failure", lambda _: explain_failure(ARM64, entries(tmp_path))
    )

    with pytest.raises(TrialError, match="cannot run programs for arm64") as caught:
        require_emulation(ARM64)

    assert str(caught.value).endswith(": binfmt_misc has no entry qemu-aarch64")
    assert "apt-get install qemu-user-static" in caught.value.hint
    assert caught.value.exit_code == ExitCode.TRIAL


def test_a_place_without_binfmt_misc_is_said_with_the_mount(tmp_path: Path) -> None:
    why, hint = explain_failure(ARM64, tmp_path / "nothing")

    assert why.startswith("binfmt_misc is not mounted at ")
    assert hint.startswith("mount -t binfmt_misc ")
    assert hint.endswith(" && update-binfmts --enable qemu-aarch64")


@pytest.mark.parametrize(
    ("entry", "why", "hint"),
    [
        ("", "has no entry qemu-aarch64", "update-binfmts --enable qemu-aarch64"),
        (ENTRY.format("P"), "has no flag F", "apt-get install "),
        (ENTRY.format("PF").replace("en", "dis", 1), "is switched off", "echo 1 > "),
        (ENTRY.format("PF"), "its QEMU does not run", "apt-get install "),
    ],
)
def test_an_entry_that_does_not_serve_is_explained(
    tmp_path: Path, entry: str, why: str, hint: str
) -> None:
    found = explain_failure(ARM64, entries(tmp_path, entry))

    assert why in found[0]
    assert hint in found[1]


def test_the_program_that_is_tried_is_one_for_that_architecture(tmp_path: Path) -> None:
    (tmp_path / "exit").write_bytes(exit_program(ARM64))
    said = process.run(["readelf", "--file-header", tmp_path / "exit"], timeout=60).output

    assert "AArch64" in said
    assert "EXEC (Executable file)" in said


def test_what_the_kernel_refuses_to_start_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "chroot", lambda _: None)  # which takes root
    unknown = replace(ARM64, name="unknown")
    monkeypatch.setitem(emulation._EXIT, "unknown", (65535, b""))

    assert not emulation.runs_here(unknown)
