"""A node with drivers in a throwaway machine, on which things are begun, killed and judged.

The drivers are versions of one small module, so that each can replace the other:

    one       built by copying, at once
    two       another version with another build-id, whose build takes some seconds
    large     16 MiB, so that copying it takes a while
    stored    the modules of `one`, prebuilt in a directory beside it
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from nodeside.driver.bundle.bundle import Bundle
from nodeside.driver.module.modulefile import read_module
from nodeside.errors import DeadlinePassed
from nodeside.system.process import Completed
from nodeside.system.scratch import scratch_directory
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.machine.machine import GuestProcess, Machine
from nodeside.trial.workshop import TrialNode, Workshop
from tests.chaos.judging import faults, lies, look
from tests.chaos.ledger import Round
from tests.patience import patience
from tests.vm.hostbuilds import HostBuilds
from tests.vm.pod import CACHE, Pod
from tests.vm.variants import DriverImage, SmallModule

VERSIONS = {"one": "1.0", "two": "2.0", "large": "3.0", "stored": "1.0"}
PUBLISHED = "/var/lib/nodeside/published"  # on the node; a store that `publish` writes
_LARGE = 16 << 20  # bytes
_ACT = patience(300.0)  # seconds; nothing that is tried here may take longer, in emulation
_BUILDS = "for step in 1 2 3 4 5; do sleep 1; done"
_SPEAKS = 'pr_info("tiny: {}\\n");'


@dataclass(frozen=True)
class Act:
    """What is begun on a node. `verb` is of `nodeside driver`, `of` the driver's directory."""

    name: str
    verb: tuple[str, ...]
    of: str
    before: str = ""  # a shell line on the node


_ONCE = ("run", "--once")
# Whoever unloads a module behind everybody's back takes the ready file away, too: no pod runs here
# that would notice.
_RMMOD = "rmmod tiny && rm -f /run/nodeside/tiny/ready"
ACTS = (
    Act("build and load", _ONCE, "one", f"{_RMMOD}; rm -rf {CACHE}/*"),
    Act("build and load a large one", _ONCE, "large", f"rm -rf {CACHE}/*"),
    Act("load from the cache", _ONCE, "one", _RMMOD),
    Act("fetch and load", _ONCE, "stored", f"{_RMMOD}; rm -rf {CACHE}/*"),
    Act("upgrade", _ONCE, "two"),
    Act("build for a while and load", _ONCE, "two", f"{_RMMOD}; rm -rf {CACHE}/*"),
    Act("go back", _ONCE, "one"),
    Act("find it loaded", _ONCE, "two"),
    Act("unload", ("unload",), "one"),
    Act("run for ever", ("run",), "one", _RMMOD),
    Act("build for a while, then run for ever", ("run",), "two", f"{_RMMOD}; rm -rf {CACHE}/*"),
    Act("publish", ("publish", "--to", f"/host{PUBLISHED}", "--overwrite"), "one"),
)


@dataclass
class Target:
    """A node over many boots. `bundle` is an honest one of driver `one`.

    `durations`: how long each act took when nobody disturbed it, in seconds.
    """

    node: TrialNode
    build_ids: Mapping[str, str]
    bundle: Bundle
    machine: Machine
    pod: Pod
    mounts: int = 0
    durations: dict[str, float] = field(default_factory=dict)
    _boots: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def on(cls, node: TrialNode, build_ids: Mapping[str, str], bundle: Bundle) -> Self:
        boots = ExitStack()
        machine = boots.enter_context(node.boot(cpus=1))
        target = cls(node, build_ids, bundle, machine, Pod(machine), _boots=boots)
        target._settle_in()
        return target

    def close(self) -> None:
        self._boots.close()

    def cut_power(self) -> None:
        """And switch on again: what was not on the disk is gone."""
        self.machine.power_off(hard=True)
        self._boots.close()
        self.machine = self._boots.enter_context(self.node.boot(cpus=1))
        self.pod = Pod(self.machine)
        self._settle_in()

    def _settle_in(self) -> None:
        self.pod.start_sidecar()
        self.mounts = int(self.pod.node("sh", "-c", "wc -l < /proc/mounts"))

    # --- what is tried

    def prepare(self, act: Act) -> None:
        if act.before:
            self.pod.node("sh", "-c", f"{act.before}; true")

    def begin(self, act: Act) -> GuestProcess:
        return self.pod.start_driver(*act.verb, of=act.of).process

    def typical(self, act: Act) -> float:
        """Seconds that an act takes, learnt when it is first asked for."""
        if act.name not in self.durations:
            self.prepare(act)
            began = time.monotonic()
            running = self.begin(act)
            if act.verb == ("run",):
                self.pod.until("[ -e /run/nodeside/tiny/ready ]")
                running.kill()
            running.wait(_ACT)
            self.durations[act.name] = time.monotonic() - began
        return self.durations[act.name]

    def processes(self, of: GuestProcess) -> list[int]:
        """The processes in a container, by the node's numbers; none once it has ended."""
        place = f"/sys/fs/cgroup/container-{of.id}/cgroup.procs"
        found = self.pod.node("sh", "-c", f"cat {place} 2>/dev/null; true")
        return [int(number) for number in found.split()]

    # --- what must hold

    def judge_at_once(self, turn: Round) -> None:
        """At this very moment, before anybody mends anything."""
        for what in lies(look(self.pod), self.build_ids):
            turn.finding(f"at once: {what}")

    def judge_after(self, turn: Round, driver: str) -> Completed | None:
        """After one more start of the pod: it ends right, and nothing is left behind."""
        sidecar = self.restart_sidecar()
        done = self.run(driver)
        if done is None or done.exit_code != 0:
            turn.finding(f"`run --once` of {driver} did not bring it up: {_end_of(done)}")
            return done
        found = faults(
            look(self.pod),
            VERSIONS[driver],
            self.build_ids,
            mounts=self.mounts,
            sidecar=sidecar.id,
        )
        for what in found:
            turn.finding(what)
        for splat in self.machine.splats():
            turn.finding(f"the kernel: {splat}")
        return done

    def run(self, driver: str, **more: Any) -> Completed | None:
        """`run --once` to its end; None if there is none."""
        try:
            return self.pod.driver("run", "--once", of=driver, timeout=_ACT, **more)
        except DeadlinePassed:
            return None

    def restart_sidecar(self) -> GuestProcess:
        """The sidecar, started again if it was killed, as the kubelet does."""
        if self.pod.sidecar is None or self.pod.sidecar.poll() is not None:
            self.pod.start_sidecar()
        assert self.pod.sidecar is not None
        return self.pod.sidecar


def _end_of(done: Completed | None) -> str:
    if done is None:
        return f"no end after {_ACT:g} s"
    return f"exit code {done.exit_code}\n" + "\n".join(done.errors.splitlines()[-25:])


@contextmanager
def target(workshop: Workshop, kernel: KernelDisk) -> Iterator[Target]:
    """A node with the drivers of this module, switched on."""
    with ExitStack() as stack:
        place = stack.enter_context(scratch_directory("chaos"))
        builds = stack.enter_context(HostBuilds(workshop, place / "builds"))
        image = DriverImage(place / "image")
        build_ids = fill(image, builds, kernel)
        node = stack.enter_context(workshop.node(kernel, driver_image=image.directory))
        made = Target.on(node, build_ids, builds(image.directory / "one", kernel))
        stack.callback(made.close)
        stack.callback(made.pod.close)
        yield made


def fill(image: DriverImage, builds: HostBuilds, kernel: KernelDisk) -> dict[str, str]:
    """Put the drivers into an image; the build-id of each version."""
    modules: dict[str, Path] = {}
    for number, name in enumerate(("one", "two", "large")):
        source = image.small(f"source-{name}", SmallModule("tiny", init=_SPEAKS.format(name)))
        modules[name] = builds(source, kernel).module_path("tiny")
        padding = _LARGE if name == "large" else 0
        spec = {"version": f"{number + 1}.0"}
        script = _BUILDS if name == "two" else ""
        image.instant(name, modules[name], script, spec=spec, padding=padding)
    prebuilt = {"sources": [{"directory": "../store"}]}
    image.instant("stored", modules["one"], "# prebuilt", spec={"prebuilt": prebuilt})
    builds.publish(image.directory / "stored", kernel, str(image.directory / "store"))
    return {VERSIONS[name]: read_module(path).build_id for name, path in modules.items()}
