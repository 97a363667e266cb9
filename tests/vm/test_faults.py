"""Processes that are killed and machines that lose power, in the middle of what they were doing.

The build is one that waits for a file, so "the middle" is no matter of luck.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.machine.machine import Machine
from tests.vm.conftest import Resume, warm_driver
from tests.vm.hostbuilds import HostBuilds
from tests.vm.pod import CACHE, LONG, SHARED, Pod, Running
from tests.vm.resumed import booted_again
from tests.vm.variants import DriverImage, SmallModule
from tests.vm.warm import WarmDriver, WarmProcess

pytestmark = pytest.mark.vm

# Each look starts a program, which takes a good part of an emulated processor if it is often.
_WAITS = 'echo "the build is running"\nuntil [ -e /shared/go ]; do sleep 1; done'
_RUNNING = r"build \| the build is running"
_LARGE = 8 << 20  # bytes; such a module takes a while to copy
_COPYING = f"ls {CACHE}/.tmp-*/raw/*.ko"


@pytest.fixture(scope="module")
def drivers(newest: KernelDisk, image: DriverImage, host_builds: HostBuilds) -> DriverImage:
    tiny = host_builds(image.small("tiny", SmallModule("tiny")), newest).module_path("tiny")
    image.instant("waiting", tiny, _WAITS)
    image.instant("large", tiny, spec={"version": "2.0"}, padding=_LARGE)
    return image


@pytest.fixture(scope="module")
def machine(resume: Resume, drivers: DriverImage) -> Iterator[Machine]:
    with resume(drivers, devices=()) as machine:
        yield machine


def go_on(pod: Pod) -> None:
    """Let the build that waits come to its end."""
    pod.node("touch", f"{SHARED}/go")


def must_become_ready(driver: Running[WarmProcess]) -> None:
    assert driver.process.wait(LONG).exit_code == 0, driver.says
    driver.says.until("NODESIDE_READY driver=tiny .* source=built")


def leftovers(pod: Pod) -> str:
    """What a crash left in the cache."""
    return pod.node("sh", "-c", f"find {CACHE} -name '.tmp-*' -o -name '.damaged-*'")


def test_power_lost_in_a_build_and_in_a_write_of_the_cache_leaves_a_node_that_starts(
    resume: Resume, drivers: DriverImage
) -> None:
    with resume(drivers, devices=()) as first:
        pod = Pod(first, warm_driver(first))
        pod.start_sidecar()
        pod.fork_driver("run", "--once", of="waiting").says.until(_RUNNING)
        pod.node("sync")  # so that the request is there after the power cut
        first.power_off(hard=True)

        with booted_again(first) as machine:
            pod = Pod(machine, WarmDriver(machine))
            assert pod.node("ls", f"{SHARED}/requests") != "", "the request is lost"
            assert "waiting" not in pod.node("sh", "-c", f"cat {SHARED}/results/*.json || true")
            go_on(pod)
            pod.start_sidecar()
            rebuilt = pod.fork_driver("run", "--once", of="waiting")
            must_become_ready(rebuilt)
            assert not rebuilt.says.matching("joining the build"), "it was of another boot"

            pod.fork_driver("run", "--once", of="large")
            pod.until(_COPYING)
            machine.power_off(hard=True)

        with booted_again(first) as machine:
            pod = Pod(machine, WarmDriver(machine))
            pod.start_sidecar()
            report = pod.run_once(of="large")
            assert (report["source"], report["state"]) == ("built", "ready")
            assert leftovers(pod) == ""
            assert pod.driver("unload", of="large").exit_code == 0
            assert pod.run_once(of="waiting")["source"] == "cached"


def test_a_driver_killed_during_a_build_joins_it_when_it_comes_back(pod: Pod) -> None:
    sidecar = pod.start_sidecar()
    first = pod.start_driver("run", "--once", of="waiting")
    first.says.until(_RUNNING)

    first.kill()
    second = pod.fork_driver("run", "--once", of="waiting")
    second.says.until("joining the build requested earlier")
    go_on(pod)

    must_become_ready(second)
    assert sidecar.errors.count("build begins") == 1


def test_a_sidecar_killed_during_a_build_is_missed_at_once_and_finishes_when_it_comes_back(
    pod: Pod,
) -> None:
    pod.start_sidecar()
    driver = pod.fork_driver("run", "--once", of="waiting")
    driver.says.until(_RUNNING)

    pod.kill_sidecar()
    driver.says.until("the toolkit sidecar was lost during a build")
    pod.start_sidecar()
    driver.says.until("the toolkit sidecar is back")
    driver.says.until(_RUNNING, times=2)
    go_on(pod)

    must_become_ready(driver)


def test_a_driver_killed_while_it_copies_what_was_built_starts_again_with_a_clean_cache(
    pod: Pod,
) -> None:
    sidecar = pod.start_sidecar()
    driver = pod.fork_driver("run", "--once", of="large")
    pod.until(_COPYING)

    driver.kill()
    assert leftovers(pod) != "", "it was killed too late"
    again = pod.run_once(of="large")

    assert (again["source"], again["state"]) == ("built", "ready")
    assert leftovers(pod) == ""
    assert sidecar.errors.count("build begins") == 1


def test_what_was_built_and_then_changed_by_somebody_is_not_used(
    pod: Pod, drivers: DriverImage, tmp_path: Path
) -> None:
    """The driver is away when the result appears; meanwhile its module is replaced."""
    pod.start_sidecar()
    driver = pod.fork_driver("run", "--once", of="waiting")
    driver.says.until(_RUNNING)
    driver.kill()
    go_on(pod)
    pod.until(f"ls {SHARED}/results/*-1.json")
    module = (drivers.directory / "waiting" / "src" / "module.bin").read_bytes()
    place = pod.node("sh", "-c", f"ls {SHARED}/out/*/modules/tiny.ko").strip()
    pod.machine.write_file(place, module.replace(b"init returns", b"INIT RETURNS"))

    pod.driver("run", "--once", of="waiting")
    assert pod.said("tiny: INIT RETURNS") == 0

    assert pod.run_once(of="waiting")["state"] == "ready"
    assert pod.said("tiny: INIT RETURNS") == 0
