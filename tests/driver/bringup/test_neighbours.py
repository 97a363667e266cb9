"""Drivers that come after one another: both on one node whose kernel is fake."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeside.driver.bringup import neighbours
from nodeside.driver.bringup.journal import Report
from nodeside.driver.bringup.neighbours import LeavingRecord, leaving_path
from nodeside.driver.commands import unload
from nodeside.driver.handoff.listener import Listener
from nodeside.driver.handoff.result import StoppedWaiting
from nodeside.driver.kernel.errors import InUse, RebootRequired
from nodeside.driver.kernel.unload import modules_to_unload
from nodeside.driver.ladder.exported_symbols import symvers_path
from nodeside.driver.node.loaded_record import LoadedRecord
from nodeside.driver.node.run_directory import hold_lock, hold_pod_lock, read_loaded, write_loaded
from nodeside.errors import ExitCode, NoSpace
from nodeside.protocol.node_records import write_record
from nodeside.protocol.node_status import Rung, State
from nodeside.protocol.ready_file import ReadyRecord, clear_ready, read_ready, write_ready
from nodeside.system.host import Host
from tests.driver.fakes.kernel import RELEASE, FakeModule, write, write_bytes
from tests.driver.fakes.node import BOOT_ID, FakeNode, module_bytes


@pytest.fixture
def first(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


@pytest.fixture
def second(first: FakeNode, tmp_path: Path) -> FakeNode:
    """A driver on the same node, which comes after the other one."""
    node = FakeNode(tmp_path / "second", "hay", {"after": ["straw"]})
    node.root, node.kernel, node.host = first.root, first.kernel, first.host
    node.cache = first.cache
    return node


STOPPING = Listener(stopping=lambda: True)


def ready(node: FakeNode, name: str = "straw", boot_id: str = BOOT_ID) -> None:
    record = ReadyRecord(name, "1.0", "6.1", boot_id, Rung.LOADED, (name,), 0.0)
    write_ready(node.host, record)


def leaves(node: FakeNode, name: str = "straw", boot_id: str = BOOT_ID) -> None:
    write_record(leaving_path(node.host, name), LeavingRecord(name, boot_id))


def both(first: FakeNode, second: FakeNode) -> None:
    """Both drivers are up."""
    for node in (first, second):
        node.put_bundle(node.task())
        up(node)
        ready(node, node.name)


def up(node: FakeNode) -> Report:
    return node.bring_up(node.task())


def down(node: FakeNode) -> None:
    """`nodeside driver unload`."""
    with pytest.MonkeyPatch().context() as patch:
        patch.setattr(unload, "Loader", lambda _: node.kernel.loader)
        unload.unload(node.task())


# --- the one after ----------------------------------------------------------------------------


@pytest.mark.parametrize("readiness", ["none", "of another boot", "leaving"])
def test_a_driver_waits_until_the_one_before_it_is_ready(second: FakeNode, readiness: str) -> None:
    second.put_bundle(second.task())
    if readiness != "none":
        ready(second, boot_id="another" if readiness == "of another boot" else BOOT_ID)
    if readiness == "leaving":
        leaves(second)
    with pytest.raises(neighbours.WaitsForDriver, match="waits until straw is ready") as caught:
        up(second)
    assert caught.value.hint.startswith("first: nodeside driver run --once -f FILE")
    pod = replace(second.task(), config=replace(second.config(), revision="0123456789ab"))
    with pytest.raises(neighbours.WaitsForDriver) as in_a_pod:
        second.bring_up(pod)
    assert in_a_pod.value.hint == "see why: nodeside-cluster explain straw n1"
    assert caught.value.exit_code == ExitCode.WAITS_FOR_DRIVER
    assert (second.kernel.loads, read_loaded(second.host, "hay", BOOT_ID)) == ([], None)

    clear_ready(second.host, "straw")
    leaving_path(second.host, "straw").unlink(missing_ok=True)
    ready(second)
    assert up(second).state is State.READY
    record = read_loaded(second.host, "hay", BOOT_ID)
    assert record is not None
    assert record.after == ("straw",)


def test_a_driver_that_comes_after_itself_says_so(first: FakeNode) -> None:
    first.put_bundle(first.task(after=["straw"]))
    with pytest.raises(neighbours.WaitsForDriver, match="after itself, so it is never loaded"):
        up(first)


def test_a_loaded_driver_stays_while_the_one_before_it_is_not_ready(
    first: FakeNode, second: FakeNode
) -> None:
    both(first, second)
    clear_ready(first.host, "straw")
    leaves(first, boot_id="another")
    assert up(second).source is Rung.LOADED
    assert second.kernel.unloads == []


def test_a_loaded_driver_leaves_once_the_one_before_it_does(
    first: FakeNode, second: FakeNode
) -> None:
    both(first, second)
    leaves(first)
    symvers_path(second.host, "hay").touch()
    with pytest.raises(neighbours.WaitsForDriver):
        up(second)
    assert second.kernel.unloads == ["hay"]
    assert second.states[-1] is State.UNLOADING
    assert read_loaded(second.host, "hay", BOOT_ID) is None
    assert not symvers_path(second.host, "hay").exists()


def test_a_driver_that_left_for_a_moment_knows_at_its_removal_what_it_had_removed(
    first: FakeNode, second: FakeNode
) -> None:
    tree = second.host.lib_modules(RELEASE)
    write_bytes(tree / "kernel/rival.ko", module_bytes("rival"))
    write(tree / "modules.dep", "kernel/rival.ko:\n")
    second.kernel.add("rival", FakeModule(taint=""))
    second.write_driver(conflicts={"modules": ["rival"]})
    both(first, second)
    leaves(second)
    with pytest.raises(neighbours.WaitsForDriver):
        up(second)
    assert second.kernel.unloads == ["rival", "hay"]

    down(second)

    assert second.loaded == ("straw", "rival")
    assert read_loaded(second.host, "hay", BOOT_ID) is None


@pytest.mark.parametrize("change", [{"unload": {"policy": "never"}}, {"upgrade": "onReboot"}])
def test_a_driver_that_only_a_reboot_removes_is_left_alone(
    first: FakeNode, second: FakeNode, change: dict[str, Any]
) -> None:
    second.write_driver(**change)
    both(first, second)
    with pytest.raises(RebootRequired, match="says that only a reboot removes it"):
        down(first)
    assert not leaving_path(first.host, "straw").exists()
    leaves(first)
    assert up(second).source is Rung.LOADED, "nobody makes it flap"
    assert second.kernel.unloads == []


def test_a_build_for_another_version_of_the_one_before_is_not_loaded(
    first: FakeNode, second: FakeNode
) -> None:
    """It was replaced during the build: nobody waited for a driver that is not loaded."""
    listed = b"0x0000000%d\tbend\tstraw\tEXPORT_SYMBOL\t\n"
    first.put_bundle(first.task())
    up(first)
    ready(first)
    symvers_path(first.host, "straw").write_bytes(listed % 1)
    task = second.task()
    second.put_bundle(task)
    symvers_path(first.host, "straw").write_bytes(listed % 2)
    with pytest.raises(neighbours.WaitsForDriver, match="was replaced meanwhile"):
        second.bring_up(task)
    assert second.kernel.loads == ["straw"]
    second.put_bundle(second.task())
    assert up(second).state is State.READY


def test_a_driver_without_modules_waits_too(second: FakeNode) -> None:
    units = {"resource": "example.com/hay", "discover": {"count": 2}}
    second.write_driver(modules=[], devices=[units | {"give": {"environment": {"HAY": "{ids}"}}}])
    with pytest.raises(neighbours.WaitsForDriver):
        up(second)
    ready(second)
    assert up(second).state is State.READY


def test_one_that_loads_while_the_one_before_leaves_notices(
    first: FakeNode, second: FakeNode
) -> None:
    first.put_bundle(first.task())
    up(first)
    ready(first)
    second.put_bundle(second.task())
    what = modules_to_unload(["straw"], None, ())
    with (
        neighbours.without_followers(first.attempt(first.task()), what),
        pytest.raises(neighbours.WaitsForDriver),
    ):
        up(second)
    assert second.kernel.loads == ["straw"]


def test_one_before_that_begins_to_leave_during_the_checks_is_noticed_before_the_load(
    first: FakeNode, second: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    second.put_bundle(second.task())
    ready(first)

    def write(host: Host, record: LoadedRecord) -> None:
        write_loaded(host, record)
        leaves(first)

    monkeypatch.setattr("nodeside.driver.bringup.installation.write_loaded", write)
    with pytest.raises(neighbours.WaitsForDriver):
        up(second)
    assert second.kernel.loads == []
    assert read_loaded(second.host, "hay", BOOT_ID) is None


# --- the one before ---------------------------------------------------------------------------


@contextmanager
def pod(node: FakeNode) -> Iterator[list[str]]:
    """A pod of a driver, which leaves when it has to; what it did."""
    did: list[str] = []
    stop = threading.Event()

    def live() -> None:
        with hold_pod_lock(node.host, node.name, timeout=5):
            started.set()
            while not stop.wait(0.01):
                if leaving_path(node.host, "straw").exists() and not did:
                    with hold_lock(node.host, node.name, timeout=5):
                        did.append(f"left; straw is {'straw' in node.kernel.modules}")
                        with pytest.raises(neighbours.WaitsForDriver):
                            up(node)

    started = threading.Event()
    thread = threading.Thread(target=live)
    thread.start()
    started.wait(5)
    try:
        yield did
    finally:
        stop.set()
        thread.join()


def test_those_after_leave_first(first: FakeNode, second: FakeNode) -> None:
    both(first, second)
    with pod(second) as did:
        down(first)
    assert did == ["left; straw is True"]
    assert first.kernel.unloads == ["hay", "straw"]
    assert not leaving_path(first.host, "straw").exists()


def test_one_that_was_killed_as_it_left_stays_if_it_comes_back(
    first: FakeNode, second: FakeNode
) -> None:
    both(first, second)
    leaves(first)
    assert up(first).source is Rung.LOADED
    assert not leaving_path(first.host, "straw").exists()
    assert up(second).source is Rung.LOADED


def test_a_replacement_waits_for_those_after(first: FakeNode, second: FakeNode) -> None:
    both(first, second)
    first.upgrade()
    first.put_bundle(first.task())
    before = len(first.kernel.loads)
    with pod(second):
        assert up(first).source is Rung.CACHED
    assert first.kernel.unloads == ["hay", "straw"]
    assert first.kernel.loads[before] == "straw", "its pod may have loaded hay again already"


def test_a_driver_after_that_no_pod_runs_is_named(
    first: FakeNode, second: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    both(first, second)
    monkeypatch.setattr(neighbours, "_POD_RESTART", 0.3)
    with pytest.raises(InUse, match="hay comes after straw and has not left: no pod runs it"):
        down(first)
    assert first.kernel.unloads == []
    assert read_ready(first.host, "straw", BOOT_ID) is not None
    assert not leaving_path(first.host, "straw").exists()


def test_waiting_has_a_deadline_and_ends_at_a_signal(first: FakeNode, second: FakeNode) -> None:
    both(first, second)
    task, what = first.task(), modules_to_unload(["straw"], None, ())
    with hold_pod_lock(second.host, "hay", timeout=5):
        with (
            pytest.raises(StoppedWaiting, match="stopped while hay had not left"),
            neighbours.without_followers(replace(first.attempt(task), listener=STOPPING), what),
        ):
            raise AssertionError("nobody has left")
        times = iter(range(0, 1000, 30))
        slow = replace(
            first.kernel.loader,
            clock=replace(first.kernel.loader.clock, now=lambda: float(next(times))),
        )
        with (
            pytest.raises(InUse, match="hay comes after straw and has not left: waited 90 s"),
            neighbours.without_followers(replace(first.attempt(task), loader=slow), what),
        ):
            raise AssertionError("nobody has left")


def test_nobody_leaves_while_somebody_holds_one_of_them(first: FakeNode, second: FakeNode) -> None:
    both(first, second)
    first.kernel.modules["hay"].refcnt = 1
    first.kernel.show()
    with pod(second) as did, pytest.raises(InUse, match="cannot unload hay"):
        down(first)
    assert (did, first.kernel.unloads) == ([], [])


def test_a_full_disk_keeps_a_driver_only_if_others_come_after_it(
    first: FakeNode, second: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _: object) -> None:
        raise NoSpace(f"no space left writing {path}")

    monkeypatch.setattr(neighbours, "write_record", full)
    both(first, second)
    with pytest.raises(NoSpace):
        down(first)
    assert first.kernel.unloads == []
    down(second)
    down(first)
    assert first.kernel.unloads == ["hay", "straw"]


def test_one_that_is_about_to_load_is_waited_for(first: FakeNode, second: FakeNode) -> None:
    """It has written its record, and looks whether the one before leaves: before that wrote so."""
    first.put_bundle(first.task())
    up(first)
    ready(first)
    second.put_bundle(second.task())
    up(second)
    second.kernel.modules.pop("hay")
    second.kernel.show()
    task, what = first.task(), modules_to_unload(["straw"], None, ())
    with (
        hold_lock(second.host, "hay", timeout=5),
        pytest.raises(StoppedWaiting),
        neighbours.without_followers(replace(first.attempt(task), listener=STOPPING), what),
    ):
        raise AssertionError("nobody has left")
    with neighbours.without_followers(replace(first.attempt(task), listener=STOPPING), what):
        pass
