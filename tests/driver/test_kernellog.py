from __future__ import annotations

import errno
from pathlib import Path

import pytest

from nodeside.driver.kernellog import KernelLog, Mark, after, parse_kmsg, splats

from .fakekernel import FakeKernel, write

WARNING = """\
[   12.345678] ------------[ cut here ]------------
[   12.345690] WARNING: CPU: 0 PID: 221 at /build/edu.c:77 edu_probe+0x1f/0x60 [edu]
[   12.345699] Modules linked in: edu(OE+)
[   12.345710] RIP: 0010:edu_probe+0x1f/0x60 [edu]
[   12.345720] Call Trace:
[   12.345721]  <TASK>
[   12.345730] ---[ end trace 0000000000000000 ]---
"""

SPLATS = [
    "[    1.0] BUG: kernel NULL pointer dereference, address: 0000000000000008",
    "[    1.000000] BUG: KASAN: slab-out-of-bounds in edu_write+0x3a/0x90 [edu]",
    "[    1.000000][  T221] UBSAN: array-index-out-of-bounds in /build/edu.c:12:3",
    "[    1.000000] general protection fault, probably for non-canonical address 0xdead: 0000 [#1]",
    "[    1.000000] Unable to handle kernel NULL pointer dereference at virtual address 0000",
    "[    1.000000] Oops: 0002 [#1] PREEMPT SMP NOPTI",
    "[    1.000000] Internal error: Oops: 96000004 [#1] SMP",
    "[    1.000000] kernel BUG at /build/edu.c:99!",
    "[    1.000000] rcu: INFO: rcu_sched self-detected stall on CPU",
    "[    1.000000] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
    "[    1.000000] INFO: task insmod:221 blocked for more than 120 seconds.",
    "[    1.000000] watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [insmod:221]",
    "[    1.000000] WARNING: possible circular locking dependency detected",
    "[    1.000000] WARNING: drivers/edu.c:77 at edu_probe+0x1f/0x60, CPU#1: insmod/221",
    "[    1.000000] Kernel panic - not syncing: Fatal exception",
    "BUG: unable to handle page fault for address: 0000000000001000",
]

NO_SPLATS = [
    "[    1.000000] edu: loading out-of-tree module taints kernel.",
    "[    1.000000] edu: module verification failed: signature and/or required key missing",
    "[    1.000000] edu 0000:00:04.0: WARNING: no cable",
    "[    1.000000] traps: a.out[33] general protection fault ip:401000 sp:7ffd error:0",
    "[    1.000000] edu: no BUG here",
]


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


def test_only_what_was_said_after_the_mark_is_returned(kernel: FakeKernel) -> None:
    kernel.say("booting")
    log = KernelLog(kernel.host, kernel)

    mark = log.mark()
    kernel.say("edu: probe of 0000:00:04.0")

    assert log.since(mark).lines == ("[    1.000000] edu: probe of 0000:00:04.0",)
    assert log.since(mark).note == ""


def test_nothing_said_since_the_mark_is_nothing(kernel: FakeKernel) -> None:
    kernel.say("booting")
    log = KernelLog(kernel.host, kernel)

    assert log.since(log.mark()).lines == ()


def test_a_mark_in_an_empty_log_is_its_beginning(kernel: FakeKernel) -> None:
    log = KernelLog(kernel.host, kernel)
    mark = log.mark()
    kernel.say("first words")

    assert log.since(mark).lines == ("[    0.000000] first words",)


def test_without_times_the_last_of_equal_places_counts() -> None:
    mark = Mark(("up", "edu: probe"))

    assert after(mark, ["up", "edu: probe", "x", "up", "edu: probe", "new"]).lines == ("new",)
    assert after(mark, ["up", "edu: probe", "edu: probe"]).lines == ("edu: probe",)


def test_a_marked_line_that_was_continued_later_is_found() -> None:
    assert after(Mark(("a", "link is")), ["a", "link is up", "new"]).lines == ("new",)


def test_the_oldest_marked_lines_may_be_overwritten() -> None:
    assert after(Mark(("a", "b", "c")), ["c", "d", "e"]).lines == ("d", "e")


def test_a_mark_that_was_overwritten_is_said_and_what_is_there_is_returned() -> None:
    excerpt = after(Mark(("gone",)), ["d", "e"])

    assert excerpt.lines == ("d", "e")
    assert "has wrapped or was cleared" in excerpt.note


def test_dev_kmsg_serves_where_syslog_is_denied(kernel: FakeKernel) -> None:
    kernel.log_error = errno.EPERM
    records = "6,1,1000000,-;up\n SUBSYSTEM=pci\n"
    path = write(kernel.host.dev / "kmsg", records)
    log = KernelLog(kernel.host, kernel)

    mark = log.mark()
    write(path, records + "4,2,2500000,-;edu: probe\n")

    assert log.since(mark).lines == ("[    2.500000] edu: probe",)


def test_an_unreadable_log_is_a_value_that_says_why(kernel: FakeKernel) -> None:
    kernel.log_error = errno.EPERM
    log = KernelLog(kernel.host, kernel)

    excerpt = log.since(log.mark())

    assert excerpt.lines == ()
    assert excerpt.note.startswith(
        "kernel log not readable: syslog(2): Operation not permitted (it takes CAP_SYSLOG); "
    )
    assert excerpt.note.endswith("/dev/kmsg: No such file or directory")


def test_kmsg_records_have_the_form_of_syslog_lines() -> None:
    text = "6,339,5140900,-;NET: Registered\n SUBSYSTEM=acpi\n DEVICE=+acpi:PNP\nnonsense\n"

    assert parse_kmsg(text) == ["[    5.140900] NET: Registered"]


@pytest.mark.parametrize("line", SPLATS)
def test_a_complaint_of_the_kernel_is_a_splat(line: str) -> None:
    assert splats([line]) == (line.split("] ", 1)[-1] if line.startswith("[") else line,)


@pytest.mark.parametrize("line", NO_SPLATS)
def test_words_that_only_look_like_one_are_no_splat(line: str) -> None:
    assert splats([line]) == ()


def test_a_splat_with_its_call_trace_counts_once() -> None:
    assert splats(WARNING.splitlines()) == (
        "WARNING: CPU: 0 PID: 221 at /build/edu.c:77 edu_probe+0x1f/0x60 [edu]",
    )


def test_a_call_trace_without_a_known_head_counts() -> None:
    lines = ["[    1.0] sysfs: cannot create duplicate filename '/edu'", "[    1.0] Call Trace:"]

    assert splats(lines) == ("Call Trace:",)
