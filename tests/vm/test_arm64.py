"""An arm64 machine on this host: the cold life of the edu driver, and a driver that crashes.

Everything is emulated, here too: where nothing depends on the place of a build, it is this host,
in the arm64 toolkit's root file system.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeside.errors import ExitCode
from nodeside.system import process
from nodeside.system.process import Completed
from nodeside.trial.architecture import ARM64
from nodeside.trial.workshop import Workshop
from tests.patience import patience
from tests.vm.conftest import switched_on
from tests.vm.hostbuilds import HostBuilds
from tests.vm.pod import Pod, whys
from tests.vm.variants import EDU, DriverImage, SmallModule
from tests.vm.warm import WarmDriver

pytestmark = pytest.mark.vm

SECONDS = patience(7200.0)
CODE = "from nodeside.__main__ import main; main()"


@pytest.fixture(scope="module")
def arm64() -> Iterator[Workshop]:
    with Workshop(architecture=ARM64) as workshop:
        yield workshop


def try_out(*words: str) -> Completed:
    argv = [sys.executable, "-c", CODE, "try", "--arch", "arm64", "--output", "json", *words]
    return process.run(argv, timeout=SECONDS, check=False)


def test_edu_is_built_loaded_and_computes_and_a_reboot_takes_it_from_the_cache(
    arm64: Workshop,
) -> None:
    cloud = arm64.resolve("cloud-arm64").release

    done = try_out(str(EDU), "--kernel", cloud, "--reboot-into", cloud, "--command", "uname -m")

    assert done.exit_code == 0, done.errors
    cold, rebooted = json.loads(done.output)["runs"]
    for run in (cold, rebooted):
        assert run["kernel"] == cloud
        assert run["accelerator"] == "tcg"
        assert run["announcementMistakes"] == []
        assert run["kernelComplaints"] == []
        assert run["report"]["state"] == "ready"
        assert "10! = 3628800" in run["commands"][0]["output"]
        assert run["commands"][1]["output"] == "aarch64"
    assert rebooted["report"]["source"] == "cached"


def test_a_kernel_with_larger_pages_loads_unloads_and_loads_again(
    arm64: Workshop, tmp_path: Path, image: DriverImage
) -> None:
    kernel = arm64.kernel("arm64-16k")
    with HostBuilds(arm64, tmp_path) as builds:
        bundle = builds(image.edu("edu"), kernel)
    with switched_on(arm64, kernel, image) as machine:
        assert machine.run(["getconf", "PAGESIZE"], timeout=SECONDS).output == "16384\n"
        pod = Pod(machine, WarmDriver(machine))
        pod.put_bundle(bundle)

        assert pod.run_once(of="edu")["source"] == "cached"
        assert pod.run_once(of="edu")["source"] == "loaded"
        assert pod.driver("unload", of="edu").exit_code == 0
        again = pod.run_once(of="edu")
        assert again["source"] == "cached"
        assert whys(again)["loaded"] == "edu not loaded"
        assert pod.lines_of_probe() == 2


def test_a_driver_that_crashes_the_kernel_is_said_with_the_place_in_it(tmp_path: Path) -> None:
    image = DriverImage(tmp_path)
    image.small("crashing", SmallModule("crashing", init="BUG();"))

    done = try_out(str(tmp_path / "crashing"), "--build-on", "host")

    (run,) = json.loads(done.output)["runs"]
    assert run["exitCode"] == done.exit_code == ExitCode.LOAD_FAILED
    assert "crashed while the driver was brought up: kernel BUG at " in run["report"]["message"]
    assert re.search(r", in small_init\+0x[0-9a-f]+/\S+ \[crashing\]", run["report"]["message"])
