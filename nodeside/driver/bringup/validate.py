"""Prove that a loaded driver works: check what driver.yaml declares, and infer nothing.

Effects of a load may take a moment, so a failing check is repeated until the deadline. Every try
begins with the write that the check specifies. The last check is that the kernel has not complained
since the mark. `run_checks` returns a table; `validate` raises if a row of it failed.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Collection, Sequence
from dataclasses import field, replace

from nodeside.driver.node.kernel_log import KernelLog, Mark, find_module_frame, find_splats
from nodeside.driver.node.loaded_record import LoadedModule
from nodeside.driver.node.modules import KernelModules
from nodeside.errors import ExitCode, NodesideError, SpecError, SystemRefused
from nodeside.spec.model import BoundCheck, CommandCheck, SysfsCheck, Validate
from nodeside.system import process, sysfs
from nodeside.system.clock import Clock
from nodeside.system.host import Host
from nodeside.system.pci import pci_devices
from nodeside.system.regex_search import search_texts
from nodeside.values import frozen

_FIRST_PAUSE = 0.02  # seconds; doubled after every round
_LONGEST_PAUSE = 0.5
_TEXT = 200  # characters shown of an observed value
_PCI, _UNBOUND, _ABSENT = "PCI ", "without a driver", "no such device on this node"
_LOG, _NO_SPLAT = "kernel log", "no splat since the load"


@frozen
class CheckResult:
    """One row: the check, the expected and the observed value, and the seconds since the start."""

    name: str
    ok: bool
    expected: str
    found: str
    seconds: float = 0.0


Look = Callable[[], CheckResult]


@frozen
class Validation:
    """The table of all checks, in the order of driver.yaml."""

    checks: tuple[CheckResult, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    @property
    def splat(self) -> str:
        """Return the kernel's complaint, or "" if there is none."""
        return next((row.found for row in self.checks if row.name == _LOG and not row.ok), "")

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        return tuple(check for check in self.checks if not check.ok)


class ValidationFailed(NodesideError):
    """A loaded module that does not do what driver.yaml declares; `validation` is the table."""

    exit_code = ExitCode.VALIDATION_FAILED
    reason = "ValidationFailed"

    def __init__(self, validation: Validation) -> None:
        rows = [
            f"{item.name}: expected {item.expected}, found {item.found}"
            for item in validation.failures
        ]
        super().__init__("\n".join(rows), hint=_failure_hint(validation))
        self.validation = validation


def _failure_hint(validation: Validation) -> str:
    bound = [row.found for row in validation.failures if row.name.startswith(_PCI)]
    hints = ["see what the driver says in the kernel log: dmesg | tail"]
    if validation.splat:
        hints.append("a splat fails the validation until the next boot or `nodeside driver unload`")
    if free := re.findall(rf"([0-9a-f:.]+) {_UNBOUND}", " ".join(bound)):
        # The kernel offers a device to drivers when it appears, and when they register.
        hints.append(
            "a device that another driver has left since is not offered to this one by itself: "
            f"echo {free[0]} > /sys/bus/pci/drivers_probe"
        )
    elif any(found != _ABSENT for found in bound):
        hints.append(
            "another driver has the device: remove it from this node, or name its module in "
            "spec.conflicts"
        )
    return "; ".join(hints)


@frozen
class ValidationInputs:
    """The inputs of a validation: the node, the kernel log, and the mark from before the load.

    `splat` is the complaint that an earlier validation found in the log after that mark.
    """

    host: Host
    kernel_log: KernelLog
    mark: Mark | None = None
    splat: str = ""
    clock: Clock = field(default_factory=Clock)


def validate(
    spec: Validate, modules: Sequence[LoadedModule], inputs: ValidationInputs
) -> Validation:
    """Return the table if every check passed. Raises ValidationFailed, SpecError."""
    validation = run_checks(spec, modules, inputs)
    if not validation.ok:
        raise ValidationFailed(validation)
    return validation


def run_checks(
    spec: Validate, modules: Sequence[LoadedModule], inputs: ValidationInputs
) -> Validation:
    """Run all checks; repeat failing ones until they pass or `spec.timeout_seconds` have passed."""
    looks = _repeatable_checks(spec, modules, inputs.host)
    started = inputs.clock.now()
    rows = [_run_check(look, inputs, started) for look in looks]
    pause = _FIRST_PAUSE
    while not all(row.ok for row in rows):
        left = started + spec.timeout_seconds - inputs.clock.now()
        if left <= 0:
            break
        inputs.clock.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)
        rows = [
            row if row.ok else _run_check(look, inputs, started)
            for row, look in zip(rows, looks, strict=True)
        ]
    return Validation((*rows, *_check_kernel_log(inputs, started, [each.name for each in modules])))


def _run_check(look: Look, inputs: ValidationInputs, started: float) -> CheckResult:
    result = look()
    return replace(result, seconds=round(inputs.clock.now() - started, 3))


def _repeatable_checks(spec: Validate, modules: Sequence[LoadedModule], host: Host) -> list[Look]:
    """Return the checks that can be repeated, cheapest first."""
    for check in spec.sysfs:
        _refuse_invalid_check(host, check)
    return [
        *(lambda item=item: module_is_live(item, host) for item in modules),
        *(lambda path=path: device_exists(path, host) for path in spec.devices),
        *(lambda item=item: devices_are_bound(item, host) for item in spec.bound),
        *(lambda item=item: attribute_has_value(item, host) for item in spec.sysfs),
        *(lambda item=item: command_succeeds(item) for item in spec.commands),
    ]


def module_is_live(expected: LoadedModule, host: Host) -> CheckResult:
    """Check that a module is loaded, initialised, and has the expected build-id."""
    name = f"module {expected.name}"
    state = KernelModules(host).state(expected.name)
    target = f"live, build-id {expected.build_id[:12]}" if expected.build_id else "live"
    if state is None:
        return CheckResult(name, False, target, "not loaded")
    comparable = bool(expected.build_id and state.build_id)
    actual = f"{state.initstate}, build-id {state.build_id[:12]}" if comparable else state.initstate
    same = not comparable or state.build_id == expected.build_id
    return CheckResult(name, state.initstate == "live" and same, target, actual)


def device_exists(path: str, host: Host) -> CheckResult:
    """Check that a path is a character or block device.

    The device is not opened: that may be forbidden or have side effects.
    """
    parts = [part for part in path.removeprefix("/dev/").split("/") if part not in ("", ".")]
    if path.removeprefix("/dev/").startswith("/") or ".." in parts or not parts:
        raise SpecError(f"{path}: expected a path below /dev, without ..")
    expected = "a character or block device"
    if not host.dev.is_dir():
        return CheckResult(path, False, expected, f"no {host.dev}: mount the host's /dev")
    try:
        mode = host.dev.joinpath(*parts).stat().st_mode
    except OSError as exc:
        return CheckResult(path, False, expected, (exc.strerror or "nothing").lower())
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        kind = "character" if stat.S_ISCHR(mode) else "block"
        return CheckResult(path, True, expected, f"a {kind} device")
    return CheckResult(path, False, expected, "something that is not a device")


def devices_are_bound(check: BoundCheck, host: Host) -> CheckResult:
    """Check that a matching PCI device exists, and that every one is bound to the driver."""
    name = f"{_PCI}{check.vendor}:{check.device or '*'}"
    expected = f"bound to {check.driver}"
    devices = [item for item in pci_devices(host) if item.is_of(check.vendor, check.device)]
    if not devices:
        return CheckResult(name, False, expected, _ABSENT)
    words = ", ".join(f"{item.address} {item.driver or _UNBOUND}" for item in devices)
    return CheckResult(name, all(item.driver == check.driver for item in devices), expected, words)


def attribute_has_value(check: SysfsCheck, host: Host) -> CheckResult:
    """Check that every attribute the path matches has the value, after writing `write` to it."""
    name = f"/sys/{check.path.removeprefix('/sys/')}"
    expected = _expected_in_words(check)
    try:
        paths = sysfs.expand_pattern(host, check.path)
    except SpecError as exc:  # the load made more paths than there were before
        return CheckResult(name, False, expected, str(exc))
    if not paths:
        return CheckResult(name, False, expected, "no such attribute")
    contents: list[str] = []
    for path in paths:
        try:
            if check.write:
                sysfs.write(path, check.write)
            (content,) = sysfs.read_attributes(path)
            contents.append("not readable" if content is None else content[:_TEXT])
            if content is None or not _fits_check(check, content):
                return CheckResult(name, False, expected, contents[-1])
        except SystemRefused as exc:
            return CheckResult(name, False, expected, str(exc))
    return CheckResult(name, True, expected, ", ".join(dict.fromkeys(contents))[:_TEXT])


def command_succeeds(check: CommandCheck) -> CheckResult:
    """Check that a command exits with code 0 within its own timeout."""
    name = " ".join(check.command)[:_TEXT]
    expected = f"exit code 0 within {check.timeout_seconds} s"
    try:
        result = process.run(check.command, timeout=check.timeout_seconds, check=False)
    except NodesideError as exc:
        return CheckResult(name, False, expected, str(exc))
    tail = process.last_lines_of(result.errors.strip() or result.output.strip(), 3)
    words = process.exit_code_in_words(result.exit_code)
    ok = result.exit_code == 0
    return CheckResult(name, ok, expected, words if ok or not tail else f"{words}: {tail[:_TEXT]}")


def _check_kernel_log(
    inputs: ValidationInputs, started: float, modules: Collection[str]
) -> tuple[CheckResult, ...]:
    """Check for splats since the mark. An unreadable log proves nothing, but fails nothing."""
    if inputs.splat:
        return (CheckResult(_LOG, False, _NO_SPLAT, inputs.splat),)
    if inputs.mark is None:
        return ()
    excerpt = inputs.kernel_log.read_since(inputs.mark)
    heads = find_splats(excerpt.lines)
    words = "; ".join(heads)[:_TEXT] or excerpt.note or "none"
    if heads and (frame := find_module_frame(excerpt.lines, modules)):
        words += f"; in {frame}"
    seconds = round(inputs.clock.now() - started, 3)
    return (CheckResult(_LOG, not heads, _NO_SPLAT, words, seconds),)


def _expected_in_words(check: SysfsCheck) -> str:
    if check.matches:
        return f"a match of {check.matches}"
    return check.value.strip() or "readable"


def _fits_check(check: SysfsCheck, content: str) -> bool:
    if check.matches:
        return search_texts(check.matches, content) == (True,)
    return not check.value.strip() or content == check.value.strip()


def _refuse_invalid_check(host: Host, check: SysfsCheck) -> None:
    """Refuse, before the first look, a path that leaves /sys or an invalid regular expression."""
    sysfs.expand_pattern(host, check.path)
    try:
        re.compile(check.matches)
    except (re.error, OverflowError, RecursionError) as exc:
        raise SpecError(
            f"validate.sysfs: {check.matches!r} is not a regular expression: {exc}"
        ) from exc
