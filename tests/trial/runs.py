"""A run of a trial, with the report of a driver that is ready."""

from __future__ import annotations

from typing import Any

from nodeside.trial.pod import TrialRun

REPORT: dict[str, Any] = {
    "driver": "edu",
    "version": "1.0.0",
    "kernel": "6.1.0-56-cloud-amd64",
    "state": "ready",
    "source": "built",
    "modules": ["edu"],
    "rungs": [
        {"rung": "loaded", "served": False, "why": "edu not loaded"},
        {"rung": "built", "served": True, "why": "the toolkit built it"},
    ],
    "checks": [
        {"name": "/dev/edu0", "ok": True, "found": "a character device"},
        {"name": "/sys/x", "ok": False, "found": "119", "expected": "120"},
    ],
    "services": [
        {"name": "monitor", "ready": True, "restarts": 0, "message": ""},
        {"name": "late", "ready": False, "restarts": 0, "message": "it starts"},
    ],
    "stages": {"build": 20.5, "load": 0.25},
    "announced": {
        "labels": {"nodeside.io/edu.state": "ready"},
        "nodeDriver": {"metadata": {"name": "edu.trial"}, "status": {"state": "ready"}},
        "readyFile": "/host/run/nodeside/edu/ready",
        "marker": "NODESIDE_READY driver=edu",
    },
}
DEVICES: dict[str, Any] = {
    "driver": "edu",
    "ready": True,
    "resources": [
        {
            "resource": "example.com/edu",
            "devices": [
                {"id": "00:05.0", "nodes": ["/dev/edu0"], "healthy": True, "why": ""},
                {"id": "00:06.0", "nodes": [], "healthy": False, "why": "unbound"},
            ],
            "notes": [],
        }
    ],
}
GOOD = {
    **REPORT,
    "checks": [{"name": "/dev/edu0", "ok": True, "seconds": 0.5}],
    "stages": {"load": 0.25},
}


def run(**changes: Any) -> TrialRun:
    values: dict[str, Any] = {
        "kernel": "6.1.0-56-cloud-amd64",
        "accelerator": "tcg",
        "boot_seconds": 5.2,
        "exit_code": 0,
        "built_on": "node",
        "report": REPORT,
    }
    return TrialRun(**values | changes)


def ready(**changes: object) -> TrialRun:
    return run(**{"report": GOOD, "built_on": "host", "build_seconds": 1.5, **changes})


def broken(message: str = "make failed: exit code 2; first error: a.c:1: no\nmore") -> TrialRun:
    report = {"driver": "edu", "state": "failed", "message": message, "exitCode": 10}
    return run(kernel="6.12.1", accelerator="", boot_seconds=0.0, exit_code=10, report=report)
