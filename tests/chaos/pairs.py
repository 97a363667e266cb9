"""Two drivers, one after the other, and a daemon: any process killed, and the power cut.

`edu` has a daemon, and two versions whose modules export different symbols; `edu-peer` imports one.
Both pods run all the time, as in a cluster; whoever is killed is started again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from nodeside.system.scratch import scratch_directory
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.machine.machine import GuestProcess, Machine
from nodeside.trial.workshop import TrialNode, Workshop
from tests import daemon
from tests.chaos.kills import HAD_ENDED, kill_all, kill_one
from tests.chaos.ledger import Ledger, Round
from tests.patience import patience
from tests.vm.hostbuilds import HostBuilds
from tests.vm.pod import Pod, Running
from tests.vm.variants import DriverImage

NAME = "a driver after another"
ROUNDS = 60  # of a long run
_CUT = 6  # one round in so many is a power cut
_EDU, _PEER = ("edu", "other"), "edu-peer"
_COMPUTE = "int edu_compute(u32 n, u32 *result)"
_OTHER = "int edu_compute(u64 n, u32 *result)"
_LONG = 90.0  # seconds; a round that takes longer is told about, without being a finding
_LONGEST = patience(300.0)  # seconds until both are ready again
_LINES = 30  # of what a container said last, in a finding
_MOMENT = 12.0  # seconds; what is begun takes about so long
_FIRST = 0.4  # the part of the kills that meet the first process of a container: all die then
_SUM = "cd /sys/class/misc/edu-peer && echo 5 > sum && cat sum"
_READY = "[ -e /run/nodeside/{}/ready ]"
_NOBODY_LEAVES = "! ls /run/nodeside-locks | grep -q leaving"


@dataclass
class Pair:
    """A node with the two drivers, over many boots. `edu` is the directory of its version."""

    node: TrialNode
    machine: Machine
    pod: Pod
    edu: str = _EDU[0]
    running: dict[str, Running[GuestProcess]] = field(default_factory=dict)
    by_hand: list[Running[GuestProcess]] = field(default_factory=list)
    boots: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def on(cls, node: TrialNode) -> Pair:
        boots = ExitStack()
        machine = boots.enter_context(node.boot(devices=("edu",), cpus=1))
        return cls(node, machine, Pod(machine), boots=boots)

    def cut_power(self) -> None:
        self.machine.power_off(hard=True)
        self.boots.close()
        self.machine = self.boots.enter_context(self.node.boot(devices=("edu",), cpus=1))
        self.pod = Pod(self.machine)
        self.running.clear()
        self.by_hand.clear()

    def start(self) -> None:
        """Start whoever does not run."""
        for name in (self.edu, _PEER):
            if name not in self.running or self.running[name].process.poll() is not None:
                started = self.pod.start_driver("run", of=name, where="privileged-driver")
                self.running[name] = started

    def unload(self) -> None:
        """Unload `edu` by hand; its pod loads it again."""
        started = self.pod.start_driver("unload", of=self.edu, where="privileged-driver")
        self.by_hand.append(started)

    def works_by_hand(self) -> bool:
        """Whether a command that was begun by hand has not ended."""
        return any(running.process.poll() is None for running in self.by_hand)

    def end(self, name: str) -> None:
        """A pod is replaced: it ends, and its modules stay."""
        process = self.running.pop(name).process
        process.kill()
        process.wait(60)

    def processes(self, name: str) -> list[int]:
        """The processes in a container, by the node's numbers."""
        place = f"/sys/fs/cgroup/container-{self.running[name].process.id}/cgroup.procs"
        found = self.pod.node("sh", "-c", f"cat {place} 2>/dev/null; true")
        return [int(number) for number in found.split()]

    def state(self) -> str:
        """What a person would look at first: the records, and what the pods said last."""
        said = self.pod.node("sh", "-c", "ls -R /run/nodeside /run/nodeside-locks; true")
        for name, running in self.running.items():
            lines = str(running.says).splitlines()[-_LINES:]
            said += f"\n{name} says:\n" + "\n".join(lines)
        return said

    def holds(self, condition: str) -> bool:
        """Whether a shell line succeeds on the node."""
        return (
            self.machine.run(["sh", "-c", condition], "node", timeout=60, check=False).exit_code
            == 0
        )


def trouble(ledger: Ledger, workshop: Workshop, kernel: KernelDisk, count: int) -> None:
    """The histories of the rounds are one: each begins where the one before ended."""
    with pair(workshop, kernel) as node:
        node.start()
        for turn in ledger.rounds(NAME, count):
            if turn.number % _CUT == _CUT - 1:
                _cut(turn, node)
            else:
                _kill(turn, node)
            _judge(turn, node)


def _begin(turn: Round, node: Pair) -> str:
    """Begin something that touches both drivers; what it is."""
    what = turn.fate.choice(("nothing", "another version", "unload", "the pod again"))
    if what == "another version":
        node.end(node.edu)
        node.edu = next(name for name in _EDU if name != node.edu)
    elif what == "the pod again":
        node.end(node.edu)
    elif what == "unload":
        node.unload()
    node.start()
    return what


def _kill(turn: Round, node: Pair) -> None:
    what = _begin(turn, node)
    threading.Event().wait(turn.fate.uniform(0.0, _MOMENT))
    name = turn.fate.choice((node.edu, _PEER))
    processes, container = node.processes(name), node.running[name].process
    if turn.fate.random() < _FIRST or len(processes) < 2:
        hit, victim = kill_all(container), f"all of {name}"
    else:
        hit, victim = kill_one(node.pod, turn.fate.choice(processes[1:])), f"a child of {name}"
    turn.outcome(f"{what}: {victim if hit else HAD_ENDED}")
    turn.happened("a process that lived was killed", hit, enough=6)
    node.start()


def _cut(turn: Round, node: Pair) -> None:
    what = _begin(turn, node)
    threading.Event().wait(turn.fate.uniform(0.0, _MOMENT))
    running = [each for each in node.running.values() if each.process.poll() is None]
    boot = node.machine.boot_id
    node.cut_power()
    turn.happened("the power was cut while both drivers ran", len(running) == 2, enough=3)
    turn.expect(node.machine.boot_id != boot, "the node has not booted again")
    turn.expect(not node.holds(_READY.format(_PEER)), "ready in a boot in which nothing ran")
    turn.outcome(f"{what}: power cut")
    node.start()


def _judge(turn: Round, node: Pair) -> None:
    """Both become ready, the one after computes with the other's device, and nothing is left.

    What was begun by hand has ended: before it did anything, both are ready as well.
    """
    both = " && ".join(
        (
            _READY.format("edu"),
            _READY.format(_PEER),
            f"{{ {_SUM}; }} | grep -qx 154",
            _NOBODY_LEAVES,
        )
    )
    started, told = time.monotonic(), False
    while node.works_by_hand() or not node.holds(both):
        took = time.monotonic() - started
        if took >= _LONGEST:
            turn.finding(f"not ready again after {_LONGEST:g} s: {node.state()}")
            return
        if took >= _LONG and not told:
            turn.ledger.say(f"round {turn.number}: takes more than {_LONG:g} s: {node.state()}")
            told = True
        node.start()
        threading.Event().wait(0.2)
    for splat in node.machine.splats():
        turn.finding(f"the kernel: {splat}")


@contextmanager
def pair(workshop: Workshop, kernel: KernelDisk) -> Iterator[Pair]:
    """A node with the drivers of this module and all their bundles, switched on."""
    with ExitStack() as stack:
        place = stack.enter_context(scratch_directory("chaos"))
        builds = stack.enter_context(HostBuilds(workshop, place / "builds"))
        image = DriverImage(place / "image")
        image.edu(_EDU[0], daemon.SPEC)
        image.edu(_EDU[1], {"version": "1.1.0", **daemon.SPEC}, {_COMPUTE: _OTHER})
        image.peer(_PEER)
        node = stack.enter_context(workshop.node(kernel, driver_image=image.directory))
        made = Pair.on(node)
        stack.callback(made.boots.close)
        for name in _EDU:
            bundle = builds(image.directory / name, kernel)
            made.pod.put_bundle(bundle)
            made.pod.put_bundle(builds(image.directory / _PEER, kernel, after=[bundle]))
        yield made
