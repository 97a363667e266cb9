"""Runs external commands. No other module imports subprocess; a test checks this.

Every command is an argv list, never a shell string. Its environment is built from an allow-list,
its stdin is /dev/null unless input is given, and a timeout is a required argument. A command gets
its own process group, and the rest of the group is killed when the command exits or its deadline
passes.

Stdlib only: the toolkit sidecar uses this module too.
"""

from __future__ import annotations

import errno
import os
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

from nodeside.errors import DeadlinePassed, ExitCode, NodesideError, SystemRefused
from nodeside.values import frozen

# The names from subprocess that callers of `start` need, so that they do not import it.
Child = subprocess.Popen[bytes]
StillRunning = subprocess.TimeoutExpired
INTO_STDOUT = subprocess.STDOUT
PIPE = subprocess.PIPE
NOWHERE = subprocess.DEVNULL

_ALLOWED_ENVIRONMENT = ("PATH", "HOME", "LANG", "TMPDIR", "TERM", "USER")
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TAIL_LINES = 20
_OUTPUT_BYTES = 64 << 20  # kept per pipe; the largest real output, a package list, has 10 MB
_LINE_BYTES = 1 << 20
_CHUNK = 1 << 16
_LOOK = 0.1  # seconds between checks for the end of a command while another process holds its pipe
_GRACE = 0.5  # seconds to read the last output of processes that a command left behind
_REAP = 5.0  # seconds to wait for a killed command; one that is stuck in the kernel does not end


@frozen
class Completed:
    """A finished command. `output` is stdout, `errors` stderr (empty if merged into stdout)."""

    argv: tuple[str, ...]
    exit_code: int
    output: str
    errors: str
    elapsed: float  # seconds


class ToolError(NodesideError):
    """A command failed. The message has its argv, exit code in words, and the end of its output."""

    reason = "ToolFailed"

    def __init__(self, completed: Completed, *, hint: str = "") -> None:
        self.completed = completed
        last_lines = last_lines_of(completed.errors.strip() or completed.output.strip())
        if full := _line_about_full_disk(completed.errors):
            self.exit_code, self.retryable = ExitCode.NO_SPACE, True
            last_lines, hint = full, hint or "free some space: df -h"
        message = f"{exit_code_in_words(completed.exit_code)}: {shlex.join(completed.argv)}"
        super().__init__(f"{message}\n{last_lines}" if last_lines else message, hint=hint)


def _line_about_full_disk(errors: str) -> str:
    """Return the first "no space" line; tools such as cp print one for each file."""
    return next((row for row in errors.splitlines() if "No space left on device" in row), "")


class ToolMissing(NodesideError):
    """A command that is not installed or not executable."""

    reason = "ToolMissing"


class WrapperFailed(SystemRefused):
    """The wrapper in the child failed before the command started; its own message is lost."""


class ToolTimeout(DeadlinePassed):
    """A command was killed because its deadline passed."""

    exit_code = ExitCode.TIMEOUT


def make_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Build an environment from scratch: the allow-list, the C locale, and `extra`."""
    env = {name: os.environ[name] for name in _ALLOWED_ENVIRONMENT if name in os.environ}
    env.setdefault("PATH", _DEFAULT_PATH)
    env["LC_ALL"] = "C"
    env.update(extra or {})
    return env


def exit_code_in_words(exit_code: int) -> str:
    """Describe an exit code in words; negative ones are signals, as in subprocess."""
    if exit_code < 0:
        with suppress(ValueError):
            return f"killed by {signal.Signals(-exit_code).name}"
        return f"killed by signal {-exit_code}"
    if exit_code == 127:
        return "command not found (exit code 127)"
    if exit_code == 126:
        return "not executable (exit code 126)"
    if exit_code > 128:  # how a shell reports that its command was killed
        with suppress(ValueError):
            return f"exit code {exit_code} (killed by {signal.Signals(exit_code - 128).name})"
    return f"exit code {exit_code}"


def last_lines_of(text: str, lines: int = _TAIL_LINES) -> str:
    """Return the last lines of a text, with a mark if it was cut."""
    rows = text.splitlines()
    if len(rows) <= lines:
        return "\n".join(rows)
    return "\n".join([f"[... {len(rows) - lines} lines cut]", *rows[-lines:]])


def run(
    argv: Sequence[str | os.PathLike[str]],
    *,
    timeout: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    input: bytes | None = None,
    check: bool = True,
    on_line: Callable[[str], None] | None = None,
    wrapper: Callable[[], None] | None = None,
    hint: str = "",
    install: str = "",
) -> Completed:
    """Run a command to completion, for at most `timeout` seconds.

    With `on_line`, stderr is merged into stdout and every line is passed on as it appears (and also
    kept in `output`). `env` is added to the allow-list of `make_environment()`. `wrapper` runs in
    the child between fork and exec. `hint` is for a command that fails or takes too long, `install`
    for one that is missing. Raises ToolMissing, ToolTimeout, WrapperFailed and, if `check`,
    ToolError.
    """
    words = tuple(os.fspath(word) for word in argv)
    started = time.monotonic()
    child = start(
        words,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if on_line is None else subprocess.STDOUT,
        wrapper=wrapper,
        install=install,
    )
    output, errors = _Output(on_line), _Output(None)
    try:
        _exchange_pipes(child, input or b"", {child.stdout: output, child.stderr: errors}, timeout)
    except subprocess.TimeoutExpired:
        last_lines = last_lines_of((errors.text or output.text).strip())
        message = f"timed out after {timeout:g} s: {shlex.join(words)}"
        full = f"{message}\n{last_lines}" if last_lines else message
        raise ToolTimeout(full, hint=hint) from None
    finally:
        _kill_and_reap(child)
    elapsed = time.monotonic() - started
    done = Completed(words, child.returncode, output.text, errors.text, elapsed)
    if check and done.exit_code != 0:
        raise ToolError(done, hint=hint)
    return done


def start(
    argv: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
    wrapper: Callable[[], None] | None = None,
    pass_fds: Sequence[int] = (),
    install: str = "",
) -> Child:
    """Start a command that the caller supervises (a virtual machine, a sidecar).

    `install` is the hint if the command is missing.
    """
    words = tuple(os.fspath(word) for word in argv)
    try:
        return subprocess.Popen(
            words,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=make_environment(env),
            cwd=cwd,
            start_new_session=True,
            preexec_fn=wrapper,  # noqa: PLW1509 - None but in the trial, whose agent has one thread
            pass_fds=pass_fds,
        )
    except OSError as exc:
        raise _start_error(words, cwd, exc, install) from exc
    except ValueError as exc:
        raise SystemRefused(f"cannot start {words[0]}: {exc}") from exc
    except subprocess.SubprocessError as exc:
        raise WrapperFailed(f"cannot start {words[0]}: setting up its process failed") from exc


def kill_group(pid: int, sig: signal.Signals = signal.SIGKILL) -> None:
    """Signal a process group made by `run` or `start`; ignore it if the group is gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, sig)


class _Output:
    """The output of one pipe: kept up to a limit, and passed on by lines to `on_line` if given."""

    def __init__(self, on_line: Callable[[str], None] | None) -> None:
        self._on_line = on_line
        self._data = bytearray()
        self._line = bytearray()
        self._cut = 0

    def feed(self, data: bytes) -> None:
        room = _OUTPUT_BYTES - len(self._data)
        self._data += data[:room]
        self._cut += len(data[room:])
        if self._on_line is None:
            return
        *whole, rest = (bytes(self._line) + data).split(b"\n")
        if len(rest) > _LINE_BYTES:  # too long for a line of a tool: pass it on in pieces
            whole, rest = [*whole, rest], b""
        self._line[:] = rest
        for line in whole:
            self._on_line(line.decode(errors="replace"))

    def end(self) -> None:
        """Pass on an unterminated last line."""
        if self._line and self._on_line is not None:
            self._on_line(self._line.decode(errors="replace"))
        self._line.clear()

    @property
    def text(self) -> str:
        text = self._data.decode(errors="replace")
        if self._cut:
            text += f"\n[... {self._cut} bytes cut]"
        return text if self._on_line is None else text.removesuffix("\n")


def _exchange_pipes(
    child: Child,
    input: bytes,
    outputs: Mapping[IO[bytes] | None, _Output],
    timeout: float,
) -> None:
    """Write a command's input and read its output until it ends. Raises subprocess.TimeoutExpired.

    A process that the command left behind may hold the pipes indefinitely. So they are read for at
    most `_GRACE` seconds after the command ends.
    """
    deadline = time.monotonic() + timeout
    with selectors.DefaultSelector() as pipes:
        _register_pipes(pipes, child.stdin, input, outputs)
        while pipes.get_map():
            if _has_ended(child):
                deadline = min(deadline, time.monotonic() + _GRACE)
            left = deadline - time.monotonic()
            if left <= 0:
                break
            for key, _ in pipes.select(min(left, _LOOK)):
                if not key.data():
                    pipes.unregister(key.fileobj)
    for output in outputs.values():
        output.end()
    if not _has_ended(child):
        child.wait(max(0.0, deadline - time.monotonic()))


def _register_pipes(
    pipes: selectors.BaseSelector,
    stdin: IO[bytes] | None,
    input: bytes,
    outputs: Mapping[IO[bytes] | None, _Output],
) -> None:
    """Register each pipe with a function that moves bytes and returns whether more may follow."""
    for pipe, output in outputs.items():
        if pipe is not None:
            os.set_blocking(pipe.fileno(), False)
            pipes.register(pipe, selectors.EVENT_READ, partial(_read_pipe, pipe, output))
    if stdin is not None:
        os.set_blocking(stdin.fileno(), False)
        rest = bytearray(input)
        pipes.register(stdin, selectors.EVENT_WRITE, partial(_write_pipe, stdin, rest))


def _read_pipe(pipe: IO[bytes], output: _Output) -> bool:
    data = os.read(pipe.fileno(), _CHUNK)
    output.feed(data)
    return bool(data)


def _write_pipe(pipe: IO[bytes], rest: bytearray) -> bool:
    """Write some input. It is no error if the command does not read it."""
    with suppress(BrokenPipeError):
        del rest[: os.write(pipe.fileno(), rest[:_CHUNK])]
        if rest:
            return True
    pipe.close()
    return False


def _has_ended(child: Child) -> bool:
    """Return whether the command has ended; does not reap it, so the group id stays reserved."""
    if child.returncode is not None:
        return True
    try:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, child.pid, flags) is not None
    except ChildProcessError:  # already reaped elsewhere
        return True


def reap_orphans(keep: Collection[int] = ()) -> None:
    """Reap all children that have ended, so that they do not stay zombies.

    This is for process 1 of a container, which inherits every orphan in it. Call it only while
    nothing waits for a child, except for those to `keep`. It stops at the first of these that has
    ended; a later call, after that one was reaped, reaps the rest.
    """
    with suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in keep:
                return
            os.waitpid(ended.si_pid, os.WNOHANG)


def _kill_and_reap(child: Child) -> None:
    """Kill the rest of the group and reap the command. Processes stuck in the kernel are left."""
    kill_group(child.pid)
    with suppress(subprocess.TimeoutExpired):
        child.wait(_REAP)
    _reap_group(child.pid)
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()


def _reap_group(pid: int) -> None:
    """Reap leftovers of the command; process 1 of a container is now their parent."""
    deadline = time.monotonic() + _REAP
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if not os.waitpid(-pid, os.WNOHANG)[0]:
                time.sleep(0.001)


def _start_error(
    words: tuple[str, ...], cwd: Path | None, exc: OSError, install: str
) -> NodesideError:
    if cwd is not None and not cwd.is_dir():
        return SystemRefused(f"cannot start {words[0]} in {cwd}: no such directory")
    if exc.errno not in (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR):
        return SystemRefused(f"cannot start {words[0]}: {exc.strerror}")
    name = Path(words[0]).name
    return ToolMissing(
        f"cannot start {words[0]}: {exc.strerror}",
        hint=install or f"install the package that has {name}, or add its directory to PATH",
    )
