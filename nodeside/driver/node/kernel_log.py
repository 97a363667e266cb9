"""The kernel's messages since a mark, and detection of kernel splats among them.

A `Mark` holds the last records of the log at a moment; `since` returns the lines after it. The log
is read with syslog(2), which works in a container with CAP_SYSLOG, or outside of containers from
/dev/kmsg, which a container's device allow-list denies. If neither works, the result says why: a
missing log fails no load.

Unprivileged processes can inject text into the log: the kernel logs the name of a crashing process
(15 bytes, chosen by the process) and the file that it ran (255 bytes). Both may contain line feeds.
So a line counts as the kernel's own complaint only

- if the kernel wrote the record: records written to /dev/kmsg have another facility (printk.c);
- if the line begins a record: syslog(2) gives every line of a record the same time;
- if the match is longer than a process name, in a format that no message about a process has.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from pathlib import Path

from nodeside.driver.node.syscalls import Syscalls
from nodeside.log import escape_controls
from nodeside.system.host import Host
from nodeside.values import frozen

_KERNEL = 8  # lower priorities have the facility `kern`: facility * 8 + level, syslog(3)
_MARK_LINES = 8  # enough for a unique match if printk.time=0 and lines repeat
_KMSG_RECORD = 8192  # bytes; one read(2) of /dev/kmsg returns one record, at most this long
_KMSG_RECORDS = 200_000  # a limit if the log grows faster than it is read


@frozen
class Mark:
    """A position in the kernel log: the last lines before it, or why they were unreadable."""

    lines: tuple[str, ...] = ()
    unreadable: str = ""


@frozen
class Excerpt:
    """The lines after a mark. `note` reports a problem: log unreadable, mark lost."""

    lines: tuple[str, ...] = ()
    note: str = ""


@frozen
class KernelLog:
    """The log of the running kernel."""

    host: Host
    syscalls: Syscalls

    def mark_end(self) -> Mark:
        """Return the current end of the log."""
        lines, unreadable = self._read_lines()
        return Mark(tuple(lines[-_MARK_LINES:]), unreadable)

    def read_since(self, mark: Mark) -> Excerpt:
        """Return the lines after `mark`; if the mark has been overwritten, the whole log."""
        lines, unreadable = self._read_lines()
        if unreadable or mark.unreadable:
            return Excerpt(note=unreadable or mark.unreadable)
        return lines_after(mark, lines)

    def _read_lines(self) -> tuple[list[str], str]:
        """Return all lines, or none and the reason. Priorities are dropped, times are kept.

        Lines contain raw process names, so control characters are escaped.
        """
        try:
            return list(map(escape_controls, parse_syslog(self.syscalls.kernel_log()))), ""
        except OSError as exc:
            denied = exc.strerror
        path = self.host.dev / "kmsg"
        try:
            return list(map(escape_controls, parse_kmsg(_read_kmsg(path)))), ""
        except OSError as exc:
            return [], (
                f"kernel log not readable: syslog(2): {denied} (it takes CAP_SYSLOG); "
                f"{path}: {exc.strerror}"
            )


def parse_syslog(text: str) -> list[str]:
    """Return the kernel's own lines from syslog(2), without their `<6>`."""
    # A file name may contain other line breaks of splitlines(), such as a form feed.
    matches = (re.match(r"<(\d{1,9})>", line) for line in text.split("\n"))
    return [match.string[match.end() :] for match in matches if match and int(match[1]) < _KERNEL]


def parse_kmsg(text: str) -> list[str]:
    """Return the kernel's own records from /dev/kmsg, formatted as by syslog(2).

    The format is in Documentation/ABI/testing/dev-kmsg. Line feeds within a record are escaped.
    """
    lines = []
    for line in text.split("\n"):
        head, _, message = line.partition(";")
        fields = re.match(r"(\d{1,9}),\d+,(\d{1,18}),", head)
        if fields and int(fields[1]) < _KERNEL:
            seconds, micros = divmod(int(fields[2]), 1_000_000)
            lines.append(f"[{seconds:5d}.{micros:06d}] {message}")
    return lines


def lines_after(mark: Mark, lines: Sequence[str]) -> Excerpt:
    """Return the lines after the last occurrence of the marked lines."""
    if not mark.lines:
        return Excerpt(tuple(lines))
    for end in range(len(lines), 0, -1):
        if _ends_at(mark, lines, end):
            return Excerpt(tuple(lines[end:]))
    return Excerpt(
        tuple(lines),
        "the kernel log has wrapped or was cleared since: earlier lines may be among these",
    )


def _ends_at(mark: Mark, lines: Sequence[str], end: int) -> bool:
    """Return whether the marked lines end at `end`; the oldest of them may have been dropped.

    The last marked line may have been continued (pr_cont) after the mark was taken.
    """
    count = min(end, len(mark.lines))
    if not lines[end - 1].startswith(mark.lines[-1]):
        return False
    return tuple(lines[end - count : end - 1]) == mark.lines[len(mark.lines) - count : -1]


_TIME = re.compile(r"^\[\s*\d+\.\d+\](\[\s*[TC]\d+\])?\s?")
_NAME_LENGTH = 15  # bytes; a line may start with a process name: TASK_COMM_LEN minus the NUL

# Head lines of kernel splats: lib/bug.c, kernel/panic.c, mm/kasan, kernel/hung_task.c, kernel/rcu,
# kernel/locking, arch/*/mm/fault.c. There is no `.*`, since it would match inside a file name.
# Splats that are missing here are detected by their call trace.
_HEADS = re.compile(
    r"WARNING: CPU: \d+ PID: \d+ at "
    r"|WARNING: (\S+:\d+ )?at \S+\+0x[0-9a-f]+/0x"
    r"|WARNING: (possible|suspicious|inconsistent|bad unlock|held lock) "
    r"|BUG: ([Kk]ernel NULL pointer|[Uu]nable to handle|sleeping function|scheduling while atomic)"
    r"|BUG: (Bad page (state|map) in|Bad rss-counter state|non-zero pgtables_bytes|workqueue lock)"
    r"|BUG: (KASAN|KCSAN|KFENCE|KMSAN): [a-z][a-z: -]+ in \S"
    r"|BUG: (spinlock|rwlock) [A-Za-z ]+ on CPU#\d"
    r"|BUG: using [a-z_()]+ in preemptible"
    r"|BUG: stack guard page was hit"
    r"|(watchdog: )?BUG: soft lockup - CPU#\d"
    r"|(NMI )?watchdog: Watchdog detected hard LOCKUP"
    r"|kernel BUG at \S+:\d+!"
    r"|Oops: [0-9a-f]{4,16} [a-z0-9: ]*\[#\d+\] [A-Z]"
    r"|Oops: [a-z][a-z0-9 ]+: [0-9a-f]{4} \[#\d+\]"
    r"|Oops: [A-Z][a-z ]+, sig: \d"
    r"|(Oops: )?general protection fault(, [a-z]|: [0-9a-f]{4} )"
    r"|Internal error: [\w :/-]+ \[#\d+\]"
    r"|UBSAN: [a-z-]+ in \S+:\d+:\d"
    r"|KASAN: [a-z -]+ in range \[0x"
    r"|[Uu]nable to handle kernel "
    r"|Kernel panic - not syncing"
    r"|(rcu: )?INFO: task \S+ blocked for more than \d"
    r"|(rcu: )?(INFO: )?rcu_\w+ (self-)?detected (expedited )?stall"
    r"|INFO: (possible (recursive|circular|irq)|trying to register non-static)"
    r"|\w+: '[\w-]+'->init suspiciously returned"
)
_TRACE = re.compile(r"Call [Tt]race:\s*$")
# Symbol+offset, after addresses on some architectures: arch/*/kernel/{dumpstack,stacktrace}.c
_FRAME = re.compile(r"[\s(]*(\[<?[0-9a-f]{8,16}>?\]\s*)*(\? )?[\w.$]+\+0x[0-9a-f]+/0x[0-9a-f]+")
# Longer than any process name, so only the kernel can begin a record with them (lib/bug.c).
_MARK = re.compile(r"-{12}\[ cut here \]-{12}|---\[ end trace [0-9a-f]{16} \]---")
_TRACE_REACH = 80  # lines between the head line of a splat and its call trace
_FRAMES_BEGIN = 8  # lines after `Call Trace:`; one of them must be a frame that begins a record

# These messages come with a trace too but are not kernel faults: memory is exhausted, which any pod
# can cause at its own limit. A load that fails because of it reports its own error.
_MEMORY = re.compile(r"invoked oom-killer: gfp_mask=|: page allocation failure: order:")


def find_splats(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the head line of every kernel splat, without its time.

    A call trace without a known head line counts too (dump_stack). The taint message of an
    out-of-tree or unsigned module does not count.
    """
    heads = []
    covered = 0
    for number, line in enumerate(lines):
        covered -= 1
        text = _record_text(lines, number)
        is_head = _is_longer_than_a_name(_HEADS.match(text))
        if _MEMORY.search(line):
            covered = _TRACE_REACH
        elif is_head or (covered <= 0 and _is_trace(lines, number)):
            heads.append(text)
            covered = _TRACE_REACH
    # Records of the same microsecond look like one, so a head line may look like a continuation.
    marks = (text for n in range(len(lines)) if _MARK.match(text := _record_text(lines, n)))
    return tuple(heads) or tuple(islice(marks, 1))


# A frame in a module; newer kernels print its build id (kernel/kallsyms.c).
_MODULE_FRAME = re.compile(
    r"(?<![\w.])(?P<place>[\w.]+\+0x[0-9a-f]+/0x[0-9a-f]+) \[(?P<module>\w+)( [0-9a-f]{16,64})?\]"
)


def find_module_frame(lines: Sequence[str], modules: Collection[str]) -> str:
    """Return the first frame of a call trace that is in one of these modules; "" if none is.

    A frame that the kernel is not sure of (`?`) does not count.
    """
    for line in lines:
        found = _MODULE_FRAME.search(line)
        if found and found["module"] in modules and "? " not in line[: found.start()][-2:]:
            return f"{found['place']} [{found['module']}]"
    return ""


def _record_text(lines: Sequence[str], number: int) -> str:
    """Return the text of a line that begins a record; "" if it continues the previous record.

    Without timestamps (printk.time=0), every line counts as the beginning of a record.
    """
    line = lines[number]
    time = _TIME.match(line)
    if time and number and lines[number - 1].startswith(time[0].rstrip()):
        return ""
    return line[time.end() :] if time else line


def _is_trace(lines: Sequence[str], number: int) -> bool:
    if not _TRACE.match(_record_text(lines, number)):
        return False
    following = range(number + 1, min(number + 1 + _FRAMES_BEGIN, len(lines)))
    return any(_is_longer_than_a_name(_FRAME.match(_record_text(lines, n))) for n in following)


def _is_longer_than_a_name(match: re.Match[str] | None) -> bool:
    return match is not None and match.end() > _NAME_LENGTH


def _read_kmsg(path: Path) -> str:
    """Read all current records, without waiting for more."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return b"".join(_read_records(lambda: os.read(fd, _KMSG_RECORD))).decode(errors="replace")
    finally:
        os.close(fd)


def _read_records(read: Callable[[], bytes]) -> Iterable[bytes]:
    for _ in range(_KMSG_RECORDS):
        try:
            data = read()
        except BrokenPipeError:  # records were overwritten meanwhile: continue with the oldest
            continue
        except BlockingIOError:
            return
        if not data:
            return
        yield data
