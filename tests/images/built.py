"""The images as they ship, built by an engine, and kept as long as what they are built of stays."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from nodeside.errors import NodesideError
from nodeside.system import process
from nodeside.trial.architecture import AMD64, Architecture
from nodeside.trial.cache import TrialCache
from nodeside.trial.debian.archive import proxy_environment
from nodeside.trial.host.container import ENVIRONMENT
from tests import TOP
from tests.costs.cold import building
from tests.patience import patience

BUILD = TOP / "images" / "build"
DRIVER = "localhost/nodeside-driver"
CONTROLLER = "localhost/nodeside-cluster"
AGENT = "localhost/nodeside-agent"
EDU = "localhost/edu:1.0.0"
EPOCH = "1700000000"  # seconds; the time of all files

_LONG, _SHORT = patience(3600.0), patience(30.0)  # seconds
_SOURCES = ("images", "nodeside", "cluster", "charts", "deploy", "examples/edu")
_NEEDS_MIB = 4096


@dataclass(frozen=True)
class Engine:
    """buildah with a storage of its own, which keeps what was built."""

    directory: Path
    cache: Path  # in which it is told what was built

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
            "SOURCE_DATE_EPOCH": EPOCH,
        }

    def run(self, *words: str | Path, **more: str) -> str:
        """What the command says; it dies with us, as its storage is then another's."""
        command = ["setpriv", "--pdeathsig", "KILL", "--", *words]
        return process.run(command, timeout=_LONG, env={**self.environment, **more}).output.strip()

    def build(self, *words: str, **more: str) -> None:
        self.run(BUILD, *words, **more)

    def _make(self, *words: str, **more: str) -> None:
        """Build what is kept, and write down that it was not there."""
        foreign = f" for {more['ARCH']}" if "ARCH" in more else ""
        with building(self.cache, f"images/build {' '.join(words)}{foreign}"):
            self.build(*words, **more)

    def build_all(self) -> None:
        """Debian by mmdebstrap once; the rest only if what it is built of has changed."""
        content, last = _content(), self.directory / "built"
        if last.exists() and last.read_text() == content:
            return
        last.unlink(missing_ok=True)  # a build that is killed leaves new images beside old ones
        for suite in ("bookworm", "trixie"):
            if not self.image_id(f"debian:{suite}"):
                self._make("base", suite)
        self._make("all")
        self.run("buildah", "rmi", "--prune", "--force")  # those of before
        last.write_text(content)

    def toolkit(self, kernel: str, architecture: Architecture = AMD64) -> str:
        """The toolkit image of a kernel; built if it is not there. A tag may not have a +."""
        tag = f"localhost/nodeside-toolkit:{kernel.replace('+', '_')}"
        if not self.image_id(tag):
            self._make("toolkit", kernel, tag, **_arch(architecture))
        return tag

    def edu(self, architecture: Architecture) -> str:
        """The example driver for another architecture; built if what it is of has changed."""
        tag, base = f"{EDU}-{architecture.name}", f"{DRIVER}-{architecture.name}"
        content, last = _content(), self.directory / f"built-{architecture.name}"
        if not last.exists() or last.read_text() != content:
            last.unlink(missing_ok=True)  # as above
            self._make("driver", base, **_arch(architecture))
            self._make("edu", tag, BASE=base, **_arch(architecture))
            last.write_text(content)
        return tag

    def assemble(self, tag: str, context: Path, base: str = "", platform: str = "") -> str:
        """An image of a directory with a Containerfile, of which another `base` is an argument."""
        # Not every base has the history that cached layers need.
        more = ["--build-arg", f"BASE={base}"] if base else ["--layers"]
        more += ["--platform", platform] if platform else []
        self.run("buildah", "build", *more, "--timestamp", EPOCH, "--tag", tag, context)
        return tag

    def image_id(self, tag: str) -> str:
        """Of an image in the storage; "" if there is none."""
        asked = ("--quiet", "--no-trunc", "--filter", f"reference={tag}")
        return self.run("buildah", "images", *asked)

    def push(self, tag: str, destination: str) -> None:
        """To a registry without TLS."""
        plain = ("--quiet", "--tls-verify=false", "--compression-format", "gzip")
        self.run("buildah", "push", *plain, tag, f"docker://{destination}")

    @contextmanager
    def mounted(self, image: str) -> Iterator[Path]:
        """The root file system of a container of an image."""
        container = self.run("buildah", "from", "--pull-never", image)
        try:
            yield Path(self.run("buildah", "mount", container))
        finally:
            self.run("buildah", "rm", container)


def _arch(architecture: Architecture) -> dict[str, str]:
    return {"ARCH": architecture.name} if architecture.is_foreign else {}


def _content() -> str:
    """The digest of all that the images are built of, and of the commit that their labels name."""
    commit = ""
    with suppress(NodesideError):  # no git, or no repository: the labels name none either
        commit = process.run(["git", "-C", TOP, "rev-parse", "HEAD"], timeout=_SHORT).output
    return hashlib.sha256(f"{commit}{sources_digest()}".encode()).hexdigest()


def sources_digest() -> str:
    """Of all files that the images are built of."""
    digest = hashlib.sha256()
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
    with cache.hold_lock("images", "engine"):
        directory = cache.path("images", "engine")
        directory.mkdir(parents=True, exist_ok=True)
        cache.require_space(_NEEDS_MIB, "building the images")
        (directory / "storage.conf").write_text(
            '[storage]\ndriver = "overlay"\n'
            f'graphroot = "{directory}/storage"\nrunroot = "{directory}/run"\n'
        )
        yield Engine(directory, cache.directory)
