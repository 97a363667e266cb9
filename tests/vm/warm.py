"""A driver container whose Python has imported everything before the first command.

Most of what `nodeside driver ...` takes in an emulated machine is the start of Python. Here it is
paid for once, and every command is a process forked from there: the same program with the same
arguments, environment and rights, in a container that goes on living. What a command sees of the
node is what was mounted when the container was started.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Mapping, Sequence

from nodeside.errors import DeadlinePassed
from nodeside.system.process import Completed
from nodeside.trial.machine.containers import DRIVER
from nodeside.trial.machine.machine import GuestProcess, Machine

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

for line in iter(sys.stdin.readline, ""):
    wanted = json.loads(line)
    output, errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    if (pid := os.fork()) == 0:
        for number, file in enumerate((open(os.devnull), output, errors)):
            os.dup2(file.fileno(), number)
        os.environ.clear()
        os.environ.update(wanted["env"])
        sys.argv = ["{_PROGRAM}", *wanted["words"]]
        break
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    answer = {{"code": code, "output": content(output), "errors": content(errors)}}
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
        self._more = threading.Condition()

    def run(self, words: Sequence[str], env: Mapping[str, str], timeout: float) -> Completed:
        """`nodeside` with these words, to its end."""
        if self.server is None:
            self.server = self.machine.start(
                ["python3", "-c", _SERVER], "driver", on_line=self._take
            )
        began = time.monotonic()
        request = {"words": list(words), "env": {**DRIVER.env, **env}}
        self.server.write((json.dumps(request) + "\n").encode())
        answer = json.loads(self._answer(self.server, began + timeout))
        return Completed(
            ("nodeside", *words),
            answer["code"],
            _text(answer["output"]),
            _text(answer["errors"]),
            time.monotonic() - began,
        )

    def adopt(self, server: GuestProcess) -> None:
        """Go on with such a container, which was there when the machine was saved."""
        self.server = self.machine.adopt(server, on_line=self._take)

    def end(self) -> None:
        """Whatever is next is in a new container."""
        if self.server is not None:
            server, self.server = self.server, None
            server.kill()
            server.wait(600)

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


def _text(data: str) -> str:
    return base64.b64decode(data).decode(errors="replace")
