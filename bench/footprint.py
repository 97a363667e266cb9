"""What an idle node pays, and what a person or a restarted pod waits for, at this machine's speed.

Memory is the proportional set size (PSS) of one process, in its own root file system, after some
seconds of idleness. Commands are timed inside the container, by its shell.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil

from bench.builds import FLAVOUR
from bench.candidates import write_hello
from bench.filenode import FileNode
from bench.ground import Ground
from bench.lines import Lines
from bench.page import Goal, Section, markdown_table
from bench.repeat import repeat, timings
from bench.room import Room
from bench.samples import Samples, milliseconds
from bench.sidecar import find_sidecar, pss
from bench.size import Size
from nodeside.trial.machine.kernel_disk import KernelDisk

_TIMES = {Size.FULL: 20, Size.QUICK: 5, Size.SMALLEST: 1}
_IDLE = 3.0  # seconds


@dataclass(frozen=True)
class Site:
    """A node made of files with a bundle in its cache, and the driver container on it."""

    node: FileNode
    room: Room


def measure(ground: Ground, size: Size) -> Section:
    times, kernel = _TIMES[size], ground.kernel(FLAVOUR)
    ground.progress.print_step("driver process and sidecar: start, memory")
    site = make_site(ground, kernel)
    cached = _time(site, times, "nodeside", "driver", "load", "--dry-run")
    site.node.show_loaded()
    python = _time(site, times, "python3", "-c", "pass")
    help_ = _time(site, times, "nodeside", "--help")
    plan = _time(site, times, "nodeside", "driver", "plan")
    once = _time(site, times, "nodeside", "driver", "run", "--once")
    driver, sidecar = _driver_memory(site), _sidecar_memory(ground, kernel)
    table = markdown_table(
        ("", "measured"),
        [
            ("`python3 -c pass` in the driver container", milliseconds(python)),
            ("`nodeside --help`", milliseconds(help_)),
            ("`nodeside driver plan`, loaded", milliseconds(plan)),
            ("`nodeside driver run --once`, loaded", milliseconds(once)),
            ("`nodeside driver load --dry-run`, cached: all up to the load", milliseconds(cached)),
            ("PSS of `nodeside driver run`, idle, driver loaded", f"{driver:.1f} MiB"),
            ("PSS of the sidecar, idle", f"{sidecar:.1f} MiB"),
        ],
    )
    before = (
        f"In the driver's root file system on this machine, {times} times each, Python files "
        "compiled as in the image. The node is made of files that look like /proc and /sys with "
        "the hello driver loaded (for `load`: in the cache), so that nothing is emulated."
    )
    goals = (
        Goal("`nodeside --help`", "≤ 0.15 s", milliseconds(help_), help_.median <= 0.15),
        Goal("start → ready, loaded", "≤ 0.5 s", milliseconds(once), once.median <= 0.5),
        Goal("idle memory of the driver process", "≤ 30 MiB", f"{driver:.1f} MiB", driver <= 30),
        Goal("idle memory of the sidecar", "≤ 13 MiB", f"{sidecar:.1f} MiB", sidecar <= 13),
    )
    return Section("Start and memory", before, table, goals=goals)


def make_site(ground: Ground, kernel: KernelDisk) -> Site:
    """Build hello for the kernel of a node made of files, into its cache."""
    tree = write_hello(ground.directory("site-hello") / "tree")
    image = ground.prepare("site", str(tree), kernel).image
    node = ground.node("site", kernel)
    headers = kernel.tree / "usr/src" / f"linux-headers-{kernel.release}"
    node.show_symbols(headers / "Module.symvers")
    binds = {image: "/driver-image", node.root: "/host"}
    with ground.sidecar(kernel, ground.directory("site-toolkit")) as shared:
        building = ground.driver_room(
            ground.directory("site-build"), {**binds, shared.root: "/shared"}
        )
        building.run(["nodeside", "driver", "build"], timeout=300)
    empty = ground.directory("site-shared")
    return Site(node, ground.driver_room(ground.directory("site"), {**binds, empty: "/shared"}))


def _time(site: Site, times: int, *argv: str) -> Samples:
    return timings(site.room.run(repeat(times, *argv), timeout=300))


def _driver_memory(site: Site) -> float:
    lines = Lines()
    try:
        with site.room.running(["nodeside", "driver", "run"], lines.write) as child:
            lines.await_line(b"NODESIDE_READY")
            time.sleep(_IDLE)
            return pss(psutil.Process(child.pid))
    finally:
        lines.close()


def _sidecar_memory(ground: Ground, kernel: KernelDisk) -> float:
    lines = Lines()
    try:
        with ground.sidecar(kernel, ground.directory("idle-toolkit"), lines.write) as shared:
            lines.await_line(b"toolkit sidecar is there")
            time.sleep(_IDLE)
            return pss(find_sidecar(shared))
    finally:
        lines.close()
