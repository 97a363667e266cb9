"""PID 1 of the throwaway node: starts processes and containers for the host, and reaps them.

It speaks JSON lines over a virtio serial port. The host sends `op`, and the `id` it refers to:

    start   argv env cwd pty container join    a process on the node, in a new container, or in
                                               the container of the process `join`
    signal  signal                             to the process (the first one of its container)
    input   data                               base64 for its standard input; null closes it
    resize  rows columns                       of its terminal
    write   path data mode append              a file of the node
    read    path                               a file of the node, as `data` and `done`
    power-off                                  sync, and off

The agent sends `event` and `id`: `hello` once, `started`, `output` and `errors` (the process's
standard output and error in base64), `exit` (negative for a signal), `data`, `done`, `failed`
(message).
"""

from __future__ import annotations

import base64
import fcntl
import functools
import json
import os
import pty
import selectors
import signal
import socket
import struct
import termios
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from nodeside.system import process
from nodeside.trial.machine.guest import PORT
from nodeside.trial.machine.guest import syscalls as sc
from nodeside.trial.machine.guest.container import GuestContainer

_CHUNK = 1 << 16
_KERNEL_FILE_SYSTEMS = {
    "securityfs": "/sys/kernel/security",
    "debugfs": "/sys/kernel/debug",
    "tracefs": "/sys/kernel/tracing",
}
_SHM = "/dev/shm"  # noqa: S108  # the one place where POSIX shared memory can be
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)


@dataclass
class Child:
    """A process that the host started. `open` maps its streams to their descriptors until EOF.

    `terminal`: its output comes from a terminal, whose agent's end is `input`. `input` is -1 once
    it is closed. `entered` is the end of a pipe that the child holds until its exec, -1 after that.
    """

    pid: int
    input: int
    open: dict[str, int]
    terminal: bool
    container: GuestContainer | None
    owns_container: bool
    entered: int
    exit_code: int | None = None


@dataclass
class GuestAgent:
    """The event loop: requests from the port, output of children, deaths of children."""

    port: int
    children: dict[int, Child] = field(default_factory=dict)
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    unread: bytes = b""

    def serve(self) -> NoReturn:
        os.set_inheritable(self.port, False)
        wake, wake_write = os.pipe()
        for fd in (wake, wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector.register(self.port, selectors.EVENT_READ, self._on_port)
        self.selector.register(wake, selectors.EVENT_READ, lambda: os.read(wake, 4096))
        self._send_hello()
        while True:
            for key, _ in self.selector.select():
                key.data()
            self._reap_children()

    def send(self, event: str, **fields: object) -> None:
        data = (json.dumps({"event": event, **fields}) + "\n").encode()
        while data:
            data = data[os.write(self.port, data) :]

    def _send_hello(self) -> None:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.send("hello", boot_id=boot_id, kernel=os.uname().release)

    def _on_port(self) -> None:
        self.unread += os.read(self.port, _CHUNK)
        *lines, self.unread = self.unread.split(b"\n")
        for line in lines:
            if line:
                self._handle_request(json.loads(line))

    def _handle_request(self, request: Mapping[str, Any]) -> None:
        operation = getattr(self, "do_" + request["op"].replace("-", "_"))
        try:
            operation(**{key: value for key, value in request.items() if key != "op"})
        except Exception as exc:
            self.send("failed", id=request.get("id", 0), message=f"{type(exc).__name__}: {exc}")

    # --- what the host may ask for

    def do_start(
        self,
        *,
        id: int,
        argv: list[str],
        env: Mapping[str, str],
        cwd: str,
        pty: bool = False,
        container: Mapping[str, Any] | None = None,
        join: int | None = None,
    ) -> None:
        room = self._container_to_enter(id, container, join)
        joined = None if join is None else self.children[join].pid
        child = _spawn_child(argv, room, joined, env=env, cwd=cwd, terminal=pty)
        self.children[id] = child
        for stream, fd in child.open.items():
            on_data = functools.partial(self._on_output, id, stream)
            self.selector.register(fd, selectors.EVENT_READ, on_data)
        self.selector.register(
            child.entered, selectors.EVENT_READ, functools.partial(self._on_entered, id)
        )

    def do_signal(self, id: int, signal: int) -> None:
        if id in self.children and self.children[id].exit_code is None:
            with suppress(ProcessLookupError):
                os.kill(self.children[id].pid, signal)

    def do_input(self, id: int, data: str | None) -> None:
        child = self.children.get(id)
        if child is None or child.input < 0:
            return
        if data is None:
            os.close(child.input)
            child.input = -1
            return
        with suppress(BrokenPipeError):
            os.write(child.input, base64.b64decode(data))

    def do_resize(self, id: int, rows: int, columns: int) -> None:
        if id in self.children and self.children[id].terminal:
            size = struct.pack("HHHH", rows, columns, 0, 0)
            fcntl.ioctl(self.children[id].input, termios.TIOCSWINSZ, size)

    def do_write(self, id: int, path: str, data: str, mode: int, append: bool) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab" if append else "wb") as file:
            file.write(base64.b64decode(data))
            os.fchmod(file.fileno(), mode)
        self.send("done", id=id)

    def do_read(self, id: int, path: str) -> None:
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK):
                self.send("data", id=id, data=base64.b64encode(chunk).decode())
        self.send("done", id=id)

    def do_power_off(self, id: int) -> None:
        """Power off with a clean file system. No process is left that could write to it."""
        self.send("done", id=id)
        os.kill(-1, signal.SIGKILL)
        os.sync()
        with suppress(OSError):  # a process may not be dead yet; the journal takes care of it
            sc.mount("none", "/", flags=sc.MS_REMOUNT | sc.MS_RDONLY)
        sc.power_off()

    # --- children

    def _container_to_enter(
        self, id: int, spec: Mapping[str, Any] | None, join: int | None
    ) -> tuple[GuestContainer | None, bool]:
        """Return the container that the process enters, and whether it is the first one there."""
        if join is not None:
            return self.children[join].container, False
        if spec is None:
            return None, False
        container = GuestContainer.on_node(id, spec)
        container.prepare()
        return container, True

    def _on_entered(self, id: int) -> None:
        """Report the start: the child's end of this pipe closed at its exec, or it is dead."""
        child = self.children[id]
        self.selector.unregister(child.entered)
        os.close(child.entered)
        child.entered = -1
        self.send("started", id=id, pid=child.pid)
        self._report_end(id)

    def _on_output(self, id: int, stream: str) -> None:
        child = self.children[id]
        fd = child.open[stream]
        try:
            data = os.read(fd, _CHUNK)
        except OSError:  # EIO: the last process left the terminal
            data = b""
        if data:
            self.send(stream, id=id, data=base64.b64encode(data).decode())
            return
        self.selector.unregister(fd)
        del child.open[stream]
        if not child.terminal:
            os.close(fd)
        self._report_end(id)

    def _reap_children(self) -> None:
        """Reap every dead child, our own or an orphan that PID 1 adopted."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for number, child in list(self.children.items()):
                if child.pid == pid:
                    child.exit_code = os.waitstatus_to_exitcode(status)
                    self._report_end(number)

    def _report_end(self, id: int) -> None:
        """Report the end of a process once all its output has been read."""
        child = self.children[id]
        if child.exit_code is None or child.open or child.entered >= 0:
            return
        if child.input >= 0:
            os.close(child.input)
        if child.container is not None and child.owns_container:
            child.container.remove()
        del self.children[id]
        self.send("exit", id=id, code=child.exit_code)


def _spawn_child(
    argv: list[str],
    room: tuple[GuestContainer | None, bool],
    join: int | None,
    *,
    env: Mapping[str, str],
    cwd: str,
    terminal: bool,
) -> Child:
    """Fork a child that enters its container and becomes `argv`."""
    container, first = room
    inner, outer_in, streams = _open_channels(terminal)
    entered, entering = os.pipe()
    pidfd = None if join is None else os.pidfd_open(join)

    def become() -> None:
        os.setsid()
        _take_channels(inner, terminal)
        words = argv
        if container is not None:
            if first:
                container.enter_new()
            elif pidfd is not None:
                container.enter_existing(pidfd)
            words = container.wrap_command(argv)
        os.chdir(cwd)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, *_IGNORED):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(words[0], words, dict(env))  # noqa: S606  # there is no shell on purpose

    own_pids = container is not None and first and not container.spec["host_pids"]
    pid = _fork_into(become, own_pids=own_pids, pidfd=pidfd)
    for fd in {*inner, *([] if pidfd is None else [pidfd])}:
        os.close(fd)
    os.close(entering)
    return Child(pid, outer_in, streams, terminal, container, first, entered)


def _open_channels(terminal: bool) -> tuple[tuple[int, int, int], int, dict[str, int]]:
    """Return the child's three descriptors, and the agent's ends for writing and for reading."""
    if terminal:
        master, slave = pty.openpty()
        return (slave, slave, slave), master, {"output": master}
    stdin, outer_in = os.pipe()
    outer_out, stdout = os.pipe()
    outer_errors, stderr = os.pipe()
    return (stdin, stdout, stderr), outer_in, {"output": outer_out, "errors": outer_errors}


def _take_channels(inner: tuple[int, int, int], terminal: bool) -> None:
    for number, fd in enumerate(inner):
        os.dup2(fd, number)
    if terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _fork_into(become: Callable[[], None], *, own_pids: bool, pidfd: int | None) -> int:
    """Fork into a new PID namespace, into a container's, or into this one.

    unshare and setns change the namespace of later children only, so this can be reverted.
    """
    if own_pids:
        sc.unshare(sc.CLONE_NEWPID)
    elif pidfd is not None:
        sc.setns(pidfd, sc.CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        try:
            become()
        except BaseException as exc:
            text = traceback.format_exc() if not isinstance(exc, OSError) else f"{exc}\n"
            os.write(2, f"agent: {text}".encode())
        os._exit(127)
    if own_pids or pidfd is not None:
        here = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        sc.setns(here, sc.CLONE_NEWPID)
        os.close(here)
    return pid


def _prepare_node() -> None:
    """Do what an init system does before it starts anything."""
    socket.sethostname("trial")
    sc.mount("cgroup2", "/sys/fs/cgroup", "cgroup2")
    with suppress(OSError):
        Path("/sys/fs/cgroup/cgroup.subtree_control").write_text("+cpu +memory +pids")
    for path in ("/dev/pts", _SHM, "/run/nodeside", "/run/nodeside-locks"):
        Path(path).mkdir(exist_ok=True)
    sc.mount("devpts", "/dev/pts", "devpts", options="ptmxmode=0666,mode=0620")
    sc.mount("tmpfs", _SHM, "tmpfs", options="mode=1777")
    for kind, path in _KERNEL_FILE_SYSTEMS.items():
        with suppress(OSError):  # lockdown may refuse one
            sc.mount(kind, path, kind)


def _start_network() -> None:
    """Start the loopback and, if the machine has one, QEMU's user network. The host is 10.0.2.2."""
    commands = ["ip link set lo up"]
    if "nodeside.network=1" in Path("/proc/cmdline").read_text().split():
        commands += [
            "ip address add 10.0.2.15/24 dev eth0",
            "ip link set eth0 up",
            "ip route add default via 10.0.2.2",
        ]
    for command in commands:
        process.run(["/bin/busybox", *command.split()], timeout=10)


def open_port() -> int:
    """Open the agent's end of the connection to the host."""
    for directory in Path("/sys/class/virtio-ports").iterdir():
        if (directory / "name").read_text().strip() == PORT:
            return os.open(f"/dev/{directory.name}", os.O_RDWR | os.O_CLOEXEC)
    raise SystemExit(f"no virtio port named {PORT}")


def main() -> NoReturn:
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    _prepare_node()
    _start_network()
    GuestAgent(open_port()).serve()
