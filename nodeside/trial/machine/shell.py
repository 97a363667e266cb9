"""A shell in the machine for `--keep`: connects this terminal to one in a container there."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from select import select

from nodeside.errors import UsageError
from nodeside.trial.machine.machine import GuestProcess, Machine

# Container → the shell's working directory, and the first line that it prints.
_PLACES = {
    "consumer": (
        "/driver-image",
        "This is a container with the devices of the node. nodeside driver --help",
    ),
    "toolkit": (
        "/shared/out",
        "This is the toolkit container, as the user of the build. The build's files are below.",
    ),
}


def require_terminal() -> None:
    """Raise UsageError if there is no terminal, before minutes of work rather than after."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "--keep opens a shell and needs a terminal",
            hint="use --command to run something inside",
        )


def interact(machine: Machine, where: str) -> None:
    """Connect this terminal to a shell in a container, "consumer" or "toolkit", until it ends."""
    directory, welcome = _PLACES[where]
    child = machine.start(
        # Debian's bashrc would set another prompt.
        ["bash", "-c", f"echo {shlex.quote(welcome)}; exec bash --norc"],
        where,
        cwd=directory,
        env={"TERM": os.environ.get("TERM", "linux"), "PS1": r"trial:\w\$ "},
        terminal=True,
        on_data=_show,
    )
    ended = threading.Event()

    def watch() -> None:
        with suppress(Exception):
            child.wait(timeout=7 * 24 * 3600)
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    with _raw_terminal(), _following_size(child):
        while not ended.is_set():
            if select([sys.stdin], [], [], 0.1)[0]:
                child.write(os.read(sys.stdin.fileno(), 4096))


def _show(data: bytes) -> None:
    os.write(sys.stdout.fileno(), data)


@contextmanager
def _raw_terminal() -> Iterator[None]:
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setraw(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextmanager
def _following_size(child: GuestProcess) -> Iterator[None]:
    """Set the size of the machine's terminal to this one's, now and on every change."""

    def tell(*_: object) -> None:
        size = shutil.get_terminal_size()
        child.resize(size.lines, size.columns)

    before = signal.signal(signal.SIGWINCH, tell)
    tell()
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
