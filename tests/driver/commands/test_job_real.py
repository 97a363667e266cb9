"""The steps of a build Job for real: the toolkit's in a real toolkit, as an ordinary user without
network, the driver's against a real registry; then a node fetches what they have published."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeside.driver.handoff.provide import provide_toolkit, sidecar_command
from nodeside.driver.module.modulefile import read_module
from nodeside.protocol.build_job import BuildVerdict, read_outcome
from nodeside.protocol.shared_directory import SharedDir
from nodeside.system import process
from nodeside.trial.host.container import ENVIRONMENT, UNPRIVILEGED, make_entrance
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.workshop import Workshop
from tests import yaml_in_c as yaml
from tests.driver.fakes.registry import registry
from tests.patience import patience

pytestmark = pytest.mark.toolkit

EDU = Path("examples/edu")
_STEP = patience(300.0)  # seconds that only a broken step takes


class RealSteps:
    """An image of the edu driver with a signing key, a toolkit, a registry."""

    def __init__(self, directory: Path, disk: KernelDisk, toolkit: Path, python: Path) -> None:
        self.directory, self.disk, self.toolkit = directory, disk, toolkit
        self.shared = SharedDir(directory / "shared")
        self.image = directory / "image"
        self.message = directory / "message"
        shutil.copytree(EDU, self.image)
        provide_toolkit(self.shared, python)

    def driver_yaml(self, registry: str) -> None:
        path = self.image / "driver.yaml"
        document = yaml.safe_load(path.read_text())
        source = {"oci": f"{registry}/drivers/edu", "insecure": True, "publish": True}
        document["spec"]["prebuilt"] = {"sources": [source]}
        document["spec"]["signing"] = {"key": "../edu.key", "certificate": "../edu.pem"}
        path.write_text(json.dumps(document))

    def make_key(self) -> None:
        argv: list[str | Path] = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes"]
        argv += ["-subj", "/CN=edu", "-days", "2", "-keyout", self.directory / "edu.key"]
        process.run([*argv, "-out", self.directory / "edu.pem"], timeout=60)

    def in_toolkit(self, verb: str) -> process.Completed:
        layers, binds = (self.disk.tree, self.toolkit), {self.shared.root: "/shared"}
        with make_entrance(layers, self.directory / verb, binds) as enter:
            argv = [*UNPRIVILEGED, *sidecar_command(Path("/shared"), verb)]
            return process.run(argv, env=ENVIRONMENT, wrapper=enter, timeout=_STEP)

    def in_driver_image(self, verb: str, *more: str) -> dict[str, Any]:
        argv = [sys.executable, "-m", "nodeside", "driver", verb, "--output", "json"]
        done = process.run([*argv, "--driver", self.image, *more], timeout=_STEP)
        found: dict[str, Any] = json.loads(done.output)
        return found


@pytest.fixture
def steps(tmp_path: Path) -> Iterator[RealSteps]:
    tmp_path.chmod(0o755)
    with Workshop() as workshop:
        disk = workshop.kernel("cloud-amd64")
        root = workshop.roots.toolkit(disk.compiler)
        yield RealSteps(tmp_path, disk, root, workshop.packed_python())


def test_a_node_fetches_what_was_built_for_it_where_it_never_was(
    steps: RealSteps, tmp_path: Path
) -> None:
    """The signing key is there for the last step only, as in the Job."""
    steps.make_key()
    key = (tmp_path / "edu.key").rename(tmp_path / "hidden")
    with registry(tmp_path / "registry") as where:
        steps.driver_yaml(where)
        shared = ("--shared", str(steps.shared.root), "--outcome-file", str(steps.message))
        assert steps.disk.release in steps.in_toolkit("kernels").output
        ordered = steps.in_driver_image("order", *shared, "--kernel", steps.disk.release)
        steps.in_toolkit("answer")
        key.rename(tmp_path / "edu.key")
        steps.in_driver_image("finish", *shared, "--cache", str(tmp_path / "made"))
        (tmp_path / "edu.key").unlink()

        kernel = ordered["kernel"]
        named = ("--kernel", kernel["release"], "--kernel-version", kernel["version"])
        fetched = steps.in_driver_image("fetch", *named, "--cache", str(tmp_path / "node"))
        again = steps.in_driver_image("order", *shared, "--kernel", steps.disk.release)

    outcome = read_outcome(steps.message.read_text())
    assert outcome is not None
    assert outcome.verdict is BuildVerdict.PUBLISHED
    assert fetched["digest"] == outcome.digest
    module = read_module(Path(fetched["path"]) / "modules/edu.ko")
    assert module.vermagic.startswith(f"{steps.disk.release} ")
    assert module.signature is not None
    assert (again["request"], again["digest"]) == ("", outcome.digest)
