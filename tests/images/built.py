"""The images as they ship, built by an engine, and kept as long as what they are built of stays."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from nodeside import process
from nodeside.errors import NodesideError
from nodeside.trial.cache import TrialCache
from nodeside.trial.debian.archive import proxy_environment
from nodeside.trial.host.container import ENVIRONMENT
from tests import TOP

BUILD = TOP / "images" / "build"
DRIVER = "localhost/nodeside-driver"
CONTROLLER = "localhost/nodeside-cluster"
EDU = "localhost/edu:1.0.0"
EPOCH = "1700000000"  # seconds; the time of all files

_LONG, _SHORT = 3600.0, 30.0  # seconds
_SOURCES = ("images", "nodeside", "cluster", "examples/edu")
_NEEDS_MIB = 4096
_MOST_IMAGES = 200  # of the storage, with those of single layers: about 4 GB


@dataclass(frozen=True)
class Engine:
    """buildah with a storage of its own, which keeps the layers of what was built."""

    directory: Path

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            **ENVIRONMENT,
            **proxy_environment(),
            "PATH": os.environ["PATH"],
            "HOME": str(self.directory),
            "CONTAINERS_STORAGE_CONF": str(self.directory / "storage.conf"),
            "BUILDAH_ISOLATION": "chroot",
            "ENGINE": "buildah",
            "OPTIONS": "--layers",
            "SOURCE_DATE_EPOCH": EPOCH,
        }

    def run(self, *words: str | Path, **more: str) -> str:
        """What the command says."""
        return process.run(words, timeout=_LONG, env={**self.environment, **more}).output.strip()

    def build(self, *words: str, **more: str) -> None:
        self.run(BUILD, *words, **more)

    def build_all(self) -> None:
        """Debian by mmdebstrap once; the rest only if what it is built of has changed."""
        content, last = _content(), self.directory / "built"
        if last.exists() and last.read_text() == content:
            return
        last.unlink(missing_ok=True)  # a build that is killed leaves new images beside old ones
        for suite in ("bookworm", "trixie"):
            if not self.run(
                "buildah", "images", "--quiet", "--filter", f"reference=debian:{suite}"
            ):
                self.build("base", suite)
        if len(self.run("buildah", "images", "--all", "--quiet").split()) > _MOST_IMAGES:
            self.run("buildah", "rmi", "--prune", "--force")
        self.build("all")
        last.write_text(content)

    @contextmanager
    def mounted(self, image: str) -> Iterator[Path]:
        """The root file system of a container of an image."""
        container = self.run("buildah", "from", "--pull-never", image)
        try:
            yield Path(self.run("buildah", "mount", container))
        finally:
            self.run("buildah", "rm", container)


def _content() -> str:
    """The digest of all that the images are built of, and of the commit that their labels name."""
    digest = hashlib.sha256()
    with suppress(NodesideError):  # no git, or no repository: the labels name none either
        commit = process.run(["git", "-C", TOP, "rev-parse", "HEAD"], timeout=_SHORT)
        digest.update(commit.output.encode())
    for path in sorted(path for name in _SOURCES for path in entries(TOP / name)):
        if path.is_file() and path.parent.name != "__pycache__":
            digest.update(f"{path.relative_to(TOP)} {path.stat().st_mode:o}\n".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def entries(root: Path) -> Iterator[Path]:
    """Everything below a directory."""
    for directory, directories, files in os.walk(root):
        yield from (Path(directory, name) for name in directories + files)


def unpacked_size(root: Path) -> int:
    """In bytes; what has several names counts once."""
    files = {(found.st_ino, found.st_size) for found in map(os.lstat, entries(root))}
    return sum(size for _, size in files)


@contextmanager
def engine(cache: TrialCache) -> Iterator[Engine]:
    """One process has it at a time."""
    with cache.locked("images", "engine"):
        directory = cache.path("images", "engine")
        directory.mkdir(parents=True, exist_ok=True)
        cache.require_space(_NEEDS_MIB, "building the images")
        (directory / "storage.conf").write_text(
            '[storage]\ndriver = "overlay"\n'
            f'graphroot = "{directory}/storage"\nrunroot = "{directory}/run"\n'
        )
        yield Engine(directory)
