"""The programs of a node that no package of the machine's Debian has: kubelet and containerd.

Built once and cached beside the control plane's. They run in a root file system of their own, so
those of this host never serve: they would need its libraries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nodeside.trial.architecture import AMD64, Architecture
from tests.controlplane import binaries
from tests.controlplane.binaries import Say, Tool, build, cache_directory, digest, only_builder

MODULE = Path(__file__).parent  # where go.mod is
_CONTAINERD = "github.com/containerd/containerd/v2"
_KUBERNETES = "k8s.io/kubernetes"

KUBELET = Tool("kubelet", f"{_KUBERNETES}/cmd/kubelet", _KUBERNETES)
CONTAINERD = tuple(
    Tool(name, f"{_CONTAINERD}/cmd/{name}", _CONTAINERD)
    for name in ("containerd", "containerd-shim-runc-v2", "ctr")
)
_TAGS = ("no_btrfs", "no_devmapper", "no_zfs")  # snapshotters that this node does not have


@dataclass(frozen=True)
class _Recipe:
    """Programs of one go.mod, the variable of theirs that holds a version, how long it takes."""

    tools: Sequence[Tool]
    module: Path
    stamp: str
    lasts: str
    tags: Sequence[str] = ()


_RECIPES = (
    _Recipe([KUBELET], binaries.MODULE, "k8s.io/component-base/version.gitVersion", "two minutes"),
    _Recipe(CONTAINERD, MODULE, f"{_CONTAINERD}/version.Version", "two minutes", _TAGS),
)


def node_programs(
    say: Say = lambda _: None, architecture: Architecture = AMD64
) -> Mapping[str, Path]:
    """Where each program is; builds those that are missing. `say` is told what takes long."""
    made = (_programs(recipe, say, architecture) for recipe in _RECIPES)
    return {name: path for programs in made for name, path in programs.items()}


def _programs(recipe: _Recipe, say: Say, architecture: Architecture) -> dict[str, Path]:
    suffix = f"-{architecture.name}" if architecture.is_foreign else ""
    place = cache_directory() / f"{digest(recipe.module)}{suffix}"
    paths = {tool.name: place / "bin" / tool.name for tool in recipe.tools}
    if not all(path.exists() for path in paths.values()):
        with only_builder(place, say):
            if missing := [tool for tool in recipe.tools if not paths[tool.name].exists()]:
                _build(recipe, missing, place, say, architecture)
    return paths


def _build(
    recipe: _Recipe, missing: Sequence[Tool], place: Path, say: Say, architecture: Architecture
) -> None:
    version = binaries.versions(missing, recipe.module)[missing[0].module]
    build(
        place,
        missing,
        {recipe.stamp: version},
        say,
        module=recipe.module,
        lasts=recipe.lasts,
        tags=recipe.tags,
        architecture=architecture.name if architecture.is_foreign else "",
    )
