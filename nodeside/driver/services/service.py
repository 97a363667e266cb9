"""One service while it runs: its process, its output, and whether it is ready."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from nodeside import log
from nodeside.driver.services import processes
from nodeside.driver.services.output import Output
from nodeside.errors import SystemRefused
from nodeside.spec.services import Service
from nodeside.system import process
from nodeside.system.clock import Clock
from nodeside.system.files import file_identity
from nodeside.system.regex_search import search_texts

_SETTLED = 1.0  # seconds after which a service without `ready` counts as ready
_SOCKETS = Path("/proc/net/unix")
_FIELDS, _LISTENS = 8, 1 << 16  # of a line; __SO_ACCEPTCON in the flags, include/linux/net.h


class RunningService:
    """A service that has been started. Raises NodesideError if its program cannot be started."""

    def __init__(self, driver: str, service: Service, clock: Clock) -> None:
        self.service = service
        self._driver, self._clock = driver, clock
        ready = service.ready
        self._file = Path(ready.file) if ready and ready.file else None
        self._file_before = file_identity(self._file) if self._file else None
        self._log_matched = False
        self.output = Output(service=service.name)
        self._child = process.start(
            service.command,
            env={**service.environment, **processes.mark_variables(driver, service.name)},
            stdout=process.PIPE,
            stderr=process.INTO_STDOUT,
            install=f"the command of service {service.name} is a program of the driver image",
        )
        self.started = clock.now()
        assert self._child.stdout is not None
        try:
            self.output.follow_pipe(self._child.stdout)
        except RuntimeError as error:  # no further thread
            self.stop()
            raise SystemRefused(f"cannot read its output: {error}", retryable=True) from error

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def has_ended(self) -> bool:
        code = self._child.poll()
        if code == 0 and self.service.forks:
            return not processes.find_running(self._driver, self.service.name).pids
        return code is not None

    def end_in_words(self) -> str:
        """Return how it ended, and its last lines."""
        how = process.exit_code_in_words(self._child.returncode)
        if self.service.forks and self._child.returncode == 0:
            how = f"no process is left with {processes.VARIABLE} in its environment"
        return f"{how}{self.output.last_lines()}"

    def why_not_ready(self) -> str:
        """Return why it is not ready, "" if it is. Raises SystemRefused for a slow expression."""
        ready = self.service.ready
        if self.service.forks and self._child.poll() is None:
            return "it has not gone into the background"
        if ready is None:
            settled = self._clock.now() - self.started >= _SETTLED
            return "" if settled else f"it has not run for {_SETTLED:g} s"
        if ready.socket:
            problem = _why_nobody_listens(ready.socket)
            return f"{ready.socket}: {problem}" if problem else ""
        if self._file is not None:
            now = file_identity(self._file)
            if now is None:
                return f"there is no {self._file}"
            return f"{self._file} is from before its start" if now == self._file_before else ""
        if not self._log_matched:
            self._log_matched = any(search_texts(ready.log, *self.output.take_unsearched()))
        return "" if self._log_matched else f"no line of its output matches {ready.log}"

    def stop(self) -> None:
        """End it and every process that it has started. One stuck in the kernel is left."""
        name, seconds = self.service.name, self.service.stop_timeout_seconds
        child = self._child.pid if self._child.poll() is None else 0
        left = processes.end_processes(self._driver, name, seconds, self._clock, child=child)
        if left:
            log.warning("a service does not end: stuck in the kernel", service=name, pids=left)
        self._child.poll()


def _why_nobody_listens(path: str) -> str:
    """Return why no process listens at a Unix socket, "" if one does.

    The kernel's table (proc(5), net/unix) is read, since a connection that ends at once is too much
    for some daemons. It has the paths as they were bound.
    """
    wanted = os.path.realpath(path)
    with _SOCKETS.open(errors="surrogateescape") as file:
        for line in file:
            fields = line.rstrip("\n").split(maxsplit=7)
            if len(fields) < _FIELDS or not fields[-1].startswith("/"):
                continue
            _, _, _, flags, kind, _, _, bound = fields
            is_open = int(flags, 16) & _LISTENS or int(kind, 16) == socket.SOCK_DGRAM
            if is_open and os.path.realpath(bound) == wanted:
                return ""
    return "nobody listens there" if Path(path).exists() else "there is no such socket"
