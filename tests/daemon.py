"""A daemon for the driver `edu`: two processes, of which each holds the device open."""

from __future__ import annotations

from typing import Any

SOCKET = "/run/edu/monitor.sock"
WORDS = "the worker has ended"  # of its command line
_PROGRAM = f"""
import os, socket, sys
device = open("/host/dev/edu0", "rb", buffering=0)
if os.fork():
    os.wait()
    sys.exit("{WORDS}")
os.setsid()
os.makedirs(os.path.dirname("{SOCKET}"), exist_ok=True)
server = socket.socket(socket.AF_UNIX)
if os.path.exists("{SOCKET}"):
    os.unlink("{SOCKET}")
server.bind("{SOCKET}")
server.listen()
while True:
    server.accept()[0].sendall(b"alive")
"""
_ASK = f"""
import socket
client = socket.socket(socket.AF_UNIX)
client.connect("{SOCKET}")
assert client.recv(5) == b"alive"
"""
SPEC: dict[str, Any] = {
    "privileged": True,
    "hooks": {
        "afterLoad": [{"command": ["sh", "-c", "echo loaded; test -e /host/dev/edu0"]}],
        "beforeUnload": [{"command": ["echo", "leaving"]}],
        "afterUnload": [{"command": ["sh", "-c", "echo left; test ! -e /sys/module/edu"]}],
    },
    "services": [
        {
            "name": "monitor",
            "command": ["python3", "-c", _PROGRAM],
            "ready": {"socket": SOCKET},
            "startTimeoutSeconds": 300,
            "stopTimeoutSeconds": 60,
        }
    ],
    "validate": {
        "devices": ["/dev/edu0"],
        "commands": [{"command": ["python3", "-c", _ASK], "timeoutSeconds": 300}],
    },
}
