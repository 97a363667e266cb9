"""`nodeside try --watch`: one machine that stays, and a trial of each saved change in it.

    saved -> copy -> build on this host -> send image and bundle -> replace what is loaded -> result

A change that does not compile leaves the loaded modules as they are. A kernel that crashes is
booted again on the same disk. The machine's kernel log is shown as it grows.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from nodeside.errors import ExitCode, NodesideError, UsageError
from nodeside.system.scratch import scratch_directory
from nodeside.trial.architecture import Architecture
from nodeside.trial.debian.kernels import AvailableKernel
from nodeside.trial.errors import MachineLost
from nodeside.trial.host import build as host_build
from nodeside.trial.machine import qemu
from nodeside.trial.machine.containers import (
    CONSUMER,
    DRIVER,
    PRIVILEGED_DRIVER,
    ContainerSpec,
    with_image,
)
from nodeside.trial.machine.machine import GuestProcess, Machine
from nodeside.trial.pod import find_crash_site
from nodeside.trial.progress import Progress
from nodeside.trial.report import read_report
from nodeside.trial.target.target import LEFT_OUT, TrialTarget, prepare_target
from nodeside.trial.workshop import TrialNode, Workshop

_LOOK = 0.15  # seconds between two looks at the source
_RUN_SECONDS = 1800.0
_COMMAND_SECONDS = 600.0
_SEND_SECONDS = 120.0
# On the node: the image, whose directory stays while its content changes, and what it comes in.
_CURRENT, _PARCEL = "/var/lib/trial", "/var/lib/trial.tar"
_CACHE = "/var/lib/nodeside/cache"

# Most of what a command takes in an emulated machine is the start of Python. So that of the next
# trial is there already, in the driver container, and waits for a line.
_WAITING = """
import importlib, pkgutil, sys
sys.path.insert(0, "/opt/nodeside")
import nodeside.driver, yaml
from nodeside.cli import main
for module in pkgutil.walk_packages(nodeside.driver.__path__, "nodeside.driver."):
    importlib.import_module(module.name)
sys.stdin.readline()
sys.argv = ["nodeside", "driver", "run", "--once", "--output", "json"]
main()
"""

# What the source looks like: by path, what differs once a file was saved, replaced or made
# executable.
Look = Mapping[str, tuple[int, ...]]


def read_look(path: Path) -> Look:
    """Return what tells whether a file of a directory was saved since. Links are not followed."""
    found: dict[str, tuple[int, ...]] = {}
    for directory, names, files in os.walk(path):
        names[:] = [name for name in names if name not in LEFT_OUT]
        for name in files:
            place = os.path.join(directory, name)
            with suppress(OSError):
                status = os.lstat(place)
                found[place] = (status.st_ino, status.st_size, status.st_ctime_ns)
    return found


def await_change(path: Path, before: Look, pause: Callable[[float], object]) -> Look:
    """Wait until something was saved, and then until nothing more is for a moment."""
    while (now := read_look(path)) == before:
        pause(_LOOK)
    while True:
        pause(_LOOK)
        again = read_look(path)
        if again == now:
            return now
        now = again


@dataclass
class WatchSession:
    """A machine and the trials in it. `verdict` is the exit code of the last that has ended."""

    path: Path
    kernel: AvailableKernel
    workshop: Workshop
    scratch: Path
    progress: Progress
    devices: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()
    append: tuple[str, ...] = ()
    verdict: int = ExitCode.INTERRUPTED
    _number: int = 0
    _log: list[str] = field(default_factory=list)  # of the kernel, as far as it was shown
    _machine: Machine | None = None
    _devices: tuple[str, ...] = ()  # that it has
    _next: tuple[ContainerSpec, GuestProcess] | None = None  # the next trial's, which waits

    def run_for_ever(self, pause: Callable[[float], object] | None = None) -> None:
        """Try each change, until Ctrl-C. Raises NodesideError for what the first trial meets."""
        pause = pause or threading.Event().wait
        with ExitStack() as stack:
            stack.callback(self._end_machine)
            node: TrialNode | None = None
            while True:
                seen = read_look(self.path)
                try:
                    target = self._prepare_target()
                    if self._build_on_host(target):
                        if node is None:
                            disk = self.workshop.kernel(self.kernel)
                            node = stack.enter_context(self.workshop.node(disk))
                        self._try_target(node, target)
                except NodesideError as error:
                    if self._number == 1 and error.exit_code in (ExitCode.USAGE, ExitCode.TRIAL):
                        raise
                    if isinstance(error, MachineLost):
                        self._end_machine()
                    self._report_failure(error.exit_code, str(error), error.hint)
                self.progress.print_step(f"waiting for a change below {self.path}; Ctrl-C ends")
                await_change(self.path, seen, pause)

    @property
    def _here(self) -> Path:
        """The directory of this trial on the host; that of the one before is removed."""
        return self.scratch / str(self._number)

    def _prepare_target(self) -> TrialTarget:
        shutil.rmtree(self._here, ignore_errors=True)
        self._number += 1
        self._here.mkdir()
        evaluate = partial(self.workshop.evaluate, self.kernel)
        build = partial(self.workshop.build, self.kernel)
        image = self._here / "image"
        target = prepare_target(str(self.path), image, self.workshop.archive, evaluate, build)
        require_triable(target, self.workshop.architecture)
        return target

    def _build_on_host(self, target: TrialTarget) -> bool:
        """Build on this host, and return whether that worked."""
        disk = self.workshop.kernel(self.kernel)
        done = host_build.build_on_host(
            target.image,
            disk,
            toolkit=self.workshop.roots.toolkit(disk.compiler),
            python=self.workshop.packed_python(),
            cache=self._here / "cache",
            driver=target.driver,
            progress=self.progress,
        )
        if done.exit_code != ExitCode.OK:
            self._report_failure(done.exit_code, done.message, done.hint)
        return done.exit_code == ExitCode.OK

    def _try_target(self, node: TrialNode, target: TrialTarget) -> None:
        """Replace what is loaded, and say how that went. A crash of the kernel is an outcome."""
        started = time.monotonic()
        machine = self._ensure_machine(node, target)
        parcel = {target.image: _CURRENT, self._here / "cache": _CACHE}
        try:
            self._copy_to_node(machine, parcel)
        except MachineLost:  # it crashed after the last trial, so not because of this change
            self._report_crash(machine, "since the last trial")
            machine = self._ensure_machine(node, target)
            self._copy_to_node(machine, parcel)
        try:
            spec = PRIVILEGED_DRIVER if target.driver.spec.privileged else DRIVER
            process = self._waiting_process(machine, with_image(spec, _CURRENT))
            self._next = None
            process.write(b"\n")
            process.write(None)
            done = process.wait(_RUN_SECONDS)
            self._show_log(machine)
            report = read_report(done.output)
            seconds = time.monotonic() - started
            if done.exit_code != ExitCode.OK:
                message, hint = str(report.get("message", "no report")), str(report.get("hint", ""))
                self._report_failure(done.exit_code, message, hint)
                return
            checks = report.get("checks") or ()
            words = f"{len(checks)} checks passed" if checks else "nothing to check"
            self.verdict = ExitCode.OK
            who = f"{target.driver.name} {target.driver.spec.version}"
            self.progress.print_step(f"ready: {who}, {words}; {seconds:.1f} s since the build")
            before = machine.splats()
            self._run_consumers(machine, with_image(CONSUMER, _CURRENT), target)
            self._waiting_process(machine, with_image(spec, _CURRENT))
            if complaints := machine.splats()[len(before) :]:
                self._report_failure(ExitCode.VALIDATION_FAILED, "\n".join(complaints), "")
        except MachineLost:
            if not machine.splats():
                raise
            self._report_crash(machine)

    def _waiting_process(self, machine: Machine, spec: ContainerSpec) -> GuestProcess:
        """Return the process that waits to try a change in such a container; start it if needed."""
        if self._next is not None and self._next[0] == spec and self._next[1].poll() is None:
            return self._next[1]
        if self._next is not None:
            self._next[1].kill()
        tell = partial(self.progress.print_line, "driver  |")
        process = machine.start(["python3", "-P", "-c", _WAITING], spec, on_error=tell)
        self._next = (spec, process)
        return process

    def _copy_to_node(self, machine: Machine, places: Mapping[Path, str]) -> None:
        """Copy directories of this host to the node, in the place of earlier images."""
        with open(self._here / "parcel.tar", "w+b") as packed:
            with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
                for directory, to in places.items():
                    archive.add(directory, arcname=to.removeprefix("/"))
            packed.seek(0)
            machine.write_file(_PARCEL, packed)
        empty = f"find {_CURRENT} -mindepth 1 -maxdepth 1 -exec rm -rf {{}} +"
        script = f"mkdir -p {_CURRENT} && {empty} && tar -xf {_PARCEL} -C / && rm {_PARCEL}"
        machine.run(["sh", "-c", script], "node", timeout=_SEND_SECONDS)

    def _run_consumers(self, machine: Machine, where: ContainerSpec, target: TrialTarget) -> None:
        for argv in (*target.extras.commands, *self.commands):
            tell = partial(self.progress.print_line, "command |")
            done = machine.run(
                argv,
                where,
                cwd="/driver-image",
                timeout=_COMMAND_SECONDS,
                check=False,
                on_line=tell,
                on_error=tell,
            )
            if done.exit_code != 0:
                words = f"{' '.join(argv)}: exit code {done.exit_code}"
                self._report_failure(ExitCode.VALIDATION_FAILED, words, "")
        self._show_log(machine)

    def _ensure_machine(self, node: TrialNode, target: TrialTarget) -> Machine:
        """Return the machine; boot it if there is none, or if it has other devices."""
        devices = (*target.extras.devices, *self.devices)
        if self._machine is not None and devices != self._devices:
            self.progress.print_step("other devices: ending the machine")
            self._end_machine()
        if self._machine is None:
            self.progress.print_step(f"booting {self.kernel.release}")
            machine = node.boot(
                devices=devices,
                append=self.append,
                allow_splats=True,
            )
            machine.__enter__()
            self._machine, self._devices = machine, devices
            self.progress.print_step(f"booted in {machine.boot_seconds:.1f} s")
            self._log = self._kernel_log(machine)
        return self._machine

    def _report_crash(self, machine: Machine, when: str = "") -> None:
        site = find_crash_site(machine.serial_log())
        for row in machine.splats():
            self.progress.print_line("kernel  |", row)
        self._end_machine()
        words = " ".join(filter(None, ("the kernel crashed", when, f"in {site}" if site else "")))
        self._report_failure(ExitCode.LOAD_FAILED, words, "the machine is booted again")

    def _end_machine(self) -> None:
        machine, self._machine, self._next = self._machine, None, None
        if machine is not None:
            machine.__exit__(None, None, None)

    def _report_failure(self, code: int, message: str, hint: str) -> None:
        self.verdict = int(code)
        meaning = ExitCode(code).meaning if code in list(ExitCode) else ""
        self.progress.print_step(f"failed: exit code {int(code)}: {meaning}")
        for line in message.splitlines():
            self.progress.print_line("        |", line)
        if hint:
            self.progress.print_line("hint    |", hint)

    def _show_log(self, machine: Machine) -> None:
        """Show what the kernel has said since the last look."""
        now = self._kernel_log(machine)
        known = set(self._log)  # each line has its time; the ring drops its oldest
        for row in (row for row in now if row not in known):
            self.progress.print_line("kernel  |", row)
        self._log = now

    @staticmethod
    def _kernel_log(machine: Machine) -> list[str]:
        done = machine.run(["dmesg"], "node", timeout=_SEND_SECONDS, check=False)
        return done.output.splitlines()


def require_triable(target: TrialTarget, architecture: Architecture) -> None:
    """Raise UsageError for a driver that cannot be tried: by its devices, or alone."""
    qemu.require_devices(target.extras.devices, architecture)
    if after := target.driver.spec.after:
        raise UsageError(
            f"{target.driver.name} comes after {', '.join(after)}, and a trial has one driver",
            hint="build it: nodeside driver build --symbols-of BUNDLE; load both on a node",
        )


def watch_target(
    path: Path,
    kernel: AvailableKernel,
    workshop: Workshop,
    progress: Progress,
    **options: tuple[str, ...] | tuple[tuple[str, ...], ...],
) -> int:
    """Watch until Ctrl-C; return the exit code of the last trial."""
    with scratch_directory("watch") as scratch:
        watching = WatchSession(path, kernel, workshop, scratch, progress, **options)  # type: ignore[arg-type]
        try:
            watching.run_for_ever()
        except KeyboardInterrupt:
            progress.print_step("ended")
        return watching.verdict
