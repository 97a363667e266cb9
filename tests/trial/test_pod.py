"""What is kept of a pod in the machine."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nodeside.errors import ExitCode
from nodeside.spec.pci import PciId
from nodeside.system.process import Completed
from nodeside.trial.pod import BootOptions, _Pod, find_crash_site
from nodeside.trial.progress import Progress

PATCH = "--- a/chip.c\n+++ b/chip.c\n-wrong\n+right\n"


def test_of_a_long_output_the_end_is_kept() -> None:
    done = Completed(("c",), 0, "x" * (2 << 20) + "end\n", "", 0.0)
    machine: Any = SimpleNamespace(run=lambda *_, **__: done)
    other: Any = None
    options = BootOptions((), commands=(("c",),))

    (said,) = _Pod(other, machine, other, options, Progress(quiet=True))._run_consumers(ready=False)

    assert len(said.output) == 1 << 20
    assert said.output.endswith("xend")


@pytest.mark.parametrize(
    ("line", "site"),
    [
        ("[    9.1] RIP: 0010:edu_init+0x2b/0x1000 [edu]", "edu_init+0x2b/0x1000 [edu]"),
        ("[    9.1] pc : edu_init+0x2c/0x1000 [edu]", "edu_init+0x2c/0x1000 [edu]"),
        ("[    9.1] RIP: 0010:do_exit+0x9ec/0x9f0", ""),
        ("[    9.1] lr : edu_init+0x28/0x1000 [edu]", ""),
    ],
)
def test_the_place_of_a_crash_is_told_on_either_architecture(line: str, site: str) -> None:
    assert find_crash_site(f"[    9.0] kernel BUG at edu.c:1!\n{line}\n") == site


def test_a_crash_is_a_result_that_names_the_place_of_it() -> None:
    console = "[    9.0] kernel BUG at edu.c:1!\n[    9.1] pc : edu_init+0x2c/0x1000 [edu]\n"
    machine: Any = SimpleNamespace(
        splats=lambda: ("kernel BUG at edu.c:1!",),
        serial_log=lambda: console,
        files=SimpleNamespace(kernel=SimpleNamespace(release="6.1.0")),
        settings=SimpleNamespace(accelerator="tcg"),
        boot_seconds=1.0,
    )
    node: Any = SimpleNamespace(host_builds=frozenset())
    target: Any = SimpleNamespace(
        driver=SimpleNamespace(name="edu", spec=SimpleNamespace(version="1"))
    )
    stream = io.StringIO()

    run = _Pod(node, machine, target, BootOptions(()), Progress(stream))._crash_result(
        "it was loaded"
    )

    assert (run.crashed, run.exit_code) == (True, ExitCode.LOAD_FAILED)
    assert run.report["message"] == (
        "the kernel crashed while it was loaded: kernel BUG at edu.c:1!, "
        "in edu_init+0x2c/0x1000 [edu]"
    )
    assert run.report["exitCode"] == run.exit_code
    assert "pc : edu_init" in stream.getvalue()


def pod_that_says(output: str, stream: io.StringIO, pci: tuple[PciId, ...] = ()) -> _Pod:
    files = SimpleNamespace(kernel=SimpleNamespace(release="6.1"))
    said = Completed(("c",), 0, output, "", 0.0)
    machine: Any = SimpleNamespace(run=lambda *_, **__: said, files=files)
    spec = SimpleNamespace(hardware=SimpleNamespace(pci=pci), privileged=False)
    target: Any = SimpleNamespace(driver=SimpleNamespace(name="chip", spec=spec))
    other: Any = None
    return _Pod(other, machine, target, BootOptions(()), Progress(stream=stream))


def test_what_was_edited_is_a_file_or_shown_where_none_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    pod = pod_that_says(PATCH, stream)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pod._save_edits(pod.machine)
    [kept] = tmp_path.iterdir()
    assert kept.read_text() == PATCH
    assert str(kept) in stream.getvalue()

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    pod._save_edits(pod.machine)
    assert "edited  | +right" in stream.getvalue()


@pytest.mark.parametrize(
    ("wanted", "notes"),
    [
        ((), 0),
        ((PciId("1234", "11e8"),), 0),
        ((PciId("abcd"), PciId("1234")), 0),
        ((PciId("1234", "11e9"), PciId("abcd")), 1),
    ],
)
def test_a_driver_that_is_ready_without_its_device_is_told_so(
    wanted: tuple[PciId, ...], notes: int
) -> None:
    pod = pod_that_says("0x8086\n0x1237\n0x1234\n0x11e8\n", io.StringIO(), wanted)

    assert len(pod._notes_on_missing_device()) == notes


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        ((), ""),
        ((PciId("1d0f"), PciId("8086")), ""),
        ((PciId("1d0f", "f000"), PciId("8086")), "(1d0f:f001)"),
        ((PciId("1d0f"), PciId("8086", "1237")), "(8086:*)"),
    ],
)
def test_devices_that_modules_are_for_and_hardware_does_not_name_are_told(
    wanted: tuple[PciId, ...], left: str
) -> None:
    said = (
        "alias=pci:v00001D0Fd0000F000sv*\nalias=pci:v00001D0Fd0000F001sv*\nalias=pci:v00008086d*\n"
    )
    pod = pod_that_says(said, io.StringIO(), wanted)

    notes = pod._notes_on_unnamed_devices()

    assert [left in note for note in notes] == [True] * bool(left)
