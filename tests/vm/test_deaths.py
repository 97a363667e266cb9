"""A module in whose load the kernel panics, on a node that is switched on again."""

from __future__ import annotations

import json

import pytest

from nodeside.errors import ExitCode
from nodeside.trial.errors import MachineLost
from nodeside.trial.machine.kernel_disk import KernelDisk
from tests.vm.conftest import Resume, warm_driver
from tests.vm.hostbuilds import HostBuilds
from tests.vm.pod import LONG, Pod
from tests.vm.resumed import booted_again
from tests.vm.variants import DriverImage, SmallModule
from tests.vm.warm import WarmDriver

pytestmark = pytest.mark.vm

_MARK = "/var/lib/nodeside/loading/deadly.json"
_PANICS = """
	struct pci_dev *card = pci_get_device(0x1234, 0x11e8, NULL);

	if (card)
		panic("deadly: no driver for this card");"""
DEADLY = SmallModule("deadly", init=_PANICS, declarations="#include <linux/pci.h>")


def test_a_module_that_panics_is_not_loaded_again_until_a_person_says_so(
    resume: Resume, newest: KernelDisk, image: DriverImage, host_builds: HostBuilds
) -> None:
    bundle = host_builds(image.small("deadly", DEADLY), newest)
    with resume(image, devices=("edu",)) as first:
        first.allow_splats = True
        pod = Pod(first, warm_driver(first))
        pod.put_bundle(bundle)
        pod.node("sync")
        with pytest.raises(MachineLost):
            pod.driver("run", "--once", of="deadly")
        first.await_off(LONG)
        assert "Kernel panic - not syncing: deadly: no driver for this card" in first.serial_log()

        with booted_again(first) as machine:
            pod = Pod(machine, WarmDriver(machine))
            for _ in range(2):
                report = pod.report("run", "--once", of="deadly", code=ExitCode.REFUSED)
                assert (report["state"], report["reason"]) == ("failed", "KernelDied")
                assert not pod.loaded("deadly")
            assert json.loads(pod.node("cat", _MARK))["revision"] == ""

            assert pod.driver("load", of="deadly").exit_code == 0
            assert pod.loaded("deadly")
            assert not pod.exists(_MARK)
            assert pod.run_once(of="deadly")["source"] == "loaded"
