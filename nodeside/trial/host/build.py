"""A build on this host: the same sidecar, natively in the toolkit's root file system.

Under software emulation a compiler runs about fifteen times slower. So the bundle is built here
(`toolkit`) with the driver side's own `nodeside driver build`, and the node finds it in its cache.
The kernel, the headers, the compiler and the user are the same as on the node.

Bundles are kept for later trials: what has not changed has the same key, and is not built again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import nodeside
from nodeside.errors import ExitCode
from nodeside.spec.model import Driver
from nodeside.system import process
from nodeside.system.files import disk_errors
from nodeside.system.scratch import scratch_directory
from nodeside.toolkit_sidecar.headers import read_version_of_release
from nodeside.trial.host.toolkit import HostToolkit
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.progress import Progress
from nodeside.values import frozen

_LOOK = 120.0  # seconds to find out whether a bundle is there
_KEPT = 50  # bundles of earlier trials
# The sidecar's hint names a log below /shared, which is removed with the root file system.
OUTPUT_IS_ABOVE = "see the output of the build above, in the lines marked host"
_BUILD_DIRECTORY = re.compile(
    r"(?<![^\s'\"([:])/shared/out/[^/\s]+/(?:build|dkms/[^/\s]+/[^/\s]+/build)/"
)
BY_HAND = "to repeat it, in the toolkit container:"  # as `nodeside driver build` says it
_COMMAND = "from nodeside.cli import main; main()"


@frozen
class HostBuild:
    """The outcome of a build on the host. `cache` is a node's cache that holds the bundle.

    `seconds` are those of the build, 0 if the bundle was there.
    """

    kernel: str
    exit_code: int
    cache: Path
    message: str = ""
    hint: str = ""
    seconds: float = 0.0


def build_on_host(
    image: Path,
    kernel: KernelDisk,
    *,
    toolkit: Path,
    python: Path,
    cache: Path,
    driver: Driver,
    progress: Progress,
    kept: Path | None = None,
) -> HostBuild:
    """Put the bundle of the driver in `image` into `cache`. A failed build does not raise.

    `kept` has the bundles of earlier trials.
    """
    words = [
        *(sys.executable, "-P", "-c", _COMMAND, "driver", "build"),
        *("--driver", str(image / "driver.yaml"), "--cache", str(kept or cache)),
        *("--kernel", kernel.release, "--kernel-version", kernel_version(kernel)),
        *("--kernel-arch", kernel.architecture.machine),
    ]
    env = {"PYTHONPATH": str(Path(nodeside.__file__).parent.parent)}
    if kept is not None and _copy_kept_bundle(words, env, kept, cache):
        progress.print_step(f"the bundle for {kernel.release} is there: nothing has changed since")
        return HostBuild(kernel.release, ExitCode.OK, cache)
    progress.print_step(
        f"building for {kernel.release} in the toolkit's root file system on this host"
    )
    with (
        scratch_directory("build") as scratch,
        open(scratch / "toolkit.log", "wb") as log,
        HostToolkit(kernel, toolkit, scratch / "toolkit", python=python, output=log) as shared,
    ):
        done = process.run(
            [*words, "--shared", str(shared.root)],
            env=env,
            timeout=driver.spec.build.timeout_seconds + 120,
            check=False,
            on_line=partial(_print_without_command, progress, "host    |"),
        )
    if kept is not None and done.exit_code == ExitCode.OK:
        _copy_kept_bundle(words, env, kept, cache)
    hint = _last_message(done.output, "hint: ")
    return HostBuild(
        kernel.release,
        done.exit_code,
        cache,
        _last_message(done.output, "error: ").partition(f"\n{BY_HAND}\n")[0],
        OUTPUT_IS_ABOVE if "/build.log" in hint else hint,
        round(done.elapsed, 1),
    )


def print_build_line(progress: Progress, prefix: str, line: str) -> None:
    """Print a line of a build. Files in its directory are named relative to the source."""
    ours = line.startswith(("# ", "build | # "))
    progress.print_line(prefix, line if ours else _BUILD_DIRECTORY.sub("", line))


def _print_without_command(progress: Progress, prefix: str, line: str) -> None:
    """Print a line of a build, unless it tells how to repeat a command.

    The directories of such a command are gone when the build has ended.
    """
    if line != BY_HAND and not line.startswith("cd /shared/out/"):
        print_build_line(progress, prefix, line)


def _copy_kept_bundle(
    words: Sequence[str], env: Mapping[str, str], kept: Path, cache: Path
) -> bool:
    """Copy the bundle from `kept`; return False if it is not there.

    Without a toolkit, `driver build` only looks.
    """
    found = process.run([*words, "--output", "json"], env=env, timeout=_LOOK, check=False)
    if found.exit_code != ExitCode.OK:
        return False
    bundle = Path(json.loads(found.output)["path"])
    target = cache / bundle.relative_to(kept)
    if target.is_dir():  # of an earlier round of this trial
        return True
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(bundle, target)
        os.utime(bundle)
    _remove_oldest_bundles(kept)
    return True


def _remove_oldest_bundles(kept: Path) -> None:
    """Remove all but the latest bundles in `kept`. Another trial may do the same meanwhile."""
    with suppress(FileNotFoundError):
        every = sorted(kept.glob("*/*/manifest.json"), key=lambda path: path.parent.stat().st_mtime)
        for old in every[:-_KEPT]:
            shutil.rmtree(old.parent, ignore_errors=True)


def kernel_version(kernel: KernelDisk) -> str:
    """Return the `uname -v` of a kernel that is not running, from its headers."""
    return read_version_of_release(kernel.tree, kernel.release)


def _last_message(output: str, prefix: str) -> str:
    """Return the text after the last `error: ` or `hint: ` in the output, up to the next hint."""
    _, separator, rest = output.rpartition(f"\n{prefix}")
    return rest.split("\nhint: ")[0].strip() if separator else ""
