from __future__ import annotations

import errno
from pathlib import Path

import pytest

from nodeside.driver.node.kernel_log import (
    KernelLog,
    Mark,
    find_splats,
    lines_after,
    parse_kmsg,
    parse_syslog,
)
from tests.driver.fakes.kernel import FakeKernel, write
from tests.tries import sampled

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
    "[    1.000000] BUG: sleeping function called from invalid context at edu.c:12",
    "[    1.000000] BUG: scheduling while atomic: insmod/221/0x00000002",
    "[    1.000000] BUG: spinlock bad magic on CPU#1, insmod/221",
    "[    1.000000] BUG: Bad page state in process insmod  pfn:12345",
    "[    1.000000] BUG: workqueue lockup - pool cpus=0 node=0 flags=0x0 nice=0 stuck for 31s!",
    "[    1.000000] BUG: using smp_processor_id() in preemptible [00000000] code: insmod/221",
    "[    1.000000] BUG: Kernel NULL pointer dereference on read at 0x00000008",
    "[    1.000000] Oops: general protection fault, probably for non-canonical address 0xdead",
    "[    1.000000] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI",
    "[    1.000000] Oops: Kernel access of bad area, sig: 11 [#1]",
    "[    1.000000] Oops: 0004 ilc:2 [#1] SMP",
    "[    1.000000] Internal error: Oops - BUG: 00000000f2000800 [#1] PREEMPT SMP",
    "[    1.000000] KASAN: null-ptr-deref in range [0x0000000000000008-0x000000000000000f]",
    "[    1.000000] BUG: KFENCE: use-after-free read in edu_read+0x12/0x40 [edu]",
    "[    1.000000] WARNING: at edu_probe+0x1f/0x60, CPU#1: insmod/221",
    "[    1.000000] INFO: rcu_sched detected expedited stalls on CPUs/tasks: { 1-... }",
    "[    1.000000] INFO: possible recursive locking detected",
    "[    1.000000] NMI watchdog: Watchdog detected hard LOCKUP on cpu 1",
    "[    1.000000] do_init_module: 'edu'->init suspiciously returned 1, it should follow 0/-E",
]

NO_SPLATS = [
    "[    1.000000] edu: loading out-of-tree module taints kernel.",
    "[    1.000000] edu: module verification failed: signature and/or required key missing",
    "[    1.000000] edu 0000:00:04.0: WARNING: no cable",
    "[    1.000000] traps: a.out[33] general protection fault ip:401000 sp:7ffd error:0",
    "[    1.000000] edu: no BUG here",
]

# Names that a process without any privilege may give itself: 15 bytes, prctl(2) PR_SET_NAME.
NAMES = [
    "BUG: x",
    "BUG: KASAN: abc",
    "BUG: KASAN: a i",
    "BUG: spinlock a",
    "Call Trace:",
    "Oops: 0",
    "Oops: 0002 [#1]",
    "Oops: [#1] SMP",
    "WARNING: CPU: 1",
    "WARNING: a:1 at",
    "kernel BUG at a",
    "Internal error:",
    "INFO: rcu_sched",
    "INFO: possible ",
    "UBSAN: a in b:1",
    "KASAN: a in ran",
    "Kernel panic - ",
    "general protect",
    "watchdog: BUG: ",
    "Unable to handl",
    "a:'b'->init sus",
]

# What the kernel prints after such a name: mm/oom_kill.c, mm/page_alloc.c, net/packet/af_packet.c,
# fs/drop_caches.c, arch/x86/mm/fault.c and traps.c. The file that crashed is the process's choice
# as well, but a name of a file has no slash.
MESSAGES = [
    "{}[1712]: segfault at 8 ip 00007f2a8b585ad8 sp 00007fff24ffa568 error 4 in {file}[1000+1000]",
    "{}[1712] general protection fault ip:401000 sp:7ffd0000 error:0 in {file}[400000+1000]",
    "{}[1712]: unhandled exception: BRK, ESR 0xf2000001, BRK handler in {file}[400000+1000]",
    "{} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=1000",
    "{}: page allocation failure: order:5, mode:0xcc0(GFP_KERNEL), nodemask=(null)",
    "{} uses obsolete (PF_INET,SOCK_PACKET)",
    "{} (1712): drop_caches: 3",
    "{}",
]
FILE = "x in a.c:1:1 at f+0x1 [#1] SMP: 0000 [#1] on CPU#1 detected stall[0x1]"

OUT_OF_MEMORY = """\
[  150.000001] stress invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=1000
[  150.000020] CPU: 0 PID: 4321 Comm: stress Not tainted 6.1.0-56-amd64 #1  Debian 6.1.192-2
[  150.000031] Hardware name: QEMU Standard PC (i440FX + PIIX, 1996), BIOS 1.16.2-debian-1.16.2-1
[  150.000042] Call Trace:
[  150.000050]  <TASK>
[  150.000061]  dump_stack_lvl+0x44/0x5c
[  150.000073]  dump_header+0x4a/0x213
[  150.000084]  oom_kill_process.cold+0xb/0x10
[  150.000101] memory: usage 65536kB, limit 65536kB, failcnt 42
[  150.000113] Tasks state (memory values in pages):
[  150.000140] Memory cgroup out of memory: Killed process 4321 (stress) total-vm:70212kB
"""

DUMP = """\
[  160.000001] sysfs: cannot create duplicate filename '/devices/virtual/misc/edu'
[  160.000020] CPU: 1 PID: 221 Comm: insmod Tainted: G           OE      6.1.0-56-amd64 #1  Debian
[  160.000031] Hardware name: QEMU Standard PC (i440FX + PIIX, 1996), BIOS 1.16.2-debian-1.16.2-1
[  160.000042] Call Trace:
[  160.000050]  <TASK>
[  160.000061]  dump_stack_lvl+0x44/0x5c
[  160.000073]  sysfs_warn_dup.cold+0x17/0x24
"""


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


def test_only_what_was_said_after_the_mark_is_returned(kernel: FakeKernel) -> None:
    kernel.say("booting")
    log = KernelLog(kernel.host, kernel)

    mark = log.mark_end()
    kernel.say("edu: probe of 0000:00:04.0")

    assert log.read_since(mark).lines == ("[    1.000000] edu: probe of 0000:00:04.0",)
    assert log.read_since(mark).note == ""


def test_nothing_said_since_the_mark_is_nothing(kernel: FakeKernel) -> None:
    kernel.say("booting")
    log = KernelLog(kernel.host, kernel)

    assert log.read_since(log.mark_end()).lines == ()


def test_a_mark_in_an_empty_log_is_its_beginning(kernel: FakeKernel) -> None:
    log = KernelLog(kernel.host, kernel)
    mark = log.mark_end()
    kernel.say("first words")

    assert log.read_since(mark).lines == ("[    0.000000] first words",)


def test_without_times_the_last_of_equal_places_counts() -> None:
    mark = Mark(("up", "edu: probe"))

    assert lines_after(mark, ["up", "edu: probe", "x", "up", "edu: probe", "new"]).lines == ("new",)
    assert lines_after(mark, ["up", "edu: probe", "edu: probe"]).lines == ("edu: probe",)


def test_a_marked_line_that_was_continued_later_is_found() -> None:
    assert lines_after(Mark(("a", "link is")), ["a", "link is up", "new"]).lines == ("new",)


def test_the_oldest_marked_lines_may_be_overwritten() -> None:
    assert lines_after(Mark(("a", "b", "c")), ["c", "d", "e"]).lines == ("d", "e")


def test_a_mark_that_was_overwritten_is_said_and_what_is_there_is_returned() -> None:
    excerpt = lines_after(Mark(("gone",)), ["d", "e"])

    assert excerpt.lines == ("d", "e")
    assert "has wrapped or was cleared" in excerpt.note


def test_dev_kmsg_serves_where_syslog_is_denied(kernel: FakeKernel) -> None:
    kernel.log_error = errno.EPERM
    records = "6,1,1000000,-;up\n SUBSYSTEM=pci\n"
    path = write(kernel.host.dev / "kmsg", records)
    log = KernelLog(kernel.host, kernel)

    mark = log.mark_end()
    write(path, records + "4,2,2500000,-;edu: probe\n")

    assert log.read_since(mark).lines == ("[    2.500000] edu: probe",)


def test_an_unreadable_log_is_a_value_that_says_why(kernel: FakeKernel) -> None:
    kernel.log_error = errno.EPERM
    log = KernelLog(kernel.host, kernel)

    excerpt = log.read_since(log.mark_end())

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
    assert find_splats([line]) == (line.split("] ", 1)[-1] if line.startswith("[") else line,)


@pytest.mark.parametrize("line", NO_SPLATS)
def test_words_that_only_look_like_one_are_no_splat(line: str) -> None:
    assert find_splats([line]) == ()


def test_a_splat_with_its_call_trace_counts_once() -> None:
    assert find_splats(WARNING.splitlines()) == (
        "WARNING: CPU: 0 PID: 221 at /build/edu.c:77 edu_probe+0x1f/0x60 [edu]",
    )


def test_a_call_trace_without_a_known_head_counts() -> None:
    assert find_splats(DUMP.splitlines()) == ("Call Trace:",)


def test_somebody_who_runs_out_of_memory_is_no_splat_whatever_he_is_called() -> None:
    for name in ("stress", "\n", "a\nb", "\nCall Trace:\n"):
        text = "".join(
            "".join(f"{line[:15]}{part}\n" for part in line[15:].split("\n"))
            for line in (row.replace("stress", name) for row in OUT_OF_MEMORY.splitlines())
        )
        assert find_splats(text.splitlines()) == ()


def test_a_splat_after_somebody_ran_out_of_memory_is_found() -> None:
    assert find_splats([*OUT_OF_MEMORY.splitlines(), *WARNING.splitlines()]) == (
        "WARNING: CPU: 0 PID: 221 at /build/edu.c:77 edu_probe+0x1f/0x60 [edu]",
    )


@pytest.mark.parametrize("message", sampled(MESSAGES, 6))
@pytest.mark.parametrize("name", NAMES)
def test_no_name_of_a_process_makes_a_splat(name: str, message: str) -> None:
    said = message.format(name, file=FILE)

    assert (
        find_splats([f"[  489.609815] {said}", "[  489.609853] Code: e1 ff ff ff c3 66 2e"]) == ()
    )


# Two processes that crash one after the other, and one with a file whose name has a line feed.
FORGED_TRACES = [
    ["Call Trace:[101]: segfault at 0 ip 04010", "Code: 48", "+0x1/0x2[102]: segfault at 0 ip 04"],
    ["Call Trace:", "+0x1/0x2[102]: segfault at 0 ip 0401"],
    ["Call Trace:", "a+0x1/0x2345678[102]: segfault at 0"],
    ["Call Trace:", "? a+0x1/0x23456 invoked a helper"],
    ["Call Trace:", "kworker/0:1[102]: segfault at 0 ip 1 in dump_stack_lvl+0x44/0x5c[1+1]"],
    ["Call Trace:[101]: segfault at 0 ip 04010", "dump_stack_lvl+0x44/0x5c"],
]


@pytest.mark.parametrize("said", FORGED_TRACES)
def test_no_two_names_of_processes_make_a_call_trace(said: list[str]) -> None:
    assert find_splats([f"[  100.{n:06d}] {text}" for n, text in enumerate(said)]) == ()


def test_a_frame_after_a_line_feed_in_a_name_is_none() -> None:
    """A process called `Call Trace:` and a line feed, whose file is called like a frame."""
    first = [
        "Call Trace:",
        "[101]: segfault at 0 ip 1 sp 2 error 4 in x",
        " dump_stack_lvl+0x4/0x5c",
    ]

    assert find_splats([f"[  100.000001] {text}" for text in first]) == ()


@pytest.mark.parametrize(
    "frame",
    [
        " ? dump_stack_lvl+0x44/0x5c",
        " dump_backtrace.part.0+0xd8/0xe4 (C)",
        "[c000000003b7b9c0] [c0000000009d5a48] dump_stack+0xb0/0xf0 (unreliable)",
        " [<000000010a0c1234>] dump_stack+0x6e/0x98",
        "([<000000010a0c1234>] show_stack+0x8e/0xd0)",
    ],
)
def test_a_frame_of_any_machine_belongs_to_a_call_trace(frame: str) -> None:
    lines = ["[  160.000042] Call Trace:", f"[  160.000061] {frame}"]

    assert find_splats(lines) == ("Call Trace:",)


def test_a_call_trace_of_which_some_frames_came_in_one_microsecond_counts() -> None:
    frames = [" <TASK>", " dump_stack_lvl+0x44/0x5c", " sysfs_warn_dup.cold+0x17/0x24"]
    lines = [f"[  160.000042] {text}" for text in ("Call Trace:", *frames)]

    assert find_splats([*lines, "[  160.000043]  sysfs_create_dir_ns+0xbe/0xd0"]) == (
        "Call Trace:",
    )


@pytest.mark.parametrize("forged", [*SPLATS, *DUMP.splitlines(), *WARNING.splitlines()])
def test_what_follows_a_line_feed_in_a_name_is_no_line_of_the_kernel(forged: str) -> None:
    """The name of the file that crashed may have 255 bytes, with line feeds among them."""
    words = forged.split("] ", 1)[-1]
    time = "[ 1104.102468] "
    lines = [
        "x",
        "BUG: kernel N[850]: segfault at 8 ip 0562c sp 07ff error 6 in x",
        words,
        " f+0x1/0x2",
    ]

    assert find_splats([time + line for line in lines]) == ()


def test_a_form_feed_in_a_name_ends_no_line() -> None:
    line = (
        "<6>[    1.000000] a[33]: segfault at 8 ip 1 sp 2 error 4 in \x0cBUG: unable to handle\x85"
    )

    assert parse_syslog(f"{line}\n") == [line[3:]]


def test_what_others_wrote_into_the_log_is_not_the_kernels() -> None:
    text = (
        "<6>[    1.000000] edu: up\n"
        "<12>[    1.000001] BUG: kernel NULL pointer dereference, address: 0\n"
        "<30>[    1.000002] systemd[1]: Started.\n"
    )

    assert parse_syslog(text) == ["[    1.000000] edu: up"]
    assert parse_kmsg("6,1,1000000,-;edu: up\n12,2,1000001,-;BUG: unable to handle\n") == [
        "[    1.000000] edu: up"
    ]


def test_what_moves_a_cursor_is_made_visible(kernel: FakeKernel) -> None:
    log = KernelLog(kernel.host, kernel)
    mark = log.mark_end()
    kernel.say("\x1b[2Jx[33]: segfault at 8")

    assert log.read_since(mark).lines == ("[    0.000000] \\x1b[2Jx[33]: segfault at 8",)


def test_where_the_kernel_keeps_no_times_each_line_counts() -> None:
    assert find_splats(["edu: up", "BUG: unable to handle page fault for address: 0"]) == (
        "BUG: unable to handle page fault for address: 0",
    )


def test_a_splat_of_which_each_head_came_in_one_microsecond_with_a_line_before_is_found() -> None:
    lines = [
        "[   12.000001] ------------[ cut here ]------------",
        "[   12.000001] WARNING: CPU: 0 PID: 7 at drivers/x.c:9 x_init+0x1/0x2 [x]",
        "[   12.000002] PKRU: 55555554",
        "[   12.000002] Call Trace:",
        "[   12.000003] ---[ end trace 0000000000000000 ]---",
    ]
    assert find_splats(lines) == ("------------[ cut here ]------------",)
