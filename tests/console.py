"""A command as a person types it, in this process: what it printed, and its exit code.

And `until`, for what another process or thread brings about.
"""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster.cli.main import main as cluster_main
from nodeside import cli
from nodeside.system import process
from tests.patience import patience

LONG = patience(120.0)  # seconds: a deadline that only a broken test meets
_LOOK = 0.01  # seconds between two looks


def until(
    holds: Callable[[], object], what: str = "what was waited for", *, timeout: float = LONG
) -> None:
    """Wait until something is so. `what` it is, if it never becomes so."""
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, f"not after {timeout:g} s: {what}"
        time.sleep(_LOOK)


@dataclass(frozen=True)
class Done:
    """What came of a command."""

    code: int
    output: str
    errors: str

    @property
    def document(self) -> Any:
        return json.loads(self.output)

    @property
    def error(self) -> str:
        """The text from `error:` to the end."""
        assert "error: " in self.errors, self.errors
        return self.errors[self.errors.index("error: ") :]


def nodeside(*argv: str | Path, env: Mapping[str, str] | None = None) -> Done:
    """Run the command in this process, through the same `main` as the console script."""
    return _call(cli.main, "nodeside", *argv, env={"COLUMNS": "400", **(env or {})})


def nodeside_cluster(*argv: str | Path) -> Done:
    """Run the controller's command in this process, as `nodeside` does."""
    return _call(cluster_main, "nodeside-cluster", *argv, env={"COLUMNS": "200"})


def _call(main: Callable[[], None], name: str, *argv: str | Path, env: Mapping[str, str]) -> Done:
    output, errors = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    with pytest.MonkeyPatch().context() as patch, _signals_kept():
        patch.setattr(sys, "argv", [name, *map(str, argv)])
        for variable, value in env.items():
            patch.setenv(variable, value)
        with redirect_stdout(output), redirect_stderr(errors):
            try:
                main()
                code: object = 0
            except SystemExit as end:
                code = end.code or 0
    assert isinstance(code, int), code
    return Done(int(code), _text(output), _text(errors))


def _text(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


@contextmanager
def running(*argv: str | Path) -> Iterator[process.Child]:
    """Start it as a process of its own; killed at the end of the block if it still lives."""
    words = [sys.executable, "-m", "nodeside", *map(str, argv)]
    child = process.start(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def run(*argv: str | Path, env: Mapping[str, str] | None = None) -> Done:
    """Run it as a process of its own, to its end."""
    words = [sys.executable, "-m", "nodeside", *map(str, argv)]
    done = process.run(words, timeout=LONG, env=env, check=False)
    return Done(done.exit_code, done.output, done.errors)


@contextmanager
def _signals_kept() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
