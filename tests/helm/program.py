"""Find or build the pinned Helm, and run it with nothing of the user's own in its way."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodeside.system import process
from tests import yaml_in_c as yaml
from tests.controlplane.binaries import (
    Say,
    Tool,
    build,
    cache_directory,
    digest,
    only_builder,
    outside,
    versions,
)
from tests.patience import patience

MODULE = Path(__file__).parent  # where go.mod is
HELM = Tool("helm", "helm.sh/helm/v4/cmd/helm", "helm.sh/helm/v4", ("version", "--short"))

_DEADLINE = patience(120.0)  # seconds for one command; `install --wait` takes a few


def helm_program(say: Say = lambda _: None) -> Path:
    """Helm; builds it if it is missing. `say` is told what takes long."""
    pinned = versions([HELM], MODULE)[HELM.module]
    if found := outside(HELM, pinned):
        return found
    place = cache_directory() / digest(MODULE)
    program = place / "bin" / HELM.name
    if not program.exists():
        with only_builder(place, say):
            if not program.exists():
                stamps = {f"{HELM.module}/internal/version.version": pinned}
                build(place, [HELM], stamps, say, module=MODULE, lasts="two minutes")
    return program


@dataclass(frozen=True)
class Helm:
    """Commands of Helm, with a home of their own."""

    program: Path
    home: Path
    kubeconfig: Path | None = None

    def run(self, *argv: str | Path, check: bool = True) -> process.Completed:
        """Raises ToolError if `check` and it fails."""
        env = {"HOME": str(self.home)}
        if self.kubeconfig is not None:
            env["KUBECONFIG"] = str(self.kubeconfig)
        return process.run([self.program, *argv], timeout=_DEADLINE, check=check, env=env)

    def template(self, chart: Path, *argv: str | Path) -> list[dict[str, Any]]:
        """The objects of a release `nodeside`."""
        text = self.run("template", "nodeside", chart, *argv).output
        return [document for document in yaml.safe_load_all(text) if document is not None]

    @property
    def version(self) -> str:
        said = self.run("version", "--short").output
        return re.split(r"[+\s]", said.strip())[0]
