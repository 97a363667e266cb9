from __future__ import annotations

import errno
from pathlib import Path

import pytest

from nodeside.driver.kernel.sequence import Insertion, SequenceFailed, load_sequence, roll_back
from nodeside.errors import ExitCode
from tests.driver.fakes.kernel import RELEASE, FakeKernel, Refusal, write


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


def insertion(kernel: FakeKernel, name: str, *needs: str, debug: str = "1") -> Insertion:
    return Insertion(kernel.module_file(name, *needs), name, {"debug": debug})


def test_modules_are_loaded_in_order(kernel: FakeKernel) -> None:
    wanted = [insertion(kernel, "core"), insertion(kernel, "addon", "core")]

    assert load_sequence(wanted, kernel.loader) == ("core", "addon")
    assert kernel.modules["addon"].parameters == "debug=1"


def test_what_a_module_needs_of_the_kernel_is_loaded_before(kernel: FakeKernel) -> None:
    tree = kernel.host.lib_modules(RELEASE)
    write(tree / "modules.dep", "kernel/videodev.ko:\n")
    write(tree / "kernel/videodev.ko", "videodev")
    path = kernel.module_file("v4l2loopback", "videodev")

    load_sequence([Insertion(path, "v4l2loopback", needs=("videodev",))], kernel.loader)

    assert list(kernel.modules) == ["videodev", "v4l2loopback"]


def test_a_failure_brings_the_previous_modules_back(kernel: FakeKernel) -> None:
    wanted = [insertion(kernel, "core"), insertion(kernel, "addon", "core")]
    previous = [insertion(kernel, "core", debug="0")]
    kernel.refuse_load["addon"] = [Refusal(errno.ENODEV, ("addon: no such board",))]

    with pytest.raises(SequenceFailed) as caught:
        load_sequence(wanted, kernel.loader, previous=previous)

    error = caught.value
    assert str(error) == (
        "cannot load addon: ENODEV (No such device): the module itself is sound, but its init "
        "function refused: the hardware, or its configuration, is not what the driver expects\n"
        "  kernel: [    0.000000] addon: no such board\n"
        "rolled back: unloaded core; the previous core is loaded again"
    )
    assert error.exit_code is ExitCode.LOAD_FAILED
    assert error.reason == "DeviceRefused"
    assert kernel.modules["core"].parameters == "debug=0"


def test_both_errors_are_told_if_the_roll_back_fails_too(kernel: FakeKernel) -> None:
    kernel.refuse_load["edu"] = [Refusal(errno.ENODEV), Refusal(errno.EIO)]

    with pytest.raises(SequenceFailed) as caught:
        load_sequence(
            [insertion(kernel, "edu")], kernel.loader, previous=[insertion(kernel, "edu")]
        )

    assert "cannot load edu: ENODEV" in str(caught.value)
    assert "the roll-back failed: cannot load edu: EIO" in str(caught.value)


def test_the_first_failure_of_all_needs_no_roll_back(kernel: FakeKernel) -> None:
    kernel.refuse_load["edu"] = [Refusal(errno.ENODEV)]

    with pytest.raises(SequenceFailed, match="nothing had to be rolled back"):
        load_sequence([insertion(kernel, "edu")], kernel.loader)


def test_a_new_module_that_cannot_go_keeps_the_previous_ones_out(kernel: FakeKernel) -> None:
    kernel.add("edu")
    kernel.modules["edu"].refcnt = 1
    kernel.show()

    done = roll_back(["edu"], [insertion(kernel, "edu")], kernel.loader)

    assert done.restored == ()
    assert done.sentence().startswith("the roll-back failed: cannot unload edu")
