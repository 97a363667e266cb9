"""A source that has no driver.yaml, and builds that cannot succeed.

The latter say who is asked to repair what, and how the build is repeated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from nodeside.trial.machine.kernel_disk import KernelDisk
from nodeside.trial.machine.machine import GuestProcess, Machine
from tests.vm.conftest import Give, Resume
from tests.vm.pod import BARE_TOOLKIT, LONG, Pod, whys
from tests.vm.variants import DriverImage, SmallModule

pytestmark = pytest.mark.vm

# The compiler alone, since kbuild takes half a minute in an emulated machine to start it.
_BROKEN = {
    "broken.c": "int main(void)\n{\n\tno_such_function();\n}\n",
    "Makefile": "broken:\n\tgcc -Werror -c broken.c\n",
}
_REPEAT = "\nto repeat it, in the toolkit container:\n"
_DKMS_CONF = """\
PACKAGE_NAME="ancient"
PACKAGE_VERSION="1.0"
BUILT_MODULE_NAME[0]="ancient"
DEST_MODULE_LOCATION[0]="/extra"
BUILD_EXCLUSIVE_KERNEL="^2\\.6\\."
"""


@pytest.fixture(scope="module")
def machine(resume: Resume, image: DriverImage) -> Iterator[Machine]:
    command = {"kind": "command", "command": ["make"]}
    image.driver("broken", "broken", _BROKEN, {"build": command})
    image.small("plain", SmallModule("plain")).joinpath("driver.yaml").unlink()
    ancient = SmallModule("ancient")
    image.driver("ancient", "ancient", {"ancient.c": ancient.source, "dkms.conf": _DKMS_CONF}, {})
    with resume(image, devices=()) as machine:
        yield machine


def test_a_source_without_a_driver_yaml_is_built_loaded_and_unloaded(pod: Pod, give: Give) -> None:
    assert give("plain/src").manifest.driver == "plain"

    loaded = pod.driver("load", of="plain/src")

    assert loaded.exit_code == 0, loaded.errors
    assert "has no driver.yaml; this is what its files say driver=plain version=0.1.0" in (
        loaded.errors
    )
    assert pod.loaded("plain")
    assert pod.report("status", of="plain/src")["ready"]
    assert pod.driver("unload", of="plain/src").exit_code == 0
    assert not pod.loaded("plain")


def test_a_build_that_cannot_succeed_is_told_with_who_repairs_what(pod: Pod) -> None:
    sidecar = pod.start_sidecar()
    say_the_first_error_and_how_to_repeat_it(pod, sidecar)
    say_that_the_source_excludes_this_kernel(pod)


def say_the_first_error_and_how_to_repeat_it(pod: Pod, sidecar: GuestProcess) -> None:
    failed = pod.run_once(of="broken", code=10)

    assert (failed["state"], failed["reason"]) == ("failed", "Compile")
    assert not failed["retryable"]
    message, _, by_hand = failed["message"].partition(_REPEAT)
    assert "make failed: exit code 2; first error: " in message
    assert re.search(r"broken\.c:\d+:\d+: error: implicit declaration of function", message)
    assert by_hand.endswith(" make")

    again = pod.machine.run(
        ["sh", "-c", by_hand], "toolkit", timeout=LONG, check=False, join=sidecar
    )
    assert again.exit_code == 2
    assert "error: implicit declaration of function" in again.errors


def say_that_the_source_excludes_this_kernel(pod: Pod) -> None:
    """It has an exit code of its own."""
    excluded = pod.run_once(of="ancient", code=77)

    assert excluded["reason"] == "Excluded"
    assert "BUILD_EXCLUSIVE_KERNEL" in excluded["message"]
    assert not excluded["retryable"]


def test_a_toolkit_without_headers_of_this_kernel_is_told_at_once(
    pod: Pod, newest: KernelDisk
) -> None:
    pod.start_sidecar(BARE_TOOLKIT)

    failed = pod.run_once(of="broken", code=21)

    assert failed["reason"] == "NoHeaders"
    assert newest.release in failed["message"]
    assert whys(failed)["cached"].startswith("no bundle ")
