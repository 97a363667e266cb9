"""A driver container whose Python has imported everything before the first command.

Most of what `nodeside driver ...` takes in an emulated machine is the start of Python. Here it is
paid for once, and every command is a process forked from there: the same program with the same
arguments, environment and rights, in a container that goes on living. What a command sees of the
node is what was mounted when the container was started.

A command may also be begun, so that it can be killed: what it says on its standard error comes over
that of the container.
"""

from __future__ import annotations

import base64
import json
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from nodeside.errors import DeadlinePassed
from nodeside.system.process import Completed
from nodeside.trial.machine.containers import DRIVER
from nodeside.trial.machine.machine import GuestProcess, Machine, OnLine
from tests.patience import patience

_SECONDS = patience(600.0)  # for what takes a moment
_LOOK = 1.0  # seconds between two looks whether the machine is still there
_PROGRAM = "/usr/local/bin/nodeside"
_SERVER = f"""
import base64, gc, importlib, json, os, pkgutil, sys, tempfile
sys.path.insert(0, "/opt/nodeside")
import nodeside.driver, pyudev, requests, yaml
from nodeside.cli import main
for module in pkgutil.walk_packages(nodeside.driver.__path__, "nodeside.driver."):
    importlib.import_module(module.name)
gc.freeze()

def content(file):
    file.seek(0)
    return base64.b64encode(file.read()).decode()

def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

for line in iter(sys.stdin.readline, ""):
    wanted = json.loads(line)
    if pid := wanted.get("await"):
        print(json.dumps({{"code": ended(pid)}}), flush=True)
        continue
    if pid := wanted.get("kill"):
        os.kill(pid, wanted["signal"])
        print(json.dumps({{}}), flush=True)
        continue
    output, errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    if (pid := os.fork()) == 0:
        streams = [open(os.devnull), output] + [errors] * (not wanted["begin"])
        for number, file in enumerate(streams):
            os.dup2(file.fileno(), number)
        os.environ.clear()
        os.environ.update(wanted["env"])
        sys.argv = ["{_PROGRAM}", *wanted["words"]]
        break
    if wanted["begin"]:
        answer = {{"pid": pid}}
    else:
        answer = {{"code": ended(pid), "output": content(output), "errors": content(errors)}}
    print(json.dumps(answer), flush=True)
else:
    sys.exit()
main()
"""


class WarmDriver:
    """One such container on a machine: started by the first command, one command at a time."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.server: GuestProcess | None = None
        self._answers: list[str] = []
        self._on_error: OnLine | None = None
        self._more = threading.Condition()

    def run(self, words: Sequence[str], env: Mapping[str, str], timeout: float) -> Completed:
        """`nodeside` with these words, to its end."""
        began = time.monotonic()
        answer = self.ask(timeout, words=list(words), env={**DRIVER.env, **env}, begin=False)
        return Completed(
            ("nodeside", *words),
            answer["code"],
            _text(answer["output"]),
            _text(answer["errors"]),
            time.monotonic() - began,
        )

    def begin(
        self, words: Sequence[str], env: Mapping[str, str], on_error: OnLine, timeout: float
    ) -> WarmProcess:
        """`nodeside` with these words, which goes on running. One at a time."""
        self._on_error = on_error
        answer = self.ask(timeout, words=list(words), env={**DRIVER.env, **env}, begin=True)
        return WarmProcess(self, ("nodeside", *words), answer["pid"])

    def ask(self, timeout: float, **request: object) -> dict[str, Any]:
        """Ask the container for something. Raises MachineLost, DeadlinePassed."""
        if self.server is None:
            self.server = self.machine.start(
                ["python3", "-c", _SERVER], "driver", on_line=self._take, on_error=self._hear
            )
        self.server.write((json.dumps(request) + "\n").encode())
        answer: dict[str, Any] = json.loads(self._answer(self.server, time.monotonic() + timeout))
        return answer

    def adopt(self, server: GuestProcess) -> None:
        """Go on with such a container, which was there when the machine was saved."""
        self.server = self.machine.adopt(server, on_line=self._take, on_error=self._hear)

    def end(self) -> None:
        """Whatever is next is in a new container."""
        if self.server is not None:
            server, self.server = self.server, None
            server.kill()
            server.wait(_SECONDS)

    def _hear(self, line: str) -> None:
        if self._on_error is not None:
            self._on_error(line)

    def _take(self, line: str) -> None:
        with self._more:
            self._answers.append(line)
            self._more.notify_all()

    def _answer(self, server: GuestProcess, until: float) -> str:
        """The next line that the server says. Raises MachineLost, DeadlinePassed."""
        with self._more:
            while not self._more.wait_for(lambda: self._answers, _LOOK):
                assert server.poll() is None, f"the warm container ended: {server.errors}"
                if time.monotonic() > until:
                    raise DeadlinePassed("a command in the warm container did not end in time")
            return self._answers.pop(0)


class WarmProcess:
    """A command that was begun."""

    def __init__(self, driver: WarmDriver, argv: tuple[str, ...], pid: int) -> None:
        self.argv = argv
        self.pid = pid
        self._driver = driver
        self._code: int | None = None

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal."""
        if self._code is None:
            self._driver.ask(_SECONDS, kill=self.pid, signal=int(number))

    def wait(self, timeout: float) -> Completed:
        """Wait for its end. What it has said went to `on_error`."""
        if self._code is None:
            self._code = self._driver.ask(timeout, **{"await": self.pid})["code"]
        return Completed(self.argv, self._code, "", "", 0.0)


def _text(data: str) -> str:
    return base64.b64decode(data).decode(errors="replace")
