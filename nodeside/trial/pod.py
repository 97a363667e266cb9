"""One trial: boots the node, plays the pod, runs the user's commands, reboots on request.

The node side does all the work. This module starts its containers in the order a kubelet does, and
listens. The outcome is a `TrialRun` for each kernel. Nothing is judged here but kernel splats.

A kernel that a driver crashes, or for which it does not compile, is a result like any other: the
next kernel is tried after it on the same disk, as a node goes on after a power cut.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Any

from nodeside.driver.handoff.provide import sidecar_command
from nodeside.errors import DeadlinePassed, ExitCode, NodesideError
from nodeside.spec import check_labels, check_node_driver
from nodeside.spec.pci import PciId
from nodeside.system.files import disk_errors
from nodeside.system.pci import PciDevice
from nodeside.system.process import Completed
from nodeside.text.shortlist import shortlist
from nodeside.trial.errors import MachineLost, TrialError
from nodeside.trial.host.build import HostBuild, print_build_line
from nodeside.trial.machine import shell
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.machine.machine import GuestProcess, Machine
from nodeside.trial.progress import Progress
from nodeside.trial.report import read_devices, read_report
from nodeside.trial.target.hardware import pci_ids
from nodeside.trial.target.target import TrialTarget
from nodeside.trial.workshop import TrialNode
from nodeside.values import frozen

_PROVIDE_SECONDS = 300.0
_DEVICES_SECONDS = 900.0  # 16 resources, each of which may hang for half a minute
_RUN_SECONDS = 6 * 3600.0  # the node side has its own deadlines; this is for a stuck machine
_COMMAND_SECONDS = 600.0
_LOOK = 0.1  # seconds between two looks at a process that runs on
_OUTPUT = 1 << 20  # characters of a command's output, from its end
_CRASH_LINES = 60  # of the console, from the first splat on
_IDS = 4  # PCI ids in a note
_FIND_ALIASES = 'find /host/var/lib/nodeside -path "$1" -name \'*.ko\' -exec grep -aoh "$2" {} +'
_PCI_ALIAS = "alias=pci:[[:alnum:]*]*"
# Where a module crashed: arch/x86/kernel/dumpstack.c, arch/arm64/kernel/process.c.
_CRASH_SITE = re.compile(r"(?:\bRIP: \w+:|\bpc : )(\S+ \[\w+\])")


@frozen
class CommandRun:
    """A command that used the driver, or that the user requested. `output` may be only its end."""

    argv: tuple[str, ...]
    exit_code: int
    output: str


@frozen
class TrialRun:
    """One boot. `report` is the node side's own, empty if the node side ended without one.

    `devices` is the document of `nodeside driver devices`, None if there is none. `build_seconds`
    is the time of a build on the host; a build on the node is a stage in its report. `notes` are
    remarks of the trial itself. `log` has the lines printed during all boots of this node.
    """

    kernel: str
    accelerator: str
    boot_seconds: float
    exit_code: int
    built_on: str
    report: Mapping[str, Any] = field(default_factory=dict)
    devices: Mapping[str, Any] | None = None
    commands: tuple[CommandRun, ...] = ()
    mistakes: tuple[str, ...] = ()
    splats: tuple[str, ...] = ()
    crashed: bool = False
    build_seconds: float = 0.0
    notes: tuple[str, ...] = ()
    log: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        return self.report.get("state") == "ready"

    @property
    def verdict(self) -> int:
        """Return the node side's exit code; if that is 0, VALIDATION_FAILED or OK.

        The validation counts as failed if a command failed or the kernel logged a splat. A
        command's own exit code could be taken for one of ours.
        """
        failed = self.splats or any(command.exit_code for command in self.commands)
        return self.exit_code or int(ExitCode.VALIDATION_FAILED if failed else ExitCode.OK)


@frozen
class BootOptions:
    """The boot options of the command line."""

    kernels: tuple[KernelDisk, ...]
    devices: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()
    append: tuple[str, ...] = ()
    keep: bool = False


def boot_in_turn(
    node: TrialNode,
    target: TrialTarget,
    options: BootOptions,
    progress: Progress,
    settled: Mapping[str, TrialRun],
) -> tuple[TrialRun, ...]:
    """Boot every kernel in turn on the node's disk, and bring the driver up in each boot.

    `settled` maps releases to the runs of kernels that need no boot, because nothing can be loaded.
    With `keep`, the last one boots for the shell all the same.
    """
    runs: list[TrialRun] = []
    for index, kernel in enumerate(options.kernels):
        last = index == len(options.kernels) - 1
        if kernel.release in settled:
            run = settled[kernel.release]
            if last and options.keep:
                kept = _boot_kernel(
                    node, kernel, target, options, progress, play=_Pod.run_shell_only
                )
                words = ("this is the result from before the shell",)
                run = replace(
                    run, accelerator=kept.accelerator, boot_seconds=kept.boot_seconds, notes=words
                )
            runs.append(run)
        elif any(run.crashed and run.kernel == kernel.release for run in runs):
            progress.print_step(f"not booting {kernel.release} again: the driver crashed it")
        else:
            play = partial(_Pod.play, keep=last)
            runs.append(_boot_kernel(node, kernel, target, options, progress, play=play))
    return tuple(runs)


def _boot_kernel(
    node: TrialNode,
    kernel: KernelDisk,
    target: TrialTarget,
    options: BootOptions,
    progress: Progress,
    *,
    play: Callable[[_Pod], TrialRun],
) -> TrialRun:
    devices = (*target.extras.devices, *options.devices)
    progress.print_step(f"booting {kernel.release}")
    with node.boot(kernel, devices=devices, append=options.append, allow_splats=True) as machine:
        progress.print_step(f"booted in {machine.boot_seconds:.1f} s")
        run = play(_Pod(node, machine, target, options, progress))
        if not run.crashed:
            _power_off(machine)
    return replace(run, splats=machine.splats())


def _power_off(machine: Machine) -> None:
    """Power off. A machine whose kernel has crashed is off already, which is no error."""
    try:
        machine.power_off()
    except MachineLost:
        if not machine.splats():
            raise


@frozen
class _Pod:
    """The pod of one boot: init container, toolkit container, driver container, consumers."""

    node: TrialNode
    machine: Machine
    target: TrialTarget
    options: BootOptions
    progress: Progress

    def run_shell_only(self) -> TrialRun:
        """Open a shell beside the toolkit container, for a source that has not compiled."""
        self._run_init_container()
        sidecar = self._start_sidecar()
        try:
            self._give_shell(sidecar)
        except MachineLost:
            if not self.machine.splats():
                raise
            return self._crash_result("the shell was open")
        self._stop_process(sidecar)
        return self._make_result(ExitCode.BUILD_FAILED, {}, ())

    def play(self, *, keep: bool) -> TrialRun:
        self._fill_cache()
        self._run_init_container()
        sidecar = self._start_sidecar()
        moment = "the driver was brought up"
        try:
            running, done = self._run_driver()
            report = read_report(done.output)
            ready = report.get("state") == "ready"
            moment = "its devices were looked at"
            devices = self._find_devices() if ready else None
            notes = (
                (*self._notes_on_missing_device(), *self._notes_on_unnamed_devices())
                if ready
                else ()
            )
            moment = "the commands ran"
            commands = self._run_consumers(ready=ready)
            moment = "the shell was open"
            if keep and self.options.keep:
                self._give_shell(sidecar)
        except MachineLost:
            if not self.machine.splats():
                raise
            return self._crash_result(moment)
        self._stop_process(sidecar)
        if running is not None:
            self._stop_process(running)
        run = self._make_result(done.exit_code, report, commands)
        return replace(run, devices=devices, notes=notes)

    def _notes_on_missing_device(self) -> tuple[str, ...]:
        """Return a note if the machine has no device of the driver: `ready` then proves little."""
        wanted = self.target.driver.spec.hardware.pci
        if not wanted:
            return ()
        ask = "cd /sys/bus/pci/devices && for d in *; do cat $d/vendor $d/device; done"
        said = self.machine.run(["sh", "-c", ask], "node", timeout=_COMMAND_SECONDS, check=False)
        ids = [word.removeprefix("0x") for word in said.output.split()]
        there = [PciDevice("", *pair) for pair in zip(ids[::2], ids[1::2], strict=False)]
        if any(each.is_of(pci.vendor, pci.device) for each in there for pci in wanted):
            return ()
        words = ", ".join(f"{pci.vendor}:{pci.device or '*'}" for pci in wanted[:4])
        note = (
            f"the machine has none of the devices of hardware.pci ({words}), so the driver was "
            "bound to none: give it one of QEMU's with --device, or in trial.yaml"
        )
        return (note,)

    def _notes_on_unnamed_devices(self) -> tuple[str, ...]:
        """Return a note on devices that the modules support and `hardware` does not name."""
        wanted = self.target.driver.spec.hardware.pci
        if not wanted:
            return ()
        release = self.machine.files.kernel.release
        argv = ["sh", "-c", _FIND_ALIASES, "sh", f"*{release}*", _PCI_ALIAS]
        said = self.machine.run(argv, self._container, timeout=_COMMAND_SECONDS, check=False)
        aliases = (line.removeprefix("alias=") for line in said.output.splitlines())
        ids = [
            PciId(*each)
            for each in pci_ids(aliases)
            if not any(pci.vendor == each[0] and pci.device in ("", each[1]) for pci in wanted)
        ]
        if not ids:
            return ()
        words = shortlist((f"{pci.vendor}:{pci.device or '*'}" for pci in ids), _IDS)
        note = (
            f"the modules are also for PCI devices that hardware.pci does not name ({words}): a "
            "node that has only such a device does not get the driver"
        )
        return (note,)

    def _give_shell(self, sidecar: GuestProcess) -> None:
        """Open a shell, and keep the edits made in it, since the machine ends with it."""
        self.progress.print_step(
            "the machine keeps running; leave the shell to end it (exit, or Ctrl-D)"
        )
        try:
            with self.progress.mute():
                shell.run_shell(self.machine, toolkit=sidecar.pid)
            self._save_edits(self.machine)
        except MachineLost:
            if self.machine.splats():
                self.progress.print_step(
                    "the kernel crashed; booting again, for what you have edited"
                )
                with self.node.boot(self.machine.files.kernel, allow_splats=True) as another:
                    self._save_edits(another)
            raise

    def _save_edits(self, machine: Machine) -> None:
        """Write the edits of the shell into a file, or print them if that is impossible."""
        patch = shell.make_patch_of_edits(machine)
        if not patch:
            return
        try:
            path = _write_patch(f"{self.target.driver.name}-edited-", patch)
        except NodesideError as error:
            self.progress.print_step(f"what you have edited could not be kept in a file: {error}")
            for line in patch.splitlines():
                self.progress.print_line("edited  |", line)
        else:
            self.progress.print_step(
                f"what you have edited, as a patch for the driver image: {path}"
            )

    def _crash_result(self, moment: str) -> TrialRun:
        """Return the run of a driver that crashed the kernel: a result, and no fault of ours."""
        splats, console = self.machine.splats(), self.machine.serial_log()
        for row in console[max(0, console.find(splats[0])) :].splitlines()[:_CRASH_LINES]:
            self.progress.print_line("kernel  |", row)
        site = find_crash_site(console)
        where = f", in {site}" if site else ""
        spec = self.target.driver
        report = {
            "driver": spec.name,
            "version": spec.spec.version,
            "kernel": self.machine.files.kernel.release,
            "state": "failed",
            "message": f"the kernel crashed while {moment}: {splats[0]}{where}",
            "hint": "see the kernel's log above, in the lines marked kernel",
            "exitCode": int(ExitCode.LOAD_FAILED),
        }
        return replace(self._make_result(ExitCode.LOAD_FAILED, report, ()), crashed=True)

    def _make_result(
        self, exit_code: int, report: Mapping[str, Any], commands: tuple[CommandRun, ...]
    ) -> TrialRun:
        return TrialRun(
            kernel=self.machine.files.kernel.release,
            accelerator=self.machine.settings.accelerator,
            boot_seconds=round(self.machine.boot_seconds, 1),
            exit_code=exit_code,
            built_on=self._built_on(report),
            report=report,
            commands=commands,
            mistakes=_find_mistakes(report),
            splats=self.machine.splats(),
        )

    def _fill_cache(self) -> None:
        """Copy the bundles that were built on the host into the node's cache."""
        if self.node.host_builds:
            self.machine.run(
                ["cp", "-a", "/payload/cache", "/var/lib/nodeside/"],
                "node",
                timeout=300,
            )

    def _run_init_container(self) -> None:
        """Run the init container, which puts the sidecar's program into the shared directory."""
        done = self.machine.run(
            ["nodeside", "driver", "provide"],
            timeout=_PROVIDE_SECONDS,
            check=False,
            on_error=partial(self.progress.print_line, "init    |"),
        )
        if done.exit_code != 0:
            raise TrialError(
                f"the init container failed with exit code {done.exit_code}\n{done.errors.strip()}"
            )

    def _start_sidecar(self) -> GuestProcess:
        print_line = partial(_print_container_line, self.progress, "toolkit")
        argv = sidecar_command(Path("/shared"))
        return self.machine.start(argv, "toolkit", on_line=print_line, on_error=print_line)

    @property
    def _container(self) -> str:
        """The container of the driver."""
        return "privileged-driver" if self.target.driver.spec.privileged else "driver"

    def _run_driver(self) -> tuple[GuestProcess | None, Completed]:
        """Bring the driver up. Returns its process, if it runs on for the sake of services."""
        argv = ["nodeside", "driver", "run", "--once", "--output", "json"]
        print_line = partial(_print_container_line, self.progress, "driver")
        where = self._container
        if not self.target.driver.spec.services:
            done = self.machine.run(
                argv, where, timeout=_RUN_SECONDS, check=False, on_error=print_line
            )
            return None, done
        process = self.machine.start([*argv, "--with-services"], where, on_error=print_line)
        deadline = time.monotonic() + _RUN_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            report = read_report(process.output)
            if report.get("state") == "ready":
                return process, Completed(process.argv, 0, process.output, process.errors, 0.0)
            if report:
                break  # it ends by itself, with its exit code
            time.sleep(_LOOK)
        return None, process.wait(_COMMAND_SECONDS)

    def _find_devices(self) -> Mapping[str, Any] | None:
        """Return what `nodeside driver devices` finds, or why it found nothing.

        None if the driver declares no devices.
        """
        driver = self.target.driver
        if not driver.spec.devices:
            return None
        argv = ["nodeside", "driver", "devices", "--output", "json"]
        print_line = partial(_print_container_line, self.progress, "driver")
        try:
            done = self.machine.run(
                argv, self._container, timeout=_DEVICES_SECONDS, check=False, on_error=print_line
            )
        except DeadlinePassed as exc:
            why = str(exc)
        else:
            if (found := read_devices(done.output)) is not None:
                return found
            why = f"`nodeside driver devices` ended without a document, exit code {done.exit_code}"
        missing = {"devices": [], "notes": [why]}
        resources = [{"resource": each.resource, **missing} for each in driver.spec.devices]
        return {"driver": driver.name, "ready": True, "resources": resources}

    def _run_consumers(self, *, ready: bool) -> tuple[CommandRun, ...]:
        """Run the consumers if the driver is ready, and the user's commands in any case."""
        argvs = (*(self.target.extras.commands if ready else ()), *self.options.commands)
        return tuple(self._run_command(argv) for argv in argvs)

    def _run_command(self, argv: Sequence[str]) -> CommandRun:
        self.progress.print_step(f"running {shlex.join(argv)}")
        print_line = partial(self.progress.print_line, "command |")
        done = self.machine.run(
            argv,
            "consumer",
            cwd="/driver-image",
            timeout=_COMMAND_SECONDS,
            check=False,
            on_line=print_line,
            on_error=print_line,
        )
        output = (done.output or done.errors).strip()[-_OUTPUT:]
        return CommandRun(tuple(argv), done.exit_code, output)

    def _stop_process(self, process: GuestProcess) -> None:
        with suppress(TrialError):
            process.kill()

    def _built_on(self, report: Mapping[str, Any]) -> str:
        if self.machine.files.kernel.release in self.node.host_builds:
            return "host"
        return "node" if report.get("source") == "built" else ""


def _write_patch(prefix: str, patch: str) -> Path:
    """Write a patch into a new file, which belongs to who started us with sudo.

    Raises NoSpace, SystemRefused; no file is left then.
    """
    directory = Path(tempfile.gettempdir())
    with disk_errors(directory):
        descriptor, name = tempfile.mkstemp(prefix=prefix, suffix=".patch")
        try:
            with open(descriptor, "w") as file:
                file.write(patch)
                if (user := os.environ.get("SUDO_UID", "")).isdigit() and os.geteuid() == 0:
                    os.fchown(descriptor, int(user), -1)
        except BaseException:
            Path(name).unlink()
            raise
    return Path(name)


def find_crash_site(console: str) -> str:
    """Return the function and the module that a kernel crashed in; "" if that was no module."""
    site = _CRASH_SITE.search(console)
    return site[1] if site else ""


def _print_container_line(progress: Progress, container: str, line: str) -> None:
    """Print a line of a container's log. Build output is shown once, as the toolkit's."""
    text = line.removeprefix(f"{container} ")
    if not text.startswith("build | "):
        print_build_line(progress, f"{container:7} |", text)


def failed_build(target: TrialTarget, build: HostBuild) -> TrialRun:
    """Return the run of a driver that did not compile on the host. There is nothing to boot."""
    spec = target.driver
    report = {
        "driver": spec.name,
        "version": spec.spec.version,
        "kernel": build.kernel,
        "state": "failed",
        "message": build.message,
        "hint": build.hint,
        "exitCode": build.exit_code,
    }
    seconds = build.seconds
    return TrialRun(build.kernel, "", 0.0, build.exit_code, "host", report, build_seconds=seconds)


def failed_trial(target: str, kernel: str, error: NodesideError) -> TrialRun:
    """Return the run of a kernel for which a trial ended with an error, beside others."""
    report = {
        "driver": target,
        "kernel": kernel,
        "state": "failed",
        "message": str(error),
        "hint": error.hint,
        "exitCode": int(error.exit_code),
    }
    return TrialRun(kernel, "", 0.0, int(error.exit_code), "", report)


def _find_mistakes(report: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what an API server would refuse in the node's announcements."""
    announced = report.get("announced") or {}
    mistakes = list(check_labels(announced.get("labels") or {}))
    if announced.get("nodeDriver"):
        mistakes += check_node_driver(announced["nodeDriver"])
    return tuple(mistakes)
