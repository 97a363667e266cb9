"""A stand-in for `nodeside.system.child.run_in_child` that runs the call in this process.

A fork of the process that holds all tests costs more than most tests. The child and its limits are
proven by tests/system/test_child.py, and by tests of each reader that has one.
"""

from __future__ import annotations

from collections.abc import Callable

from nodeside.errors import NodesideError
from nodeside.system.child import ChildRaised


def run_here(call: Callable[[], bytes | None], *_: object, **__: object) -> bytes:
    try:
        return call() or b""
    except (NodesideError, OSError):
        raise
    except Exception as exc:
        raise ChildRaised(type(exc).__name__, str(exc)) from exc
