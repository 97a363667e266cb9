"""What the device agent costs on a node, beside the sample device plugin of Kubernetes, in Go.

Both run in the agent's image on this machine, and register with a kubelet that is played
(tests/device_agent). The agent's devices are files that look like /sys; that one has changed, the
kernel really says.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from bench.lines import Lines
from bench.page import Goal, Section, markdown_table
from bench.room import Room
from bench.samples import Samples, milliseconds, seconds
from bench.sidecar import pss
from bench.size import Size
from nodeside.spec.document import to_document
from nodeside.system import process
from nodeside.system.host import Host
from nodeside.system.scratch import scratch_directory
from nodeside.trial.progress import Progress
from nodeside.trial.workshop import Workshop
from tests.controlplane import binaries
from tests.controlplane.binaries import Tool, build, cache_directory, digest, only_builder
from tests.device_agent.node import driver, say_ready
from tests.device_agent.played_kubelet import PlayedKubelet, played_kubelet
from tests.driver.fakes.kernel import add_pci_device, link, write
from tests.images.built import AGENT, engine

_KUBERNETES = "k8s.io/kubernetes"
_SAMPLE = Tool(
    "sample-device-plugin", f"{_KUBERNETES}/test/images/sample-device-plugin", _KUBERNETES
)
_KUBELET = "/var/lib/kubelet/device-plugins"
_RESOURCE = "example.com/edu"
_EVENT = Path("/sys/class/mem/null/uevent")  # of a device that every machine has
_DEVICES = 8
# Starts, changes, and seconds of idling.
_SIZES = {Size.FULL: (5, 40, 60.0), Size.QUICK: (3, 5, 5.0), Size.SMALLEST: (1, 1, 0.5)}
_SETTLES = 5.0  # seconds after the first list
_DEVICE = {
    "resource": _RESOURCE,
    "discover": {"pci": [{"vendor": "1234", "device": "11e8", "driver": "edu"}]},
    "give": {"nodes": {"class": "mem"}, "environment": {"EDU_NODES": "{nodes}"}},
    "health": {"path": "liveness", "value": "ok"},
}


@dataclass(frozen=True)
class _Cost:
    """Of one plugin: from start to the first list, MiB of all its processes, idle in percent."""

    first: Samples
    memory: float
    idle: float


def measure(progress: Progress, size: Size) -> tuple[Section, Mapping[str, str]]:
    starts, changes, idle = _SIZES[size]
    progress.print_step("building the agent's image and Kubernetes' sample plugin")
    sample = _sample_plugin(progress)
    with (
        Workshop(progress) as workshop,
        engine(workshop.cache) as built,
        scratch_directory("bench") as scratch,
    ):
        built.build_all()
        with built.mounted(AGENT) as image:
            site = _Site(image, scratch, sample.parent)
            ours = _cost(site, ["nodeside", "device-agent", "-f", "/host"], starts, idle)
            theirs = _cost(site, [f"/sample/{sample.name}"], starts, idle)
            progress.print_step("a device that fails and works again")
            change = _changes(site, changes)
    table = markdown_table(
        ("", "device agent", "sample plugin in Go"),
        [
            ("start → first list", seconds(ours.first), seconds(theirs.first)),
            ("PSS of all processes, idle", f"{ours.memory:.1f} MiB", f"{theirs.memory:.1f} MiB"),
            ("processor, idle", f"{ours.idle:.2f} %", f"{theirs.idle:.2f} %"),
            ("device changes → the kubelet has the list", milliseconds(change), "never"),
        ],
    )
    before = (
        f"The agent offers {_DEVICES} devices with device nodes and a health file; the sample "
        "plugin of Kubernetes lists two that do not exist, and does nothing else. Both run in the "
        f"root file system of the agent's image. Started {starts} times, {changes} changes, idle "
        f"for {idle:g} s."
    )
    goals = (
        Goal("device agent: first list", "≤ 1 s", seconds(ours.first), ours.first.median <= 1),
        Goal("device agent: memory", "≤ 35 MiB", f"{ours.memory:.1f} MiB", ours.memory <= 35),
        Goal("device agent: idle", "≤ 0.1 %", f"{ours.idle:.2f} %", ours.idle <= 0.1),
        Goal("device change → kubelet", "≤ 0.5 s", milliseconds(change), change.median <= 0.5),
    )
    versions = {"kubernetes": binaries.versions([_SAMPLE], binaries.MODULE)[_KUBERNETES]}
    return Section("Device agent", before, table, goals=goals), versions


def _sample_plugin(progress: Progress) -> Path:
    place = cache_directory() / f"{digest()}-sample"
    program = place / "bin" / _SAMPLE.name
    if not program.exists():
        with only_builder(place, progress.print_step):
            build(place, [_SAMPLE], {}, progress.print_step, lasts="a minute")
    return program


class _Site:
    """A node made of files, and what plugins find of it in their root file system."""

    def __init__(self, image: Path, scratch: Path, programs: Path) -> None:
        self.host = Host(scratch / "host")
        self.kubelet = scratch / "kubelet"
        self.kubelet.mkdir()
        (self.host.root / "dev").mkdir(parents=True)
        self.real = [self._add(number) for number in range(_DEVICES)]
        say_ready(self.host)
        document = json.dumps(to_document(driver(_DEVICE)))
        write(self.host.root / "driver.yaml", document)
        binds = {self.host.root: "/host", self.kubelet: _KUBELET, programs: "/sample"}
        self.room = Room((image,), scratch / "room", binds, {"NODESIDE_HOST": "/host"})

    def _add(self, number: int) -> Path:
        real = add_pci_device(self.host, f"0000:00:{number + 5:02x}.0", "1234", "11e8", "edu")
        write(real / "liveness", "ok\n")
        node = real / "mem" / f"edu{number}"
        write(node / "uevent", f"DEVNAME=edu{number}\n")
        link(self.host.sys / "class" / "mem" / f"edu{number}", node)
        return real

    @contextmanager
    def running(self, argv: Sequence[str]) -> Iterator[tuple[process.Child, PlayedKubelet, float]]:
        """A plugin that has listed its devices, and how long that took after its start."""
        lines = Lines()
        try:
            with played_kubelet(self.kubelet) as kubelet:
                started = time.monotonic()
                with self.room.running(argv, lines.write) as child:
                    kubelet.until(lambda said: "list" in said)
                    yield child, kubelet, time.monotonic() - started
        finally:
            lines.close()


def _cost(site: _Site, argv: Sequence[str], starts: int, idle: float) -> _Cost:
    first: list[float] = []
    for _ in range(starts):
        with site.running(argv) as (_, _, took):
            first.append(took)
    with site.running(argv) as (child, _, _):
        main = psutil.Process(child.pid)
        time.sleep(_SETTLES)
        all_of_it = [main, *main.children(recursive=True)]
        before = sum(map(_processor, all_of_it))
        time.sleep(idle)
        used = sum(map(_processor, all_of_it)) - before
        return _Cost(Samples.of(first), sum(map(pss, all_of_it)), 100 * used / idle)


def _processor(process: psutil.Process) -> float:
    """Seconds that its threads have run, to the nanosecond, and its children that have ended.

    See Documentation/scheduler/sched-stats.rst; what psutil counts are ticks of a hundredth.
    """
    tasks = Path(f"/proc/{process.pid}/task")
    ran = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir())
    times = process.cpu_times()
    return ran / 1e9 + float(times.children_user + times.children_system)


def _changes(site: _Site, changes: int) -> Samples:
    took: list[float] = []
    with site.running(["nodeside", "device-agent", "-f", "/host"]) as (_, kubelet, _):
        for number in range(changes):
            works = number % 2 == 1
            news = partial(_says, "Healthy" if works else "Unhealthy")
            after, started = len(kubelet.said), time.monotonic()
            write(site.real[0] / "liveness", "ok\n" if works else "no\n")
            _EVENT.write_text("change\n")
            kubelet.until(news, after)
            took.append(time.monotonic() - started)
    return Samples.of(took)


def _says(health: str, said: Mapping[str, Any]) -> bool:
    return bool(said.get("list", {}).get("00:05.0") == health)
