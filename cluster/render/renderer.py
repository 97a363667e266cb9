"""Renders templates of stages in a separate process; the only module in `cluster` that starts one.

A template cannot stop, fill or crash the controller: see worker.py for the limits. The worker is a
fresh start of the same Python, since a fork would count the memory twice and would have our tokens.
A batch of templates costs one start. A template that ends the process is reported, and the next
one gets a new process.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Final

from cluster.model.stages import Rendered, Template
from cluster.render import worker
from cluster.render.templates import SIZE_AS_JSON
from nodeside.errors import NodesideError
from nodeside.system import process

SECONDS: Final = 30.0  # wall clock limit per template, for when the processor is busy elsewhere
_VALUE = 64  # bytes of memory for a list, a mapping or a value, in addition to its text
_ANSWER = 2 * SIZE_AS_JSON  # bytes; the documents plus brackets and file names
_GRACE = 2.0  # seconds for the process to end, both by itself and after a kill
_PACKAGES = Path(__file__).parents[2]
_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from cluster.render.worker import main
main(int(sys.argv[2]))
"""
_STANDARD_ERROR = 2  # tracebacks of the worker go into our log


class RenderingDied(NodesideError):
    """The worker did not answer. The same template may succeed with more time or memory."""

    reason = "StageInvalid"


class Renderer:
    """A client of the worker process. Use as a context manager, which ends the process."""

    def __init__(self, seconds: float = SECONDS, processor_seconds: int = worker.SECONDS) -> None:
        self._seconds = seconds
        self._processor_seconds = processor_seconds
        self._child: process.Child | None = None
        self._late = False

    def __enter__(self) -> Renderer:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._end_process()

    def render(self, template: Template) -> Rendered:
        """Render a template. Raises RenderingDied, which names the ConfigMap."""
        request = {
            "config_map": template.config_map,
            "files": template.files,
            "values": template.values,
        }
        answer = self._read_answer(json.dumps(request).encode() + b"\n")
        if not answer.endswith(b"\n"):
            raise RenderingDied(f"ConfigMap {template.config_map}: {self._death_message(answer)}")
        reply = json.loads(answer)
        if "error" in reply:
            return Rendered(error=str(reply["error"]))
        documents = tuple((str(file), document) for file, document in reply["documents"])
        values = sum(map(answer.count, (b"[", b"{", b",")))
        return Rendered(documents, size=len(answer) + _VALUE * values)

    def _read_answer(self, request: bytes) -> bytes:
        """Return one line, or part of a line or nothing if the process has ended."""
        child = self._start_process()
        watch = threading.Timer(self._seconds, self._give_up, [child])
        watch.start()
        try:
            _pipe_of(child.stdin).write(request)
            _pipe_of(child.stdin).flush()
            return _pipe_of(child.stdout).readline(_ANSWER)
        except OSError:
            return b""
        finally:
            watch.cancel()
            watch.join()

    def _start_process(self) -> process.Child:
        if self._child is None:
            self._late = False
            self._child = process.start(
                [sys.executable, "-I", "-c", _PROGRAM, _PACKAGES, str(self._processor_seconds)],
                stdin=process.PIPE, stdout=process.PIPE, stderr=_STANDARD_ERROR,
            )  # fmt: skip
        return self._child

    def _give_up(self, child: process.Child) -> None:
        self._late = True
        process.kill_group(child.pid)

    def _death_message(self, answer: bytes) -> str:
        """End the process and return the reason why there is no answer."""
        code, late = self._end_process(), self._late
        if len(answer) >= _ANSWER:
            return f"its documents have more than {SIZE_AS_JSON >> 10} KiB"
        if late:
            return f"rendering it took more than {self._seconds:g} s"
        if code == -signal.SIGXCPU:
            return f"rendering it took more than {self._processor_seconds} s of processor time"
        if code == worker.NO_MEMORY:
            return f"rendering it took more than {worker.MEMORY >> 20} MiB of memory"
        return f"the rendering process ended: {process.exit_code_in_words(code)}"

    def _end_process(self) -> int:
        """End the process and return its exit code. It exits by itself at the end of its input."""
        child, self._child = self._child, None
        if child is None:
            return 0
        for pipe in (child.stdin, child.stdout):
            with suppress(OSError):
                _pipe_of(pipe).close()
        with suppress(process.StillRunning):
            return child.wait(_GRACE)
        process.kill_group(child.pid)
        with suppress(process.StillRunning):
            return child.wait(_GRACE)
        return -signal.SIGKILL


def _pipe_of(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def render_once(templates: Iterable[Template]) -> dict[Template, Rendered]:
    """Render templates for a one-shot command."""
    with Renderer() as renderer:
        return {template: render_or_error(renderer, template) for template in templates}


def render_or_error(renderer: Renderer, template: Template) -> Rendered:
    try:
        return renderer.render(template)
    except NodesideError as error:
        return Rendered(error=str(error))
