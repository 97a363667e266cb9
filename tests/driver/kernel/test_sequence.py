from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from nodeside.driver.kernel.errors import InUse
from nodeside.driver.kernel.sequence import Insertion, SequenceFailed, load_sequence, roll_back
from nodeside.driver.module.softdeps import Softdeps
from nodeside.errors import ExitCode
from tests.driver.fakes.kernel import RELEASE, FakeKernel, FakeModule, Refusal, write


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


def test_soft_dependencies_are_loaded_around_and_may_fail(kernel: FakeKernel) -> None:
    tree = kernel.host.lib_modules(RELEASE)
    names = ("first", "last", "broken", "kept_away")
    write(tree / "modules.dep", "".join(f"kernel/{name}.ko:\n" for name in names))
    for name in names:
        write(tree / f"kernel/{name}.ko", name)
    kernel.refuse_load["broken"] = [Refusal(errno.ENODEV)]
    write(kernel.host.root / "etc/modprobe.d/cis.conf", "install kept-away /bin/false\n")
    soft = Softdeps(("broken", "first", "not_in_this_tree", "kept_away"), ("last",))

    load_sequence([Insertion(kernel.module_file("edu"), "edu", soft=soft)], kernel.loader)

    assert list(kernel.modules) == ["first", "edu", "last"]


class UdevBetween(FakeKernel):
    """Somebody loads the kernel's `core` and its user before each of the first loads."""

    times = 1

    def finit_module(self, fd: int, parameters: str, timeout: float) -> None:
        if self.times:
            self.times -= 1
            self.add("core", FakeModule(taint=""))
            self.add("addon", FakeModule(taint=""), uses=("core",))
        super().finit_module(fd, parameters, timeout)


@pytest.mark.parametrize("times", [1, 2])
def test_what_udev_loads_between_unload_and_load_is_removed(tmp_path: Path, times: int) -> None:
    kernel = UdevBetween(tmp_path)
    kernel.times = times
    names = ("core", "addon")
    wanted = [
        replace(insertion(kernel, "core"), displaces=names),
        replace(insertion(kernel, "addon", "core"), displaces=("addon",)),
    ]

    assert load_sequence(wanted, kernel.loader) == names
    assert [module.parameters for module in kernel.modules.values()] == ["debug=1", "debug=1"]


def test_what_udev_loads_is_kept_if_another_needs_it_or_the_driver_may_not(
    tmp_path: Path,
) -> None:
    kernel = UdevBetween(tmp_path / "needed")
    with pytest.raises(SequenceFailed, match="cannot unload core: ") as caught:
        load_sequence([replace(insertion(kernel, "core"), displaces=("core",))], kernel.loader)
    assert isinstance(caught.value.cause, InUse)

    kernel = UdevBetween(tmp_path / "kept")
    with pytest.raises(SequenceFailed, match="a module named core is loaded already"):
        load_sequence([insertion(kernel, "core")], kernel.loader)
    assert list(kernel.modules) == ["core", "addon"]


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
    assert done.in_words().startswith("the roll-back failed: cannot unload edu")
