"""The sidecar of a driver image with a later Python than ours: the one of Debian's next release."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeside.driver.handoff.provide import sidecar_command
from nodeside.system import process
from nodeside.trial.cache import TrialCache
from nodeside.trial.debian.archive import Archive
from nodeside.trial.debian.root_filesystems import RootFileSystems
from nodeside.trial.host.container import ENVIRONMENT, OWN_PROCESSES, make_entrance
from nodeside.trial.progress import Progress
from tests import TOP
from tests.patience import patience

pytestmark = pytest.mark.toolkit

SUITE = "forky"  # Debian 14, whose Python is 3.14 or later
LONG = patience(300.0)  # seconds: a deadline that only a broken test meets


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """The root file system of the driver image."""
    with pytest.MonkeyPatch.context() as patch, TrialCache() as cache:
        patch.setenv("NODESIDE_SUITE", SUITE)
        progress = Progress(quiet=True)
        yield RootFileSystems(Archive(cache, progress), cache, progress).driver()


def run(root: Path, directory: Path, *argv: str) -> process.Completed:
    """In a container of the image, which has nodeside and the shared directory."""
    binds = {TOP: "/opt/nodeside", directory / "shared": "/shared"}
    env = ENVIRONMENT | {"PYTHONPATH": "/opt/nodeside"}
    with make_entrance((root,), directory / "scratch", binds) as enter:
        return process.run([*OWN_PROCESSES, *argv], env=env, wrapper=enter, timeout=LONG)


def test_python_3_14_provides_the_sidecar_once_and_runs_it(root: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    provide = ("python3", "-P", "-B", "-m", "nodeside", "driver", "provide", "--shared", "/shared")

    run(root, tmp_path, *provide)
    first = {path: path.lstat().st_ino for path in shared.rglob("*")}
    run(root, tmp_path, *provide)
    run(root, tmp_path, *sidecar_command(Path("/shared"))[:-2], "--shared", "/shared", "--once")

    assert (shared / "python/STAMP").read_text() > "3.14"
    assert {path: path.lstat().st_ino for path in first} == first, "each time the same bytes"
    assert json.loads((shared / "results/sidecar.json").read_text())
