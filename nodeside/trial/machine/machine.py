"""One running machine: boot it, run commands in it, read and write its files, end it.

    with Machine(settings, files) as machine:
        machine.run(["uname", "-r"], where="node", timeout=10)

However the block ends, QEMU is gone after it. A kernel splat in the console's log is then an error,
unless splats are allowed.
"""

from __future__ import annotations

import base64
import io
import os
import re
import shlex
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Self

from nodeside.driver.node.kernel_log import find_splats
from nodeside.errors import DeadlinePassed
from nodeside.system import process
from nodeside.system.process import Completed, ToolError
from nodeside.trial.errors import MachineLost, TrialError
from nodeside.trial.machine import qemu
from nodeside.trial.machine.containers import KINDS, NODE_ENV, ContainerSpec
from nodeside.trial.machine.link import Conversation, MachineLink

_BOOT_SECONDS = 600.0  # a large kernel under emulation takes ten seconds on an idle machine
_ANSWER_SECONDS = 300.0  # for requests that the agent answers at once when it gets CPU time
_BOOTS = 3
_CHUNK = 1 << 18
_OUTPUT_BYTES = 64 << 20  # kept of a stream of the machine, and of a file read from it
_LINE_BYTES = 1 << 20
_CONSOLE_BYTES = 16 << 20  # read from the end of the console
_SPLATS = 100  # reported of one boot
_SHOWN = 1000  # characters of a line of the console

# The kernel patches itself while it boots. QEMU's emulation of several CPUs may run a breakpoint
# that the kernel has already removed. It happens once in hundreds of boots (linux-kernel, July
# 2023, "qemu-x86_64 booting with 8.0.0 stil see int3"), and is no fault of the kernel or of ours.
_STALE_BREAKPOINT = re.compile(r"\bint3: 0000 ")

OnLine = Callable[[str], None]
Where = str | ContainerSpec


class _Stream:
    """The output of a process on one stream: kept up to a limit, and passed on by lines."""

    def __init__(self, on_line: OnLine | None) -> None:
        self._data = bytearray()
        self._cut = 0
        self._on_line = on_line
        self._line = bytearray()  # what has not been passed on

    def __str__(self) -> str:
        text = self._data.decode(errors="replace")
        return f"{text}\n[... {self._cut} bytes cut]" if self._cut else text

    def add(self, data: bytes) -> None:
        room = _OUTPUT_BYTES - len(self._data)
        self._data += data[:room]
        self._cut += len(data[room:])
        if self._on_line is not None:
            self._line += data
            end = self._line.rfind(b"\n") + 1
            too_long = len(self._line) - end > _LINE_BYTES
            self._hand_over(self._on_line, len(self._line) if too_long else end)

    def whole(self, path: str) -> bytes:
        """Return the content of a file. Raises TrialError if it was cut."""
        if self._cut:
            raise TrialError(f"{path} in the machine is larger than {_OUTPUT_BYTES >> 20} MiB")
        return bytes(self._data)

    def end(self) -> None:
        if self._on_line is not None:
            self._hand_over(self._on_line, len(self._line))

    def _hand_over(self, on_line: OnLine, end: int) -> None:
        text = self._line[:end].decode(errors="replace")
        del self._line[:end]
        for line in text.splitlines():
            on_line(line)


class GuestProcess:
    """A process in the machine, with its `pid` on the node.

    In a container of its own it is PID 1, unless that has the node's processes.
    """

    def __init__(
        self,
        link: MachineLink,
        argv: Sequence[str],
        on_line: OnLine | None,
        on_error: OnLine | None,
    ) -> None:
        self.argv = tuple(argv)
        self._link = link
        self._streams = {"output": _Stream(on_line), "errors": _Stream(on_error)}
        self._code: int | None = None
        self._started = time.monotonic()
        self._talk: Conversation | None = None
        self.pid = 0
        self.on_data: Callable[[bytes], None] | None = None

    @property
    def output(self) -> str:
        """Return its standard output so far."""
        return str(self._streams["output"])

    @property
    def errors(self) -> str:
        """Return its standard error so far."""
        return str(self._streams["errors"])

    @property
    def id(self) -> int:
        return self._conversation.id

    def begin(self, **fields: object) -> None:
        """Start the process in the machine. `fields` are those of the agent's request."""
        self._talk = self._link.send_request(
            "start", argv=list(self.argv), on_data=self._take_output, **fields
        )
        started = self._link.await_event(
            self._talk, "started", _ANSWER_SECONDS, shlex.join(self.argv)
        )
        self.pid = int(started["pid"])

    def go_on(self, before: GuestProcess) -> None:
        """Take over the process that was begun as `before` over another connection."""
        self._talk = self._link.adopt_conversation(before.id, on_data=self._take_output)
        self.pid = before.pid

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal. As PID 1 of its container, the process may ignore all but SIGKILL."""
        self._link.send_about("signal", self._conversation, signal=int(number))

    def write(self, data: bytes | None) -> None:
        """Write to its standard input; None closes it."""
        encoded = None if data is None else base64.b64encode(data).decode()
        self._link.send_about("input", self._conversation, data=encoded)

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of its terminal."""
        self._link.send_about("resize", self._conversation, rows=rows, columns=columns)

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        with suppress(DeadlinePassed):
            return self.wait(0).exit_code
        return None

    def wait(self, timeout: float) -> Completed:
        """Wait for the end. Raises DeadlinePassed; the process then keeps running."""
        if self._code is None:
            event = self._link.await_event(
                self._conversation, "exit", timeout, shlex.join(self.argv)
            )
            self._code = int(event["code"])
            for stream in self._streams.values():
                stream.end()
            self._link.drop_conversation(self._conversation)
        elapsed = time.monotonic() - self._started
        return Completed(self.argv, self._code, self.output, self.errors, elapsed)

    @property
    def _conversation(self) -> Conversation:
        assert self._talk is not None
        return self._talk

    def _take_output(self, stream: str, data: bytes) -> None:
        self._streams[stream].add(data)
        if self.on_data is not None:
            self.on_data(data)


@dataclass
class _Running:
    qemu: process.Child
    link: MachineLink


class Machine:
    """A throwaway machine. `allow_splats`: kernel splats are not an error."""

    def __init__(
        self,
        settings: qemu.MachineSettings,
        files: qemu.MachineFiles,
        *,
        allow_splats: bool = False,
    ) -> None:
        self.settings = settings
        self.files = files
        self.allow_splats = allow_splats
        self.boot_id = ""
        self.boot_seconds = 0.0
        self._running: _Running | None = None
        self._exit_code = 0  # of the last QEMU that has ended

    def __enter__(self) -> Self:
        for boots_left in reversed(range(_BOOTS)):
            try:
                self._boot_qemu()
            except TrialError:
                if not (boots_left and self._emulation_failed()):
                    raise
            else:
                break
        return self

    def _boot_qemu(self) -> None:
        started = time.monotonic()
        ours, theirs = socket.socketpair()
        try:
            child = process.start(
                qemu.make_argv(self.settings, self.files, theirs.fileno()),
                stdout=open(self._qemu_log, "wb"),
                stderr=process.INTO_STDOUT,
                pass_fds=[theirs.fileno(), *self.settings.descriptors],
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._running = _Running(child, MachineLink(ours, self._why_lost))
        try:
            self._await_boot()
        except BaseException:
            self._stop_qemu()
            raise
        self.boot_seconds = time.monotonic() - started

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop_qemu()
        if kind is None and not self.allow_splats and (complaints := self.splats()):
            raise TrialError(
                "the machine's kernel complained:\n" + "\n".join(complaints),
                hint=f"the whole console: {self.files.serial}",
            )

    def await_agent(self) -> str:
        """Wait for the agent's first event; return the boot ID in it."""
        return str(self._link.await_hello(_BOOT_SECONDS)["boot_id"])

    # --- commands

    def start(
        self,
        argv: Sequence[str],
        where: Where = "driver",
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        on_line: OnLine | None = None,
        on_error: OnLine | None = None,
        join: GuestProcess | None = None,
        terminal: bool = False,
        on_data: Callable[[bytes], None] | None = None,
    ) -> GuestProcess:
        """Start a process on the `node`, or as the first one of a new container.

        With `join` it enters the container of that process instead, as `kubectl exec` does.
        `on_line` gets its standard output line by line, `on_error` its standard error, both in the
        link's thread.
        """
        spec = KINDS[where] if isinstance(where, str) else where
        kind_env = NODE_ENV if spec is None else spec.env
        child = GuestProcess(self._link, argv, on_line, on_error)
        child.on_data = on_data
        child.begin(
            env=dict(kind_env) | dict(env or {}),
            cwd=cwd,
            pty=terminal,
            container=None if spec is None or join is not None else asdict(spec),
            join=None if join is None else join.id,
        )
        return child

    def adopt(
        self,
        before: GuestProcess,
        *,
        on_line: OnLine | None = None,
        on_error: OnLine | None = None,
    ) -> GuestProcess:
        """Return a process that runs since before the machine was saved, if it was resumed."""
        child = GuestProcess(self._link, before.argv, on_line, on_error)
        child.go_on(before)
        return child

    def run(
        self,
        argv: Sequence[str],
        where: Where = "driver",
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        input: bytes | None = None,
        check: bool = True,
        on_line: OnLine | None = None,
        on_error: OnLine | None = None,
        join: GuestProcess | None = None,
    ) -> Completed:
        """Run a command to its end. Raises ToolError if `check` is set and the command failed."""
        child = self.start(
            argv, where, env=env, cwd=cwd, on_line=on_line, on_error=on_error, join=join
        )
        if input:
            child.write(input)
        child.write(None)
        try:
            done = child.wait(timeout)
        except BaseException:
            with suppress(MachineLost):
                child.kill()
            raise
        if check and done.exit_code != 0:
            raise ToolError(done)
        return done

    def write_file(self, path: str, data: bytes | IO[bytes], mode: int = 0o644) -> None:
        """Write a file of the node. An open file is read in pieces."""
        file = io.BytesIO(data) if isinstance(data, bytes) else data
        append = False
        while (piece := file.read(_CHUNK)) or not append:
            chunk = base64.b64encode(piece).decode()
            talk = self._link.send_request("write", path=path, data=chunk, mode=mode, append=append)
            self._link.await_event(talk, "done", _ANSWER_SECONDS, f"writing {path}")
            self._link.drop_conversation(talk)
            append = True

    def read_file(self, path: str) -> bytes:
        """Read a file of the node."""
        data = _Stream(None)
        talk = self._link.send_request("read", path=path, on_data=lambda _, chunk: data.add(chunk))
        self._link.await_event(talk, "done", _ANSWER_SECONDS, f"reading {path}")
        self._link.drop_conversation(talk)
        return data.whole(path)

    # --- the end

    def power_off(self, *, hard: bool = False) -> None:
        """Shut down. `hard` cuts the power, which loses unsynced data."""
        if hard:
            self._stop_qemu()
            return
        talk = self._link.send_request("power-off")
        self._link.await_event(talk, "done", _ANSWER_SECONDS, "power-off")
        self.await_off(_ANSWER_SECONDS)

    def await_off(self, timeout: float) -> None:
        """Wait until the machine switches itself off; cut the power after `timeout` seconds."""
        with suppress(process.StillRunning):
            self._qemu.wait(timeout=timeout)
        self._stop_qemu()

    def serial_log(self) -> str:
        """Return the console output of the kernel and the initramfs; the end of a long one."""
        return _end_of(self.files.serial)

    def splats(self) -> tuple[str, ...]:
        """Return the head lines of the kernel's complaints; only some of very many."""
        return tuple(_shorten_rows(find_splats(self.serial_log().splitlines())[:_SPLATS]))

    @property
    def _link(self) -> MachineLink:
        if self._running is None:
            raise MachineLost("the machine has been switched off")
        return self._running.link

    @property
    def _qemu(self) -> process.Child:
        assert self._running is not None
        return self._running.qemu

    def _await_boot(self) -> None:
        try:
            self.boot_id = self.await_agent()
        except MachineLost as exc:
            raise TrialError(
                f"the machine did not boot{self._why_lost()}",
                hint="try another accelerator: --accel tcg",
            ) from exc

    def _emulation_failed(self) -> bool:
        """Return whether a known emulator fault ended the boot; the next boot may not meet it."""
        emulated = self.settings.accelerator == "tcg" and self.settings.cpus > 1
        crashed = self._exit_code == -signal.SIGSEGV
        return emulated and (crashed or _STALE_BREAKPOINT.search(self.serial_log()) is not None)

    def _stop_qemu(self) -> None:
        """Make sure that QEMU is gone. Harmless if it already is."""
        if self._running is None:
            return
        running, self._running = self._running, None
        process.kill_group(running.qemu.pid)
        self._exit_code = running.qemu.wait()
        running.link.close()

    def _why_lost(self) -> str:
        """Return the end of the console and of QEMU's output, as an appendix to an error."""
        console, said = self.serial_log().splitlines(), _end_of(self._qemu_log).splitlines()
        rows = [*self.splats(), *_shorten_rows([*console[-12:], *said[-5:]])]
        rows.append(f"the whole console: {self.files.serial}")
        return "".join(f"\n    {row}" for row in rows if row.strip())

    @property
    def _qemu_log(self) -> Path:
        return self.files.serial.with_suffix(".qemu")


def _shorten_rows(rows: Sequence[str]) -> list[str]:
    return [row[:_SHOWN] for row in rows]


def _end_of(log: Path) -> str:
    """Return the end of a file that the machine can make arbitrarily long; "" without the file."""
    with suppress(OSError), open(log, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _CONSOLE_BYTES))
        return file.read(_CONSOLE_BYTES).decode(errors="replace")
    return ""
