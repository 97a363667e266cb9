"""New versions, other parameters and neighbours of a driver, on one running node."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from nodeside.trial.machine.machine import Machine
from tests.vm.conftest import Give, Resume
from tests.vm.pod import Pod, whys
from tests.vm.variants import DriverImage, SmallModule, parameters

pytestmark = pytest.mark.vm

_LOUD = '#ifdef LOUD\n\tpr_info("tiny: loud\\n");\n#endif'
_FIRST = 'VERSION("1.0.0")'


@pytest.fixture(scope="module")
def machine(resume: Resume, image: DriverImage) -> Iterator[Machine]:
    second, third = {_FIRST: 'VERSION("1.1.0")'}, {_FIRST: 'VERSION("1.2.0")'}
    image.edu("first")
    image.edu("second", {"version": "1.1.0"}, second)
    patient = parameters(timeout_ms="3000")
    image.edu("patient", {"version": "1.1.0", "modules": patient}, second)
    image.edu("wrong", {"version": "1.2.0", "modules": parameters(timeout_ms="0")}, third)
    tiny = SmallModule("tiny", init=_LOUD)
    image.small("quiet", tiny)
    image.small("loud", tiny, {"build": {"kind": "kbuild", "makeArguments": ["KCFLAGS=-DLOUD"]}})
    with resume(image) as machine:
        yield machine


def test_a_new_version_replaces_the_loaded_one_and_the_old_bundle_stays(
    pod: Pod, give: Give
) -> None:
    first = give("first")
    give("second")
    assert pod.run_once(of="first")["source"] == "cached"
    probes = pod.lines_of_probe()

    upgraded = pod.run_once(of="second")

    assert (upgraded["source"], upgraded["version"]) == ("cached", "1.1.0")
    assert whys(upgraded)["loaded"].startswith("edu loaded, but with another build-id (")
    assert pod.version() == "1.1.0"
    assert pod.lines_of_probe() == probes + 1
    assert first.directory.name in pod.report("status", of="second")["cache"]

    back = pod.run_once(of="first")
    assert (back["source"], pod.version()) == ("cached", "1.0.0")


def test_other_parameters_alone_reload_the_cached_bundle(pod: Pod, give: Give) -> None:
    give("second")
    assert pod.run_once(of="second")["source"] == "cached"
    assert pod.parameter("timeout_ms") == "2000"

    changed = pod.run_once(of="patient")

    assert changed["source"] == "cached"
    assert whys(changed)["loaded"] == (
        "edu loaded with parameters timeout_ms=2000, wanted timeout_ms=3000"
    )
    assert pod.parameter("timeout_ms") == "3000"
    assert pod.run_once(of="patient")["source"] == "loaded"


def test_a_version_that_does_not_load_brings_the_previous_one_back(pod: Pod, give: Give) -> None:
    give("patient")
    give("wrong")
    assert pod.run_once(of="patient")["source"] == "cached"
    probes = pod.lines_of_probe()

    failed = pod.run_once(of="wrong", code=41)

    assert (failed["state"], failed["reason"]) == ("failed", "InitRefused")
    assert "cannot load edu: EINVAL (Invalid argument)" in failed["message"]
    assert re.search(r"\n  kernel: .*\] edu: timeout_ms=0 is not in 1 to 10000", failed["message"])
    assert "the previous edu is loaded again" in failed["message"]
    assert (pod.version(), pod.parameter("timeout_ms")) == ("1.1.0", "3000")
    assert pod.lines_of_probe() == probes + 1
    assert not pod.ready(), "what is wanted is not what is loaded"

    assert pod.run_once(of="patient")["source"] == "loaded"
    assert pod.ready()
    assert pod.lines_of_probe() == probes + 1


def test_a_deleted_pod_leaves_the_driver_as_it_was(pod: Pod, give: Give) -> None:
    give("first")
    pod.start_sidecar()
    driver = pod.fork_driver("run", of="first")
    driver.says.until(r"NODESIDE_READY driver=edu .* source=cached ")
    probes = pod.lines_of_probe()

    pod.delete()
    assert pod.ready()

    assert pod.run_once(of="first")["source"] == "loaded"
    assert pod.lines_of_probe() == probes, "the kernel was touched"


def test_a_build_with_the_same_srcversion_is_not_taken_for_the_wanted_one(
    pod: Pod, give: Give
) -> None:
    quiet = give("quiet")
    loud = give("loud")
    assert quiet.manifest.modules[0].srcversion == loud.manifest.modules[0].srcversion != ""
    assert quiet.manifest.modules[0].build_id != loud.manifest.modules[0].build_id
    assert pod.run_once(of="quiet")["source"] == "cached"
    loud_lines = pod.said("tiny: loud")

    other = pod.run_once(of="loud")

    assert other["source"] == "cached"
    assert whys(other)["loaded"].startswith("tiny loaded, but with another build-id (")
    assert pod.said("tiny: loud") == loud_lines + 1


def test_two_drivers_on_one_node_have_nothing_to_do_with_each_other(pod: Pod, give: Give) -> None:
    give("first")
    give("quiet")
    # There is neither a bundle nor a sidecar for this version: it waits, longer than any of these
    # tests, and holds the lock of edu.
    waiting = pod.fork_driver(
        "run", "--once", of="second", env={"NODESIDE_SIDECAR_TIMEOUT": "3600"}
    )
    waiting.says.until("asked the toolkit sidecar to build")

    assert pod.run_once(of="quiet")["source"] == "cached"
    assert pod.ready("tiny")

    locked = pod.driver("unload", of="first")
    assert locked.exit_code == 45
    assert "another process is working on driver edu on this node: pid " in locked.errors
    assert "(/usr/local/bin/nodeside driver run --once) in trial, since" in locked.errors

    waiting.kill()
    assert pod.run_once(of="first")["source"] == "cached"
    assert pod.driver("unload", of="first").exit_code == 0
    assert (pod.loaded("edu"), pod.ready("edu")) == (False, False)
    assert (pod.loaded("tiny"), pod.ready("tiny")) == (True, True)
