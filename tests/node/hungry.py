"""A build that eats memory, on a real node: what its kubelet and its kernel do, and what is told.

A stage of the story of a driver, beside whatever version of it is loaded by then.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from typing import Any

import yaml

from tests.cluster.e2e.scene import EDU
from tests.node.configuration import REGISTRY
from tests.node.story import Story

LIMIT_MIB = 256
KILLED = 128 + signal.SIGKILL
KERNELS_WORDS = "Memory cgroup out of memory: Killed process"  # mm/oom_kill.c
_LONG = 1200.0  # seconds; two lives of a container in an emulated machine
_EATS = ["tail", "/dev/zero"]  # it keeps what it reads until a line ends


def apply_hungry_driver(story: Story, version: str) -> None:
    """A version whose build asks for more memory than there is; its source does not matter."""
    document = yaml.safe_load(EDU.read_text())
    document["spec"]["version"] = version
    document["spec"]["image"] = story.node.images.driver(f"drivers/edu:{version}", EDU.parent)
    story.node.images.toolkit(f"toolkit:{story.kernel}", story.node.kernel)
    document["spec"]["toolkit"] = {"imageTemplate": f"{REGISTRY}/toolkit:{{kernel}}"}
    document["spec"]["build"] = {
        "kind": "command",
        "command": _EATS,
        "memoryLimitMib": LIMIT_MIB,
    }
    story.plane.kubectl("apply", "-f", "-", input=json.dumps(document))


def until_given_up(story: Story, version: str) -> None:
    """The node has said that the build needs more than it may use; its other container lives."""

    def holds() -> bool:
        told = story.node_driver()
        wanted = {"state": "failed", "version": version, "reason": "OutOfMemory"}
        return wanted.items() <= told.items()

    story.plane.wait_for(holds, f"edu {version} to be given up", timeout=_LONG)
    message = story.node_driver()["message"]
    assert f"at the limit of {LIMIT_MIB} MiB" in message, message
    assert "killed 2 times" in message, message
    toolkit, driver = _container(story, "toolkit"), _container(story, "driver")
    # containerd may lose the event and say "Error" in place of "OOMKilled" (containerd#12714).
    assert toolkit["lastState"]["terminated"]["exitCode"] == KILLED, toolkit
    assert toolkit["restartCount"] == 2, toolkit
    assert story.node.machine.machine.serial_log().count(KERNELS_WORDS) >= toolkit["restartCount"]
    assert driver["restartCount"] == 0, "it has no part in that"


def _container(story: Story, name: str) -> Mapping[str, Any]:
    statuses = story.pod()["status"]["containerStatuses"]
    return next(each for each in statuses if each["name"] == name)
