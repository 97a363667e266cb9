"""A sidecar without a pod, on a machine that other users work on too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeside.driver.handoff.local_sidecar import local_sidecar
from nodeside.system import process
from tests.toolkit_sidecar.faketoolkit import until


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_no_neighbour_answers_a_local_build() -> None:
    with local_sidecar() as shared:
        shared.create()  # as the driver's side does when it waits for the sidecar
        for path in (shared.root, shared.requests, shared.sources, shared.results, shared.out):
            assert path.stat().st_mode & 0o7777 == 0o700
        for path in (shared.results / "sidecar.json", shared.out / "0123456789ab-1"):
            argv = [
                "setpriv",
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                "touch",
                str(path),
            ]
            done = process.run(argv, timeout=60, check=False)
            assert "Permission denied" in done.errors


def test_nothing_of_the_working_directory_is_run_as_a_part_of_the_sidecar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nodeside", "argparse"):
        (tmp_path / f"{name}.py").write_text("open('run', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    with local_sidecar() as shared:
        until(shared.sidecar_lives, "the sidecar")
    assert not (tmp_path / "run").exists()
