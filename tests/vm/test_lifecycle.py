"""The life of a driver on a node: from a cold start over restarts and reboots to its removal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nodeside.protocol.node_status import READY_PATTERN
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.workshop import Workshop
from tests.vm.conftest import Kernels
from tests.vm.hostbuilds import HostBuilds
from tests.vm.pod import SHARED, Pod, whys
from tests.vm.variants import EDU, DriverImage, variant
from tests.vm.warm import WarmDriver

pytestmark = pytest.mark.vm


def test_cold_start_builds_and_every_later_start_takes_the_cheapest_rung(
    workshop: Workshop, newest: KernelDisk
) -> None:
    with workshop.node(newest, driver_image=EDU) as node:
        with node.boot(devices=["edu"], cpus=1) as machine:
            pod = Pod(machine)
            pod.start_sidecar()

            cold = pod.driver("run", "--once")
            assert cold.exit_code == 0, cold.errors
            marker = READY_PATTERN.search(cold.errors)
            assert marker is not None, cold.errors
            assert marker["source"] == "built"
            assert "CC [M]" in cold.errors  # the compiler's output, as it happened

            restarted = pod.run_once()
            assert restarted["source"] == "loaded"
            assert pod.lines_of_probe() == 1, "the kernel was touched"

            assert pod.driver("unload").exit_code == 0
            again = pod.run_once()
            assert again["source"] == "cached"
            assert whys(again)["loaded"] == "edu not loaded"
            machine.power_off()

        with node.boot(devices=["edu"], cpus=1) as machine:
            rebooted = Pod(machine).run_once()
            assert rebooted["source"] == "cached"
            assert rebooted["announced"]["labels"] == {"nodeside.io/edu.state": "ready"}


def test_a_kernel_with_equal_crcs_takes_the_compatible_bundle_and_another_one_does_not(
    workshop: Workshop, kernels: Kernels, host_builds: HostBuilds, tmp_path: Path
) -> None:
    driver = variant(EDU, tmp_path / "edu", {"reuse": "crc"})
    bundle = host_builds(driver, kernels.newest)
    with workshop.node(kernels.equal, driver_image=driver) as node:
        with node.boot(devices=["edu"], cpus=1) as machine:
            pod = Pod(machine, WarmDriver(machine))
            pod.put_bundle(bundle)
            pod.start_sidecar()
            report = pod.run_once()
            assert report["source"] == "compatible"
            expected = rf"built for {kernels.newest.release}; all \d+ imported symbols have"
            assert re.match(expected, whys(report)["compatible"])
            assert pod.run_once()["source"] == "loaded"
            assert pod.lines_of_probe() == 1
            machine.power_off()

        with node.boot(kernels.different, devices=["edu"], cpus=1) as machine:
            pod = Pod(machine, WarmDriver(machine))
            pod.start_sidecar()
            pod.until(f"ls {SHARED}/results/symvers-{kernels.different.release}")
            report = pod.report("plan")
            assert report["would"][0] == "ask the toolkit to build"
            assert re.match(r"the one for \S+ differs in \w+", whys(report)["compatible"])


def test_a_version_for_the_next_reboot_leaves_the_running_node_alone_until_then(
    workshop: Workshop, newest: KernelDisk, image: DriverImage, host_builds: HostBuilds
) -> None:
    old = host_builds(image.edu("old"), newest)
    later = {"version": "1.1.0", "upgrade": "onReboot"}
    new = host_builds(image.edu("new", later, {'VERSION("1.0.0")': 'VERSION("1.1.0")'}), newest)
    with workshop.node(newest, driver_image=image.directory) as node:
        with node.boot(devices=["edu"], cpus=1) as machine:
            pod = Pod(machine, WarmDriver(machine))
            pod.put_bundle(old)
            pod.put_bundle(new)
            assert pod.run_once(of="old")["source"] == "cached"

            waiting = pod.run_once(of="new", code=44)
            assert waiting["state"] == "reboot-required"
            assert waiting["message"] == (
                "another edu is loaded, and driver.yaml says upgrade: onReboot"
            )
            assert waiting["announced"]["labels"] == {"nodeside.io/edu.state": "reboot-required"}
            assert pod.version() == "1.0.0"
            assert pod.lines_of_probe() == 1, "the running node was touched"
            machine.power_off()

        with node.boot(devices=["edu"], cpus=1) as machine:
            pod = Pod(machine)
            rebooted = pod.run_once(of="new")
            assert (rebooted["source"], rebooted["version"]) == ("cached", "1.1.0")
            assert pod.version() == "1.1.0"
