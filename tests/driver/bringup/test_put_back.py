"""A replacement that fails after the first old module has gone: the node gets everything back."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from nodeside.driver.bringup import installation
from nodeside.driver.bringup.validate import ValidationFailed
from nodeside.driver.handoff.listener import Listener
from nodeside.driver.kernel import conflicts
from nodeside.driver.kernel.conflicts import ConflictBuiltIn
from nodeside.driver.kernel.firmware import FirmwareDirectory, FirmwareRefused
from nodeside.driver.kernel.loader import Loader
from nodeside.driver.kernel.sequence import Insertion, SequenceFailed, insert_module
from nodeside.driver.ladder import rungs
from nodeside.driver.ladder.plan import RungFinding
from nodeside.driver.ladder.task import Task
from nodeside.errors import DeadlinePassed, ExitCode, NoSpace
from nodeside.protocol.node_status import Rung
from nodeside.system.process import run
from tests.driver.fakes.kernel import FakeModule, Refusal, write, write_bytes
from tests.driver.fakes.node import FakeNode, module_bytes
from tests.tries import sampled


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


def on_disk(node: FakeNode, name: str, *depends: str) -> None:
    """An in-tree module of this kernel."""
    tree = node.host.lib_modules("6.1.0-test")
    write_bytes(tree / f"kernel/{name}.ko", module_bytes(name, depends=depends))
    needs = "".join(f" kernel/{each}.ko" for each in depends)
    with open(tree / "modules.dep", "a") as listing:
        listing.write(f"kernel/{name}.ko:{needs}\n")


def in_tree(node: FakeNode, name: str, *depends: str, taint: str = "") -> None:
    """An in-tree module, on disk and in the kernel."""
    on_disk(node, name, *depends)
    node.kernel.add(name, FakeModule(taint=taint), uses=depends)


def two_modules(node: FakeNode, version: str) -> Task:
    """A version of a driver whose module `straw` uses its module `core`, and its bundle."""
    task = node.task(version=version, modules=[{"name": "core"}, {"name": "straw"}])
    files = {"core": module_bytes("core", version)}
    files["straw"] = module_bytes("straw", version, depends=["core"])
    node.put_bundle(task, files)
    return task


@pytest.fixture
def half_way(node: FakeNode) -> Task:
    """An upgrade of two modules; a neighbour opens a device of the second after the first went."""
    node.bring_up(two_modules(node, "1.0"))
    node.upgrade()
    node.kernel.refuse_unload["core"] = [errno.EAGAIN] * 1000
    return two_modules(node, "2.0")


def test_a_module_held_half_way_through_an_unload_brings_the_others_back(
    node: FakeNode, half_way: Task
) -> None:
    before = node.record

    with pytest.raises(
        SequenceFailed, match=r"cannot unload core.*\n.*previous straw is"
    ) as caught:
        node.bring_up(half_way)

    assert caught.value.exit_code == ExitCode.IN_USE
    assert caught.value.retryable
    assert set(node.loaded) == {"core", "straw"}
    assert node.kernel.unloads == ["straw"]
    assert node.record == before


@pytest.mark.parametrize(
    ("taint", "loaded"), [("", ("straw",)), (" (E)", ("straw",)), (" (OE)", ())]
)
def test_the_kernels_own_module_is_back_after_a_replacement_that_fails(
    node: FakeNode, taint: str, loaded: tuple[str, ...]
) -> None:
    """A vendor's driver of a network card has the name of the kernel's own, as a rule."""
    task = node.task()
    in_tree(node, "straw", taint=taint)
    node.put_bundle(task)
    node.kernel.refuse_load["straw"] = [Refusal(errno.ENODEV)]

    with pytest.raises(SequenceFailed, match="its init function refused"):
        node.bring_up(task)

    assert node.loaded == loaded
    assert node.kernel.unloads == ["straw"]
    assert node.record is None


@pytest.mark.parametrize("ours_first", [True, False])
def test_ours_are_back_too_if_a_new_version_also_replaces_a_module_of_the_kernel(
    node: FakeNode, *, ours_first: bool
) -> None:
    """Either may need the other, so they come back in the order of their dependencies."""
    names = ["straw", "extra"]
    if ours_first:
        node.fill()
        on_disk(node, "straw")
        in_tree(node, "extra", "straw")
    else:
        in_tree(node, "extra")
        task = node.task()
        node.put_bundle(task, {"straw": module_bytes("straw", depends=["extra"])})
        node.bring_up(task)
    before = node.record
    node.upgrade(modules=[{"name": name} for name in names])
    task = node.task()
    node.put_bundle(task)
    node.kernel.refuse_load["straw"] = [Refusal(errno.ENODEV)]

    with pytest.raises(SequenceFailed, match=r"the previous \w+, \w+ is loaded again"):
        node.bring_up(task)

    assert node.loaded[-2:] == tuple(names if ours_first else reversed(names))
    assert node.record == before


@pytest.mark.parametrize("previous", ["", "ours", "the kernel's own"])
def test_a_module_whose_init_hangs_is_not_taken_for_the_previous_one(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, previous: str
) -> None:
    """It may become live in the end. Then counts what the kernel said of it meanwhile."""
    if previous == "ours":
        node.fill()
    elif previous:
        in_tree(node, "straw")
    in_tree(node, "rival")
    node.upgrade(conflicts={"modules": ["rival"]})
    task = node.task()
    node.put_bundle(task)
    load = node.kernel.finit_module

    def hang(fd: int, parameters: str, timeout: float) -> None:
        load(fd, parameters, timeout)
        node.kernel.modules["straw"].state = "Loading"
        node.kernel.show()
        raise DeadlinePassed(f"the kernel has not returned after {timeout:g} s")

    with monkeypatch.context() as patch:
        patch.setattr(node.kernel, "finit_module", hang)
        with pytest.raises(SequenceFailed) as caught:
            node.bring_up(task)

    assert "the roll-back failed: cannot unload straw: its init f" in str(caught.value)
    assert node.loaded == ("straw",), "the rival stays away from its devices"
    assert node.record is not None
    assert node.record.version == "2.0"

    node.kernel.say("INFO: task insmod:4711 blocked for more than 120 seconds.")
    node.kernel.modules["straw"].state = "Live"
    node.kernel.show()
    with pytest.raises(ValidationFailed, match="blocked for more than"):
        node.bring_up(task)


@pytest.mark.parametrize("foreign", ["keep", "replace"])
def test_a_module_that_appears_during_a_build_is_not_unloaded_by_the_roll_back(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, foreign: str
) -> None:
    """As udev loads the kernel's own module for a device that is plugged in."""
    on_disk(node, "straw")
    write(node.host.lib_modules("6.1.0-test") / "modules.builtin", "kernel/rival.ko\n")
    task = node.task(conflicts={"modules": ["rival"]}, unload={"foreign": foreign})
    node.put_bundle(task)
    try_rung = rungs.try_rung

    def meanwhile(task: Task, rung: Rung, listener: Listener) -> RungFinding:
        node.kernel.add("straw", FakeModule(taint=""))
        return try_rung(task, rung, listener)

    monkeypatch.setattr(rungs, "try_rung", meanwhile)
    with pytest.raises(ConflictBuiltIn):
        node.bring_up(task)

    assert node.loaded == ("straw",)
    assert node.kernel.unloads == []


def test_a_module_that_udev_loads_on_the_way_is_back_after_a_load_that_fails(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk(node, "straw")
    task = node.task()
    node.put_bundle(task)
    load = node.kernel.finit_module

    def after_udev(fd: int, parameters: str, timeout: float) -> None:
        monkeypatch.setattr(node.kernel, "finit_module", load)
        node.kernel.add("straw", FakeModule(taint=""))
        try:
            load(fd, parameters, timeout)
        finally:
            node.kernel.refuse_load["straw"] = [Refusal(errno.ENODEV)]

    monkeypatch.setattr(node.kernel, "finit_module", after_udev)
    with pytest.raises(SequenceFailed, match="its init function refused"):
        node.bring_up(task)

    assert node.kernel.unloads == ["straw"]
    assert node.loaded == ("straw",)
    assert node.record is None


def test_a_bug_half_way_through_an_unload_brings_the_others_back(
    node: FakeNode, half_way: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.kernel.refuse_unload.clear()
    original = node.kernel.delete_module

    def delete_module(name: str, timeout: float = 1) -> None:
        if name == "core":
            raise RuntimeError("a bug")
        original(name, timeout)

    monkeypatch.setattr(node.kernel, "delete_module", delete_module)
    with pytest.raises(RuntimeError, match="a bug"):
        node.bring_up(half_way)
    assert set(node.loaded) == {"core", "straw"}


def test_a_module_that_went_and_has_no_file_any_more_is_named(
    node: FakeNode, half_way: Task
) -> None:
    first = next(tag for tag in (node.cache.root / "straw").iterdir() if tag.name[:3] == "1.0")
    (first / "modules/straw.ko").write_bytes(b"damaged")

    with pytest.raises(SequenceFailed, match="the roll-back failed: straw stays unloaded: no veri"):
        node.bring_up(half_way)

    assert node.loaded == ("core",)
    assert node.record is not None
    assert node.record.version == "1.0", "core of 1.0 is loaded"


@pytest.mark.slow
def test_a_certificate_that_goes_during_the_unload_fails_nothing(node: FakeNode) -> None:
    node.write_driver()
    certificate = node.image / "trust.pem"
    subject = ["-subj", "/CN=x", "-keyout", str(node.image / "key"), "-out", str(certificate)]
    run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject], timeout=60)
    task = node.task(prebuilt={"trust": {"certificate": "trust.pem"}})
    node.put_bundle(task, built_here=True)
    node.bring_up(task)
    node.upgrade()
    task = node.task()
    node.put_bundle(task, built_here=True)
    original = node.kernel.delete_module

    def delete_module(name: str, timeout: float = 1) -> None:
        original(name, timeout)
        certificate.unlink()

    node.kernel.delete_module = delete_module  # type: ignore[method-assign]
    node.bring_up(task)

    assert node.loaded == ("straw",)
    assert node.record is not None
    assert node.record.key == task.key


def test_firmware_that_cannot_be_read_is_refused_before_anything_is_unloaded(
    node: FakeNode,
) -> None:
    node.fill()
    write(node.host.sys_module / "firmware_class/parameters/path", "")
    node.upgrade(firmware={"path": "firmware"})
    (node.image / "firmware").mkdir()
    (node.image / "firmware/a.bin").symlink_to("a.bin")
    task = node.task()
    node.put_bundle(task)

    with pytest.raises(FirmwareRefused, match=r"a\.bin is a link that leads to itself"):
        node.bring_up(task)

    assert node.kernel.unloads == []
    assert node.states == []


@pytest.mark.parametrize("where", sampled(["firmware", "conflicts", "record", "load"], 4))
def test_a_bug_after_the_unload_brings_everything_back(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    node.fill()
    before = node.record
    in_tree(node, "rival")
    write(node.host.sys_module / "firmware_class/parameters/path", "")
    write(node.image / "firmware/a.bin", "A")
    node.upgrade(firmware={"path": "firmware"}, conflicts={"modules": ["rival"]})
    task = node.task()
    node.put_bundle(task)

    def bug(*_: object, **__: object) -> None:
        monkeypatch.undo()
        raise RuntimeError("a bug")

    def load_then_bug(items: Sequence[Insertion], loader: Loader, **_: object) -> None:
        insert_module(items[0], loader)
        raise RuntimeError("a bug")

    match where:
        case "firmware":
            monkeypatch.setattr(FirmwareDirectory, "install_files", bug)
        case "conflicts":
            monkeypatch.setattr(conflicts, "remove_all", bug)
        case "record":
            monkeypatch.setattr(installation, "write_loaded", bug)
        case "load":
            monkeypatch.setattr(installation, "load_sequence", load_then_bug)
    with pytest.raises(RuntimeError, match="a bug"):
        node.bring_up(task)

    assert set(node.loaded) == {"straw", "rival"}
    assert node.record == before


def test_a_full_disk_does_not_keep_the_conflicting_driver_away(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.fill()
    in_tree(node, "rival")
    node.upgrade(conflicts={"modules": ["rival"]})
    task = node.task()
    node.put_bundle(task)

    def full(*_: object) -> None:
        raise NoSpace("no space left in /run")

    monkeypatch.setattr(installation, "write_loaded", full)
    with pytest.raises(SequenceFailed, match=r"no space left in /run\n.*straw is loaded again"):
        node.bring_up(task)
    assert set(node.loaded) == {"straw", "rival"}
