"""The images as they ship: what they take, and how soon their commands are there."""

from __future__ import annotations

import json
import resource
from collections.abc import Mapping
from pathlib import Path

from bench.page import Goal, Section, markdown_table
from bench.samples import Samples, seconds
from bench.size import Size
from nodeside.system import process
from nodeside.trial.host.container import ENVIRONMENT
from nodeside.trial.progress import Progress
from nodeside.trial.workshop import Workshop
from tests.images.built import CONTROLLER, DRIVER, EDU, Engine, engine, unpacked_size

_TIMES = {Size.FULL: 20, Size.QUICK: 3, Size.SMALLEST: 1}
_MB = 1_000_000
_SECONDS = 60.0
_NOBODY = "12345:0"  # a user whom the image does not know, as on OpenShift
# Megabytes that an image may take, and the command whose start is measured.
_GOALS = {DRIVER: 130, CONTROLLER: 140}
_COMMANDS = {DRIVER: "nodeside", EDU: "nodeside", CONTROLLER: "nodeside-cluster"}
_START = 0.2


def measure(progress: Progress, size: Size) -> tuple[Section, Mapping[str, str]]:
    """Size and layers of each image, and the time of its own that `--version` takes."""
    progress.print_step("building the images (seconds, if nothing has changed)")
    rows: list[tuple[str, str, str, str]] = []
    goals: list[Goal] = []
    times = _TIMES[size]
    with Workshop(progress) as workshop, engine(workshop.cache) as built:
        built.build_all()
        for image, command in _COMMANDS.items():
            with built.mounted(image) as root:
                megabytes, started = unpacked_size(root) / _MB, _own_time(root, command, times)
            name = image.removeprefix("localhost/")
            rows.append((name, f"{megabytes:.0f} MB", str(_layers(built, image)), seconds(started)))
            if image in _GOALS:
                goals.append(_size_goal(name, megabytes, _GOALS[image]))
                goals.append(_start_goal(command, started))
        versions = {"buildah": built.run("buildah", "--version").split()[2]}
    before = (
        "Built by `images/build all`. The size is that of all files, unpacked. `--version` ran "
        f"{times} times in the image's root file system, as a user whom the image does not know; "
        "the time is that of the processor."
    )
    header = ("image", "size", "layers", "`--version`")
    return Section("Images", before, markdown_table(header, rows), goals=tuple(goals)), versions


def _size_goal(name: str, size: float, most: int) -> Goal:
    return Goal(f"size of {name}", f"≤ {most} MB", f"{size:.0f} MB", size <= most)


def _start_goal(command: str, started: Samples) -> Goal:
    what = f"`{command} --version` in its image"
    return Goal(what, f"≤ {_START:g} s", seconds(started), started.median <= _START)


def _layers(built: Engine, image: str) -> int:
    text = built.run("buildah", "inspect", "--type", "image", image)
    return len(json.loads(text)["OCIv1"]["rootfs"]["diff_ids"])


def _own_time(root: Path, command: str, times: int) -> Samples:
    argv: list[str | Path] = ["chroot", f"--userspec={_NOBODY}", root, command, "--version"]
    spent = []
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        process.run(argv, timeout=_SECONDS, env=ENVIRONMENT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return Samples.of(spent)
