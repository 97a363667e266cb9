"""What modules a source produces, found by building it: for a source that has no driver.yaml.

The build is the one of a driver, in the toolkit's root file system on this host, but no module is
required of it. What the modules declare is read from their files.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from nodeside.driver.handoff.artifacts import copy_modules
from nodeside.driver.handoff.listener import Listener
from nodeside.driver.handoff.request import ToolkitBuildFailed, request_build
from nodeside.driver.handoff.result import await_result
from nodeside.driver.handoff.source import provide_source, source_digest
from nodeside.driver.module.modulefile import ModuleFile, read_modules
from nodeside.protocol.build_records import BuildRequest
from nodeside.protocol.bundle_key import BuildSettings, bundle_key
from nodeside.protocol.shared_directory import request_id
from nodeside.system.host import Host, Kernel
from nodeside.system.scratch import scratch_directory
from nodeside.trial.host.build import OUTPUT_IS_ABOVE, kernel_version, print_build_line
from nodeside.trial.host.toolkit import HostToolkit
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.progress import Progress

_DEADLINE = 3600.0  # seconds, as that of a driver.yaml that says nothing


def discover_modules(
    tree: Path,
    settings: BuildSettings,
    kernel: KernelDisk,
    *,
    toolkit: Path,
    python: Path,
    progress: Progress,
) -> tuple[ModuleFile, ...]:
    """Build a source and return its modules, by name. Raises ToolkitBuildFailed, NotAModule.

    Their paths are those of files that are gone.
    """
    way = " ".join(settings.command) or settings.kind.value
    if settings.directory != "." or not settings.command:
        way += f" in {settings.directory}"
    progress.print_step(f"building it for {kernel.release} ({way}), to see what modules it has")
    target = Kernel(kernel.release, kernel_version(kernel), kernel.architecture.machine)
    digest = source_digest(tree)
    wanted = BuildRequest(
        id=request_id(bundle_key(digest, settings, target), 1),
        driver=tree.name,
        version="draft",
        kernel=target,
        boot_id=Host().boot_id,
        source=digest,
        settings=settings,
        timeout=_DEADLINE,
    )
    with (
        scratch_directory("discovery") as scratch,
        open(scratch / "toolkit.log", "wb") as log,
        HostToolkit(kernel, toolkit, scratch / "toolkit", python=python, output=log) as shared,
    ):
        shared.create()
        provide_source(tree, shared, digest)
        request = request_build(shared, wanted)
        listener = Listener(on_build_line=partial(print_build_line, progress, "host    |"))
        try:
            result = await_result(shared, request, listener)
        except ToolkitBuildFailed as failed:  # what it names is gone with the container
            failed.args = (str(failed).partition("\n")[0],)
            failed.hint = OUTPUT_IS_ABOVE if "/build.log" in failed.hint else failed.hint
            raise
        copies = scratch / "modules"
        copies.mkdir()
        files = read_modules(list(copy_modules(shared, result, copies).values()))
    return tuple(sorted(files, key=lambda file: file.name))
