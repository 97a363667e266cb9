"""The control plane itself: it starts, plays nodes, and leaves nothing."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import psutil
import pytest

from nodeside.errors import NodesideError
from nodeside.system import process
from tests.controlplane.api_server import MERGE_PATCH
from tests.controlplane.binaries import binaries
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.nodes import Nodes
from tests.controlplane.stages import LINGER
from tests.patience import patience

pytestmark = pytest.mark.cluster

LONG = patience(180.0)  # seconds: a deadline that only a broken test meets
TOP = Path(__file__).parents[2]


def alive(pids: list[int]) -> list[int]:
    """Those that have not ended; whoever adopted them may not have collected them yet."""
    found = (each for each in psutil.process_iter(["status"]) if each.pid in pids)
    return [each.pid for each in found if each.info["status"] != psutil.STATUS_ZOMBIE]


def test_a_node_runs_a_pod_of_a_daemon_set_and_reboots_with_another_kernel(
    control_plane: ControlPlane, nodes: Nodes
) -> None:
    nodes.create("plays-1", kernel="6.1.0-50-amd64", labels={"play": "yes"})
    control_plane.kubectl("apply", "-f", "-", input=DAEMON_SET)

    def is_running() -> bool:
        shown = control_plane.kubectl("get", "pods", "-l", "play=yes", "--no-headers").output
        return "Running" in shown

    control_plane.wait_for(is_running, "the daemon pod to run")
    before = nodes.get("plays-1")["status"]["nodeInfo"]
    boot_id = nodes.reboot("plays-1", kernel="6.1.0-51-amd64")
    after = nodes.get("plays-1")["status"]["nodeInfo"]
    control_plane.kubectl("delete", "-f", "-", input=DAEMON_SET)

    assert (before["kernelVersion"], after["kernelVersion"]) == ("6.1.0-50-amd64", "6.1.0-51-amd64")
    assert before["bootID"] != after["bootID"] == boot_id
    assert nodes.is_ready("plays-1")


def test_a_node_can_be_down_and_a_pod_can_take_its_time_to_end(
    control_plane: ControlPlane, nodes: Nodes
) -> None:
    nodes.create("slow-1", labels={"play": "yes"})
    control_plane.kubectl("apply", "-f", "-", input=DAEMON_SET)
    pods = "/api/v1/namespaces/default/pods"

    def running() -> list[str]:
        found = control_plane.do("GET", pods)["items"]
        return [p["metadata"]["name"] for p in found if p["status"]["phase"] == "Running"]

    control_plane.wait_for(running, "the daemon pod to run")
    nodes.down("slow-1")
    [name] = running()
    note = {"metadata": {"annotations": {LINGER: "1h"}}}
    control_plane.do("PATCH", f"{pods}/{name}", note, content_type=MERGE_PATCH)
    control_plane.kubectl("delete", "-f", "-", input=DAEMON_SET)
    control_plane.wait_for(
        lambda: "deletionTimestamp" in control_plane.do("GET", f"{pods}/{name}")["metadata"],
        "the deletion of the pod",
    )
    assert running() == [name]
    assert not nodes.is_ready("slow-1")
    nodes.up("slow-1")
    assert nodes.is_ready("slow-1")


DAEMON_SET = """\
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: plays}
spec:
  selector: {matchLabels: {play: "yes"}}
  template:
    metadata: {labels: {play: "yes"}}
    spec:
      nodeSelector: {play: "yes"}
      containers: [{name: one, image: registry.example.com/one}]
"""


def test_nothing_is_left_of_a_control_plane() -> None:
    with ControlPlane() as second:
        directory = second.place.directory
        pids = [second.pid(name) for name in ("etcd", "kube-apiserver", "kwok")]
        assert alive(pids) == sorted(pids)
    assert alive(pids) == []
    assert not directory.exists()


def test_killed_it_takes_its_programs_along(control_plane: ControlPlane) -> None:
    child = process.start(
        [sys.executable, "-m", "tests.controlplane"], cwd=TOP, stdout=-1, stderr=process.NOWHERE
    )
    assert child.stdout is not None
    line = child.stdout.readline().decode().strip()
    children = [each.pid for each in psutil.Process(child.pid).children()]
    assert len(children) == 5
    child.kill()
    child.wait(LONG)
    control_plane.wait_for(lambda: not alive(children), "their end")
    # The directory goes with the next one, once it is a minute old.
    shutil.rmtree(Path(line.removeprefix("export KUBECONFIG=")).parent)


def test_a_program_that_does_not_start_is_shown_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "etcd"
    broken.write_text("#!/bin/sh\necho 'listen tcp: no such interface' >&2\nexit 3\n")
    broken.chmod(0o755)
    found = binaries()
    patched = type(found)({**found.paths, "etcd": broken}, found.stages)
    monkeypatch.setattr("tests.controlplane.controlplane.binaries", lambda say: patched)
    with pytest.raises(NodesideError) as caught:
        ControlPlane().__enter__()
    assert str(caught.value) == "etcd ended: exit code 3\nlisten tcp: no such interface"
