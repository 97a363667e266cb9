"""What comes back at a removal beside other drivers: all on one node whose kernel is fake."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeside.driver.bringup import restore
from nodeside.driver.commands import unload
from nodeside.driver.kernel import conflicts
from nodeside.driver.kernel.firmware import FirmwareDirectory
from nodeside.driver.node import run_directory
from nodeside.driver.node.loaded_record import Cleared
from nodeside.driver.node.node_lock import node_lock
from nodeside.driver.node.run_directory import (
    hold_lock,
    hold_pod_lock,
    loaded_path,
    write_cleared,
    write_loaded,
)
from nodeside.errors import NodesideError, SystemRefused
from nodeside.system.pci import PciDevice
from tests.driver.fakes.kernel import FakeModule, Refusal, add_pci_device, link, write, write_bytes
from tests.driver.fakes.node import FakeNode, module_bytes

RIVAL = {"modules": ["rival"]}
CARDS = tuple(PciDevice(f"0000:00:0{n}.0", "1234", "11e8", "rival", "rival") for n in (1, 2))


def tree_of(node: FakeNode, *names: str) -> None:
    """The modules of the kernel's tree."""
    tree = node.host.lib_modules("6.1.0-test")
    for name in names:
        write_bytes(tree / f"kernel/{name}.ko", module_bytes(name, "of the tree"))
    write(tree / "modules.dep", "".join(f"kernel/{name}.ko:\n" for name in names))


@pytest.fixture
def straw(tmp_path: Path) -> FakeNode:
    node = FakeNode(tmp_path, "straw", {"conflicts": RIVAL})
    tree_of(node, "rival")
    node.kernel.add("rival", FakeModule(taint=""))
    return node


@pytest.fixture
def hay(straw: FakeNode, tmp_path: Path) -> FakeNode:
    """Another driver on the same node, with the same conflict."""
    node = FakeNode(tmp_path / "second", "hay", {"conflicts": RIVAL})
    node.root, node.kernel, node.host = straw.root, straw.kernel, straw.host
    node.cache = straw.cache
    return node


def both(straw: FakeNode, hay: FakeNode) -> None:
    for node in (straw, hay):
        node.fill()
    assert straw.record is not None
    assert straw.record.cleared.removed == ("rival",)
    assert hay.record is not None
    assert hay.record.cleared.removed == ()


def records(node: FakeNode) -> list[str]:
    return sorted(path.name for path in node.host.locks.glob("*.loaded.json"))


def give_cards(straw: FakeNode, hay: FakeNode) -> None:
    """The in-tree module had two cards; each driver has one of them now."""
    assert straw.record is not None
    write_loaded(straw.host, replace(straw.record, cleared=Cleared(CARDS, ("rival",))))
    for card, node in zip(CARDS, (straw, hay), strict=True):
        add_pci_device(straw.host, card.address, "1234", "11e8", node.name, node.name)


def unplug(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes the driver from the devices of a module that is unloaded."""
    delete = node.kernel.delete_module

    def delete_module(name: str, timeout: float = 1) -> None:
        delete(name, timeout)
        for device in (node.host.sys / "bus/pci/devices").iterdir():
            driver = device / "driver"
            if driver.is_symlink() and driver.readlink().name == name:
                driver.unlink()

    monkeypatch.setattr(node.kernel, "delete_module", delete_module)


def probed(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that are written to drivers_probe; a loaded rival takes them."""
    done: list[str] = []

    def write_sysfs(path: Path, value: str) -> None:
        done.append(value)
        if "rival" in node.kernel.modules:
            directory = node.host.sys / "bus/pci/drivers/rival"
            directory.mkdir(parents=True, exist_ok=True)
            link(node.host.sys / "bus/pci/devices" / value / "driver", directory)

    restore_all = conflicts.restore_cleared
    monkeypatch.setattr(
        conflicts,
        "restore_cleared",
        lambda cleared, loader, **_: restore_all(cleared, loader, write=write_sysfs),
    )
    return done


def test_a_module_that_another_loaded_driver_conflicts_with_comes_back_after_both(
    straw: FakeNode, hay: FakeNode
) -> None:
    both(straw, hay)
    said = "leave rival unloaded: driver hay, which is loaded, conflicts with it"

    assert said in straw.run("unload", "--dry-run").output
    done = straw.run("unload", "-o", "json")

    assert (done.code, done.document["restored"], done.document["notRestored"]) == (0, [], [said])
    assert hay.loaded == ("hay",)
    assert straw.record is not None
    assert straw.record == straw.record.of_cleared_only
    assert straw.record.cleared.removed == ("rival",)

    assert "load the module rival again" in hay.run("unload", "--dry-run").output
    assert hay.run("unload", "-o", "json").document["restored"] == ["rival"]
    assert hay.loaded == ("rival",)
    assert not records(straw)


def test_the_card_of_another_driver_comes_back_when_that_one_is_unloaded(
    straw: FakeNode, hay: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    both(straw, hay)
    give_cards(straw, hay)
    unplug(straw, monkeypatch)
    done = probed(straw, monkeypatch)

    straw.run("unload")
    assert (straw.loaded, done) == (("hay",), [])
    restored = hay.run("unload", "-o", "json").document["restored"]

    assert restored == ["rival", *(card.address for card in CARDS)]
    assert not records(straw)


def test_a_card_that_another_driver_took_comes_back_though_the_module_is_back_already(
    straw: FakeNode, hay: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other driver names no conflict."""
    hay.spec["conflicts"] = {}
    both(straw, hay)
    give_cards(straw, hay)
    unplug(straw, monkeypatch)
    done = probed(straw, monkeypatch)

    straw.run("unload")
    assert (straw.loaded, done) == (("hay", "rival"), [CARDS[0].address])
    assert straw.record is not None
    assert straw.record.cleared == Cleared(CARDS[1:])
    document = hay.run("unload", "-o", "json").document

    assert (document["restored"], document["notRestored"]) == ([CARDS[1].address], [])
    assert not records(straw)


def test_the_in_tree_module_of_another_drivers_name_comes_back_with_that_one(
    straw: FakeNode, hay: FakeNode
) -> None:
    tree_of(straw, "rival", "hay")
    straw.kernel.add("hay", FakeModule(taint=""))
    straw.spec["conflicts"] = {"modules": ["hay"]}
    straw.fill()
    hay.spec["conflicts"] = {}
    hay.fill()

    straw.run("unload")
    assert hay.record is not None
    assert hay.run("unload", "-o", "json").document["restored"] == ["hay"]


def test_a_failed_load_brings_nothing_back_that_another_driver_keeps_away(
    straw: FakeNode, hay: FakeNode
) -> None:
    both(straw, hay)
    straw.run("unload")
    straw.kernel.refuse_load["straw"] = [Refusal(errno.ENODEV)]

    with pytest.raises(NodesideError):
        straw.bring_up(straw.task())

    assert straw.loaded == ("hay",)
    hay.run("unload")
    assert straw.loaded == ("rival",)


def test_what_was_removed_for_a_driver_whose_pod_never_loads_it_comes_back(
    straw: FakeNode, hay: FakeNode
) -> None:
    both(straw, hay)
    straw.run("unload")
    straw.forget_cache()  # the Driver is made again, and nobody serves its modules
    straw.source("obj-m := other.o\n")

    with hold_pod_lock(straw.host, "straw", timeout=0):
        done = hay.run("unload", "-o", "json")
        with pytest.raises(NodesideError):
            straw.bring_up(straw.task())

    assert done.document["restored"] == ["rival"]
    assert straw.loaded == ("rival",)


@pytest.mark.parametrize(("awaited", "back"), [("base", []), ("hay", ["rival"])])
def test_what_was_removed_for_a_driver_that_waits_for_another_stays_away(
    straw: FakeNode, hay: FakeNode, awaited: str, back: list[str]
) -> None:
    both(straw, hay)
    straw.run("unload")
    assert straw.record is not None
    left = straw.record
    write_cleared(straw.host, "straw", left, left.cleared, awaits=(awaited,))

    with hold_pod_lock(straw.host, "straw", timeout=0):
        assert hay.run("unload", "-o", "json").document["restored"] == back


def test_what_was_removed_for_a_driver_that_was_renamed_comes_back_with_its_successor(
    straw: FakeNode,
) -> None:
    straw.fill()
    record = straw.record
    assert record is not None
    # Nothing is unloaded for a Driver whose modules another one takes over.
    write_loaded(straw.host, replace(record, driver="former"))
    write_loaded(straw.host, replace(record, cleared=Cleared()))

    done = straw.run("unload", "-o", "json").document

    assert (done["restored"], done["notRestored"]) == (["rival"], [])
    assert straw.loaded == ("rival",)
    assert records(straw) == []


@pytest.mark.parametrize("at_work", ["straw", "straw.pod"])
def test_what_was_removed_for_a_driver_at_work_stays_its_own_though_its_modules_are_gone(
    straw: FakeNode, hay: FakeNode, at_work: str
) -> None:
    both(straw, hay)
    del straw.kernel.modules["straw"]

    with node_lock(straw.host, at_work, at_work, timeout=0):
        assert hay.run("unload", "-o", "json").document["restored"] == []


def test_a_failed_load_brings_nothing_back_beside_a_driver_that_was_loaded_meanwhile(
    straw: FakeNode, hay: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = straw.kernel._load
    begun: list[str] = []

    def load_slowly(image: bytes, parameters: str) -> None:
        if not begun:
            begun.append("straw")
            hay.fill()  # while the init function of straw runs
            assert straw.loaded == ("hay",)
        load(image, parameters)

    monkeypatch.setattr(straw.kernel, "_load", load_slowly)
    straw.kernel.refuse_load["straw"] = [Refusal(errno.ENODEV)]

    with pytest.raises(NodesideError):
        straw.fill()

    assert straw.loaded == ("hay",)
    assert hay.run("unload", "-o", "json").document["restored"] == ["rival"]


def test_what_a_driver_keeps_for_one_that_is_unloaded_meanwhile_comes_back(
    straw: FakeNode, hay: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    both(straw, hay)
    write = run_directory.write_cleared
    done: list[Any] = []

    def write_late(*args: Any) -> None:
        if not done:  # hay forgets its modules, and finds nothing: straw has not written this yet
            done.append("hay")
            monkeypatch.setattr(restore, "_LOCK_TIMEOUT", 0.0)
            done.append(hay.run("unload", "-o", "json").document)
        write(*args)

    monkeypatch.setattr(run_directory, "write_cleared", write_late)

    assert straw.run("unload", "-o", "json").document["restored"] == ["rival"]
    assert straw.loaded == ("rival",)
    assert records(straw) == []


def test_a_driver_at_work_keeps_its_record_and_the_command_is_told(
    straw: FakeNode, hay: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    both(straw, hay)
    straw.run("unload")

    with hold_lock(straw.host, "straw", timeout=0):
        done = hay.run("unload", "-o", "json")

    (problem,) = done.document["notRestored"]
    assert done.code == 0
    assert problem.startswith("another process is working on driver straw on this node")
    assert problem.endswith("; by hand: modprobe rival")
    assert straw.record is not None


@pytest.mark.parametrize("moment", ["_forget_modules", "restore_removed", "_left_by_others"])
def test_of_two_drivers_that_are_unloaded_at_once_one_brings_the_module_back(
    straw: FakeNode, hay: FakeNode, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The unload of one begins and ends before or after a step of the other one's."""
    both(straw, hay)
    place = restore if moment == "_left_by_others" else unload
    step: Callable[..., object] = getattr(place, moment)

    def with_other(*given: object) -> object:
        monkeypatch.setattr(place, moment, step)
        seen = step(*given) if place is restore else None
        straw.run("unload")
        return seen if place is restore else step(*given)

    monkeypatch.setattr(place, moment, with_other)
    hay.run("unload")

    assert straw.loaded == ("rival",)
    assert not records(straw)


def test_a_record_of_another_driver_is_data(straw: FakeNode, hay: FakeNode) -> None:
    both(straw, hay)
    straw.run("unload")
    path = loaded_path(straw.host, "straw")
    document = json.loads(path.read_text()) | {"driver": "../../evil"}
    document["cleared"]["removed"] += ["evil", "../evil"]
    path.write_text(json.dumps(document))
    write(loaded_path(straw.host, "broken"), "[" * 10000)
    write(loaded_path(straw.host, "a b\x1b"), path.read_text())

    done = hay.run("unload", "-o", "json").document

    assert (done["restored"], done["notRestored"]) == (["rival"], [])
    assert straw.record is not None
    assert straw.record.cleared.removed == ("evil", "../evil")
    assert not list(straw.root.rglob("evil*"))


def test_a_record_of_an_older_version_learns_the_conflicts(straw: FakeNode, hay: FakeNode) -> None:
    both(straw, hay)
    path = loaded_path(straw.host, "hay")
    document = json.loads(path.read_text())
    del document["conflicts"]
    path.write_text(json.dumps(document))

    assert "load the module rival again" in straw.run("unload", "--dry-run").output
    hay.bring_up(hay.task())
    assert "leave rival unloaded: driver hay" in straw.run("unload", "--dry-run").output


def test_an_unload_that_is_repeated_leaves_the_in_tree_module_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not every module has a build-id to tell it by."""
    node = FakeNode(tmp_path)
    tree_of(node, "straw")
    node.kernel.add("straw", FakeModule(taint=""))
    write(node.host.sys_module / "firmware_class/parameters/path", "")
    write(node.image / "fw/straw.bin", "firmware")
    node.write_driver(firmware={"path": "fw"})
    node.fill()
    load, remove = node.kernel.finit_module, FirmwareDirectory.remove_files
    tries: list[str] = []

    def without_build_id(fd: int, parameters: str, timeout: float) -> None:
        load(fd, parameters, timeout)
        (node.host.sys_module / "straw/notes/.note.gnu.build-id").unlink()

    def busy_once(*given: object) -> None:
        tries.append("firmware")
        if len(tries) == 1:
            raise SystemRefused("busy")
        remove(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(node.kernel, "finit_module", without_build_id)
    monkeypatch.setattr(FirmwareDirectory, "remove_files", busy_once)
    node.kernel.unloads.clear()

    failed = node.run("unload")
    assert "busy" in failed.error
    node.run("unload")

    assert (node.kernel.unloads, node.kernel.loads) == (["straw"], ["straw"])
    assert node.record is None


def test_a_kernel_that_cannot_be_read_replaces_no_error_and_fails_no_unload(
    straw: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(straw.host.sys_module / "firmware_class/parameters/path", "")
    write(straw.image / "fw/straw.bin", "firmware")
    straw.write_driver(firmware={"path": "fw"})
    straw.fill()

    def refuse(*_: object) -> None:
        raise SystemRefused("no sysfs")

    def busy(*_: object) -> None:
        raise SystemRefused("busy")

    monkeypatch.setattr(conflicts, "pci_devices", refuse)
    with monkeypatch.context() as patch:
        patch.setattr(FirmwareDirectory, "remove_files", busy)
        assert "busy" in straw.run("unload").error
    done = straw.run("unload", "-o", "json")

    assert done.code == 0
    assert done.document["notRestored"] == ["no sysfs; by hand: modprobe rival"]
    assert straw.record is not None
    monkeypatch.undo()
    assert straw.run("unload", "-o", "json").document["restored"] == ["rival"]
