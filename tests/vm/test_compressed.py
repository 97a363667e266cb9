"""A kernel whose own modules are compressed: what depends on one of them is loaded after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.machine.machine import Machine
from nodeside.trial.workshop import Workshop
from tests.vm.conftest import Give, switched_on
from tests.vm.pod import Pod
from tests.vm.variants import DriverImage, SmallModule

pytestmark = pytest.mark.vm

# crc_itu_t() is a module of the kernel's own; the sum of "1" is known.
_NEEDY = SmallModule(
    "needy",
    declarations="#include <linux/crc-itu-t.h>",
    init='pr_info("needy: crc %04x\\n", crc_itu_t(0, "1", 1));',
)


@pytest.fixture(scope="module")
def kernel(compressed: KernelDisk) -> KernelDisk:
    return compressed


@pytest.fixture(scope="module")
def machine(workshop: Workshop, kernel: KernelDisk, image: DriverImage) -> Iterator[Machine]:
    image.edu("edu")
    image.small("needy", _NEEDY)
    with switched_on(workshop, kernel, image) as machine:
        yield machine


def test_a_module_of_the_kernel_that_is_needed_is_unpacked_and_loaded_first(
    pod: Pod, give: Give, kernel: KernelDisk
) -> None:
    assert give("needy").manifest.modules[0].depends == ("crc_itu_t",)
    needed = f"/lib/modules/{kernel.release}/kernel/lib/crc-itu-t.ko"
    assert pod.exists(f"{needed}.xz")
    assert not pod.loaded("crc_itu_t")

    report = pod.run_once(of="needy")

    assert report["state"] == "ready"
    assert pod.loaded("crc_itu_t")
    assert pod.said("needy: crc 2672") == 1

    assert pod.driver("unload", of="needy").exit_code == 0
    assert pod.loaded("crc_itu_t"), "a module of the kernel's own is not ours to unload"


def test_the_driver_works_there_and_is_found_loaded(pod: Pod, give: Give) -> None:
    give("edu")

    first = pod.run_once(of="edu")

    assert (first["source"], first["state"]) == ("cached", "ready")
    assert [check["ok"] for check in first["checks"]] == [True] * len(first["checks"])
    assert pod.run_once(of="edu")["source"] == "loaded"
    assert pod.lines_of_probe() == 1
