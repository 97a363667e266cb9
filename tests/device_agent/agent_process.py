"""`nodeside device-agent` as a process, and the node that it looks at."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodeside.host import Host
from nodeside.spec.document import to_document
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
class Agent:
    """The process, and its log."""

    process: subprocess.Popen[str]
    log: list[str] = field(default_factory=list)

    def listen(self) -> None:
        assert self.process.stderr is not None
        with suppress(ValueError):  # it is closed, since the test has ended
            self.log += self.process.stderr

    def metrics_port(self) -> int:
        return int(self.until_said(r"serving metrics.*port=(\d+)")[1])

    def until_said(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + LONG
        while not (found := re.search(pattern, "".join(self.log))):
            assert time.monotonic() < deadline, self.log
            time.sleep(0.01)
        return found


@contextmanager
def agent(
    host: Host, kubelet: Path, *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[Agent]:
    """With these options, and variables beside ours."""
    command = [sys.executable, "-m", "nodeside", "device-agent", "--host-root", str(host.root)]
    command += ["--state-directory", str(host.root / "state")]
    with subprocess.Popen(
        [*command, "-f", str(host.root), "--kubelet-directory", str(kubelet), *options],
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
