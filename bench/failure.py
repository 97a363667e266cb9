"""A compile error: how soon after make's end it stands in the driver's status.

The broken driver's own MAKE line says when make ended. The driver process is the real `nodeside
driver run`; its log and its JSON report are what the bench looks at.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from bench.builds import FLAVOUR
from bench.candidates import ENDED, write_broken
from bench.filenode import FileNode
from bench.ground import Ground
from bench.page import Goal, Section, markdown_table
from bench.room import BenchError, await_end
from bench.samples import Samples, latency
from bench.size import Size
from nodeside.protocol.shared_directory import SharedDir

_SAMPLES = {Size.FULL: 10, Size.QUICK: 3, Size.SMALLEST: 1}
_TIMEOUT = 120.0
_GOAL = 2.0


def measure(ground: Ground, size: Size) -> Section:
    samples, kernel = _SAMPLES[size], ground.kernel(FLAVOUR)
    tree = write_broken(ground.directory("broken") / "tree")
    image = ground.prepare("failure", str(tree), kernel).image
    node = ground.node("failure", kernel)
    ground.progress.print_step(f"failure: {samples} builds that do not compile")
    with ground.sidecar(kernel, ground.directory("failure-toolkit")) as shared:
        delays = Samples.of(_one(ground, node, image, shared) for _ in range(samples))
    before = (
        "`nodeside driver run --once` beside the real sidecar, a driver that does not compile. "
        "From the line with which the driver's own MAKE says that make has ended, to the end of "
        "the driver process, which has written the state `failed`, the compiler's first error and "
        "the command that repeats it into its log and its report by then."
    )
    table = markdown_table(
        ("", "median", "95 %", "max"), [("make ended → reported", *latency(delays))]
    )
    goal = Goal("compile error in the status", "≤ 2 s", latency(delays)[0], delays.median <= _GOAL)
    return Section("A failure is reported", before, table, goals=(goal,))


def _one(ground: Ground, node: FileNode, image: Path, shared: SharedDir) -> float:
    directory = ground.directory("failure")
    room = ground.driver_room(
        directory, {image: "/driver-image", shared.root: "/shared", node.root: "/host"}
    )
    log = directory / "log"
    argv = ["nodeside", "driver", "run", "--once"]
    with open(log, "wb") as output, room.running(argv, output) as child:
        ended = await_end(child, _TIMEOUT) + time.time() - time.monotonic()
        code = child.wait()
    said = log.read_text(errors="replace")
    found = re.search(rf"{ENDED} (\d+\.\d+)$", said, re.MULTILINE)
    if code != 10 or found is None or "nought" not in said:
        raise BenchError(f"the broken driver did not fail as it should\n{said[-4000:]}")
    return ended - float(found[1])
