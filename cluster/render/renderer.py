"""Templates of stages, rendered in a process of its own: the one module here that starts any.

What a template says cannot stop, fill or crash the controller: see worker.py for the limits. The
same Python is started anew, since a copy of this process would count its memory twice and have its
tokens. A batch of templates costs one start; a template that ends the process is named, and the
next one gets a new process.
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
from nodeside import process
from nodeside.errors import NodesideError

SECONDS: Final = 30.0  # of the clock, for one template: where the processor is busy elsewhere
_VALUE = 64  # bytes that a list, a mapping or a value takes in memory, beside its text
_ANSWER = 2 * SIZE_AS_JSON  # bytes; brackets and names of files come to the documents
_GRACE = 2.0  # seconds for a process to end, by itself and when it is killed
_PACKAGES = Path(__file__).parents[1]
_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from cluster.render.worker import main
main(int(sys.argv[2]))
"""
_STANDARD_ERROR = 2  # a traceback of ours goes into our log


class RenderingDied(NodesideError):
    """The process did not answer. The same template may do better where there is more room."""

    reason = "StageInvalid"


class Renderer:
    """Use as a context manager: the process ends with it."""

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
        self._end()

    def render(self, template: Template) -> Rendered:
        """What a template gives. Raises RenderingDied, which names the ConfigMap."""
        asked = {
            "config_map": template.config_map,
            "files": template.files,
            "values": template.values,
        }
        answer = self._answer(json.dumps(asked).encode() + b"\n")
        if not answer.endswith(b"\n"):
            raise RenderingDied(f"ConfigMap {template.config_map}: {self._death(answer)}")
        said = json.loads(answer)
        if "error" in said:
            return Rendered(error=str(said["error"]))
        made = tuple((str(file), document) for file, document in said["documents"])
        values = sum(map(answer.count, (b"[", b"{", b",")))
        return Rendered(made, size=len(answer) + _VALUE * values)

    def _answer(self, question: bytes) -> bytes:
        """One line; a part of one, or nothing, where the process has ended."""
        child = self._started()
        watch = threading.Timer(self._seconds, self._give_up, [child])
        watch.start()
        try:
            _pipe(child.stdin).write(question)
            _pipe(child.stdin).flush()
            return _pipe(child.stdout).readline(_ANSWER)
        except OSError:
            return b""
        finally:
            watch.cancel()
            watch.join()

    def _started(self) -> process.Child:
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

    def _death(self, answer: bytes) -> str:
        """Why there is no answer, in words."""
        code, late = self._end(), self._late
        if len(answer) >= _ANSWER:
            return f"its documents have more than {SIZE_AS_JSON >> 10} KiB"
        if late:
            return f"rendering it took more than {self._seconds:g} s"
        if code == -signal.SIGXCPU:
            return f"rendering it took more than {self._processor_seconds} s of processor time"
        if code == worker.NO_MEMORY:
            return f"rendering it took more than {worker.MEMORY >> 20} MiB of memory"
        return f"what renders it ended: {process.in_words(code)}"

    def _end(self) -> int:
        """The exit code. It ends by itself when nobody asks it any more."""
        child, self._child = self._child, None
        if child is None:
            return 0
        for pipe in (child.stdin, child.stdout):
            with suppress(OSError):
                _pipe(pipe).close()
        with suppress(process.StillRunning):
            return child.wait(_GRACE)
        process.kill_group(child.pid)
        with suppress(process.StillRunning):
            return child.wait(_GRACE)
        return -signal.SIGKILL


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def rendered(templates: Iterable[Template]) -> dict[Template, Rendered]:
    """For who looks once."""
    with Renderer() as renderer:
        return {template: or_error(renderer, template) for template in templates}


def or_error(renderer: Renderer, template: Template) -> Rendered:
    try:
        return renderer.render(template)
    except NodesideError as error:
        return Rendered(error=str(error))
