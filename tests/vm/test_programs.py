"""Hooks and services of a driver on a real kernel: a daemon that holds the device open."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator

import pytest

from nodeside.trial.machine.machine import GuestProcess, Machine
from tests import daemon
from tests.vm.conftest import Give, Resume
from tests.vm.pod import LONG, Lines, Pod, Running, held_open
from tests.vm.variants import DriverImage, parameters

pytestmark = pytest.mark.vm

_READY = r"NODESIDE_READY driver=edu "
_SERVES = "a service is ready service=monitor"
_FILES = "/var/lib/nodeside/userspace/edu"
_SEEN = "/run/nodeside-locks/edu.current.json"  # since when the current files are current
_GRACE = 600.0  # seconds after which those before them may go
_MOUNTED = "/var/lib/nodeside/mounted/driver.yaml"  # on the node; below /host in the container


@pytest.fixture(scope="module")
def machine(resume: Resume, image: DriverImage) -> Iterator[Machine]:
    image.edu("edu", daemon.SPEC)
    with resume(image) as machine:
        yield machine


def start(pod: Pod) -> Running[GuestProcess]:
    return pod.start_driver("run", of="edu", where="privileged-driver")


def references(pod: Pod) -> int:
    return int(pod.node("cat", "/sys/module/edu/refcnt"))


def processes(pod: Pod) -> list[str]:
    """Oldest first, as the node numbers them."""
    pattern = (
        f"[{daemon.WORDS[0]}]{daemon.WORDS[1:]}"  # which grep's own command line does not have
    )
    script = f"grep -ls '{pattern}' /proc/[0-9]*/cmdline"
    found = pod.node("sh", "-c", script, check=False)
    return sorted(re.findall(r"\d+", found), key=int)


def test_a_service_holds_the_device_and_comes_back_if_any_of_it_is_killed(
    pod: Pod, give: Give
) -> None:
    give("edu")
    driver = start(pod)
    driver.says.until(_READY)
    assert driver.says.matching("loaded hook=")
    assert references(pod) == 1
    probes = pod.lines_of_probe()

    for times, number in enumerate((0, 1), start=2):  # the first process, and its child
        pod.node("kill", "-KILL", processes(pod)[number])
        driver.says.until("service monitor ended after", times=times - 1)
        driver.says.until(_SERVES, times=times)
        driver.says.until(_READY, times=times)
        assert (len(processes(pod)), references(pod)) == (2, 1)

    ended = driver.kill(signal.SIGTERM)
    assert ended.exit_code == 0
    assert (processes(pod), references(pod)) == ([], 0)
    assert pod.loaded()
    assert not pod.ready()
    again = start(pod)
    again.says.until(_READY)
    assert not again.says.matching("hook=")
    again.kill()
    assert processes(pod) == []
    assert pod.lines_of_probe() == probes, "no module was touched"
    assert pod.run_once(of="edu", where="privileged-driver", code=42)["notes"]


def test_only_a_stranger_keeps_a_module_that_a_service_holds(
    pod: Pod, give: Give, image: DriverImage
) -> None:
    give("edu")
    document = json.loads((image.directory / "edu" / "driver.yaml").read_text())
    document["spec"]["source"]["path"] = "/driver-image/edu/src"
    pod.machine.write_file(_MOUNTED, json.dumps(document).encode())
    place = {"NODESIDE_DRIVER": f"/host{_MOUNTED}"}
    driver = pod.start_driver("run", env=place, where="privileged-driver")
    driver.says.until(_READY)
    pids = processes(pod)

    with held_open(pod, "/dev/edu0"):
        document["spec"]["modules"] = parameters(timeout_ms="3000")
        pod.machine.write_file(_MOUNTED, json.dumps(document).encode())
        driver.says.until(r"cannot unload edu: edu is held by .* of python3")
        assert processes(pod) == pids
        assert not driver.says.matching("stopping a service|leaving hook=")

    driver.says.until(_READY, times=2)
    assert pod.parameter("timeout_ms") == "3000"
    assert order(driver.says) == ["leaving", "stopping", "left", "loaded", "ready"]
    assert set(processes(pod)).isdisjoint(pids)


def test_files_that_a_consumer_has_open_stay_over_an_upgrade(
    pod: Pod, give: Give, image: DriverImage
) -> None:
    give("edu")
    document = json.loads((image.directory / "edu" / "driver.yaml").read_text())
    spec = document["spec"]
    spec["source"]["path"] = "/driver-image/edu/src"
    spec |= {"userspace": {"paths": ["/usr/bin/sleep"]}, "services": [], "hooks": {}}
    spec["validate"] = {"devices": ["/dev/edu0"]}
    pod.machine.write_file(_MOUNTED, json.dumps(document).encode())
    place = {"NODESIDE_DRIVER": f"/host{_MOUNTED}"}
    driver = pod.start_driver("run", env=place)
    driver.says.until(_READY)
    [first] = versions(pod)
    assert pod.node("readlink", f"{_FILES}/current").strip() == first
    held = f"exec 3<{_FILES}/current/usr/bin/sleep; echo held; sleep 100000"
    says = Lines()
    consumer = pod.machine.start(["sh", "-c", held], "node", on_line=says.add)
    says.until("held")

    spec["userspace"]["paths"] = ["/usr/bin/sleep", "/usr/bin/env"]
    pod.machine.write_file(_MOUNTED, json.dumps(document).encode())
    driver.says.until("these files are current", times=2)
    assert len(versions(pod)) == 2

    def look_with(seconds: int) -> None:
        """As ten minutes later; a change of driver.yaml is a reason to look."""
        pod.until(f'grep -q "$(readlink {_FILES}/current)" {_SEEN}')
        seen = json.loads(pod.node("cat", _SEEN))
        seen["seconds"] -= _GRACE
        pod.machine.write_file(_SEEN, json.dumps(seen).encode())
        times = len(driver.says.matching("validate: done")) + 1
        spec["validate"]["timeoutSeconds"] = seconds
        pod.machine.write_file(_MOUNTED, json.dumps(document).encode())
        driver.says.until("validate: done", times=times)

    look_with(11)
    look_with(12)  # the look before it has ended, files and all
    assert first in versions(pod)
    consumer.kill()
    consumer.wait(LONG)
    look_with(13)
    driver.says.until("removing files that nothing uses")
    pod.until(f"[ ! -e {_FILES}/{first} ]")
    assert len(versions(pod)) == 1


def versions(pod: Pod) -> list[str]:
    return [name for name in pod.node("ls", _FILES).split() if name != "current"]


def order(says: Lines) -> list[str]:
    """What happened around the second load."""
    words = {
        "leaving hook=": "leaving",
        "stopping a service": "stopping",
        "left hook=": "left",
        "loaded hook=": "loaded",
        _SERVES: "ready",
    }
    found = [word for line in says.matching(".") for text, word in words.items() if text in line]
    return found[found.index("leaving") :]
