"""`nodeside device-agent` as a process, and the node that it looks at."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodeside.spec.document import to_document
from nodeside.system.host import Host
from tests.device_agent.node import driver, say_ready
from tests.device_agent.played_kubelet import LONG
from tests.driver.fakes.kernel import add_pci_device, link, write

EDU: dict[str, Any] = {
    "resource": "example.com/edu",
    "discover": {"pci": [{"vendor": "1234", "device": "11e8", "driver": "edu"}]},
    "give": {
        "nodes": {"class": "misc"},
        "mounts": [
            {"hostPath": "/opt/edu"},
            {"hostPath": "/run/edu.sock", "containerPath": "/run/accelerator", "readOnly": False},
        ],
        "environment": {"ACCELERATOR_DEVICES": "{bdf}", "EDU_NODES": "{nodes}"},
    },
    "health": {"path": "liveness", "value": "ok", "intervalSeconds": 1},
}
BOTH = {"00:05.0": "Healthy", "00:06.0": "Healthy"}


@dataclass
class Logged:
    """What an agent says in its log."""

    log: list[str] = field(default_factory=list, kw_only=True)

    def metrics_port(self) -> int:
        return int(self.until_said(r"serving metrics.*port=(\d+)")[1])

    def until_said(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + LONG
        while not (found := re.search(pattern, "".join(self.log))):
            assert time.monotonic() < deadline, self.log
            time.sleep(0.01)
        return found


@dataclass
class Agent(Logged):
    """The process, and its log."""

    process: subprocess.Popen[str]

    def listen(self) -> None:
        assert self.process.stderr is not None
        with suppress(ValueError):  # it is closed, since the test has ended
            self.log += self.process.stderr


@contextmanager
def agent(
    host: Host, kubelet: Path, *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[Agent]:
    """With these options, and variables beside ours."""
    with subprocess.Popen(
        [sys.executable, "-m", "nodeside", *_words(host, kubelet), *options],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    ) as process:
        agent = Agent(process)
        threading.Thread(target=agent.listen, daemon=True).start()
        try:
            yield agent
        except BaseException:
            print(*agent.log)  # noqa: T201 - pytest shows it
            raise
        finally:
            process.kill()


@contextmanager
def forked_agents(host: Host, kubelet: Path) -> Iterator[Callable[[], int]]:
    """Yield what starts an agent and returns its pid.

    Each is a fork of a process that has imported everything, which takes most of a start.
    """
    words = [sys.executable, "-m", "tests.device_agent.agent_process", *_words(host, kubelet)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:

        def start() -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        try:
            yield start
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _words(host: Host, kubelet: Path) -> list[str]:
    words = ["device-agent", "--host-root", str(host.root), "-f", str(host.root)]
    words += ["--state-directory", str(host.root / "state")]
    return [*words, "--kubelet-directory", str(kubelet)]


def _fork_agents(argv: list[str]) -> None:
    """Start an agent for each line that is read."""
    from nodeside.cli import main
    from nodeside.device_agent import agent as _imported  # noqa: F401

    sys.argv = ["nodeside", *argv]
    for _ in sys.stdin:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who ends is forgotten
        if pid := os.fork():
            print(pid, flush=True)  # noqa: T201
        else:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            main()
            return


def add_edu(host: Host, address: str, number: int) -> Path:
    real = add_pci_device(host, address, "1234", "11e8", "edu")
    write(real / "liveness", "ok\n")
    write(real / "numa_node", f"{number}\n")
    node = real / "misc" / f"edu{number}"
    write(node / "uevent", f"DEVNAME=edu{number}\n")
    link(host.sys / "class" / "misc" / f"edu{number}", node)
    return real


def node(root: Path) -> Host:
    """A node with two devices, whose driver is ready."""
    host = Host(root)
    for directory in ("sys", "dev", "run/nodeside"):
        (host.root / directory).mkdir(parents=True)
    say_ready(host)
    for number, address in enumerate(("0000:00:05.0", "0000:00:06.0")):
        add_edu(host, address, number)
    write_driver(host, EDU)
    return host


def write_driver(host: Host, *devices: dict[str, Any]) -> None:
    (host.root / "driver.yaml").write_text(json.dumps(to_document(driver(*devices))))


@contextmanager
def kubelet_directory() -> Iterator[Path]:
    """The path of a socket is short, pytest's own directories are not."""
    with tempfile.TemporaryDirectory(prefix="kubelet-") as path:
        yield Path(path)


if __name__ == "__main__":
    _fork_agents(sys.argv[1:])
