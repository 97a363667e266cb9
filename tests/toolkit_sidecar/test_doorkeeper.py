"""The process that waits names the same places as the protocol, and costs little."""

from __future__ import annotations

import sys
from pathlib import Path

from nodeside import process
from nodeside.errors import ExitCode
from nodeside.shared import SharedDir
from nodeside.toolkit_sidecar.doorkeeper import Doorkeeper
from tests.toolkit_sidecar.faketoolkit import LONG, FakeToolkit


def test_it_names_the_places_of_the_protocol(tmp_path: Path) -> None:
    shared, keeper = SharedDir(tmp_path), Doorkeeper(tmp_path, lambda *_: ExitCode.OK)
    assert keeper.requests == shared.requests
    assert keeper.results == shared.results
    assert keeper.out == shared.out
    assert keeper.lock == shared.lock


def test_waiting_imports_nothing_that_only_a_build_needs() -> None:
    code = "import nodeside.toolkit_sidecar.cli, sys; print(*sys.modules, sep='\\n')"
    loaded = set(process.run([sys.executable, "-I", "-c", code], timeout=LONG).output.split())
    heavy = {"ctypes", "dataclasses", "hashlib", "logging", "subprocess", "nodeside.contract"}
    assert not heavy & loaded


def test_the_driver_sees_that_a_sidecar_lives(toolkit: FakeToolkit) -> None:
    assert not toolkit.shared.sidecar_lives()
    with toolkit.sidecar() as sidecar:
        sidecar.result(toolkit.request())
        assert toolkit.shared.sidecar_lives()


def test_a_second_sidecar_is_refused_while_the_first_lives(toolkit: FakeToolkit) -> None:
    with toolkit.sidecar() as first:
        first.result(toolkit.request())
        with toolkit.sidecar() as second:
            assert second.child.wait(LONG) == ExitCode.LOCKED
            assert f"another toolkit sidecar works on {toolkit.shared.root}" in second.output


def test_a_directory_that_is_not_shared_is_named(toolkit: FakeToolkit) -> None:
    toolkit.shared.requests.rmdir()
    with toolkit.sidecar() as sidecar:
        assert sidecar.child.wait(LONG) == ExitCode.SYSTEM
        assert "is not a shared directory: requests/ is missing" in sidecar.output
