"""The life of a driver on a node: from a cold start over restarts and a reboot to its removal."""

from __future__ import annotations

import re

import pytest

from nodeside.protocol.node_status import READY_PATTERN
from tests.vm.conftest import Kernels, Resume, warm_driver
from tests.vm.hostbuilds import HostBuilds
from tests.vm.pod import SHARED, Pod, whys
from tests.vm.resumed import booted_again
from tests.vm.variants import DriverImage, SmallModule

pytestmark = pytest.mark.vm

_LATER = {"version": "1.1.0", "upgrade": "onReboot"}
_NEW = {'VERSION("1.0.0")': 'VERSION("1.1.0")'}


def test_a_driver_is_built_once_and_an_upgrade_on_reboot_waits_for_it(
    resume: Resume, kernels: Kernels, image: DriverImage, host_builds: HostBuilds
) -> None:
    image.small("tiny", SmallModule("tiny"))
    old = host_builds(image.edu("old"), kernels.newest)
    new = host_builds(image.edu("new", _LATER, _NEW), kernels.newest)
    with resume(image) as machine:
        start_cold_and_again(Pod(machine))
        pod = Pod(machine, warm_driver(machine))
        unload_and_load_from_the_cache(pod)
        pod.put_bundle(old)
        pod.put_bundle(new)
        ask_for_the_next_reboot(pod)
        machine.power_off()
        with booted_again(machine, ("edu",)) as again:
            pod = Pod(again)
            rebooted = pod.run_once(of="tiny")
            assert rebooted["source"] == "cached"
            assert rebooted["announced"]["labels"] == {"nodeside.io/tiny.state": "ready"}
            upgraded = pod.run_once(of="new")
            assert (upgraded["source"], upgraded["version"]) == ("cached", "1.1.0")
            assert pod.version() == "1.1.0"


def start_cold_and_again(pod: Pod) -> None:
    """Each command starts a container, and a node has nothing before the first."""
    pod.node("sh", "-c", f"rm -rf {SHARED}/*")
    pod.start_sidecar()

    cold = pod.driver("run", "--once", of="tiny")
    assert cold.exit_code == 0, cold.errors
    marker = READY_PATTERN.search(cold.errors)
    assert marker is not None, cold.errors
    assert marker["source"] == "built"
    assert "CC [M]" in cold.errors  # the compiler's output, as it happened

    restarted = pod.run_once(of="tiny")
    assert restarted["source"] == "loaded"
    assert pod.said("tiny: init") == 1, "the kernel was touched"
    pod.close()


def unload_and_load_from_the_cache(pod: Pod) -> None:
    assert pod.driver("unload", of="tiny").exit_code == 0
    again = pod.run_once(of="tiny")
    assert again["source"] == "cached"
    assert whys(again)["loaded"] == "tiny not loaded"


def ask_for_the_next_reboot(pod: Pod) -> None:
    """The running node is left alone until then."""
    assert pod.run_once(of="old")["source"] == "cached"

    waiting = pod.run_once(of="new", code=44)

    assert waiting["state"] == "reboot-required"
    assert waiting["message"] == "another edu is loaded, and driver.yaml says upgrade: onReboot"
    assert waiting["announced"]["labels"] == {"nodeside.io/edu.state": "reboot-required"}
    assert pod.version() == "1.0.0"
    assert pod.lines_of_probe() == 1, "the running node was touched"


def test_a_bundle_for_a_kernel_with_equal_crcs_is_taken_and_one_for_another_is_not(
    resume: Resume, kernels: Kernels, host_builds: HostBuilds, image: DriverImage
) -> None:
    """Bundles of earlier kernels are in the cache, as after an update of the kernel."""
    driver = image.edu("edu", {"reuse": "crc"})
    with resume(image) as machine:
        pod = Pod(machine, warm_driver(machine))
        pod.put_bundle(host_builds(driver, kernels.different))
        pod.start_sidecar()
        pod.until(f"ls {SHARED}/results/symvers-{kernels.newest.release}")
        plan = pod.report("plan", of="edu")
        assert plan["would"][0] == "ask the toolkit to build"
        assert re.match(r"the one for \S+ differs in \w+", whys(plan)["compatible"])

        pod.put_bundle(host_builds(driver, kernels.equal))
        report = pod.run_once(of="edu")
        assert report["source"] == "compatible"
        expected = rf"built for {kernels.equal.release}; all \d+ imported symbols have"
        assert re.match(expected, whys(report)["compatible"])
        assert pod.run_once(of="edu")["source"] == "loaded"
        assert pod.lines_of_probe() == 1
