"""Prove that a loaded driver works: what driver.yaml declares is looked at, not inferred.

Effects may take a moment after the load, so a check that does not hold yet is tried again until
the deadline; every try begins with the write a check asks for. Last of all, the kernel must not
have complained since the mark. `check_all` returns a table; `validate` raises if a row of it is
wrong.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from nodeside import process
from nodeside.clock import Clock
from nodeside.contract import LoadedModule
from nodeside.driver.child import ChildDied, ChildRaised, Limits, run_in_child
from nodeside.driver.node import sysfs
from nodeside.driver.node.kernel_log import KernelLog, Mark, splats
from nodeside.driver.node.modules import KernelModules
from nodeside.driver.node.pci import pci_devices
from nodeside.errors import DeadlinePassed, ExitCode, NodesideError, SpecError, SystemRefused
from nodeside.host import Host
from nodeside.spec.model import BoundCheck, CommandCheck, SysfsCheck, Validate

_FIRST_PAUSE = 0.02  # seconds; doubled after every round
_LONGEST_PAUSE = 0.5
_TEXT = 200  # characters of what was found
_LOG, _CALM = "kernel log", "no splat since the load"
# An ordinary expression such as (a+)+$ may take longer than any node lives: 2 to the power of the
# length. An attribute has 4 KiB, for which one that is meant well takes a millisecond.
_REGEX_SECONDS = 5
_REGEX_LIMITS = Limits(memory=128 << 20, processor=_REGEX_SECONDS, answer=16)


@dataclass(frozen=True)
class CheckResult:
    """One row: what was looked at, what was expected, what was found, after how many seconds."""

    name: str
    ok: bool
    expected: str
    found: str
    seconds: float = 0.0


Look = Callable[[], CheckResult]


@dataclass(frozen=True)
class Validation:
    """All rows, in the order of driver.yaml."""

    checks: tuple[CheckResult, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    @property
    def splat(self) -> str:
        """What the kernel complained of, "" if it did not."""
        return next((row.found for row in self.checks if row.name == _LOG and not row.ok), "")

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        return tuple(check for check in self.checks if not check.ok)


class ValidationFailed(NodesideError):
    """The module is loaded, but does not do what was declared; `validation` is the table."""

    exit_code = ExitCode.VALIDATION_FAILED
    reason = "ValidationFailed"

    def __init__(self, validation: Validation) -> None:
        rows = [
            f"{item.name}: expected {item.expected}, found {item.found}"
            for item in validation.failures
        ]
        hint = "see what the driver says in the kernel log: dmesg | tail"
        if validation.splat:
            hint += "; a splat counts until the next boot or `nodeside driver unload`"
        super().__init__("\n".join(rows), hint=hint)
        self.validation = validation


@dataclass(frozen=True)
class Scene:
    """Where a validation looks: the node, the kernel's log, and the moment before the load.

    `splat` is what an earlier validation found in the log since then.
    """

    host: Host
    kernel_log: KernelLog
    mark: Mark | None = None
    splat: str = ""
    clock: Clock = field(default_factory=Clock)


def validate(spec: Validate, modules: Sequence[LoadedModule], scene: Scene) -> Validation:
    """The table, every row of it right. Raises ValidationFailed, SpecError."""
    validation = check_all(spec, modules, scene)
    if not validation.ok:
        raise ValidationFailed(validation)
    return validation


def check_all(spec: Validate, modules: Sequence[LoadedModule], scene: Scene) -> Validation:
    """Look at everything, again until it holds or `spec.timeout_seconds` have passed."""
    looks = _looks(spec, modules, scene.host)
    started = scene.clock.now()
    rows = [_timed(look, scene, started) for look in looks]
    pause = _FIRST_PAUSE
    while not all(row.ok for row in rows):
        left = started + spec.timeout_seconds - scene.clock.now()
        if left <= 0:
            break
        scene.clock.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)
        rows = [
            row if row.ok else _timed(look, scene, started)
            for row, look in zip(rows, looks, strict=True)
        ]
    return Validation((*rows, *_kernel_is_calm(scene, started)))


def _timed(look: Look, scene: Scene, started: float) -> CheckResult:
    result = look()
    return replace(result, seconds=round(scene.clock.now() - started, 3))


def _looks(spec: Validate, modules: Sequence[LoadedModule], host: Host) -> list[Look]:
    """The checks that can be repeated, cheapest first."""
    for check in spec.sysfs:
        _refuse_nonsense(host, check)
    return [
        *(lambda item=item: module_is_live(item, host) for item in modules),
        *(lambda path=path: device_exists(path, host) for path in spec.devices),
        *(lambda item=item: devices_are_bound(item, host) for item in spec.bound),
        *(lambda item=item: attribute_has_value(item, host) for item in spec.sysfs),
        *(lambda item=item: command_succeeds(item) for item in spec.commands),
    ]


def module_is_live(expected: LoadedModule, host: Host) -> CheckResult:
    """In the kernel, initialised, and the very file that was meant."""
    name = f"module {expected.name}"
    state = KernelModules(host).state(expected.name)
    wanted = f"live, build-id {expected.build_id[:12]}" if expected.build_id else "live"
    if state is None:
        return CheckResult(name, False, wanted, "not loaded")
    known = bool(expected.build_id and state.build_id)
    found = f"{state.initstate}, build-id {state.build_id[:12]}" if known else state.initstate
    same = not known or state.build_id == expected.build_id
    return CheckResult(name, state.initstate == "live" and same, wanted, found)


def device_exists(path: str, host: Host) -> CheckResult:
    """A character or block device; looked at, not opened: that may be forbidden, or do things."""
    parts = [part for part in path.removeprefix("/dev/").split("/") if part not in ("", ".")]
    if path.removeprefix("/dev/").startswith("/") or ".." in parts or not parts:
        raise SpecError(f"{path}: expected a path below /dev, without ..")
    expected = "a character or block device"
    if not host.dev.is_dir():
        return CheckResult(path, False, expected, f"{host.dev} is not there: mount the host's /dev")
    try:
        mode = host.dev.joinpath(*parts).stat().st_mode
    except OSError as exc:
        return CheckResult(path, False, expected, (exc.strerror or "nothing").lower())
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        kind = "character" if stat.S_ISCHR(mode) else "block"
        return CheckResult(path, True, expected, f"a {kind} device")
    return CheckResult(path, False, expected, "something that is no device")


def devices_are_bound(check: BoundCheck, host: Host) -> CheckResult:
    """There is such a PCI device, and every one has the driver."""
    name = f"PCI {check.vendor}:{check.device or '*'}"
    expected = f"bound to {check.driver}"
    found = [item for item in pci_devices(host) if item.is_of(check.vendor, check.device)]
    if not found:
        return CheckResult(name, False, expected, "no such device on this node")
    words = ", ".join(f"{item.address} {item.driver or 'without a driver'}" for item in found)
    return CheckResult(name, all(item.driver == check.driver for item in found), expected, words)


def attribute_has_value(check: SysfsCheck, host: Host) -> CheckResult:
    """Every attribute that the path names has the value, after `write` was written to it."""
    name = f"/sys/{check.path.removeprefix('/sys/')}"
    expected = _expected(check)
    paths = sysfs.expand(host, check.path)
    if not paths:
        return CheckResult(name, False, expected, "no such attribute")
    contents: list[str] = []
    for path in paths:
        try:
            if check.write:
                sysfs.write(path, check.write)
            (content,) = sysfs.ask(path)
            contents.append("not readable" if content is None else content[:_TEXT])
            if content is None or not _fits(check, content):
                return CheckResult(name, False, expected, contents[-1])
        except SystemRefused as exc:
            return CheckResult(name, False, expected, str(exc))
    return CheckResult(name, True, expected, ", ".join(dict.fromkeys(contents))[:_TEXT])


def command_succeeds(check: CommandCheck) -> CheckResult:
    """Exit code 0 within its own deadline."""
    name = " ".join(check.command)[:_TEXT]
    expected = f"exit code 0 within {check.timeout_seconds} s"
    try:
        done = process.run(check.command, timeout=check.timeout_seconds, check=False)
    except NodesideError as exc:
        return CheckResult(name, False, expected, str(exc))
    said = process.tail(done.errors.strip() or done.output.strip(), 3)
    words = process.in_words(done.exit_code)
    ok = done.exit_code == 0
    return CheckResult(name, ok, expected, words if ok or not said else f"{words}: {said[:_TEXT]}")


def _kernel_is_calm(scene: Scene, started: float) -> tuple[CheckResult, ...]:
    """No splat since the mark. A log that cannot be read proves nothing, and fails nothing."""
    if scene.splat:
        return (CheckResult(_LOG, False, _CALM, scene.splat),)
    if scene.mark is None:
        return ()
    excerpt = scene.kernel_log.since(scene.mark)
    found = splats(excerpt.lines)
    words = "; ".join(found)[:_TEXT] or excerpt.note or "none"
    seconds = round(scene.clock.now() - started, 3)
    return (CheckResult(_LOG, not found, _CALM, words, seconds),)


def _expected(check: SysfsCheck) -> str:
    if check.matches:
        return f"a match of {check.matches}"
    return check.value.strip() or "readable"


def _fits(check: SysfsCheck, content: str) -> bool:
    if check.matches:
        return _matches(check.matches, content)
    return not check.value.strip() or content == check.value.strip()


def _matches(pattern: str, content: str) -> bool:
    """Whether an expression matches, found out in a child: no thread of ours can be stopped."""

    def search() -> bytes:
        return b"yes" if re.search(pattern, content) else b"no"

    try:
        return run_in_child(search, _REGEX_SECONDS, limits=_REGEX_LIMITS) == b"yes"
    except (ChildDied, ChildRaised, DeadlinePassed) as exc:
        raise SystemRefused(
            f"no answer of the regular expression within {_REGEX_SECONDS} s; it may repeat what it "
            "repeats, as (a+)+ does"
        ) from exc


def _refuse_nonsense(host: Host, check: SysfsCheck) -> None:
    """Before the first look: a path that leaves /sys, or a regular expression that is none."""
    sysfs.expand(host, check.path)
    try:
        re.compile(check.matches)
    except (re.error, OverflowError, RecursionError) as exc:
        raise SpecError(
            f"validate.sysfs: {check.matches!r} is no regular expression: {exc}"
        ) from exc
