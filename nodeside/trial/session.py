"""The steps of `nodeside try`, from the command line to the runs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from nodeside.errors import ExitCode, NodesideError, UsageError
from nodeside.system.scratch import scratch_directory
from nodeside.trial import ordinary_kernel, pod
from nodeside.trial.architecture import AMD64, Architecture
from nodeside.trial.debian.kernels import AvailableKernel
from nodeside.trial.errors import ArchiveError
from nodeside.trial.host import build as host_build
from nodeside.trial.host.build import HostBuild
from nodeside.trial.machine import qemu, shell
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.pod import BootOptions, TrialRun
from nodeside.trial.progress import Progress
from nodeside.trial.target import dependencies
from nodeside.trial.target.plan import build_options
from nodeside.trial.target.target import TrialTarget, path_exists, prepare_target
from nodeside.trial.watch import require_triable, watch_target
from nodeside.trial.workshop import Workshop
from nodeside.values import frozen


@frozen
class TryOptions:
    """The command line of `nodeside try`.

    Each of `kernels` is tried on a node of its own, which is then rebooted into each of `reboots`.
    """

    target: str
    kernels: tuple[str, ...]
    reboots: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()
    append: tuple[str, ...] = ()
    keep: bool = False
    build_on: str = "auto"
    accelerator: str = "auto"
    architecture: Architecture = AMD64
    toolkit_packages: tuple[str, ...] = ()


def run_session(
    options: TryOptions, progress: Progress | None = None, *, runs: list[TrialRun] | None = None
) -> tuple[TrialRun, ...]:
    """Try a driver. Raises NodesideError. In any case nothing is left running or mounted.

    `runs` gets those of each node as soon as they are known.
    """
    progress = progress or Progress()
    runs = [] if runs is None else runs
    if options.keep:
        shell.require_terminal()
    with (
        Workshop(
            progress,
            accelerator=options.accelerator,
            architecture=options.architecture,
            toolkit_packages=options.toolkit_packages,
        ) as workshop,
    ):
        dependencies.require_packages(options.toolkit_packages, workshop.archive)
        qemu.require_qemu(options.architecture)
        qemu.require_devices(options.devices, options.architecture)
        first = [workshop.resolve(word) for word in options.kernels]
        others = [workshop.resolve(word) for word in options.reboots]
        for kernel in dict.fromkeys(first):
            progress.kept.clear()
            made = _try_on_node(options, workshop, [kernel, *others], progress, first=not runs)
            runs += [replace(run, log=tuple(progress.kept)) for run in made]
        return tuple(runs)


def watch_session(options: TryOptions, progress: Progress | None = None) -> int:
    """Try each saved change until Ctrl-C; return the exit code of the last trial."""
    progress = progress or Progress()
    path = Path(options.target)
    if not path.is_dir():
        raise UsageError(f"--watch watches a directory, and {options.target} is none")
    with Workshop(
        progress,
        accelerator=options.accelerator,
        architecture=options.architecture,
        toolkit_packages=options.toolkit_packages,
    ) as workshop:
        dependencies.require_packages(options.toolkit_packages, workshop.archive)
        qemu.require_qemu(options.architecture)
        qemu.require_devices(options.devices, options.architecture)
        kernel = workshop.resolve(options.kernels[0])
        return watch_target(
            path.absolute(),
            kernel,
            workshop,
            progress,
            devices=options.devices,
            commands=options.commands,
            append=options.append,
        )


def _try_on_node(
    options: TryOptions,
    workshop: Workshop,
    kernels: Sequence[AvailableKernel],
    progress: Progress,
    *,
    first: bool,
) -> tuple[TrialRun, ...]:
    """Try on one node. What goes wrong on one after the first does not end the trial of others."""
    alone = len(options.kernels) == 1
    try:
        with scratch_directory("try") as scratch:
            return _Session(options, workshop, scratch, progress).run(kernels)
    except NodesideError as error:
        is_mistake = error.exit_code in (ExitCode.USAGE, ExitCode.SPEC)
        if alone or (first and is_mistake):
            raise
        progress.print_step(f"error: {error}")
        return (pod.failed_trial(options.target, kernels[0].release, error),)


# What a driver may fail with if the kernel lacks what it needs.
_FOR_ANOTHER_KERNEL = (ExitCode.BUILD_FAILED, ExitCode.REFUSED, ExitCode.LOAD_FAILED)
# What an engineer would look at in the machine.
_FOR_A_SHELL = (
    ExitCode.BUILD_FAILED,
    ExitCode.NO_MODULE,
    ExitCode.LOAD_FAILED,
    ExitCode.VALIDATION_FAILED,
)


@frozen
class _Session:
    options: TryOptions
    workshop: Workshop
    scratch: Path
    progress: Progress

    def run(self, chosen: Sequence[AvailableKernel]) -> tuple[TrialRun, ...]:
        """Run the session. User errors are reported before anything that takes minutes is made."""
        options, workshop = self.options, self.workshop
        image = self.scratch / "driver-image"
        evaluate = partial(workshop.evaluate, chosen[0])
        build = partial(workshop.build, chosen[0])
        is_amd64 = options.architecture == AMD64  # the only one that `init` builds for
        kernel = options.kernels[0] if is_amd64 else AMD64.default_kernel
        again = build_options(kernel, options.toolkit_packages)
        target = prepare_target(
            options.target, image, workshop.archive, evaluate, build, options=again
        )
        require_triable(target, options.architecture)
        kernels = tuple(workshop.kernel(kernel) for kernel in chosen)
        runs = self._try_kernels(target, kernels, self._build_on_host(target, kernels))
        if any(run.exit_code == ExitCode.BUILD_FAILED for run in runs) and not options.keep:
            runs = self._try_with_dependencies(target, kernels, runs)
        runs = tuple(self._name_ordinary_kernel(run) for run in runs)
        failed = next((run for run in runs if run.verdict != ExitCode.OK), None)
        if failed is not None:
            self._print_advice(failed)
        return runs

    def _try_with_dependencies(
        self, target: TrialTarget, kernels: tuple[KernelDisk, ...], runs: tuple[TrialRun, ...]
    ) -> tuple[TrialRun, ...]:
        """Try again with what a Debian package depends on in the toolkit, if that lacks some of it.

        Returns the runs of before if there is nothing to add, or if it cannot be added.
        """
        name, workshop = self.options.target, self.workshop
        if path_exists(Path(name)):
            return runs
        toolkit = workshop.roots.toolkit(kernels[0].compiler)
        lacking = dependencies.missing_dependencies(name, workshop.archive, toolkit)
        if not lacking:
            return runs
        self.progress.print_step(
            f"{name} depends on {', '.join(lacking)}: building it again with them in the toolkit"
        )
        before = workshop.roots.toolkit_packages
        workshop.roots.toolkit_packages += lacking
        try:
            return self._try_kernels(target, kernels, self._build_on_host(target, kernels))
        except ArchiveError as error:
            workshop.roots.toolkit_packages = before
            self.progress.print_step(f"they could not be added: {error}")
            return runs

    def _try_kernels(
        self, target: TrialTarget, kernels: tuple[KernelDisk, ...], builds: tuple[HostBuild, ...]
    ) -> tuple[TrialRun, ...]:
        """Boot the kernels, except those for which the driver did not compile on this host."""
        options = self.options
        built = [build.kernel for build in builds if build.exit_code == 0]
        failed = {
            build.kernel: pod.failed_build(target, build)
            for build in builds
            if build.exit_code != 0
        }
        bootable = [kernel for kernel in kernels if kernel.release not in failed]
        if not bootable and not options.keep:
            return tuple(failed.values())
        with self.workshop.node(
            (bootable or kernels)[0],
            driver_image=target.image,
            bundles=self.scratch / "cache" if built else None,
            host_builds=built,
        ) as node:
            boot = BootOptions(
                kernels, options.devices, options.commands, options.append, options.keep
            )
            runs = pod.boot_in_turn(node, target, boot, self.progress, failed)
        seconds = {build.kernel: build.seconds for build in builds}
        return tuple(replace(run, build_seconds=seconds.get(run.kernel, 0.0)) for run in runs)

    def _name_ordinary_kernel(self, run: TrialRun) -> TrialRun:
        """Return the run with the hint that the ordinary kernel has what its driver lacks."""
        if run.exit_code not in _FOR_ANOTHER_KERNEL:
            return run
        words = f"{run.report.get('message', '')} {run.report.get('hint', '')}"
        disk = self.workshop.kernel(run.kernel)
        again, archive = self._again(), self.workshop.archive
        hint = ordinary_kernel.ordinary_kernel_hint(disk, words, archive, again)
        return replace(run, report={**run.report, "hint": hint}) if hint else run

    def _print_advice(self, run: TrialRun) -> None:
        """Print reasons for a failed build that the node side cannot know: packages, kernels."""
        exit_code = run.verdict
        if exit_code == ExitCode.EXCLUDED and "-cloud-" in run.kernel:
            self.progress.print_step(
                "cloud kernels have no video, sound, USB or I2C; try the ordinary kernel: "
                + self._again(self.options.architecture.ordinary_kernel)
            )
        if exit_code in _FOR_A_SHELL and not (self.options.keep or run.crashed):
            self.progress.print_step(f"a shell in the machine: {self._again(run.kernel)} --keep")
        if exit_code == ExitCode.BUILD_FAILED and "toolkit" in str(run.report.get("hint")):
            self.progress.print_step(
                f"in a trial: {self._again(run.kernel)} --toolkit-package PACKAGE; in an image "
                "for a cluster: images/build toolkit KERNEL --package PACKAGE"
            )

    def _again(self, kernel: str = "") -> str:
        """Return the command that tries the same again, to add an option to."""
        options = self.options
        words = ["nodeside", "try", options.target, *(["--kernel", kernel] if kernel else [])]
        if options.architecture != AMD64:
            words += ["--arch", options.architecture.name]
        for option, values in (
            ("--device", options.devices),
            ("--append", options.append),
            ("--toolkit-package", options.toolkit_packages),
        ):
            words += [word for value in values for word in (option, value)]
        return shlex.join(words)

    def _build_on_host(
        self, target: TrialTarget, kernels: tuple[KernelDisk, ...]
    ) -> tuple[HostBuild, ...]:
        """Build on the host, once for each kernel, if that was requested or is faster."""
        if not self._builds_on_host(kernels[0]):
            return ()
        python = self.workshop.packed_python()
        toolkit = self.workshop.roots.toolkit(kernels[0].compiler)
        return tuple(
            host_build.build_on_host(
                target.image,
                kernel,
                toolkit=toolkit,
                python=python,
                cache=self.scratch / "cache",
                kept=None if self.workshop.roots.toolkit_packages else self.workshop.kept_bundles,
                driver=target.driver,
                progress=self.progress,
            )
            for kernel in dict.fromkeys(kernels)
            if kernel.headers
        )

    def _builds_on_host(self, kernel: KernelDisk) -> bool:
        if self.options.build_on != "auto":
            return self.options.build_on == "host"
        if self.options.architecture.is_foreign:
            # A compiler is emulated in both places, but on the host without a kernel below it: make
            # of edu took 133 s there and 327 s in the machine.
            return True
        return self.workshop.accelerator_for(kernel) == "tcg"
