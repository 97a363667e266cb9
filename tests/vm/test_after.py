"""Two drivers on a real kernel, one of which imports a symbol of the other."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from nodeside.trial.machine.machine import Machine
from tests.vm.conftest import Give, Resume
from tests.vm.pod import Pod, Running, held_open
from tests.vm.variants import DriverImage
from tests.vm.warm import WarmProcess

pytestmark = pytest.mark.vm

_READY = r"NODESIDE_READY driver={} "
_COMPUTE = "int edu_compute(u32 n, u32 *result)"
_OTHER = "int edu_compute(u64 n, u32 *result)"  # another signature has another CRC


@pytest.fixture(scope="module")
def machine(resume: Resume, image: DriverImage) -> Iterator[Machine]:
    image.edu("edu")
    image.edu("other", {"version": "1.1.0"}, {_COMPUTE: _OTHER})
    image.peer("edu-peer")
    with resume(image) as machine:
        yield machine


def start(pod: Pod, directory: str) -> Running[WarmProcess]:
    return pod.fork_driver("run", of=directory)


def ready(running: Running[WarmProcess], driver: str, *, times: int = 1) -> None:
    running.says.until(_READY.format(driver), times=times)


def test_a_driver_waits_for_the_one_before_it_and_leaves_before_it(pod: Pod, give: Give) -> None:
    first = give("edu")
    for_first = give("edu-peer", after=[first])
    peer = start(pod, "edu-peer")
    peer.says.until("waits until edu is ready on this node")
    waiting = pod.run_once(of="edu-peer", code=48)
    assert (waiting["state"], waiting["reason"]) == ("waiting", "WaitsForDriver")

    edu = start(pod, "edu")
    ready(edu, "edu")
    ready(peer, "edu-peer")
    assert pod.exists("/sys/module/edu/holders/edu_peer")
    probes = pod.lines_of_probe()
    edu.kill(signal.SIGTERM)
    edu = start(pod, "edu")
    ready(edu, "edu")
    edu.kill(signal.SIGTERM)
    assert (pod.lines_of_probe(), pod.loaded("edu_peer")) == (probes, True), "nothing was touched"

    with held_open(pod, "/dev/edu-peer"):
        refused = pod.driver("unload", of="edu")
        assert refused.exit_code == 43
        assert "edu_peer is held by 1 open file of python3" in refused.errors
        assert pod.ready("edu-peer")
    assert not peer.says.matching("leaves before")

    gone = pod.report("unload", of="edu")
    assert gone["removed"] == ["edu"]
    peer.says.until("waits until edu is ready on this node", times=2)
    assert (pod.loaded("edu_peer"), pod.ready("edu-peer")) == (False, False)

    ready(start(pod, "edu"), "edu")
    ready(peer, "edu-peer", times=2)
    pod.close()

    # Another version exports another symbol: the driver after it is another build, which is there.
    second = give("other")
    for_second = give("edu-peer", after=[second])
    assert for_second.manifest.key != for_first.manifest.key
    crc = second.manifest.modules[0].exports["edu_compute"]
    assert for_second.manifest.modules[0].imports["edu_compute"] == crc
    assert crc != first.manifest.modules[0].exports["edu_compute"]
    peer, other = start(pod, "edu-peer"), start(pod, "other")
    ready(other, "edu")
    ready(peer, "edu-peer", times=2)
    assert pod.node("cat", "/sys/class/misc/edu-peer/sum").strip() == "154"
    assert pod.report("status", of="edu-peer")["key"] == for_second.manifest.key


def test_a_driver_without_a_pod_has_to_be_unloaded_by_hand(pod: Pod, give: Give) -> None:
    give("edu-peer", after=[give("edu")])
    assert pod.run_once(of="edu")["state"] == "ready"
    assert pod.run_once(of="edu-peer")["source"] == "cached"

    refused = pod.driver("unload", of="edu")

    assert refused.exit_code == 43
    assert "edu-peer comes after edu and has not left: no pod runs it" in refused.errors
    assert pod.ready("edu"), "nothing was touched"
    assert pod.report("unload", of="edu-peer")["removed"] == ["edu_peer"]
    assert pod.report("unload", of="edu")["removed"] == ["edu"]
    left = set(pod.node("ls", "/run/nodeside-locks").split())
    of_pods = {"edu-peer.pod.lock", "edu.pod.lock"}  # if a test before this one has run them
    assert left - of_pods == {"edu-peer.lock", "edu.lock"}
