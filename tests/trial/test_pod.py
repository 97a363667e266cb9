"""What is kept of a pod in the machine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from nodeside.process import Completed
from nodeside.trial.pod import BootOptions, _Pod
from nodeside.trial.progress import Progress


def test_of_a_long_output_the_end_is_kept() -> None:
    done = Completed(("c",), 0, "x" * (2 << 20) + "end\n", "", 0.0)
    machine: Any = SimpleNamespace(run=lambda *_, **__: done)
    other: Any = None
    options = BootOptions((), commands=(("c",),))

    (said,) = _Pod(other, machine, other, options, Progress(quiet=True))._consume(ready=False)

    assert len(said.output) == 1 << 20
    assert said.output.endswith("xend")
