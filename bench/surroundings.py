"""The machine and the tools, in words, so that a number can be compared with another one."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from bench.ground import Ground
from bench.room import Room
from nodeside import __version__
from nodeside.toolkit_sidecar.jobs import count_jobs
from nodeside.trial.architecture import AMD64

_QUIET = 0.5  # load average over a minute


Rows = tuple[tuple[str, str], ...]


def describe(ground: Ground, flavour: str, accelerator: str, load_before: float) -> Rows:
    """Rows of the machine's table. `load_before` is the load when nothing was measured yet."""
    kernel = ground.kernel(flavour)
    room = Room(ground.toolkit_layers(kernel), ground.directory("describe"))
    driver = ground.driver_room(ground.directory("describe-driver"), {})
    dkms = ground.workshop.archive.show("dkms").get("Version", "")
    return (
        ("date", _date()),
        ("CPU", f"{_cpu()}, {os.cpu_count()} cores, {count_jobs(Path('/'))} make jobs"),
        ("memory", _memory()),
        ("kernel that runs", platform.release()),
        ("kernel built for", f"{kernel.release} (Debian {ground.workshop.archive.sources.suite})"),
        ("compiler, make", f"{_first(room, 'gcc')}; {_first(room, 'make')}"),
        ("nodeside", f"{__version__}, {_first(driver, 'python3')}"),
        ("dkms", dkms),
        ("throwaway machine", f"{accelerator}, {_qemu()}"),
        ("load before the run", _load(load_before)),
    )


def describe_part(versions: Mapping[str, str], load_before: float) -> Rows:
    """The same for a part that needs no kernel and no compiler. `versions`: what else it uses."""
    return (
        ("date", _date()),
        ("CPU", f"{_cpu()}, {os.cpu_count()} cores"),
        ("memory", _memory()),
        ("kernel that runs", platform.release()),
        ("nodeside", f"{__version__}, Python {platform.python_version()}"),
        *versions.items(),
        ("load before the run", _load(load_before)),
    )


def _date() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _load(before: float) -> str:
    busy = " (**others were at work: the numbers are too large**)" if before > _QUIET else ""
    return f"{before:.2f}{busy}"


def _first(room: Room, tool: str) -> str:
    return room.run([tool, "--version"], timeout=20).partition("\n")[0].strip()


def _qemu() -> str:
    from nodeside.system import process

    said = process.run([AMD64.qemu, "--version"], timeout=20).output
    return said.partition("\n")[0]


def _cpu() -> str:
    with suppress(OSError):
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if found:
            return found[1]
    return platform.machine()


def _memory() -> str:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{total / (1 << 30):.0f} GiB"
