"""Opens the shell of `--keep`: connects this terminal to a shell in a container of the machine.

The shell is for an engineer. It runs as root, with the node's devices and processes, in a copy of
the driver image whose source can be edited, built by the pod's toolkit container, and loaded.
"""

from __future__ import annotations

import os
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
from nodeside.trial.machine.containers import EDITED_IMAGE, IMAGE_ON_NODE, SHELL, TOOLKIT_UID
from nodeside.trial.machine.machine import GuestProcess, Machine

_COPY_SECONDS = 300.0
_LONGEST_SHELL = 7 * 24 * 3600.0  # seconds

# `toolkit` enters the container of the process $TOOLKIT, as the user of its builds.
_START = rf"""
cat <<'END'
A shell as root, with the node's devices and processes. The driver image is here, to be edited:
    vi FILE                      or another tool of busybox
    nodeside driver build        in the toolkit container{{slow}}; then: nodeside driver load
    toolkit [COMMAND ...]        a shell or a command in the toolkit container, where builds are
What you have edited is kept as a patch.
END
toolkit() {{
    test $# != 0 || set -- bash --norc
    nsenter --target "$TOOLKIT" --mount --uts --ipc --net --pid --cgroup \
        --setuid {TOOLKIT_UID} --setgid {TOOLKIT_UID} \
        env --chdir /shared/out PS1='toolkit:\w\$ ' HOME=/ "$@"
}}
export -f toolkit
export PS1='trial:\w\$ '  # set here, since a bash that runs a script drops PS1 from its environment
exec bash --norc  # Debian's bash.bashrc would set another PS1
"""


def require_terminal() -> None:
    """Raise UsageError if there is no terminal. To be called before minutes of work."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "--keep opens a shell and needs a terminal",
            hint="use --command to run something inside",
        )


def run_shell(machine: Machine, *, toolkit: int) -> None:
    """Connect this terminal to a shell until the shell ends.

    `toolkit` is the process ID of the toolkit container's first process.
    """
    machine.run(["cp", "-a", IMAGE_ON_NODE, EDITED_IMAGE], "node", timeout=_COPY_SECONDS)
    # Edits must reach the disk soon, since the edited driver may crash the kernel.
    machine.start(["sh", "-c", "while sync; do sleep 1; done"], "node")
    emulated = machine.settings.accelerator == "tcg"
    script = _START.replace("{slow}", ", emulated: it takes a minute" if emulated else "")
    child = machine.start(
        ["bash", "-c", script],
        SHELL,
        cwd="/driver-image",
        env={"TERM": os.environ.get("TERM", "linux"), "TOOLKIT": str(toolkit)},
        terminal=True,
        on_data=_show_bytes,
    )
    ended = threading.Event()

    def watch() -> None:
        with suppress(Exception):
            child.wait(_LONGEST_SHELL)
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    with _raw_terminal(), _follow_terminal_size(child):
        while not ended.is_set():
            if select([sys.stdin], [], [], 0.1)[0]:
                child.write(os.read(sys.stdin.fileno(), 4096))


def make_patch_of_edits(machine: Machine) -> str:
    """Return what was edited in the shell, as a patch for the driver image."""
    script = (
        f"cd {EDITED_IMAGE} && cd $(mktemp -d) && "
        f"ln -s {IMAGE_ON_NODE} a && ln -s {EDITED_IMAGE} b && diff -ruN a b"
    )
    done = machine.run(["sh", "-c", script], "node", timeout=_COPY_SECONDS, check=False)
    return done.output


def _show_bytes(data: bytes) -> None:
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
def _follow_terminal_size(child: GuestProcess) -> Iterator[None]:
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
