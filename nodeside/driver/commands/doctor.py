"""`nodeside driver doctor`: check for everything that could make a build or a load fail.

The verb changes nothing. Each row is one question and its answer; a row that is not ok says what to
do. The sidecar's own `check` verb answers the questions about compiler and headers, here or in the
toolkit container.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path

import nodeside
from nodeside.driver.commands.outcome import CommandOutput, as_document
from nodeside.driver.kernel.boot_parameters import requested_parameters
from nodeside.driver.kernel.firmware import FirmwareDirectory
from nodeside.driver.kernel.in_tree_effects import unheeded_notes
from nodeside.driver.kernel.loader import Loader
from nodeside.driver.kernel.refusals import LOADING_DISABLED, NOT_BLACKLISTED
from nodeside.driver.ladder.task import Config, Task, resolve_task
from nodeside.driver.node.capabilities import Capability, effective_capabilities
from nodeside.driver.node.facts import KernelFacts, read_facts
from nodeside.driver.node.kernel_log import KernelLog
from nodeside.driver.node.load_mark import read_mark
from nodeside.driver.node.modprobe_d import read_modprobe_config
from nodeside.driver.node.run_directory import read_loaded
from nodeside.driver.node.syscalls import KernelSyscalls
from nodeside.errors import ExitCode, NodesideError
from nodeside.protocol.timestamps import rfc3339
from nodeside.spec.other_installers import installers_of
from nodeside.system import process
from nodeside.system.host import Kernel
from nodeside.text.table import table
from nodeside.values import frozen

_LITTLE_SPACE = 512 << 20  # bytes; the build tree of a large driver
_CHECK_TIMEOUT = 60.0
_ASK_THE_TOOLKIT = "in the toolkit container: toolkit.pyz check"
_SECURE_BOOT = "firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


class Level(Enum):
    """Severity of a row: `bad` will fail, `warn` may."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


_MARKS = {Level.OK: "ok", Level.WARN: "warn", Level.BAD: "BAD"}


@frozen
class DoctorRow:
    """One question and its answer; `todo` says what to do if the level is not `ok`."""

    question: str
    level: Level
    found: str
    todo: str = ""


def examine_node(config: Config, kernel: Kernel | None) -> CommandOutput:
    """Answer all questions. The exit code is 0 if no row is bad."""
    rows = [row for question in _QUESTIONS for row in question(config, kernel)]
    document = {"checks": as_document(rows)}
    lines = [
        (row.question, _MARKS[row.level], row.found + (f"\ndo: {row.todo}" if row.todo else ""))
        for row in rows
    ]
    bad = any(row.level is Level.BAD for row in rows)
    code = ExitCode.SYSTEM if bad else ExitCode.OK
    return CommandOutput(document, text=table(lines, header=("CHECK", "", "FOUND")), exit_code=code)


def _check_driver(config: Config, kernel: Kernel | None) -> Iterator[DoctorRow]:
    try:
        task = resolve_task(config, kernel)
    except NodesideError as error:
        yield DoctorRow("driver.yaml", Level.BAD, str(error), error.hint)
        return
    words = (f"{task.name} {task.version}", task.settings.kind.value, task.variant)
    yield DoctorRow("driver.yaml", Level.OK, ", ".join(filter(None, words)))
    cached = task.cache.describe(task.tag, task.name) is not None
    yield DoctorRow("bundle", Level.OK, f"{task.tag} is {'' if cached else 'not '}in the cache")
    yield from _check_parameters(task)
    yield from _check_others(task)
    yield from _check_firmware(task)
    yield from _check_deaths(task)


def _check_others(task: Task) -> Iterator[DoctorRow]:
    """Show who else installs drivers for the same hardware here, and what nodeside did not load."""
    roots = (task.host.root, task.host.proc / "1" / "root")
    for each in installers_of(task.driver) if task.kernel == task.host.kernel else ():
        traces = [root / each.directory for root in roots if each.directory]
        if place := next((path for path in traces if os.path.isdir(path)), None):  # noqa: PTH112
            yield DoctorRow("others at work", Level.WARN, f"{each.name}: {place}", each.way_out)
    record = read_loaded(task.host, task.name, task.boot_id)
    ours = {module.name for module in record.modules} if record else set()
    loaded = Loader(task.host).modules.rows() if (task.host.proc / "modules").exists() else {}
    if names := [name for name in task.wanted.names if name in loaded and name not in ours]:
        found = f"{', '.join(names)} loaded, and not by nodeside in this boot"
        todo = "find who loads it: another operator, modules-load.d, udev; see unload.foreign"
        yield DoctorRow("others at work", Level.WARN, found, todo)


def _check_firmware(task: Task) -> Iterator[DoctorRow]:
    """Show who else has set the kernel's one search path for firmware, and whether files fit."""
    firmware = task.driver.spec.firmware
    directory = FirmwareDirectory(task.host)
    if firmware is not None:
        try:
            directory.check_files(task.path(firmware.path), task.name)
        except NodesideError as error:
            todo = error.hint or "see firmware.path in driver.yaml"
            yield DoctorRow("firmware", Level.BAD, str(error), todo)
            return
    if path := directory.foreign_path():
        yield DoctorRow("firmware", Level.OK, f"the kernel's search path is {path}")


def _check_deaths(task: Task) -> Iterator[DoctorRow]:
    """Show a load in which the kernel of an earlier boot ended."""
    mark = read_mark(task.host, task.name)
    if mark is not None and mark.boot_id != task.boot_id:
        yield DoctorRow(
            "earlier load",
            Level.WARN,
            f"an earlier boot ended after a load of {mark.version} had begun: "
            f"{rfc3339(mark.began)}, bundle {mark.key[:12]}",
            f"see what follows from it: nodeside driver plan -f {task.config.driver_file}",
        )


def _check_parameters(task: Task) -> Iterator[DoctorRow]:
    """Show the modules' parameters, and what the command line and modprobe.d say of them."""
    rows = requested_parameters(task.driver.spec.modules, task.command_line)
    overruled = any(row.overruled for row in rows)
    todo = "leave out one of the two: driver.yaml wins" if overruled else ""
    if rows:
        words = "\n".join(row.in_words() for row in rows)
        yield DoctorRow("parameters", Level.WARN if overruled else Level.OK, words, todo)
    config = read_modprobe_config(task.host)
    if notes := [*unheeded_notes(task.wanted.names, config), *config.unread]:
        todo = "set what the driver needs in driver.yaml; see the modules of the kernel's tree in "
        todo += "docs/packaging-a-driver.md"
        yield DoctorRow("modprobe.d", Level.WARN, "\n".join(notes), todo)
    if names := [name for name in task.wanted.names if name in task.command_line.blacklist]:
        found = f"the kernel's command line has {', '.join(names)} in module_blacklist="
        yield DoctorRow("module_blacklist", Level.BAD, found, NOT_BLACKLISTED)


def _check_kernel(config: Config, kernel: Kernel | None) -> Iterator[DoctorRow]:
    running = config.host.kernel
    words = f"{running.release} {running.architecture}, {running.version}"
    yield DoctorRow("kernel", Level.OK, words)
    if kernel is not None and kernel != running:
        yield DoctorRow("requested kernel", Level.OK, f"{kernel.release}, which does not run here")
        return
    if not (config.host.proc / "modules").exists():
        yield DoctorRow(
            "modules",
            Level.BAD,
            "this kernel has no loadable modules",
            "try the driver in a throwaway machine: nodeside try",
        )
        return
    tree = config.host.lib_modules(running.release)
    if not (tree / "modules.dep").exists():
        yield DoctorRow(
            "modules",
            Level.WARN,
            f"no {tree / 'modules.dep'}: in-tree dependencies cannot be loaded",
            "in a pod, mount the host's /lib/modules at /host/lib/modules",
        )
    yield from _check_trust(config, read_facts(config.host))


def _check_trust(config: Config, facts: KernelFacts) -> Iterator[DoctorRow]:
    if facts.modules_disabled:
        yield DoctorRow("loading", Level.BAD, "kernel.modules_disabled is 1", LOADING_DISABLED)
    enforced = facts.signatures_enforced or facts.lockdown in ("integrity", "confidentiality")
    words = f"lockdown {facts.lockdown or 'unknown'}, signatures " + (
        "enforced" if enforced else "not enforced"
    )
    todo = "set spec.signing to a key that is enrolled: mokutil --import" if enforced else ""
    yield DoctorRow("signatures", Level.WARN if enforced else Level.OK, words, todo)
    secure_boot = config.host.sys / _SECURE_BOOT
    try:
        state = "on" if secure_boot.read_bytes()[-1:] == b"\1" else "off"
    except OSError:
        state = "not visible (no EFI variables)"
    yield DoctorRow("secure boot", Level.OK, state)


def _check_rights(config: Config, _: Kernel | None) -> Iterator[DoctorRow]:
    present = effective_capabilities(config.host)
    needs = {
        Capability.SYS_MODULE: (Level.BAD, "no module can be loaded or unloaded"),
        Capability.SYSLOG: (Level.WARN, "failure messages lack the kernel log lines"),
        Capability.SYS_PTRACE: (Level.WARN, "holders of a module cannot be named"),
        Capability.DAC_READ_SEARCH: (Level.WARN, "holders of a module cannot be named"),
    }
    for capability, (level, consequence) in needs.items():
        name = f"CAP_{capability.name}"
        if capability in present:
            yield DoctorRow(name, Level.OK, "present")
        else:
            todo = "run as root, or add it to the container's securityContext"
            yield DoctorRow(name, level, f"missing: {consequence}", todo)
    why = KernelLog(config.host, KernelSyscalls()).mark_end().unreadable
    yield DoctorRow("kernel log", Level.WARN if why else Level.OK, why or "readable")


def _check_disks(config: Config, _: Kernel | None) -> Iterator[DoctorRow]:
    yield _check_disk("cache", config.cache.root)
    yield _check_disk("run", config.host.run)
    if config.shared is not None:
        yield _check_disk("shared directory", config.shared.root, programs=True)


def _check_disk(question: str, path: Path, *, programs: bool = False) -> DoctorRow:
    """Check space and permissions; `programs`: whether programs must be able to run there."""
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    flags = os.statvfs(existing).f_flag
    if flags & os.ST_RDONLY:
        return DoctorRow(
            question, Level.BAD, f"{existing} is mounted read-only", "mount it read-write"
        )
    if not os.access(existing, os.W_OK):
        todo = "run as root, or choose another place (--cache, --shared, --host-root)"
        return DoctorRow(question, Level.BAD, f"{existing} is not writable", todo)
    if programs and flags & os.ST_NOEXEC:
        todo = "mount it without noexec (an emptyDir is): kbuild runs programs that it makes"
        return DoctorRow(question, Level.BAD, f"{existing} is mounted noexec", todo)
    free = shutil.disk_usage(existing).free
    words = f"{path}, {free >> 20} MiB free"
    if free < _LITTLE_SPACE:
        return DoctorRow(question, Level.WARN, words, f"free some space: df -h {existing}")
    return DoctorRow(question, Level.OK, words)


def _check_mounts(config: Config, _: Kernel | None) -> Iterator[DoctorRow]:
    """Check the mounts. In a pod each one is separate, and each is sometimes forgotten."""
    host = config.host
    for path, consequence in (
        (host.sys / "module", "loaded modules cannot be determined"),
        (host.proc / "1", "holders of a module cannot be named"),
        (host.dev, "the devices of validate.devices cannot be checked"),
        (host.root / "lib/modules", "in-tree dependencies cannot be loaded"),
    ):
        mount = f"/{path.relative_to(host.root).parts[0]}"
        mount = "/lib/modules" if mount == "/lib" else mount
        if path.exists():
            yield DoctorRow(f"mount {mount}", Level.OK, str(path))
        else:
            todo = f"in a pod, mount the host's {mount} at {host.root / mount[1:]}"
            yield DoctorRow(f"mount {mount}", Level.WARN, f"no {path}: {consequence}", todo)


def _show_limits(_config: Config, _: Kernel | None) -> Iterator[DoctorRow]:
    """Show the limits of this container; the toolkit container has its own."""
    group = Path("/sys/fs/cgroup")
    limits = []
    for name in ("cpu.max", "memory.max"):
        try:
            limits.append(f"{name} {(group / name).read_text().strip()}")
        except OSError:
            continue
    yield DoctorRow("cgroup limits here", Level.OK, ", ".join(limits) or "none visible")


def _check_toolkit(config: Config, kernel: Kernel | None) -> Iterator[DoctorRow]:
    if config.shared is not None:
        yield _check_sidecar(config)
        return
    argv = [sys.executable, "-P", "-m", "nodeside.toolkit_sidecar", "check", "--output", "json"]
    if kernel is not None:
        argv += ["--kernel", kernel.release]
    package = str(Path(nodeside.__file__).parent.parent)
    try:
        done = process.run(argv, timeout=_CHECK_TIMEOUT, env={"PYTHONPATH": package}, check=False)
    except NodesideError as error:
        yield DoctorRow("toolkit", Level.WARN, f"could not be checked: {error}", _ASK_THE_TOOLKIT)
        return
    try:
        record = json.loads(done.output)
        rows = [
            DoctorRow(
                f"toolkit: {item['check']}",
                Level.OK if item["ok"] else Level.WARN,
                item["said"],
                "" if item["ok"] else item["hint"] or "see the check before it",
            )
            for item in record["checks"]
        ]
        yield from rows
        yield DoctorRow(
            "toolkit: jobs", Level.OK, f"make -j{record['jobs']}, by cgroup limits and CPUs"
        )
    except (ValueError, KeyError, TypeError):
        output = process.last_lines_of(done.errors or done.output, 5)
        yield DoctorRow(
            "toolkit", Level.WARN, f"could not be checked here: {output}", _ASK_THE_TOOLKIT
        )


def _check_sidecar(config: Config) -> DoctorRow:
    assert config.shared is not None  # the caller has checked
    try:
        lives = config.shared.sidecar_lives()
        record = config.shared.read_sidecar(config.host.boot_id)
        theirs = config.shared.read_sidecar_boot()
    except NodesideError as error:  # the build's own code may write there
        return DoctorRow("toolkit", Level.WARN, f"could not be checked: {error}", _ASK_THE_TOOLKIT)
    if lives and record is not None:
        return DoctorRow(
            "toolkit",
            Level.OK,
            f"a sidecar is running, with headers for {record.toolkit_kernel or 'no kernel'}",
        )
    if lives and theirs:
        return DoctorRow(
            "toolkit",
            Level.WARN,
            f"a sidecar is running, but it reads the boot id {theirs}, the driver reads "
            f"{config.host.boot_id}: it ignores the driver's requests",
            "compare /proc/sys/kernel/random/boot_id in the toolkit container with the one below "
            "the driver's --host-root",
        )
    if lives:
        found = "a sidecar is running, and has not written its record yet"
        return DoctorRow("toolkit", Level.WARN, found, "ask again in a few seconds")
    state = "ran in this boot and is gone" if record is not None else "has not run in this boot"
    return DoctorRow("toolkit", Level.WARN, f"the sidecar {state}", _ASK_THE_TOOLKIT)


Question = Callable[[Config, Kernel | None], Iterator[DoctorRow]]

_QUESTIONS: tuple[Question, ...] = (
    _check_driver,
    _check_kernel,
    _check_rights,
    _check_mounts,
    _check_disks,
    _show_limits,
    _check_toolkit,
)
