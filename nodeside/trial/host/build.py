"""A large build on this host: the same sidecar, natively in the toolkit's root file system.

Under software emulation a compiler runs about fifteen times slower. If a source has many files, the
bundle is therefore built here (`toolkit`) with the driver side's own `nodeside driver build`,
and the node finds it in its cache. The kernel, the headers, the compiler and the user are the same
as on the node.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import nodeside
from nodeside import process
from nodeside.scratch import scratch_directory
from nodeside.spec.model import Driver
from nodeside.toolkit_sidecar.headers import find_any_build
from nodeside.trial.host.toolkit import HostToolkit
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.progress import Progress

# Measured under software emulation on two cores: a tree costs 20 s, a source file 5 to 10 s more.
# Beyond this number of files, or of bytes (one file may have 30,000 lines), a build in the machine
# takes more than a minute.
LARGE = 5
LARGE_BYTES = 300_000
_SOURCES = (".c", ".S", ".cc", ".cpp", ".rs")
# The sidecar's hint names a log below /shared, which is removed with the root file system.
_OUTPUT_IS_ABOVE = "see the output of the build above, in the lines marked host"
_COMMAND = "from nodeside.cli import main; main()"


@dataclass(frozen=True)
class HostBuild:
    """The outcome of a build on the host. `cache` is a node's cache that holds the bundle."""

    kernel: str
    exit_code: int
    cache: Path
    message: str = ""
    hint: str = ""


def is_large(driver: Driver, image: Path) -> bool:
    """Return whether the source is too large to build under emulation in reasonable time."""
    source = image / driver.spec.source.path
    sizes = [path.lstat().st_size for path in source.rglob("*") if path.suffix in _SOURCES]
    return len(sizes) > LARGE or sum(sizes) > LARGE_BYTES


def build(
    image: Path,
    kernel: KernelDisk,
    *,
    toolkit: Path,
    python: Path,
    cache: Path,
    driver: Driver,
    progress: Progress,
) -> HostBuild:
    """Build the bundle of the driver in `image` into `cache`. A failed build does not raise."""
    progress.say(f"building for {kernel.release} in the toolkit's root file system on this host")
    words = [
        *(sys.executable, "-P", "-c", _COMMAND, "driver", "build"),
        *("--driver", str(image / "driver.yaml"), "--cache", str(cache)),
        *("--kernel", kernel.release, "--kernel-version", version(kernel)),
        *("--kernel-arch", kernel.architecture.machine),
    ]
    with (
        scratch_directory("build") as scratch,
        open(scratch / "toolkit.log", "wb") as log,
        HostToolkit(kernel, toolkit, scratch / "toolkit", python=python, output=log) as shared,
    ):
        done = process.run(
            [*words, "--shared", str(shared.root)],
            env={"PYTHONPATH": str(Path(nodeside.__file__).parent.parent)},
            timeout=driver.spec.build.timeout_seconds + 120,
            check=False,
            on_line=partial(progress.line, "host    |"),
        )
    hint = _last(done.output, "hint: ")
    return HostBuild(
        kernel.release,
        done.exit_code,
        cache,
        _last(done.output, "error: "),
        _OUTPUT_IS_ABOVE if "/build.log" in hint else hint,
    )


def version(kernel: KernelDisk) -> str:
    """Return the `uname -v` of a kernel that is not running, from its headers."""
    return find_any_build(kernel.tree, kernel.release)


def _last(output: str, prefix: str) -> str:
    """Return the text after the last `error: ` or `hint: ` in the output, up to the next hint."""
    _, separator, rest = output.rpartition(f"\n{prefix}")
    return rest.split("\nhint: ")[0].strip() if separator else ""
