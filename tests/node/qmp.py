"""QEMU's monitor: what is done to the hardware of a machine that runs.

Source: the QEMU Machine Protocol, docs/interop/qmp-spec of QEMU: lines of JSON on a socket.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from tests.patience import patience

_SECONDS = patience(60.0)  # for an answer


def ask(path: Path, command: str, **arguments: Any) -> Any:
    """Return what QEMU answers to a command. Raises OSError if it does not, or refuses to."""
    with socket.socket(socket.AF_UNIX) as monitor:
        monitor.settimeout(_SECONDS)
        monitor.connect(str(path))
        with monitor.makefile("rw", encoding="utf-8") as lines:
            json.loads(lines.readline())  # the greeting
            _execute(lines, "qmp_capabilities", {})
            return _execute(lines, command, arguments)


def plug_in(path: Path, device: str, **more: str) -> None:
    """Put a device into the machine: the model and its options, as after `-device`."""
    driver, _, options = device.partition(",")
    named = dict(each.split("=", 1) for each in options.split(",") if each)
    ask(path, "device_add", driver=driver, **named, **more)


def _execute(lines: Any, command: str, arguments: dict[str, Any]) -> Any:
    lines.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
    lines.flush()
    for line in lines:
        answer = json.loads(line)
        if "error" in answer:
            raise OSError(f"QEMU refuses {command}: {answer['error']['desc']}")
        if "return" in answer:
            return answer["return"]
    raise OSError(f"QEMU ended before it answered {command}")
