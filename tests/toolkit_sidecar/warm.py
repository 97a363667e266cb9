"""Sidecars that are forked from one small Python, which has imported what a build imports.

To start one costs nothing then, whereas Python and what each worker imports take a tenth of a
second of a processor. What a sidecar imports, and when, is proven by tests of the supervisor; that
it starts as a program, by tests of its command line and of the program that is handed over.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from nodeside.system import process
from tests import TOP

_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_LOOK = 0.005  # seconds
_SERVER = """
import json, os, sys, time
import ctypes, hashlib, subprocess
import nodeside.toolkit_sidecar.builder, nodeside.toolkit_sidecar.sidecar
from nodeside.toolkit_sidecar.cli import main

for line in sys.stdin:
    words, env, output = json.loads(line)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        continue
    parent = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == parent:
        time.sleep(0.001)
    print(os.getpid(), flush=True)  # an orphan, whom the tests have adopted
    os.setsid()
    null, log = os.open(os.devnull, os.O_RDONLY), os.open(output, os.O_WRONLY | os.O_APPEND)
    for there, fd in ((null, 0), (log, 1), (log, 2)):
        os.dup2(there, fd)
    os.closerange(3, 1024)
    os.environ.clear()
    os.environ.update(env)
    code = 1
    try:
        code = main(words)
    except SystemExit as exc:
        code = exc.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
"""


class WarmChild:
    """A sidecar, with what a test asks of a process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the sidecar {self.pid} goes on after {timeout:g} s")
            time.sleep(_LOOK)
        return code

    def send_signal(self, sig: signal.Signals) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start_sidecar(words: Sequence[str], env: Mapping[str, str], output: Path) -> WarmChild:
    """Start one whose output is appended to a file that is there."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    asked = [list(words), process.make_environment(env), str(output)]
    server.stdin.write(json.dumps(asked).encode() + b"\n")
    server.stdin.flush()
    return WarmChild(int(server.stdout.readline()))


@contextmanager
def no_orphans() -> Iterator[None]:
    """At the end, kill and reap what this process has adopted meanwhile.

    These are the workers of sidecars that were killed, and what their builds have started. Whether
    it lives is for a test to ask before the end.
    """
    before = children()
    try:
        yield
    finally:
        server = {_server().pid} if _server.cache_info().currsize else set()
        while left := children() - before - server:
            for pid in left:
                with suppress(ProcessLookupError, ChildProcessError):  # another thread reaped it
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)


def children() -> set[int]:
    """The children of this process, also those that have ended and were not reaped."""
    texts: list[str] = []
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # it has just ended
            texts.append((thread / "children").read_text())
    return {int(pid) for text in texts for pid in text.split()}


@cache
def _server() -> process.Child:
    """It ends with this process, which is its input's other end."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    argv = [sys.executable, "-S", "-c", _SERVER]
    pipe = subprocess.PIPE
    return process.start(argv, env={"PYTHONPATH": str(TOP)}, stdin=pipe, stdout=pipe)
