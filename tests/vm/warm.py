"""A driver container whose Python has imported everything before the first command.

Most of what `nodeside driver ...` takes in an emulated machine is the start of Python. Here it is
paid for once, and every command is a process forked from there: the same program with the same
arguments, environment and rights, in a container that goes on living. What a command sees of the
node is what was mounted when the container was started.
"""

from __future__ import annotations

import base64
import json
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nodeside.errors import DeadlinePassed
from nodeside.system.process import Completed
from nodeside.trial.machine.containers import DRIVER
from nodeside.trial.machine.machine import GuestProcess, Machine

_LOOK = 1.0  # seconds between two looks whether the machine is still there
_PROGRAM = "/usr/local/bin/nodeside"
_SERVER = f"""
import base64, gc, importlib, json, os, pkgutil, selectors, signal, sys
sys.path.insert(0, "/opt/nodeside")
import nodeside.driver, pyudev, requests, yaml
from nodeside.cli import main
for module in pkgutil.walk_packages(nodeside.driver.__path__, "nodeside.driver."):
    importlib.import_module(module.name)
gc.freeze()

selector = selectors.DefaultSelector()
running = {{}}  # by the number of a command: its process, and its streams that are open

def say(**event):
    sys.stdout.write(json.dumps(event) + "\\n")
    sys.stdout.flush()

def pass_on(number, stream):
    _, streams = running[number]
    try:
        while data := os.read(streams[stream], 65536):
            say(number=number, stream=stream, data=base64.b64encode(data).decode())
    except BlockingIOError:
        return
    close(number, stream)

def close(number, stream):
    descriptor = running[number][1].pop(stream)
    selector.unregister(descriptor)
    os.close(descriptor)

def end(number, descriptor):
    pid, streams = running[number]
    selector.unregister(descriptor)
    os.close(descriptor)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for stream in list(streams):
        pass_on(number, stream)
    for stream in list(streams):
        close(number, stream)  # a process that the command has left behind holds it
    del running[number]
    say(number=number, code=code)

def is_child(wanted):
    pipes = {{stream: os.pipe() for stream in ("output", "errors")}}
    if (pid := os.fork()) == 0:
        files = (os.open(os.devnull, os.O_RDONLY), *(write for _, write in pipes.values()))
        for place, file in enumerate(files):
            os.dup2(file, place)
        os.environ.clear()
        os.environ.update(wanted["env"])
        sys.argv = ["{_PROGRAM}", *wanted["words"]]
        return True
    number, streams = wanted["number"], {{}}
    running[number] = pid, streams
    for stream, (read, write) in pipes.items():
        os.close(write)
        os.set_blocking(read, False)
        streams[stream] = read
        selector.register(read, selectors.EVENT_READ, (pass_on, number, stream))
    ended = os.pidfd_open(pid)
    selector.register(ended, selectors.EVENT_READ, (end, number, ended))
    return False

def requests_come():
    unread = b""
    selector.register(0, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.data is None:
                if not (data := os.read(0, 65536)):
                    sys.exit()
                *lines, unread = (unread + data).split(b"\\n")
                yield from map(json.loads, lines)
            elif key in selector.get_map().values():  # not closed by an event before it
                function, *words = key.data
                function(*words)

for wanted in requests_come():
    if "words" not in wanted:
        if wanted["number"] in running:
            os.kill(running[wanted["number"]][0], wanted["signal"])
    elif is_child(wanted):
        break
main()
"""


class WarmProcess:
    """A command in the warm container."""

    def __init__(self, driver: WarmDriver, words: Sequence[str], number: int) -> None:
        self.words = tuple(words)
        self.number = number
        self._driver = driver
        self._data = {"output": bytearray(), "errors": bytearray()}
        self._code: int | None = None
        self._began = time.monotonic()
        self._more = threading.Condition()
        self._line = bytearray()
        self.on_error: Callable[[str], None] | None = None

    @property
    def output(self) -> str:
        return self._data["output"].decode(errors="replace")

    @property
    def errors(self) -> str:
        return self._data["errors"].decode(errors="replace")

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the command, not to what it has started."""
        self._driver.send({"number": self.number, "signal": int(number)})

    def wait(self, timeout: float) -> Completed:
        """Wait for the end. Raises MachineLost, DeadlinePassed."""
        until = time.monotonic() + timeout
        with self._more:
            while not self._more.wait_for(lambda: self._code is not None, _LOOK):
                self._driver.require()
                if time.monotonic() > until:
                    raise DeadlinePassed("a command in the warm container did not end in time")
            assert self._code is not None
        elapsed = time.monotonic() - self._began
        return Completed(("nodeside", *self.words), self._code, self.output, self.errors, elapsed)

    def take(self, event: Mapping[str, Any]) -> None:
        """Take what the container says of this command."""
        with self._more:
            if "code" in event:
                self._code = int(event["code"])
                self._more.notify_all()
                return
            data = base64.b64decode(event["data"])
            self._data[event["stream"]] += data
        if event["stream"] == "errors" and self.on_error is not None:
            *lines, rest = (self._line + data).split(b"\n")
            self._line = bytearray(rest)
            for line in lines:
                self.on_error(line.decode(errors="replace"))


class WarmDriver:
    """One such container on a machine, started by the first command."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.server: GuestProcess | None = None
        self._commands: dict[int, WarmProcess] = {}

    def run(self, words: Sequence[str], env: Mapping[str, str], timeout: float) -> Completed:
        """`nodeside` with these words, to its end."""
        return self.start(words, env).wait(timeout)

    def start(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        *,
        on_error: Callable[[str], None] | None = None,
    ) -> WarmProcess:
        """`nodeside` with these words. `on_error` gets the lines of its standard error."""
        if self.server is None:
            self.server = self.machine.start(
                ["python3", "-c", _SERVER], "driver", on_line=self._take
            )
        number = len(self._commands)
        command = self._commands[number] = WarmProcess(self, words, number)
        command.on_error = on_error
        self.send({"number": number, "words": list(words), "env": {**DRIVER.env, **env}})
        return command

    def adopt(self, server: GuestProcess) -> None:
        """Go on with such a container, which was there when the machine was saved."""
        self.server = self.machine.adopt(server, on_line=self._take)

    def end(self) -> None:
        """Whatever is next is in a new container."""
        if self.server is not None:
            server, self.server = self.server, None
            server.kill()
            server.wait(600)

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request to the container, if it has not ended."""
        if self.server is not None:
            self.server.write((json.dumps(request) + "\n").encode())

    def require(self) -> None:
        """Fail if the container has ended. Raises MachineLost."""
        assert self.server is not None, "the warm container was ended"
        assert self.server.poll() is None, f"the warm container ended: {self.server.errors}"

    def _take(self, line: str) -> None:
        event = json.loads(line)
        self._commands[event["number"]].take(event)
