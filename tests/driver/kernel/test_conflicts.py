from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeside.driver.kernel import conflicts
from nodeside.driver.kernel.conflicts import (
    ConflictBuiltIn,
    Restored,
    clear_conflicts,
    plan_clear,
    plan_restore,
    restore_at_removal,
    restore_cleared,
)
from nodeside.driver.kernel.errors import InUse, UnloadFailed
from nodeside.driver.node.loaded_record import Cleared
from nodeside.driver.node.modules import LoadedState
from nodeside.errors import ExitCode, SystemRefused
from nodeside.spec.document import parse
from nodeside.spec.model import Conflicts, DriverSpec
from nodeside.spec.pci import PciId
from nodeside.system import sysfs
from nodeside.system.child import NoProcess
from nodeside.system.host import Host
from nodeside.system.pci import PciDevice, pci_devices
from tests.driver.fakes.kernel import RELEASE, FakeKernel, FakeModule, add_pci_device, write

EDU = PciId(vendor="1234", device="11e8")


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


class Bus:
    """The kernel's side of unbind and drivers_probe."""

    def __init__(self, kernel: FakeKernel) -> None:
        self.kernel = kernel
        self.written: list[tuple[str, str]] = []

    def write(self, path: Path, value: str) -> None:
        sysfs.write(path, value)
        self.written.append((path.name, value))
        if path.name == "unbind":
            (self.kernel.host.sys / "bus/pci/devices" / value / "driver").unlink()


def test_devices_of_any_of_the_ids_are_unbound_unless_ours_has_them() -> None:
    devices = [
        PciDevice("0000:00:04.0", "1234", "11e8", "other", "other_mod"),
        PciDevice("0000:00:05.0", "1234", "11e8", "edu", "edu"),
        PciDevice("0000:00:06.0", "1234", "11e8"),
        PciDevice("0000:00:07.0", "1234", "0001", "other", "other_mod"),
        PciDevice("0000:00:08.0", "8086", "11e8", "other", "other_mod"),
    ]

    plan = plan_clear(Conflicts(unbind=(EDU,)), {}, devices, ours=["edu"])
    every = plan_clear(Conflicts(unbind=(PciId(vendor="1234"),)), {}, devices, ours=["edu"])

    assert plan.steps_in_words == ("unbind 0000:00:04.0 from other",)
    assert [item.address for item in every.unbind] == ["0000:00:04.0", "0000:00:07.0"]


def test_modules_in_the_way_are_removed_leaf_first() -> None:
    states = {
        "videodev": LoadedState("videodev", 1, holders=("uvcvideo",)),
        "uvcvideo": LoadedState("uvcvideo"),
    }

    plan = plan_clear(Conflicts(modules=("videodev", "uvcvideo")), states, [])

    assert plan.steps_in_words == ("remove the module uvcvideo", "remove the module videodev")


def test_the_way_is_cleared_and_what_was_done_is_told(kernel: FakeKernel) -> None:
    kernel.add("dummy")
    add_pci_device(kernel.host, "0000:00:04.0", "1234", "11e8", "other", "other")
    bus = Bus(kernel)
    conflicts = Conflicts(modules=("dummy",), unbind=(EDU,))

    cleared = clear_conflicts(conflicts, kernel.loader, write=bus.write)

    assert cleared.done_in_words == ("unbound 0000:00:04.0 from other", "removed the module dummy")
    assert bus.written == [("unbind", "0000:00:04.0")]
    assert clear_conflicts(conflicts, kernel.loader, write=bus.write) == Cleared()


def test_a_user_that_is_not_declared_is_named_and_nothing_is_touched(kernel: FakeKernel) -> None:
    kernel.add("videodev")
    kernel.add("uvcvideo", uses=("videodev",))
    add_pci_device(kernel.host, "0000:00:04.0", "1234", "11e8", "other", "other")
    bus = Bus(kernel)

    with pytest.raises(
        InUse, match="cannot remove the conflicting module videodev: it is used by uvcvideo, "
    ) as caught:
        clear_conflicts(
            Conflicts(modules=("videodev",), unbind=(EDU,)), kernel.loader, write=bus.write
        )

    assert caught.value.hint == "add uvcvideo to conflicts.modules, if it may be removed"
    assert bus.written == []


def test_a_held_module_brings_the_unbound_devices_back(kernel: FakeKernel) -> None:
    kernel.add("dummy", FakeModule(refcnt=1))
    add_pci_device(kernel.host, "0000:00:04.0", "1234", "11e8", "other", "other")
    bus = Bus(kernel)

    with pytest.raises(InUse, match="dummy has 1 reference"):
        clear_conflicts(
            Conflicts(modules=("dummy",), unbind=(EDU,)), kernel.loader, write=bus.write
        )

    assert bus.written == [("unbind", "0000:00:04.0"), ("drivers_probe", "0000:00:04.0")]


def test_what_was_removed_comes_back_if_no_process_is_left_to_remove_the_rest(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(kernel.host.lib_modules(RELEASE) / "modules.dep", "kernel/a.ko:\nkernel/b.ko:\n")
    write(kernel.host.lib_modules(RELEASE) / "kernel/a.ko", "a")
    kernel.add("a")
    kernel.add("b")
    delete = kernel.delete_module

    def until_none_is_left(name: str, timeout: float = 1) -> None:
        if name == "b":
            raise NoProcess("no process is left")
        delete(name, timeout)

    monkeypatch.setattr(kernel, "delete_module", until_none_is_left)

    with pytest.raises(UnloadFailed, match="no process is left"):
        clear_conflicts(Conflicts(modules=("a", "b")), kernel.loader)

    assert set(kernel.modules) == {"a", "b"}


def test_a_driver_inside_the_kernel_cannot_make_room(kernel: FakeKernel) -> None:
    write(kernel.host.lib_modules(RELEASE) / "modules.builtin", "kernel/net/dummy.ko\n")

    with pytest.raises(ConflictBuiltIn, match="dummy is built into this kernel") as caught:
        clear_conflicts(Conflicts(modules=("dummy",)), kernel.loader)

    assert caught.value.exit_code is ExitCode.REFUSED


def test_a_device_that_stays_bound_is_an_error(kernel: FakeKernel) -> None:
    add_pci_device(kernel.host, "0000:00:04.0", "1234", "11e8", "other", "other")

    with pytest.raises(
        SystemRefused, match=r"0000:00:04\.0 is still bound to other after the unbind"
    ):
        clear_conflicts(Conflicts(unbind=(EDU,)), kernel.loader, write=lambda path, value: None)


def test_a_read_only_sysfs_is_said_so(kernel: FakeKernel) -> None:
    add_pci_device(kernel.host, "0000:00:04.0", "1234", "11e8", "other", "other")
    (kernel.host.sys / "bus/pci/drivers/other/unbind").unlink()

    with pytest.raises(SystemRefused, match=r"cannot write '0000:00:04\.0' to .*/unbind") as caught:
        clear_conflicts(Conflicts(unbind=(EDU,)), kernel.loader)

    assert "mount the host's /sys read-write at /host/sys" in caught.value.hint


def test_what_was_cleared_is_brought_back(kernel: FakeKernel) -> None:
    tree = kernel.host.lib_modules(RELEASE)
    write(tree / "modules.dep", "kernel/a.ko:\nkernel/b.ko: kernel/a.ko\n")
    write(tree / "kernel/a.ko", "a")
    write(tree / "kernel/b.ko", "b a")
    add_pci_device(kernel.host, "0000:00:04.0", "1234", "11e8")
    add_pci_device(kernel.host, "0000:00:05.0", "1234", "11e8", "other", "other")
    bus = Bus(kernel)
    unbound = tuple(PciDevice(f"0000:00:0{n}.0", "1234", "11e8", "other") for n in (4, 5))

    assert restore_cleared(Cleared(unbound, ("b", "a")), kernel.loader, write=bus.write) == ()
    assert list(kernel.modules) == ["a", "b"]
    assert bus.written == [("drivers_probe", "0000:00:04.0")]


def test_what_cannot_be_brought_back_is_told(kernel: FakeKernel) -> None:
    write(kernel.host.lib_modules(RELEASE) / "modules.dep", "")

    (problem,) = restore_cleared(Cleared(removed=("dummy",)), kernel.loader)

    assert "this kernel has no module dummy" in problem


def spec(**fields: Any) -> DriverSpec:
    document = {
        "apiVersion": "nodeside.io/v1alpha1",
        "kind": "Driver",
        "metadata": {"name": "edu"},
        "spec": {"version": "1", "source": {"path": "src"}, "modules": [{"name": "edu"}], **fields},
    }
    return parse(document).spec


AB = spec(conflicts={"modules": ["a", "b"], "unbind": [{"vendor": "1234", "device": "11e8"}]})


def test_a_removal_leaves_alone_what_another_driver_has_taken() -> None:
    before = tuple(PciDevice(f"0000:00:0{n}.0", "1234", "11e8", "a", "a") for n in (4, 5))
    cleared = Cleared(before[:1], ("b", "a"))
    now = [PciDevice("0000:00:04.0", "1234", "11e8", "vfio-pci", "vfio_pci")]

    plan = plan_restore(cleared, AB, {"b"}, now)
    leaving = plan_restore(cleared, AB, {"b"}, now, leaving=["vfio_pci"])
    other = [*now, PciDevice("0000:00:05.0", "1", "2")]
    half = plan_restore(Cleared(before, ("a",)), AB, {}, other)

    assert plan.steps_in_words == (
        "leave 0000:00:04.0 to vfio-pci, which has it now",
        "leave a unloaded: other drivers have its devices",
    )
    assert leaving.steps_in_words == (
        "load the module a again",
        "bind 0000:00:04.0 to a driver again",
    )
    assert half.load == ("a",)
    assert [item.address for item in half.bind] == ["0000:00:05.0"]


def test_a_record_brings_back_only_what_driver_yaml_names() -> None:
    """Also what was loaded under the name of one of the driver's own modules."""
    unbound = (
        PciDevice("0000:00:04.0", "1234", "11e8", "other", "other"),
        PciDevice("0000:00:05.0", "ffff", "0001", "evil", "evil"),
        PciDevice("0000:00:06.0", "ffff", "0002", "a", "a"),
        PciDevice("../../x", "1234", "11e8"),
    )
    devices = [replace(item, driver="", module="") for item in unbound[:3]]
    names = ("evil", "a", "edu", "evil\n\x1b[2J", "x" * 1000, "../evil")

    plan = plan_restore(Cleared(unbound, names), AB, {"edu"}, devices, leaving=["edu"])

    assert plan.load == ("edu", "a")
    assert [item.address for item in plan.bind] == ["0000:00:04.0", "0000:00:06.0"]
    assert plan.left == ("leave alone what driver.yaml does not name: evil, ../evil, 0000:00:05.0",)


def test_what_is_not_back_is_told_with_the_command(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even a bug of ours keeps the others away."""
    write(kernel.host.lib_modules(RELEASE) / "modules.dep", "kernel/a.ko:\nkernel/b.ko:\n")
    for name in ("a", "b"):
        write(kernel.host.lib_modules(RELEASE) / f"kernel/{name}.ko", name)
    add_pci_device(kernel.host, "0000:00:04.0", "1234", "11e8")
    load = kernel.finit_module

    def bug(fd: int, parameters: str, timeout: float) -> None:
        monkeypatch.setattr(kernel, "finit_module", load)
        raise RuntimeError("a bug")

    monkeypatch.setattr(kernel, "finit_module", bug)
    unbound = (PciDevice("0000:00:04.0", "1234", "11e8", "a", "a"),)

    done = restore_at_removal(Cleared(unbound, ("a", "b")), AB, kernel.loader)
    problem, unbound_device = done.problems
    write_nothing = restore_at_removal(
        Cleared(unbound), AB, kernel.loader, write=lambda path, value: None
    )

    assert done.modules == ("a",)
    assert problem.endswith("; by hand: modprobe b")
    assert write_nothing.problems == (unbound_device,)
    assert unbound_device == (
        "0000:00:04.0 has no driver; by hand: echo 0000:00:04.0 > /sys/bus/pci/drivers_probe"
    )


def test_a_restore_ends_though_the_kernel_cannot_be_read(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(kernel.host.lib_modules(RELEASE) / "modules.dep", "kernel/a.ko:\n")
    write(kernel.host.lib_modules(RELEASE) / "kernel/a.ko", "a")
    add_pci_device(kernel.host, "0000:00:04.0", "1234", "11e8")
    cleared = Cleared((PciDevice("0000:00:04.0", "1234", "11e8", "a", "a"),), ("a",))
    by_hand = "modprobe a; echo 0000:00:04.0 > /sys/bus/pci/drivers_probe"
    written: list[str] = []

    def restore(answers: int) -> Restored:
        """Bring all back; sysfs answers so many times."""
        left = iter(range(answers))

        def answer(host: Host) -> tuple[PciDevice, ...]:
            if next(left, None) is None:
                raise SystemRefused("no sysfs")
            return pci_devices(host)

        monkeypatch.setattr(conflicts, "pci_devices", answer)
        return restore_at_removal(
            cleared, AB, kernel.loader, write=lambda path, value: written.append(value)
        )

    before, later = restore(0), restore(1)

    assert before.problems == (f"no sysfs; by hand: {by_hand}",)
    assert before.kept == cleared
    assert later.modules == ("a",)
    assert later.problems == ("no sysfs; see what is back: lspci -k",)
    assert written == ["0000:00:04.0"]
