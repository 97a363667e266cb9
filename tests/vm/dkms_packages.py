"""Unmodified dkms packages of the archive: found, built on this host, loaded in one machine.

Each becomes a driver as `nodeside try` makes one of it. The builds are those of the driver and
sidecar processes in the toolkit's root file system; every load is a driver process of its own, with
its own driver.yaml, in a machine that all of them share.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import yaml

from nodeside.errors import ExitCode, NodesideError
from nodeside.spec import load
from nodeside.spec.model import Driver
from nodeside.trial.debian.archive import Archive
from nodeside.trial.errors import MachineLost, TargetError
from nodeside.trial.host import build as host_build
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.machine.machine import Machine
from nodeside.trial.progress import Progress
from nodeside.trial.target import dkms_tree, target
from nodeside.trial.workshop import Workshop
from tests.vm.dkms_effects import EFFECTS, Effect
from tests.vm.pod import LONG, Pod
from tests.vm.warm import WarmDriver

SMALL, LARGE = 10, 60  # source files: what `make test` builds; what takes less than minutes
_QUIET = Progress(quiet=True)
_BUILD_DIRECTORY = re.compile(r"/shared/out/[^/]+/(build|dkms/[^/]+/[^/]+/build)/")


@dataclass(frozen=True)
class Outcome:
    """How far a package came. `code` is the node side's; `shown` what its effect showed.

    `seconds` are those of the build; `rung` is the one that served the load.
    """

    package: str
    version: str
    kernel: str
    code: int
    seconds: float
    files: int = 0
    rung: str = ""
    message: str = ""
    shown: str = ""
    unloaded: bool = True
    crashed: bool = False

    @property
    def ready(self) -> bool:
        return self.code == ExitCode.OK

    @property
    def result(self) -> str:
        """One word, or the exit code."""
        if not self.ready:
            return f"exit code {self.code}"
        return "ready" if self.unloaded else "ready, not unloaded"

    @property
    def why(self) -> str:
        """The first error of a build, or the first line of another failure."""
        if self.ready:
            return ""
        lines = self.message.splitlines() or [""]
        first = next((line for line in lines if "first error: " in line), lines[0])
        return _BUILD_DIRECTORY.sub("", first.rpartition("first error: ")[2])


def package_names(archive: Archive) -> tuple[str, ...]:
    """Every package that is called NAME-dkms."""
    return tuple(sorted(name for name in archive.names() if name.endswith("-dkms")))


class DkmsPackages:
    """The packages of the archive for one kernel. `directory` takes sources and bundles.

    `treeless` are those that turned out to have no dkms tree, `left_out` those that were too large.
    """

    def __init__(self, workshop: Workshop, kernel: KernelDisk, directory: Path) -> None:
        self.workshop = workshop
        self.kernel = kernel
        self.images = directory / "images"
        self.cache = directory / "cache"
        self._toolkit = workshop.roots.toolkit(kernel.compiler)
        for path in (self.images, self.cache):
            path.mkdir(parents=True)
        self.treeless: list[str] = []
        self.left_out: list[str] = []

    def build(self, names: Iterable[str], *, largest: int) -> Iterator[Outcome]:
        """Build each package that has a dkms tree of at most `largest` source files."""
        for name in names:
            driver = self._prepare(name)
            if driver is None:
                self.treeless.append(name)
                continue
            files = len([p for p in (self.images / name).rglob("*") if p.suffix in (".c", ".S")])
            if files > largest:
                self.left_out.append(name)
            else:
                yield replace(self._build(name, driver), files=files)

    def load(self, built: Sequence[Outcome]) -> Iterator[Outcome]:
        """Load each, look at its effect, unload it: one boot, and another one after a crash."""
        waiting = [outcome for outcome in built if outcome.ready]
        with self.workshop.node(self.kernel, driver_image=self.images, bundles=self.cache) as node:
            while waiting:
                with node.boot(memory_mib=2048, cpus=1, allow_splats=True) as machine:
                    _fill_cache(machine)
                    pod = Pod(machine, WarmDriver(machine))
                    while waiting:
                        yield (outcome := _load(pod, waiting.pop(0)))
                        if outcome.crashed:
                            break

    def _prepare(self, name: str) -> Driver | None:
        """The package as a driver, in its directory below `images`."""
        scratch = self.images.parent / "scratch" / name
        scratch.mkdir(parents=True)
        evaluate = dkms_tree.make_evaluator(self.kernel, self._toolkit)
        build = partial(self.workshop.build, self.kernel)
        try:
            target.prepare_target(name, scratch / "image", self.workshop.archive, evaluate, build)
        except TargetError:
            return None  # such as dh-dkms, which helps to make packages
        (scratch / "image").rename(self.images / name)
        shutil.rmtree(scratch)
        document = self.images / name / "driver.yaml"
        if name in EFFECTS:
            _adapt(document, EFFECTS[name])
        return load(document)

    def _build(self, name: str, driver: Driver) -> Outcome:
        started = time.monotonic()
        done = host_build.build_on_host(
            self.images / name,
            self.kernel,
            toolkit=self._toolkit,
            python=self.workshop.packed_python(),
            cache=self.cache,
            driver=driver,
            progress=_QUIET,
        )
        seconds = time.monotonic() - started
        return Outcome(
            name,
            driver.spec.version,
            self.kernel.release,
            done.exit_code,
            seconds,
            message=done.message,
        )


def _adapt(document: Path, effect: Effect) -> None:
    """What a vendor would add to the driver.yaml: parameters; and modules taken out of it."""
    values = yaml.safe_load(document.read_text())
    modules = [m for m in values["spec"]["modules"] if m["name"] not in effect.left_out]
    for module in modules:
        module["parameters"] = dict(effect.parameters.get(module["name"], {}))
    values["spec"]["modules"] = modules
    document.write_text(yaml.safe_dump(values, sort_keys=False))


def _fill_cache(machine: Machine) -> None:
    """The bundles that were built here become those of the node."""
    machine.run(["cp", "-a", "/payload/cache", "/var/lib/nodeside/"], "node", timeout=LONG)


def _load(pod: Pod, built: Outcome) -> Outcome:
    """One driver in the machine, from its driver's start to its unload."""
    env = {"NODESIDE_DRIVER": f"/driver-image/{built.package}/driver.yaml"}
    machine = pod.machine
    before = len(machine.splats())
    try:
        done = pod.driver("run", "--once", "--output", "json", env=env, timeout=LONG)
        report = json.loads(done.output)
        loaded = replace(
            built,
            code=done.exit_code,
            rung=str(report.get("source") or ""),
            message=str(report.get("message", "")),
        )
        if loaded.ready:
            loaded = replace(loaded, shown=_show(machine, built.package))
        if not _stays(built.package):
            gone = pod.driver("unload", env=env, timeout=LONG)
            loaded = replace(loaded, unloaded=gone.exit_code == 0)
    except MachineLost:
        lost = f"cannot load {built.package}: the machine fell silent"
        loaded = replace(built, code=int(ExitCode.LOAD_FAILED), message=lost, crashed=True)
    if complaints := machine.splats()[before:]:
        code = loaded.code or int(ExitCode.VALIDATION_FAILED)
        loaded = replace(
            loaded, code=code, message="the kernel complained: " + "; ".join(complaints)
        )
    return loaded


def _stays(package: str) -> bool:
    return package in EFFECTS and EFFECTS[package].stays


def _show(machine: Machine, package: str) -> str:
    """What the command of the package's effect prints, beside the loaded driver."""
    effect = EFFECTS.get(package)
    if effect is None:
        return ""
    line = ["sh", "-ec", effect.command]
    with suppress(NodesideError):
        return machine.run(line, "consumer", timeout=LONG).output
    return "the command failed"
