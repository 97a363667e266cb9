"""What people ask of a running lab, over a socket: one JSON document each way, one line each.

{"command": "reboot", "arguments": ["node-1", "6.12-cloud-amd64"]}
{"exit": 0, "output": "..."}        or {"exit": 2, "error": "...", "hint": "..."}
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from nodeside.errors import ExitCode, NodesideError, UsageError
from nodeside.text.table import table
from nodeside.trial.machine.kernel_disk import KernelDisk
from tests.lab.lab import STATE, Lab
from tests.loopback import UnixServer
from tests.patience import patience

SOCKET = STATE / "socket"
_CONNECT = 10.0  # seconds
_ANSWER = patience(1800.0)  # seconds; a node boots beside others


class Commands:
    """Each public method is a command: its arguments are words, its result is shown."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def list(self) -> str:
        rows = [
            (node.name, "on" if node.is_on else "off", node.kernel.release)
            for node in self._lab.nodes.values()
        ]
        return table(rows, header=("NODE", "POWER", "KERNEL"))

    def add(self, kernel: str = "") -> str:
        node = self._lab.new_node(self._kernel(kernel))
        self._lab.boot(node)
        return f"{node.name} is Ready"

    def boot(self, name: str) -> str:
        self._lab.boot(self._lab.node(name))
        return f"{name} is Ready"

    def reboot(self, name: str, kernel: str = "") -> str:
        node = self._lab.node(name)
        self._lab.reboot(node, self._kernel(kernel))
        return f"{name} is Ready: kernel {node.kernel.release}"

    def power_cut(self, name: str) -> str:
        self._lab.node(name).cut_power()
        return f"{name} is off; python -m tests.lab node boot {name}"

    def unplug_network(self, name: str) -> str:
        self._lab.node(name).plug(into=False)
        return f"{name} has no network; python -m tests.lab node plug-network {name}"

    def plug_network(self, name: str) -> str:
        self._lab.node(name).plug(into=True)
        return f"{name} has its network again"

    def delete(self, name: str) -> str:
        self._lab.delete_node(self._lab.node(name))
        return f"{name} is gone"

    def run(self, name: str, *argv: str) -> str:
        done = self._lab.node(name).run(*argv)
        return (done.output + done.errors).rstrip("\n")

    def _kernel(self, name: str) -> KernelDisk | None:
        return self._lab.kernel(name) if name else None


@contextmanager
def serving(lab: Lab) -> Iterator[None]:
    """Take commands in the block."""
    commands = Commands(lab)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            asked = json.loads(self.rfile.readline())
            answer = _answer(commands, asked["command"], asked["arguments"])
            self.wfile.write(json.dumps(answer).encode() + b"\n")

    SOCKET.unlink(missing_ok=True)
    with UnixServer(str(SOCKET), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            SOCKET.unlink(missing_ok=True)


def _answer(commands: Commands, name: str, arguments: Sequence[str]) -> dict[str, Any]:
    try:
        output = getattr(commands, name.replace("-", "_"))(*arguments)
    except NodesideError as error:
        return {"exit": int(error.exit_code), "error": str(error), "hint": error.hint}
    except Exception as error:  # whoever asked must hear of it, and the lab goes on
        return {"exit": int(ExitCode.BUG), "error": f"{type(error).__name__}: {error}", "hint": ""}
    return {"exit": 0, "output": output}


def ask(command: str, *arguments: str) -> dict[str, Any]:
    """Ask the lab that runs on this machine. Raises UsageError if none does."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_CONNECT)
        try:
            connection.connect(str(SOCKET))
        except (FileNotFoundError, ConnectionRefusedError):
            raise UsageError("no lab runs on this machine", hint="make lab") from None
        except PermissionError:
            raise UsageError("the lab is root's", hint="run it again as root") from None
        connection.settimeout(_ANSWER)
        with connection.makefile("rwb") as stream:
            stream.write(json.dumps({"command": command, "arguments": arguments}).encode() + b"\n")
            stream.flush()
            line = stream.readline()
    if not line:
        raise UsageError("the lab ended before it answered", hint="make lab")
    answer: dict[str, Any] = json.loads(line)
    return answer
