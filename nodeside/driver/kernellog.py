"""What the kernel said since a certain moment, and whether it was a splat.

A `Mark` is the last records of the log at a moment; `since` gives the lines after it. Read by
syslog(2), which works in a container with CAP_SYSLOG, or by hand from /dev/kmsg, which a
container's device allow-list denies. Where neither works that is a value that says why: no load
fails for want of a log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nodeside.driver.syscalls import Syscalls
from nodeside.host import Host

_MARK_LINES = 8  # enough to tell places apart where printk.time=0 and lines repeat
_KMSG_RECORD = 8192  # bytes; one read(2) of /dev/kmsg gives one record, at most this long
_KMSG_RECORDS = 200_000  # a bound on a log that grows faster than it is read


@dataclass(frozen=True)
class Mark:
    """A moment in the kernel log: its last lines then, or why it could not be read."""

    lines: tuple[str, ...] = ()
    unreadable: str = ""


@dataclass(frozen=True)
class Excerpt:
    """Lines after a mark. `note` says what is wrong with them: log unreadable, mark lost."""

    lines: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class KernelLog:
    """The log of the running kernel."""

    host: Host
    syscalls: Syscalls

    def mark(self) -> Mark:
        """The present end of the log."""
        lines, unreadable = self._read()
        return Mark(tuple(lines[-_MARK_LINES:]), unreadable)

    def since(self, mark: Mark) -> Excerpt:
        """What was said after `mark`; if the mark has been overwritten, all there is."""
        lines, unreadable = self._read()
        if unreadable or mark.unreadable:
            return Excerpt(note=unreadable or mark.unreadable)
        return after(mark, lines)

    def _read(self) -> tuple[list[str], str]:
        """All lines, or none and why. Priorities are dropped, times kept."""
        try:
            return parse_syslog(self.syscalls.kernel_log()), ""
        except OSError as exc:
            denied = exc.strerror
        path = self.host.dev / "kmsg"
        try:
            return parse_kmsg(_read_kmsg(path)), ""
        except OSError as exc:
            return [], (
                f"kernel log not readable: syslog(2): {denied} (it takes CAP_SYSLOG); "
                f"{path}: {exc.strerror}"
            )


def parse_syslog(text: str) -> list[str]:
    """Lines of syslog(2) without their `<6>`."""
    return [re.sub(r"^<\d+>", "", line) for line in text.splitlines()]


def parse_kmsg(text: str) -> list[str]:
    """Records of /dev/kmsg as syslog(2) would show them, Documentation/ABI/testing/dev-kmsg."""
    lines = []
    for line in text.splitlines():
        head, separator, said = line.partition(";")
        fields = head.split(",")
        if separator and len(fields) >= 3 and fields[2].isdigit():
            seconds, micros = divmod(int(fields[2]), 1_000_000)
            lines.append(f"[{seconds:5d}.{micros:06d}] {said}")
    return lines


def after(mark: Mark, lines: Sequence[str]) -> Excerpt:
    """The lines that follow the marked ones, the last such place if they occur twice."""
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
    """Whether the marked lines stand before `end`; the oldest of them may be gone by now.

    The very last one may have been continued (pr_cont) after it was marked.
    """
    known = min(end, len(mark.lines))
    if not lines[end - 1].startswith(mark.lines[-1]):
        return False
    return tuple(lines[end - known : end - 1]) == mark.lines[len(mark.lines) - known : -1]


_TIME = re.compile(r"^\[\s*\d+\.\d+\](\[\s*[TC]\d+\])?\s?")
_TRACE = re.compile(r"^Call [Tt]race:")
_TRACE_REACH = 80  # lines between the head line of a splat and its call trace

# Heads of what the kernel prints when something is wrong with it: lib/bug.c, kernel/panic.c,
# mm/kasan, kernel/hung_task.c, kernel/rcu, arch/*/mm/fault.c. All begin a message, which a driver's
# own `edu: WARNING: cable unplugged` or `traps: a.out general protection fault` does not.
_HEADS = re.compile(
    r"^(WARNING: (CPU: \d|\S+:\d+ at |possible |suspicious |inconsistent |bad unlock|held lock)"
    r"|BUG: |watchdog: BUG: |kernel BUG at |Oops\b|Internal error: |UBSAN: |KASAN: "
    r"|general protection fault|[Uu]nable to handle |Kernel panic"
    r"|(rcu: )?INFO: (rcu_\w+|task \S+ blocked|possible |trying to register non-static)"
    r"|rcu: .*self-detected stall|.*->init suspiciously returned)"
)


def splats(lines: Iterable[str]) -> tuple[str, ...]:
    """The head line of every kernel splat, without its time.

    A call trace that belongs to no head known here counts too (dump_stack). That an out-of-tree
    or unsigned module taints the kernel is no splat.
    """
    found = []
    covered = 0
    for line in lines:
        text = _TIME.sub("", line)
        covered -= 1
        if _HEADS.match(text) or (_TRACE.match(text) and covered <= 0):
            found.append(text)
            covered = _TRACE_REACH
    return tuple(found)


def _read_kmsg(path: Path) -> str:
    """All records that are there now, without waiting for more."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return b"".join(_records(lambda: os.read(fd, _KMSG_RECORD))).decode(errors="replace")
    finally:
        os.close(fd)


def _records(read: Callable[[], bytes]) -> Iterable[bytes]:
    for _ in range(_KMSG_RECORDS):
        try:
            data = read()
        except BrokenPipeError:  # records were overwritten while we read: go on with the oldest
            continue
        except BlockingIOError:
            return
        if not data:
            return
        yield data
