"""The version of nodeside before this one: a commit of this repository, and its images."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nodeside.errors import UsageError
from nodeside.system import process
from nodeside.system.scratch import scratch_directory
from tests import TOP
from tests.controlplane.controlplane import ControlPlane
from tests.images.built import Engine
from tests.node.configuration import REGISTRY
from tests.patience import patience

COMMIT = "28f0b615f0db2e49b610fd220efd90247160d6ac"  # the newest release, when there is one
DRIVER = "localhost/nodeside-driver:before"
CONTROLLER_IMAGE = f"{REGISTRY}/nodeside/nodeside-cluster:before"

_CONTROLLER = "localhost/nodeside-cluster:before"
_SHORT, _LONG = patience(120.0), patience(1800.0)  # seconds


@dataclass(frozen=True)
class Before:
    """Its tree. `build` comes first."""

    tree: Path

    def build(self, builder: Engine, registry: str) -> None:
        """Its base image and its controller; the registry gets the controller."""
        for what, tag in (("driver", DRIVER), ("controller", _CONTROLLER)):
            builder.run(self.tree / "images" / "build", what, tag)
        builder.push(_CONTROLLER, CONTROLLER_IMAGE.replace(REGISTRY, registry))

    def install(self, plane: ControlPlane) -> None:
        """Its controller, by its own command."""
        words = [sys.executable, "-m", "cluster", "install", "--image", CONTROLLER_IMAGE]
        where = ("--kubeconfig", str(plane.kubeconfig))
        process.run([*words, *where], timeout=_SHORT, cwd=self.tree)


@contextmanager
def before() -> Iterator[Before]:
    """Raises UsageError if this checkout has not that much history."""
    git = ("git", "-C", str(TOP))
    known = process.run(
        [*git, "cat-file", "-e", f"{COMMIT}^{{commit}}"], timeout=_SHORT, check=False
    )
    if known.exit_code != 0:
        raise UsageError(
            f"this checkout does not have commit {COMMIT}: {known.errors.strip()}",
            hint="git fetch --unshallow",
        )
    with scratch_directory("before") as directory:
        archive, tree = directory / "tree.tar", directory / "tree"
        tree.mkdir()
        process.run([*git, "archive", "--output", archive, COMMIT], timeout=_SHORT)
        process.run(["tar", "--extract", "--file", archive, "-C", tree], timeout=_SHORT)
        yield Before(tree)
