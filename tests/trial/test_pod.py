"""What is kept of a pod in the machine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from nodeside.process import Completed
from nodeside.trial.pod import BootOptions, _Pod, crash_site
from nodeside.trial.progress import Progress


def test_of_a_long_output_the_end_is_kept() -> None:
    done = Completed(("c",), 0, "x" * (2 << 20) + "end\n", "", 0.0)
    machine: Any = SimpleNamespace(run=lambda *_, **__: done)
    other: Any = None
    options = BootOptions((), commands=(("c",),))

    (said,) = _Pod(other, machine, other, options, Progress(quiet=True))._consume(ready=False)

    assert len(said.output) == 1 << 20
    assert said.output.endswith("xend")


@pytest.mark.parametrize(
    ("line", "site"),
    [
        ("[    9.1] RIP: 0010:edu_init+0x2b/0x1000 [edu]", "edu_init+0x2b/0x1000 [edu]"),
        ("[    9.1] pc : edu_init+0x2c/0x1000 [edu]", "edu_init+0x2c/0x1000 [edu]"),
        ("[    9.1] RIP: 0010:do_exit+0x9ec/0x9f0", ""),
        ("[    9.1] lr : edu_init+0x28/0x1000 [edu]", ""),
    ],
)
def test_the_place_of_a_crash_is_told_on_either_architecture(line: str, site: str) -> None:
    assert crash_site(f"[    9.0] kernel BUG at edu.c:1!\n{line}\n") == site
