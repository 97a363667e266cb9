"""Which builds are made on the host, and that they run nothing but nodeside as root."""

from __future__ import annotations

import io
import json
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from nodeside.errors import ExitCode
from nodeside.protocol.shared_directory import SharedDir
from nodeside.spec import parse
from nodeside.system.process import Completed
from nodeside.trial.host import build as host_build
from nodeside.trial.host.build import build_on_host
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.progress import Progress

DRIVER = parse(
    {
        "apiVersion": "nodeside.io/v1alpha1",
        "kind": "Driver",
        "metadata": {"name": "straw"},
        "spec": {"version": "1.0", "modules": [{"name": "straw"}]},
    }
)


@pytest.mark.slow
def test_nothing_of_a_vendors_directory_is_run_to_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = SharedDir(tmp_path / "shared")
    monkeypatch.setattr(host_build, "HostToolkit", lambda *_, **__: nullcontext(shared))
    for name in ("nodeside", "click"):
        (tmp_path / f"{name}.py").write_text("open('run', 'w').close()\n")
    monkeypatch.chdir(tmp_path)

    done = build_on_host(
        tmp_path / "no-image",
        KernelDisk(tmp_path, "6.1.0-56-cloud-amd64", headers=True, compiler="gcc-12"),
        toolkit=tmp_path,
        python=tmp_path,
        cache=tmp_path / "cache",
        kept=tmp_path / "kept",
        driver=DRIVER,
        progress=Progress(io.StringIO()),
    )

    assert done.exit_code == ExitCode.SPEC
    assert not (tmp_path / "run").exists()


def test_the_oldest_bundles_are_forgotten(tmp_path: Path) -> None:
    for number in range(host_build._KEPT + 2):
        manifest = tmp_path / "straw" / f"tag-{number}" / "manifest.json"
        manifest.parent.mkdir(parents=True)
        manifest.touch()
        os.utime(manifest.parent, (number, number))
    host_build._remove_oldest_bundles(tmp_path)
    left = {path.name for path in (tmp_path / "straw").iterdir()}
    assert left == {f"tag-{number}" for number in range(2, host_build._KEPT + 2)}


def test_a_bundle_that_was_taken_before_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that adds packages to the toolkit builds for all of its kernels again."""
    kept, cache = tmp_path / "kept", tmp_path / "cache"
    (kept / "straw" / "tag").mkdir(parents=True)
    answer = json.dumps({"path": str(kept / "straw" / "tag")})
    done = Completed((), 0, answer, "", 0.0)
    monkeypatch.setattr("nodeside.system.process.run", lambda *_, **__: done)

    for _ in range(2):
        assert host_build._copy_kept_bundle(["nodeside"], {}, kept, cache)

    assert (cache / "straw" / "tag").is_dir()
