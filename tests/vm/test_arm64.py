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

from nodeside.driver.bundle.bundle import Bundle, read_bundle
from nodeside.spec.document import load
from nodeside.system import process
from nodeside.system.process import Completed
from nodeside.trial.architecture import ARM64
from nodeside.trial.errors import MachineLost
from nodeside.trial.host import build as host_build
from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.pod import find_crash_site
from nodeside.trial.progress import Progress
from nodeside.trial.workshop import Workshop
from tests.patience import patience
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


def test_edu_is_built_loaded_and_computes(arm64: Workshop) -> None:
    cloud = arm64.resolve("cloud-arm64").release

    done = try_out(str(EDU), "--kernel", cloud, "--command", "uname -m")

    assert done.exit_code == 0, done.errors
    [run] = json.loads(done.output)["runs"]
    assert run["kernel"] == cloud
    assert run["accelerator"] == "tcg"
    assert run["announcementMistakes"] == []
    assert run["kernelComplaints"] == []
    assert run["report"]["state"] == "ready"
    assert "10! = 3628800" in run["commands"][0]["output"]
    assert run["commands"][1]["output"] == "aarch64"


def test_a_kernel_with_larger_pages_loads_unloads_and_loads_again_and_says_where_it_crashes(
    arm64: Workshop, tmp_path: Path, image: DriverImage
) -> None:
    kernel = arm64.kernel("arm64-16k")
    crashing = image.small("crashing", SmallModule("crashing", init="BUG();"))
    with HostBuilds(arm64, tmp_path) as builds:
        bundles = [as_in_a_trial(arm64, image.edu("edu"), kernel, tmp_path / "kept")]
        bundles.append(builds(crashing, kernel))
    with (
        arm64.node(kernel, driver_image=image.directory) as node,
        node.boot(devices=["edu"], cpus=1, allow_splats=True) as machine,
    ):
        assert machine.run(["getconf", "PAGESIZE"], timeout=SECONDS).output == "16384\n"
        pod = Pod(machine, WarmDriver(machine))
        for bundle in bundles:
            pod.put_bundle(bundle)

        assert pod.run_once(of="edu")["source"] == "cached"
        assert pod.driver("unload", of="edu").exit_code == 0
        again = pod.run_once(of="edu")
        assert again["source"] == "cached"
        assert whys(again)["loaded"] == "edu not loaded"
        assert pod.lines_of_probe() == 2
        assert pod.run_once(of="edu")["source"] == "loaded"
        assert not machine.splats()

        with pytest.raises(MachineLost):
            pod.driver("load", of="crashing")
        assert machine.splats()[0].startswith("kernel BUG at ")
        site = find_crash_site(machine.serial_log())
        assert re.fullmatch(r"small_init\+0x[0-9a-f]+/\S+ \[crashing\]", site)


def as_in_a_trial(workshop: Workshop, driver: Path, kernel: KernelDisk, cache: Path) -> Bundle:
    """The bundle that a trial would have: one of an earlier trial, if nothing has changed."""
    built = host_build.build_on_host(
        driver,
        kernel,
        toolkit=workshop.roots.toolkit(kernel.compiler),
        python=workshop.packed_python(),
        cache=cache,
        kept=workshop.kept_bundles,
        driver=load(driver / "driver.yaml"),
        progress=Progress(),
    )
    assert built.exit_code == 0, built.message
    [manifest] = cache.glob("*/*/manifest.json")
    return read_bundle(manifest.parent)
