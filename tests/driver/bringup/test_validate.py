from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeside.driver.bringup.validate import (
    CheckResult,
    ValidationFailed,
    ValidationInputs,
    attribute_has_value,
    run_checks,
    validate,
)
from nodeside.driver.node.kernel_log import KernelLog
from nodeside.driver.node.loaded_record import LoadedModule
from nodeside.driver.node.modules import KernelModules
from nodeside.errors import ExitCode, SpecError, SystemRefused
from nodeside.spec.model import BoundCheck, CommandCheck, SysfsCheck, Validate
from tests.driver.fakes.kernel import FakeKernel, FakeModule, add_pci_device, write

EDU = LoadedModule("edu", "ab" * 20, {})


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    kernel = FakeKernel(tmp_path)
    kernel.add("edu", FakeModule(build_id="ab" * 20))
    return kernel


def scene(kernel: FakeKernel) -> ValidationInputs:
    log = KernelLog(kernel.host, kernel)
    return ValidationInputs(kernel.host, log, log.mark_end(), clock=kernel.clock)


def only(kernel: FakeKernel, spec: Validate) -> CheckResult:
    """The result of the one check in `spec`."""
    (result,) = run_checks(
        spec, [], ValidationInputs(kernel.host, KernelLog(kernel.host, kernel), clock=kernel.clock)
    ).checks
    return result


def test_a_module_that_does_all_it_declares_is_valid(kernel: FakeKernel) -> None:
    add_pci_device(kernel.host, "0000:00:04.0", "1234", "11e8", "edu", "edu")
    write(kernel.host.sys / "bus/pci/devices/0000:00:04.0/factorial", "120\n")
    (kernel.host.dev).mkdir()
    (kernel.host.dev / "edu0").symlink_to("/dev/null")
    spec = Validate(
        devices=("/dev/edu0",),
        bound=(BoundCheck(vendor="1234", device="11e8", driver="edu"),),
        sysfs=(SysfsCheck(path="bus/pci/devices/*/factorial", value="120"),),
        commands=(CommandCheck(command=("true",)),),
    )

    validation = validate(spec, [EDU], scene(kernel))

    assert [(row.name, row.found) for row in validation.checks] == [
        ("module edu", "live, build-id abababababab"),
        ("/dev/edu0", "a character device"),
        ("PCI 1234:11e8", "0000:00:04.0 edu"),
        ("/sys/bus/pci/devices/*/factorial", "120"),
        ("true", "exit code 0"),
        ("kernel log", "none"),
    ]
    assert kernel.sleeps == []


def test_another_build_id_is_another_module(kernel: FakeKernel) -> None:
    kernel.add("edu", FakeModule(build_id="cd" * 20))

    with pytest.raises(ValidationFailed) as caught:
        validate(Validate(timeout_seconds=1), [EDU], scene(kernel))

    assert str(caught.value) == (
        "module edu: expected live, build-id abababababab, found live, build-id cdcdcdcdcdcd"
    )
    assert caught.value.exit_code is ExitCode.VALIDATION_FAILED
    assert not caught.value.validation.ok


@pytest.mark.parametrize("expected", ["", "ab" * 20])
def test_a_build_id_that_one_side_does_not_know_proves_nothing(
    kernel: FakeKernel, expected: str
) -> None:
    kernel.add("plain")

    result = run_checks(Validate(), [LoadedModule("plain", expected, {})], scene(kernel))

    assert result.ok


def test_a_module_that_is_not_there_is_not_valid(kernel: FakeKernel) -> None:
    result = run_checks(Validate(timeout_seconds=1), [LoadedModule("gone", "", {})], scene(kernel))

    assert result.failures[0].found == "not loaded"


def test_an_effect_that_takes_a_moment_is_waited_for(kernel: FakeKernel) -> None:
    path = kernel.host.sys / "class/edu/edu0/ready"

    def later(seconds: float) -> None:
        kernel.seconds += seconds
        if kernel.seconds > 1:
            write(path, "1\n")

    kernel.sleep = later  # type: ignore[method-assign]
    result = only(kernel, Validate(sysfs=(SysfsCheck(path="class/edu/edu0/ready", value="1"),)))

    assert result.ok
    assert 1 < result.seconds < 2


def test_an_effect_that_never_comes_ends_at_the_deadline(kernel: FakeKernel) -> None:
    spec = Validate(devices=("/dev/edu0",), timeout_seconds=3)
    kernel.host.dev.mkdir()

    result = only(kernel, spec)

    assert not result.ok
    assert result.expected == "a character or block device"
    assert result.found == "no such file or directory"
    assert kernel.seconds == pytest.approx(3)


def test_a_plain_file_is_no_device(kernel: FakeKernel) -> None:
    write(kernel.host.dev / "edu0", "")

    assert only(kernel, Validate(devices=("/dev/edu0",))).found == "something that is not a device"


def test_a_host_whose_dev_is_not_mounted_is_said_so(kernel: FakeKernel) -> None:
    assert "mount the host's /dev" in only(kernel, Validate(devices=("/dev/edu0",))).found


def test_a_value_is_written_before_it_is_read(kernel: FakeKernel) -> None:
    path = write(kernel.host.sys / "class/edu/edu0/liveness", "0")
    check = SysfsCheck(path="class/edu/*/liveness", write="5", matches="^5$")

    assert only(kernel, Validate(sysfs=(check,))).ok
    assert path.read_text() == "5"


def test_an_attribute_that_does_not_answer_fails_its_row(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What shows it is code of the driver; a fifo that nobody writes hangs as that may."""
    path = kernel.host.sys / "class/edu/state"
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    monkeypatch.setattr("nodeside.system.sysfs._READ_SECONDS", 0.2)

    result = only(kernel, Validate(sysfs=(SysfsCheck(path="class/edu/state"),)))

    assert not result.ok
    assert result.found.startswith(f"reading {path} did not end: ")
    path.open("w").close()  # the child that was left behind ends


def test_parameters_that_do_not_answer_hold_nobody_up(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.add("edu")
    path = kernel.host.sys_module / "edu/parameters/debug"
    path.parent.mkdir()
    os.mkfifo(path)
    monkeypatch.setattr("nodeside.system.sysfs._READ_SECONDS", 0.2)
    modules = KernelModules(kernel.host)

    assert modules.state("edu") is not None, "to be live, no parameter need answer"
    with pytest.raises(SystemRefused, match=f"reading {path} did not end"):
        modules.with_parameters("edu")
    path.open("w").close()


def test_an_attribute_without_end_is_read_as_far_as_one_may_be_long(kernel: FakeKernel) -> None:
    write(kernel.host.sys / "class/edu/memory", "x" * (3 << 20))

    assert only(kernel, Validate(sysfs=(SysfsCheck(path="class/edu/memory", matches="^x+$"),))).ok


@pytest.mark.slow
def test_every_attribute_that_is_found_must_pass(kernel: FakeKernel) -> None:
    for device, value in (("edu0", "live"), ("edu1", "dead")):
        write(kernel.host.sys / f"class/edu/{device}/state", value)
    write(kernel.host.sys / "class/edu/version", "1")

    result = only(kernel, Validate(sysfs=(SysfsCheck(path="class/edu/*/state", value="live"),)))

    assert not result.ok
    assert result.found == "dead"


def test_an_attribute_that_nothing_matches_fails(kernel: FakeKernel) -> None:
    result = only(kernel, Validate(sysfs=(SysfsCheck(path="class/edu/*/state", value="x"),)))

    assert result.found == "no such attribute"


def test_stars_do_not_multiply_without_limit(kernel: FakeKernel) -> None:
    """As in sysfs, where each device has links to its bus and back."""
    here = kernel.host.sys / "class/edu"
    here.mkdir(parents=True)
    for number in range(20):
        (here / f"edu{number}").symlink_to(here)
    stars = SysfsCheck(path="class/edu/*/*/*/*/*/*/*/*", value="x")

    with pytest.raises(SpecError, match=r"class/edu/[*/]+: matches more than 4096 paths") as caught:
        only(kernel, Validate(sysfs=(stars,)))
    assert "instead of some of the stars" in caught.value.hint
    result = attribute_has_value(stars, kernel.host)
    assert not result.ok
    assert "more than 4096 paths" in result.found


@pytest.mark.parametrize("path", ["../proc/version", "class/../../etc", "//etc/passwd", ""])
def test_a_path_that_leaves_sys_is_refused(kernel: FakeKernel, path: str) -> None:
    with pytest.raises(SpecError, match=r"expected a path below /sys, without \.\."):
        only(kernel, Validate(sysfs=(SysfsCheck(path=path, value="x"),)))


@pytest.mark.parametrize("path", ["/dev/../etc/passwd", "/dev//etc", "/dev/"])
def test_a_path_that_leaves_dev_is_refused(kernel: FakeKernel, path: str) -> None:
    with pytest.raises(SpecError, match="expected a path below /dev"):
        only(kernel, Validate(devices=(path,)))


def test_an_expression_without_end_fails_its_row_and_holds_nobody_up(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed: to wait for its end would be to wait for years."""
    monkeypatch.setattr("nodeside.system.regex_search.SECONDS", 0.01)
    write(kernel.host.sys / "class/edu/edu0/state", "a" * 60 + "!")
    check = SysfsCheck(path="class/edu/edu0/state", matches="(a+)+$")

    result = only(kernel, Validate(sysfs=(check,), timeout_seconds=0))

    assert not result.ok
    assert "the regular expression did not finish within" in result.found


def test_a_wrong_regular_expression_is_a_mistake_of_the_spec(kernel: FakeKernel) -> None:
    with pytest.raises(SpecError, match="is not a regular expression"):
        only(kernel, Validate(sysfs=(SysfsCheck(path="a", matches="("),)))


def test_every_device_must_have_the_driver(kernel: FakeKernel) -> None:
    add_pci_device(kernel.host, "0000:00:04.0", "1234", "11e8", "edu", "edu")
    add_pci_device(kernel.host, "0000:00:05.0", "1234", "11e8")

    result = only(kernel, Validate(bound=(BoundCheck(vendor="1234", driver="edu"),)))

    assert not result.ok
    assert result.found == "0000:00:04.0 edu, 0000:00:05.0 without a driver"


@pytest.mark.parametrize(
    ("bound_to", "hint"),
    [
        ("", "echo 0000:00:04.0 > /sys/bus/pci/drivers_probe"),
        ("other", "another driver has the device"),
    ],
)
def test_a_device_that_is_not_bound_to_it_has_a_remedy(
    kernel: FakeKernel, bound_to: str, hint: str
) -> None:
    add_pci_device(kernel.host, "0000:00:04.0", "1234", "11e8", bound_to, bound_to)
    kernel.add("edu", FakeModule(build_id="ab" * 20))
    spec = Validate(timeout_seconds=1, bound=(BoundCheck(vendor="1234", driver="edu"),))

    with pytest.raises(ValidationFailed) as caught:
        validate(spec, [EDU], scene(kernel))

    assert hint in caught.value.hint


def test_no_device_at_all_is_no_proof(kernel: FakeKernel) -> None:
    result = only(kernel, Validate(bound=(BoundCheck(vendor="1234", driver="edu"),)))

    assert result.found == "no such device on this node"


def test_a_command_that_fails_is_shown_with_what_it_said(kernel: FakeKernel) -> None:
    command = CommandCheck(command=("sh", "-c", "echo no card >&2; exit 3"))

    result = only(kernel, Validate(commands=(command,), timeout_seconds=1))

    assert result.found == "exit code 3: no card"


def test_a_command_that_is_not_there_is_a_failed_check(kernel: FakeKernel) -> None:
    result = only(
        kernel, Validate(commands=(CommandCheck(command=("/no/such/tool",)),), timeout_seconds=1)
    )

    assert "cannot start /no/such/tool" in result.found


def test_a_splat_since_the_load_fails_a_module_that_works(kernel: FakeKernel) -> None:
    kernel.say("BUG: an old story")
    here = scene(kernel)
    kernel.say("BUG: sleeping function called from invalid context at edu.c:12")

    with pytest.raises(ValidationFailed, match="no splat since the load, found BUG: sleeping"):
        validate(Validate(), [EDU], here)


@pytest.mark.parametrize("build_id", ["", " 3f1c9a0e7d2b4c5a6978"])
def test_a_splat_is_shown_with_the_place_in_the_module(kernel: FakeKernel, build_id: str) -> None:
    here = scene(kernel)
    kernel.say("WARNING: CPU: 1 PID: 172 at lib/iomap.c:45 ioread32+0x58/0x60")
    kernel.say("Modules linked in: edu(OE) other(OE)")
    for frame in (
        *("ioread32+0x58/0x60", f"? edu_late+0x1/0x9 [edu{build_id}]", "other_x+0x1/0x9 [other]"),
        *(f"edu_probe+0x6b/0x90 [edu{build_id}]", f"edu_init+0x1/0x9 [edu{build_id}]"),
    ):
        kernel.say(f" {frame}")

    with pytest.raises(ValidationFailed) as caught:
        validate(Validate(), [EDU], here)

    assert str(caught.value).endswith("ioread32+0x58/0x60; in edu_probe+0x6b/0x90 [edu]")


def test_a_log_that_cannot_be_read_is_shown_and_fails_nothing(kernel: FakeKernel) -> None:
    kernel.log_error = 1

    validation = validate(Validate(), [EDU], scene(kernel))

    assert validation.checks[-1].found.startswith("kernel log not readable")
