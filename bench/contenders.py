"""The three ways to build: make by hand, nodeside's two processes, dkms.

Each prepares a build (not counted) and does it (counted). All work in the same toolkit root file
system, with the same headers, on the same file system.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from bench.ground import Ground, Prepared
from bench.room import BenchError, Room, Timing, failed, finish, has_ended
from bench.sidecar import cpu_seconds, find_sidecar
from bench.waiting import Waiting
from nodeside.protocol.build_records import BuildResult
from nodeside.protocol.shared_directory import SharedDir
from nodeside.system import process
from nodeside.system.directory_watch import DirectoryWatch
from nodeside.system.host import Host
from nodeside.trial.machine.kernel_disk import KernelDisk

_TIMEOUT = 900.0
_CLEANING = 30.0


class Plain:
    """make, by hand."""

    def __init__(self, ground: Ground, kernel: KernelDisk, driver: Prepared) -> None:
        self._driver = driver
        self._work = ground.directory("plain/work")
        self._log = self._work.parent / "log"
        layers = ground.toolkit_layers(kernel)
        self.room = Room(layers, self._work.parent, {self._work: "/build"})
        self.commands: tuple[str, ...] = ()

    def prepare(self) -> None:
        """A fresh copy of the source where the commands expect it."""
        shutil.rmtree(self._work)
        for name in ("tmp", "output"):
            (self._work / name).mkdir(parents=True)
        tree = self._work / "dkms" / self._driver.package / self._driver.version / "build"
        shutil.copytree(self._driver.tree, tree, symlinks=True)

    def build(self) -> Timing:
        argv = ["bash", "-e", "-c", "\n".join(self.commands)]
        return self.room.time(argv, log=self._log, timeout=_TIMEOUT)


class Nodeside:
    """The driver process, beside a sidecar that is there."""

    def __init__(
        self, ground: Ground, kernel: KernelDisk, driver: Prepared, shared: SharedDir
    ) -> None:
        self._shared = shared
        self._sidecar = find_sidecar(shared)
        self._directory = ground.directory("nodeside")
        self._cache = ground.directory("nodeside/cache")
        self._log = self._directory / "log"
        identity = ground.identity(kernel)
        self._argv = ["nodeside", "driver", "build", "--cache", "/cache"]
        self._argv += ["--kernel", identity.release, "--kernel-version", identity.version]
        self._room = ground.driver_room(
            self._directory,
            {
                driver.image: "/driver-image",
                shared.root: "/shared",
                self._cache: "/cache",
                Path("/proc"): "/host/proc",
            },
        )

    def prepare(self) -> None:
        """Nothing in the cache, no source and no trace of an earlier build in the directory."""
        shutil.rmtree(self._cache)
        self._cache.mkdir()
        for path in self._shared.sources.iterdir():
            shutil.rmtree(path)
        self._await_cleaning()

    def build(self) -> tuple[Timing, BuildResult]:
        """What the driver process took, the sidecar's CPU time included; the sidecar's answer."""
        before = cpu_seconds(self._sidecar)
        with open(self._log, "wb") as log, DirectoryWatch([self._shared.results]) as notice:
            started = time.monotonic()
            with self._room.running(self._argv, log) as child:
                result = self._await_result(notice, child)
                timing = finish(child, started, _TIMEOUT)
        if child.returncode != 0 or result is None:
            raise failed(self._argv, child.returncode, self._log)
        self._await_cleaning()
        return timing + Timing(0.0, cpu_seconds(self._sidecar) - before), result

    def commands(self, work: str) -> tuple[str, ...]:
        """The commands in the log of the last build, moved to the directory `work`."""
        said = self._log.read_text(errors="replace")
        lines = said.splitlines()
        steps = [
            line.removeprefix("build | # ") for line in lines if line.startswith("build | # cd ")
        ]
        out = next(iter(steps), "").split("/dkms/")[0].removeprefix("cd ")
        if not out.startswith("/shared/out/"):
            raise BenchError(f"no command in the build's log\n{process.last_lines_of(said)}")
        return tuple(step.replace(out, work) for step in steps)

    def _said(self) -> str:
        return process.last_lines_of(self._log.read_text(errors="replace"))

    def _await_cleaning(self) -> None:
        """The sidecar removes what it has built by itself, and has ended its worker then."""

        def left() -> list[str]:
            workers = [f"process {each.pid}" for each in self._sidecar.children()]
            return [*map(str, self._shared.out.iterdir()), *workers]

        Waiting(_CLEANING).until(lambda: not left(), "the sidecar to clean up", left, look=0.01)

    def _await_result(self, notice: DirectoryWatch, child: process.Child) -> BuildResult | None:
        """Catch the answer before the driver has taken its request back."""
        boot_id = Host().boot_id
        found: list[BuildResult] = []

        def answered() -> bool:
            names = self._shared.request_ids()
            found.extend(filter(None, (self._shared.read_result(name, boot_id) for name in names)))
            return bool(found) or has_ended(child)

        waiting = Waiting(_TIMEOUT, pause=notice.wait)
        waiting.until(answered, "the sidecar's answer to a build", self._said, look=0.25)
        return found[0] if found else None


class Dkms:
    """dkms build, dkms install."""

    def __init__(self, ground: Ground, kernel: KernelDisk, driver: Prepared, jobs: int) -> None:
        self._var = ground.directory("dkms/var")
        self._keys = ground.directory("dkms/keys")
        self._log = self._var.parent / "log"
        name, version = driver.package, driver.version
        module = ["-m", name, "-v", version]
        self._add = ["dkms", "add", *module]
        self._build = ["dkms", "build", *module, "-k", kernel.release, "-j", str(jobs)]
        self._install = ["dkms", "install", *module, "-k", kernel.release]
        layers = (ground.dkms_layer(kernel), *ground.toolkit_layers(kernel))
        binds = {self._var: "/var/lib/dkms", driver.tree: f"/usr/src/{name}-{version}"}
        self._room = Room(layers, self._var.parent, binds)

    def prepare(self) -> None:
        """An empty dkms, but for the signing key that its first build on a machine makes."""
        shutil.copytree(self._var, self._keys, dirs_exist_ok=True, ignore=_not_a_key)
        shutil.rmtree(self._var)
        shutil.copytree(self._keys, self._var)
        self._room.time(self._add, log=self._log, timeout=60)

    def build(self) -> tuple[Timing, Timing]:
        built = self._room.time(self._build, log=self._log, timeout=_TIMEOUT)
        return built, self._room.time(self._install, log=self._log, timeout=_TIMEOUT)


def _not_a_key(_: str, names: list[str]) -> set[str]:
    return {name for name in names if not name.startswith("mok.")}
