"""The device agent in a thread of this process: all of it but its command line, and its end.

Its start costs nothing, whereas that of a process costs a second of a processor. What ends by a
signal, is killed, or is one of several agents, is a process of its own: agent_process.py.
"""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from nodeside import log
from nodeside.device_agent import agent as loop
from nodeside.device_agent import finder
from nodeside.device_agent.agent import Kubelet, run_agent
from nodeside.device_agent.feature_sinks import Sinks
from nodeside.device_agent.finder import News
from nodeside.spec.document import load
from nodeside.system.host import Host
from tests.device_agent.agent_process import Logged
from tests.device_agent.played_kubelet import LONG

_TICK = 0.1  # seconds between two looks at sockets and the ready file, which else are seconds


class _Lines(io.StringIO):
    """A stream that is a list of lines."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines

    def write(self, text: str) -> int:
        self.lines.append(text)
        return len(text)


@contextmanager
def agent_thread(
    host: Host, kubelet: Path, *, pod_resources: Path | None = None, **options: Any
) -> Iterator[Logged]:
    """With the driver.yaml of the host; `options` are those of `run`."""
    said = Logged()
    news: News = SimpleQueue()
    where = Kubelet(kubelet, pod_resources or kubelet / "kubelet.sock")
    options = {"sinks": Sinks.of("edu", None, None, ""), "state": host.root / "state"} | options
    thread = threading.Thread(
        target=run_agent,
        args=(load(host.root / "driver.yaml"), host, where),
        kwargs={**options, "news": news},
        name="agent",
    )
    with _quick_looks(), _logged(said.log):
        thread.start()
        try:
            yield said
        except BaseException:
            print(*said.log)  # noqa: T201 - pytest shows it
            raise
        finally:
            news.put(None)
            thread.join(LONG)
            assert not thread.is_alive(), "the agent has not ended"


@contextmanager
def _quick_looks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((loop, "_TICK"), (loop, "_QUIET"), (finder, "_TICK")):
            patch.setattr(module, name, _TICK)
        yield


@contextmanager
def _logged(lines: list[str]) -> Iterator[None]:
    logger = logging.getLogger("nodeside")
    handlers, propagate, level = logger.handlers[:], logger.propagate, logger.level
    log.setup("device-agent", to=_Lines(lines))
    try:
        yield
    finally:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)
