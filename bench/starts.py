"""Start → ready in a throwaway machine: with the module loaded, and with the bundle in the cache.

Only here a kernel really loads the module and the device really answers. Where the machine is
emulated, the same Python is timed here and there, so that the reader can judge the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import nodeside
from bench.filenode import FileNode
from bench.ground import Ground
from bench.page import Goal, Section, markdown_table
from bench.repeat import repeat, timings
from bench.samples import Samples, seconds
from bench.size import Size
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.machine.machine import Machine

FLAVOUR = "cloud-amd64"
_TIMES = {Size.FULL: 5, Size.QUICK: 3, Size.SMALLEST: 1}
_TIMEOUT = 600.0
_IMPORTS = "import click, json, hashlib, logging, pyudev, yaml"
_FILL = "mkdir -p /var/lib/nodeside && cp -a /payload/cache /var/lib/nodeside/"
_RUN = ("nodeside", "driver", "run", "--once")


@dataclass(frozen=True)
class Measured:
    """Seconds, in the machine but for `native`."""

    native: Samples
    python: Samples
    insmod: Samples
    loaded: Samples
    cached: Samples

    @property
    def factor(self) -> float:
        """How much slower than this machine's the machine's Python is."""
        return self.python.median / self.native.median


def measure(ground: Ground, size: Size) -> Section:
    times, kernel = _TIMES[size], ground.kernel(FLAVOUR)
    ground.progress.print_step("start → ready in the throwaway machine")
    example = Path(nodeside.__file__).parent.parent / "examples" / "edu"
    image = ground.prepare("edu", str(example), kernel).image
    node = ground.node("starts", kernel)
    _build(ground, kernel, image, node)
    room = ground.driver_room(ground.directory("starts-native"), {})
    native = timings(room.run(repeat(times, "python3", "-c", _IMPORTS), timeout=_TIMEOUT))
    with (
        ground.workshop.node(kernel, driver_image=image, bundles=node.host.cache) as disk,
        disk.boot(devices=["edu"]) as machine,
    ):
        ground.progress.print_step(f"booted {kernel.release} in {machine.boot_seconds:.1f} s")
        found = _in_machine(machine, node, native, times)
        accelerator = machine.settings.accelerator
        machine.power_off()
    return _section(kernel, accelerator, found, times)


def _build(ground: Ground, kernel: KernelDisk, image: Path, node: FileNode) -> None:
    """The bundle, built natively into the cache that the node will have."""
    with ground.sidecar(kernel, ground.directory("starts-toolkit")) as shared:
        binds = {image: "/driver-image", node.root: "/host", shared.root: "/shared"}
        room = ground.driver_room(ground.directory("starts-build"), binds)
        room.run(["nodeside", "driver", "build"], timeout=_TIMEOUT)


def _in_machine(machine: Machine, node: FileNode, native: Samples, times: int) -> Measured:
    machine.run(["sh", "-c", _FILL], "node", timeout=_TIMEOUT)
    module = node.bundle().module_path("edu").relative_to(node.root)
    insmod = ("insmod", f"/host/{module}")
    return Measured(
        native=native,
        python=_timed(machine, times, "python3", "-c", _IMPORTS),
        insmod=_timed(machine, times, *insmod, before="rmmod edu"),
        cached=_timed(machine, times, *_RUN, before="rmmod edu"),
        loaded=_timed(machine, times, *_RUN),
    )


def _timed(machine: Machine, times: int, *argv: str, before: str = "") -> Samples:
    done = machine.run(repeat(times, *argv, before=before), timeout=_TIMEOUT, check=False)
    return timings(f"{done.output}\n{done.errors}")


def _section(kernel: KernelDisk, accelerator: str, found: Measured, times: int) -> Section:
    rows = [
        ("Python, importing what a command line imports: this machine", found.native),
        ("the same in the throwaway machine", found.python),
        ("`insmod edu.ko` alone", found.insmod),
        ("`nodeside driver run --once`, module loaded", found.loaded),
        ("`nodeside driver run --once`, bundle in the cache", found.cached),
    ]
    table = markdown_table(("", "wall"), [(name, seconds(samples)) for name, samples in rows])
    loaded = found.loaded.median / found.factor
    cached = (found.cached.median - found.insmod.median) / found.factor
    before = (
        f"examples/edu on kernel {kernel.release} with QEMU's edu device, accelerator "
        f"{accelerator}, {times} times each: start of the process to its end with the driver "
        "validated (device node, bound device, factorial and self-test by the device) and ready."
    )
    after = (
        f"Python runs {found.factor:.1f} times slower in that machine than on this one. Divided by "
        f"this factor, start → ready takes {loaded:.2f} s with the module loaded and "
        f"{cached:.2f} s plus insmod from the cache. The section above has the first number "
        "measured natively."
    )
    text = f"{cached:.2f} s + insmod ({found.cached.median:.1f} s, emulated {found.factor:.1f}x)"
    goal = Goal("start → ready, bundle in the cache", "≤ 1 s + insmod", text, cached <= 1)
    return Section("Start → ready on a real kernel", before, table, after, (goal,))
