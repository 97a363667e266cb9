"""Loads and unloads that are refused: by us before the kernel is asked, or by the kernel."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeside.trial.machine.machine import Machine
from tests.vm.conftest import Give, Resume
from tests.vm.pod import LONG, Pod, held_open
from tests.vm.variants import DriverImage, SmallModule, parameters

pytestmark = pytest.mark.vm

_TOLD_BOTH = {"name": "told", "parameters": {"answer": "0"}}
_SECOND = {'VERSION("1.0.0")': 'VERSION("1.1.0")'}

# A driver for a device that the kernel has a driver of its own for: QEMU's pvpanic-pci.
_USURPER = """\
// SPDX-License-Identifier: GPL-2.0
#include <linux/module.h>
#include <linux/pci.h>

static const struct pci_device_id usurper_ids[] = { { PCI_DEVICE(0x1b36, 0x0011) }, {} };
MODULE_DEVICE_TABLE(pci, usurper_ids);

static int usurper_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	return 0;
}

static struct pci_driver usurper_driver = {
	.name = "usurper", .id_table = usurper_ids, .probe = usurper_probe,
};
module_pci_driver(usurper_driver);
MODULE_DESCRIPTION("A driver of the tests in the place of the kernel's own");
MODULE_LICENSE("GPL");
"""
_PVPANIC = {"vendor": "1b36", "device": "0011"}
_CONFLICTS: dict[str, dict[str, Any]] = {
    "modules": {"modules": ["pvpanic-pci"]},
    "unbind": {"unbind": [_PVPANIC]},
    "never": {"modules": ["pvpanic-pci"], "restore": "never"},
}


@pytest.fixture(scope="module")
def machine(resume: Resume, image: DriverImage) -> Iterator[Machine]:
    image.edu("edu")
    image.edu("second", {"version": "1.1.0"}, _SECOND)
    image.edu("misspelt", {"modules": parameters(timout_ms="2000")})
    image.edu("instead-of-dummy", {"conflicts": {"modules": ["dummy"]}})
    image.edu("instead-of-loop", {"conflicts": {"modules": ["loop"]}})
    sources = {"Kbuild": "obj-m := usurper.o\n", "usurper.c": _USURPER}
    for how, conflicts in _CONFLICTS.items():
        bound = {"bound": [{**_PVPANIC, "driver": "usurper"}]}
        fields = {"build": {"kind": "kbuild"}, "conflicts": conflicts, "validate": bound}
        image.driver(f"usurper-{how}", "usurper", sources, fields)
    image.edu("keeping", {"unload": {"foreign": "keep"}})
    image.edu("never", {"unload": {"policy": "never"}})
    refuser = SmallModule("refuser")
    for answer in ("19", "22"):
        modules = [{"name": "refuser", "parameters": {"answer": answer}}]
        image.small(f"refuser-{answer}", refuser, {"modules": modules})
    image.stand_in("with-provider", "provider", "consumer")
    image.stand_in("consumer", "consumer")
    image.small("permanent", SmallModule("permanent", permanent=True))
    image.small("told", SmallModule("told"))  # as SAID_AT_BOOT says
    image.small("told-both", SmallModule("told"), {"modules": [_TOLD_BOTH]})
    image.small("forbidden", SmallModule("forbidden"))
    label = "static char *label;\nmodule_param(label, charp, 0444);"
    image.small("quoted", SmallModule("quoted", declarations=label))
    softdep = 'MODULE_SOFTDEP("pre: dummy loop post: absent");'
    image.small("softly", SmallModule("softly", declarations=softdep))
    with resume(image, devices=("edu", "pvpanic-pci")) as machine:
        yield machine


def insmod(pod: Pod, module: Path) -> None:
    """Load a module as a person would who knows nothing of nodeside."""
    place = f"/tmp/by-hand/{module.name}"
    pod.machine.write_file(place, module.read_bytes())
    pod.node("insmod", place)


def driver_of(pod: Pod, address: str) -> str:
    """The driver that a PCI device is bound to."""
    link = f"/sys/bus/pci/devices/{address}/driver"
    return pod.node("readlink", link, check=False).strip().rpartition("/")[2]


def test_a_parameter_that_the_module_does_not_have_never_reaches_the_kernel(
    pod: Pod, give: Give
) -> None:
    give("edu")
    before = pod.kernel_log()

    refused = pod.run_once(of="misspelt", code=40)

    assert refused["message"] == "edu: edu has no parameter 'timout_ms'"
    assert refused["hint"] == "did you mean timeout_ms? known parameters: timeout_ms"
    assert refused["announced"]["labels"] == {"nodeside.io/edu.state": "failed"}
    assert not pod.loaded()
    assert pod.kernel_log() == before


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("19", "ENODEV (No such device): the module itself is sound, but its init function"),
        ("22", "EINVAL (Invalid argument): its init function refused: a parameter it needs"),
    ],
    ids=["ENODEV", "EINVAL"],
)
def test_what_init_answers_is_told_in_words_with_the_line_of_the_kernel(
    pod: Pod, give: Give, answer: str, said: str
) -> None:
    give(f"refuser-{answer}")

    failed = pod.run_once(of=f"refuser-{answer}", code=41)

    assert f"cannot load refuser: {said}" in failed["message"]
    kernel = rf"\n  kernel: .*\] refuser: init returns -{answer}"
    assert re.search(kernel, failed["message"])
    assert not pod.loaded("refuser")
    assert not pod.exists("/run/nodeside-locks/refuser.loaded.json")


def test_a_module_that_is_held_open_stays_and_its_holder_is_named(pod: Pod, give: Give) -> None:
    give("edu")
    give("second")
    assert pod.run_once(of="edu")["state"] == "ready"
    holder = r"cannot unload edu: edu is held by 1 open file of python3 \(pid \d+\)"
    with held_open(pod, "/dev/edu0"):
        refused = pod.driver("unload", of="edu")
        assert refused.exit_code == 43
        assert re.search(holder, refused.errors)

        waiting = pod.run_once(of="second", code=43)
        assert waiting["state"] == "reboot-required"
        assert re.match(holder, waiting["message"])
        assert waiting["announced"]["labels"] == {"nodeside.io/edu.state": "reboot-required"}
        assert pod.version() == "1.0.0"

    assert pod.run_once(of="second")["state"] == "ready"
    assert pod.version() == "1.1.0"


def test_an_unload_that_waits_names_the_holder_and_ends_when_he_lets_go(
    pod: Pod, give: Give
) -> None:
    """What the controller starts on a node that a driver leaves."""
    give("edu")
    assert pod.run_once(of="edu")["state"] == "ready"
    holder = r"cannot unload edu: edu is held by 1 open file of python3 \(pid \d+\)"
    with held_open(pod, "/dev/edu0"):
        told_to_stop = pod.fork_driver("unload", "--wait", of="edu")
        told_to_stop.says.until(holder)
        assert told_to_stop.kill(signal.SIGTERM).exit_code == 130
        assert pod.loaded()

        patient = pod.fork_driver("unload", "--wait", of="edu")
        patient.says.until(holder)
        assert pod.loaded()
        assert not pod.ready()

    ended = patient.process.wait(LONG)
    assert (ended.exit_code, ended.output) == (0, "unloaded  edu\n")
    assert not pod.loaded()
    assert pod.run_once(of="edu")["source"] == "cached"


def test_a_conflicting_driver_of_the_kernel_is_removed_first(pod: Pod, give: Give) -> None:
    give("edu")
    pod.node("modprobe", "dummy")

    loaded = pod.run_once(of="instead-of-dummy")

    assert loaded["state"] == "ready"
    assert loaded["notes"] == ["removed the module dummy"]
    assert not pod.loaded("dummy")


@pytest.mark.parametrize(
    ("how", "cleared", "restored"),
    [
        ("modules", "removed the module pvpanic_pci", ["pvpanic_pci", "{address}"]),
        ("unbind", "unbound {address} from pvpanic-pci", ["{address}"]),
        ("never", "removed the module pvpanic_pci", []),
    ],
)
def test_the_kernels_own_driver_has_its_device_again_when_ours_is_removed(
    pod: Pod, give: Give, how: str, cleared: str, restored: list[str]
) -> None:
    give(f"usurper-{how}")
    pod.node("modprobe", "pvpanic-pci")
    address = pod.node("sh", "-c", "cd /sys/bus/pci/drivers/pvpanic-pci && echo 0000:*").strip()

    loaded = pod.run_once(of=f"usurper-{how}")
    assert loaded["notes"] == [cleared.format(address=address)]
    assert driver_of(pod, address) == "usurper"
    removed = pod.report("unload", of=f"usurper-{how}")

    assert removed["removed"] == ["usurper"]
    assert removed["restored"] == [word.format(address=address) for word in restored]
    assert removed["notRestored"] == []
    assert driver_of(pod, address) == ("pvpanic-pci" if restored else "")
    assert pod.loaded("pvpanic_pci") == bool(restored)


def test_a_conflicting_driver_that_is_in_use_stays_and_its_holder_is_named(
    pod: Pod, give: Give
) -> None:
    give("edu")
    pod.node("modprobe", "loop", "max_loop=1")
    pod.until("[ -b /dev/loop0 ]")
    with held_open(pod, "/dev/loop0"):
        refused = pod.run_once(of="instead-of-loop", code=43)
        assert re.match(
            r"cannot unload loop: loop is held by 1 open file of python3 \(pid \d+\)",
            refused["message"],
        )
        assert pod.loaded("loop")
        assert not pod.loaded("edu")

    assert pod.run_once(of="instead-of-loop")["notes"] == ["removed the module loop"]


def test_a_module_loaded_by_hand_is_replaced_unless_driver_yaml_says_to_keep_it(
    pod: Pod, give: Give
) -> None:
    give("edu")
    by_hand = give("second").module_path("edu")
    insmod(pod, by_hand)

    kept = pod.run_once(of="keeping", code=40)
    assert kept["message"] == (
        "edu: a module of that name is loaded, which nodeside did not load, and driver.yaml says "
        "unload.foreign: keep"
    )
    never = pod.run_once(of="never", code=44)
    assert never["message"] == "another edu is loaded, and driver.yaml says unload.policy: never"
    assert pod.version() == "1.1.0"

    replaced = pod.run_once(of="edu")
    assert replaced["source"] == "cached"
    assert pod.version() == "1.0.0"


def test_the_very_module_loaded_by_hand_is_recognised_if_its_parameters_are_those_wanted(
    pod: Pod, give: Give
) -> None:
    insmod(pod, give("edu").module_path("edu"))
    probes = pod.lines_of_probe()

    other = pod.run_once(of="edu")  # the module's default is 1000, driver.yaml wants 2000
    assert other["source"] == "cached"
    assert pod.lines_of_probe() == probes + 1

    pod.node("rm", "-r", "/run/nodeside/edu")
    assert pod.run_once(of="edu")["source"] == "loaded"
    assert pod.lines_of_probe() == probes + 1


def test_a_module_linked_beside_a_stand_in_needs_its_symbols_and_not_the_module_of_that_name(
    pod: Pod, give: Give
) -> None:
    provider = give("with-provider").module_path("provider")
    built = {module.name: module for module in give("consumer").manifest.modules}
    assert built["consumer"].depends == ("standin",)

    refused = pod.run_once(of="consumer", code=40)
    assert "consumer needs standin: neither loaded, nor " in refused["message"]
    assert re.search(
        r"; and nothing else exports frob_(get, frob_put|put, frob_get)$", refused["message"]
    )
    assert not pod.loaded("consumer")

    insmod(pod, provider)
    assert pod.run_once(of="consumer")["state"] == "ready"
    assert pod.exists("/sys/module/provider/holders/consumer")
    assert pod.report("unload", of="consumer")["removed"] == ["consumer"]
    pod.node("rmmod", "provider")

    assert pod.run_once(of="with-provider")["state"] == "ready"
    assert pod.exists("/sys/module/provider/holders/consumer")


def test_a_parameter_on_the_command_line_of_the_kernel_is_given_unless_driver_yaml_sets_it(
    pod: Pod, give: Give
) -> None:
    give("told")
    failed = pod.run_once(of="told", code=41)
    assert re.search(r"\n  kernel: .*\] told: init returns -19", failed["message"])
    assert "told: answer=19 (the kernel's command line)" in failed["notes"]

    give("told-both")
    loaded = pod.run_once(of="told-both")
    assert loaded["notes"] == [
        "told: colour=dark red (the kernel's command line)",
        "told: answer=0 (driver.yaml; the kernel's command line says 19)",
        (
            "told has no parameter 'colour', and ignores that of the kernel's command line; "
            "known parameters: answer"
        ),
    ]
    assert "told: unknown parameter 'colour' ignored" in pod.kernel_log()
    assert pod.run_once(of="told-both")["source"] == "loaded", "it is not loaded again"


def test_a_module_that_the_command_line_of_the_kernel_forbids_is_refused(
    pod: Pod, give: Give
) -> None:
    give("forbidden")

    refused = pod.run_once(of="forbidden", code=40)

    assert refused["message"] == (
        "forbidden: forbidden cannot be loaded in this boot: the kernel's command line has it in "
        "module_blacklist="
    )


def test_quotes_around_blanks_reach_the_module_as_the_command_line_has_them(
    pod: Pod, give: Give
) -> None:
    give("quoted")

    loaded = pod.run_once(of="quoted")

    assert loaded["notes"] == ['quoted: label=say"a b" (the kernel\'s command line)']
    assert pod.node("cat", "/sys/module/quoted/parameters/label") == 'say"a b"\n'
    assert pod.run_once(of="quoted")["source"] == "loaded", "it is not loaded again"


def test_soft_dependencies_get_the_options_of_the_hosts_modprobe_d(pod: Pod, give: Give) -> None:
    """The pod has no mount of /etc/modprobe.d."""
    give("softly")
    pod.machine.write_file(
        "/etc/modprobe.d/of-the-tests.conf",
        b"options dummy numdummies=1 \\\n  numdummies=3\ninstall loop /bin/touch /tmp/ran\n",
    )
    pod.node("sh", "-c", "modprobe -r dummy loop 2>/dev/null || rmmod dummy loop || true")

    loaded = pod.run_once(of="softly")

    assert loaded["notes"] == [
        "dummy: numdummies=3 (the host's modprobe.d)",
        (
            "loop, a soft dependency, is not loaded: the host's modprobe.d has "
            "`install loop /bin/touch /tmp/ran`"
        ),
    ]
    assert pod.exists("/sys/class/net/dummy2")
    assert not pod.exists("/sys/class/net/dummy3")
    assert not pod.exists("/tmp/ran")
    pod.node("rm", "/etc/modprobe.d/of-the-tests.conf")
    pod.node("rmmod", "dummy")


def test_a_permanent_module_asks_for_a_reboot(pod: Pod, give: Give) -> None:
    give("permanent")
    assert pod.run_once(of="permanent")["state"] == "ready"

    refused = pod.driver("unload", of="permanent")

    assert refused.exit_code == 44
    assert (
        "cannot unload permanent: it is permanent, that is, it has no exit function"
        in refused.errors
    )
    assert pod.loaded("permanent")
