"""A driver that is to go as soon as nobody holds its modules: the wait, and what is said."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeside.driver.bringup import installation
from nodeside.driver.bringup.journal import Journal
from nodeside.driver.commands import unload
from nodeside.driver.kernel import conflicts
from nodeside.driver.kernel.firmware import FirmwareDirectory
from nodeside.driver.kernel.sequence import SequenceFailed
from nodeside.driver.node.node_lock import is_locked
from nodeside.driver.node.run_directory import clear_loaded, hold_lock, read_loaded
from nodeside.errors import ExitCode
from nodeside.protocol.node_status import NOT_RESTORED, State
from nodeside.protocol.ready_file import read_ready
from tests.driver.fakes.kernel import FakeModule, Refusal, add_device, write, write_bytes
from tests.driver.fakes.node import BOOT_ID, FakeNode, module_bytes
from tests.patience import patience

_LATEST = patience(60.0)  # seconds, which only a broken test meets


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    monkeypatch.setattr(unload, "_FIRST_LOOK", 0.01)
    monkeypatch.setattr(unload, "_LOCK_LOOK", 0.01)
    made = FakeNode(tmp_path)
    made.put_bundle(made.task())
    made.run("load")
    return made


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """What the journal announced: state, reason and message."""
    said: list[tuple[str, str, str]] = []
    announce = Journal._announce_report

    def listening(journal: Journal, report: object) -> None:
        announce(journal, report)  # type: ignore[arg-type]
        status = journal.announced
        assert status is not None
        said.append((status.state.value, status.reason, status.message))

    monkeypatch.setattr(Journal, "_announce_report", listening)
    return said


def hold(node: FakeNode) -> None:
    add_device(node.host, "c10:1", "straw", "virtual/misc/straw")
    node.kernel.modules["straw"].refcnt = 1
    node.kernel.show()


def let_go(node: FakeNode) -> None:
    node.kernel.modules["straw"].refcnt = 0
    node.kernel.show()


@contextmanager
def as_soon_as(holds: Callable[[], bool], act: Callable[[], None]) -> Iterator[None]:
    """Act from outside, once something is seen, while the block runs."""
    ended = threading.Event()

    def watching() -> None:
        while not ended.wait(0.005):
            if holds():
                act()
                return

    thread = threading.Thread(target=watching, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_LATEST)


@pytest.mark.parametrize("words", [("unload",), ("unload", "--wait")])
def test_the_result_is_told_before_the_next_holder_of_the_lock_can_tell_its_own(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """A pod loads the driver again at once. Told after that, `unloaded` would end its readiness."""
    locked: list[tuple[State, bool]] = []
    announce = Journal._announce_report

    def listening(journal: Journal, report: object) -> None:
        announce(journal, report)  # type: ignore[arg-type]
        assert journal.announced is not None
        locked.append((journal.announced.state, is_locked(node.host, "straw")))

    monkeypatch.setattr(Journal, "_announce_report", listening)

    assert node.run(*words).code == 0

    assert locked[-1] == (State.WAITING, True)
    assert all(held for _, held in locked)


def test_modules_that_nobody_holds_go_at_once(
    node: FakeNode, told: list[tuple[str, str, str]]
) -> None:
    done = node.run("unload", "--wait")

    assert (done.code, done.output) == (0, "unloaded  straw\n")
    assert node.loaded == ()
    assert told[-1] == ("waiting", "Unloaded", "unloaded")
    assert {state for state, _, _ in told} == {"unloading", "waiting"}


@pytest.mark.parametrize("foreign", ["keep", "replace"])
@pytest.mark.parametrize("wait", [(), ("--wait",)])
def test_a_module_that_nodeside_did_not_load_stays(
    tmp_path: Path, foreign: str, wait: tuple[str, ...]
) -> None:
    """A driver whose build failed may have the name of the kernel's own, which runs the network."""
    node = FakeNode(tmp_path)
    node.write_driver(unload={"foreign": foreign})
    node.insmod("straw")
    assert node.run("load").code == ExitCode.FETCH

    assert "unload nothing" in node.run("unload", "--dry-run").output
    done = node.run("unload", *wait)

    assert done.output == "unloaded  nothing: none of its modules was loaded by nodeside\n"
    assert "straw stays: nodeside did not load it" in done.errors
    assert node.kernel.unloads == []


def test_a_module_that_somebody_put_in_the_place_of_ours_stays(node: FakeNode) -> None:
    node.kernel.delete_module("straw")
    node.insmod("straw")
    node.kernel.unloads.clear()

    assert node.run("unload", "--wait").code == ExitCode.OK
    assert (node.loaded, node.kernel.unloads) == (("straw",), [])


def test_without_a_record_the_cache_tells_which_module_is_ours(node: FakeNode) -> None:
    clear_loaded(node.host, "straw")

    assert node.run("unload").output == "unloaded  straw\n"


def test_who_holds_a_module_is_said_once_and_it_goes_when_he_lets_go(
    node: FakeNode, told: list[tuple[str, str, str]]
) -> None:
    hold(node)
    held = "cannot unload straw: straw has 1 reference that no module, open file or mount explains"

    with as_soon_as(lambda: any(m == held for _, _, m in told), lambda: let_go(node)):
        done = node.run("unload", "--wait")

    assert (done.code, done.output) == (0, "unloaded  straw\n")
    assert [each for each in told if each[1]] == [
        ("unloading", "InUse", held),
        ("waiting", "Unloaded", "unloaded"),
    ]
    assert done.errors.count(held) == 1
    assert read_ready(node.host, "straw", BOOT_ID) is None


def test_sigterm_ends_the_wait_and_leaves_the_modules_and_the_lock(
    node: FakeNode, told: list[tuple[str, str, str]]
) -> None:
    hold(node)

    with as_soon_as(
        lambda: any(reason == "InUse" for _, reason, _ in told),
        lambda: os.kill(os.getpid(), signal.SIGTERM),
    ):
        done = node.run("unload", "--wait")

    assert done.code == ExitCode.INTERRUPTED
    assert "SIGTERM came before driver straw was unloaded; until then: cannot unload" in done.error
    assert node.loaded == ("straw",)
    assert told[-1][0] == State.UNLOADING.value, "nothing is said of what is somebody else's now"
    with hold_lock(node.host, "straw", timeout=0):
        pass


def test_a_module_that_no_wait_removes_is_said_to_need_a_reboot(
    node: FakeNode, told: list[tuple[str, str, str]]
) -> None:
    node.kernel.modules["straw"].permanent = True
    node.kernel.show()

    done = node.run("unload", "--wait")

    assert done.code == ExitCode.REBOOT_REQUIRED
    assert told[-1] == (
        "reboot-required",
        "RebootRequired",
        "cannot unload straw: it is permanent, that is, it has no exit function",
    )


def test_it_waits_for_whoever_has_the_lock_and_says_nothing_meanwhile(
    node: FakeNode, told: list[tuple[str, str, str]]
) -> None:
    """Two open files are two locks, in one process too."""
    lock = hold_lock(node.host, "straw", timeout=0)
    lock.__enter__()
    seen: list[object] = []

    def free() -> None:
        seen.extend(told)
        lock.__exit__(None, None, None)

    looks = 0

    def looked_often() -> bool:
        nonlocal looks
        looks += 1
        return looks > 20

    with as_soon_as(looked_often, free):
        done = node.run("unload", "--wait")

    assert done.code == ExitCode.OK
    assert seen == []
    assert "another process is working on driver straw on this node" in done.errors


def test_the_lock_is_held_while_it_waits_so_that_no_driver_pod_loads_again(
    node: FakeNode, told: list[tuple[str, str, str]]
) -> None:
    hold(node)
    locked: list[bool] = []

    def try_the_lock() -> None:
        try:
            with hold_lock(node.host, "straw", timeout=0):
                locked.append(False)
        except Exception:
            locked.append(True)
        let_go(node)

    with as_soon_as(lambda: any(reason == "InUse" for _, reason, _ in told), try_the_lock):
        assert node.run("unload", "--wait").code == ExitCode.OK

    assert locked == [True]


def test_an_unload_needs_neither_the_source_nor_the_certificate(node: FakeNode) -> None:
    node.write_driver(
        source={"path": "gone"}, signing={"key": "/signing/key", "certificate": "/signing/cert"}
    )

    assert node.run("unload", "--wait").output == "unloaded  straw\n"


# --- the in-tree driver comes back ---------------------------------------------------------------


RIVAL = {"modules": ["rival"]}


def rival_loaded(directory: Path) -> FakeNode:
    """A node where an in-tree module is loaded that is in the driver's way."""
    node = FakeNode(directory)
    tree = node.host.lib_modules("6.1.0-test")
    write_bytes(tree / "kernel/rival.ko", module_bytes("rival"))
    write(tree / "modules.dep", "kernel/rival.ko:\n")
    node.kernel.add("rival", FakeModule())
    return node


@pytest.fixture
def replaced(tmp_path: Path) -> FakeNode:
    """A node where the driver was loaded in the place of an in-tree module."""
    node = rival_loaded(tmp_path)
    task = node.task(conflicts=RIVAL)
    node.put_bundle(task)
    node.bring_up(task)
    assert node.loaded == ("straw",)
    return node


def test_an_unload_brings_the_in_tree_module_back(replaced: FakeNode) -> None:
    dry = replaced.run("unload", "--dry-run").output
    done = replaced.run("unload", "-o", "json").document

    assert "load the module rival again" in dry
    assert done["restored"] == ["rival"]
    assert replaced.loaded == ("rival",)
    assert replaced.record is None


def test_an_upgrade_and_a_later_look_keep_what_was_cleared(replaced: FakeNode) -> None:
    replaced.upgrade(conflicts=RIVAL)
    task = replaced.task(conflicts=RIVAL)
    replaced.put_bundle(task)
    replaced.bring_up(task)
    replaced.bring_up(task)
    assert replaced.record is not None
    assert replaced.record.cleared.removed == ("rival",)

    replaced.run("unload")

    assert replaced.loaded == ("rival",)


def test_never_leaves_the_in_tree_module_away(replaced: FakeNode) -> None:
    replaced.task(conflicts={**RIVAL, "restore": "never"})
    assert "rival" not in replaced.run("unload", "--dry-run").output
    replaced.run("unload")
    assert replaced.loaded == ()


def test_a_module_that_cannot_come_back_does_not_fail_the_unload(
    replaced: FakeNode, told: list[tuple[str, str, str]]
) -> None:
    replaced.kernel.refuse_load["rival"] = [Refusal(errno.ENODEV)]
    done = replaced.run("unload", "-o", "json")

    assert done.code == ExitCode.OK
    (problem,) = done.document["notRestored"]
    assert problem.startswith("cannot load rival: ENODEV")
    assert problem.endswith("; by hand: modprobe rival")
    assert told[-1] == ("waiting", NOT_RESTORED, f"unloaded; could not be brought back: {problem}")
    assert (replaced.loaded, replaced.record) == ((), None)


def test_the_kernels_own_module_of_the_same_name_comes_back(tmp_path: Path) -> None:
    """A vendor's driver of a network card has the name of the kernel's own, as a rule."""
    node = FakeNode(tmp_path)
    tree = node.host.lib_modules("6.1.0-test")
    write_bytes(tree / "kernel/straw.ko", module_bytes("straw", "of the tree"))
    write(tree / "modules.dep", "kernel/straw.ko:\n")
    write(node.host.root / "etc/modprobe.d/card.conf", "options straw mode=fast\n")
    node.kernel.add("straw", FakeModule(taint=""))
    node.fill()
    assert node.record is not None
    assert node.record.cleared.removed == ("straw",)

    dry = node.run("unload", "--dry-run").output
    done = node.run("unload")

    assert "load the module straw again" in dry
    assert done.output == "unloaded  straw\nrestored  straw\n"
    assert "straw stays" not in done.errors
    assert node.kernel.loads[-1] == "straw mode=fast"


def test_what_udev_loads_on_the_way_comes_back_too(tmp_path: Path) -> None:
    """At the start of a node, udev loads the kernel's own module while ours is on its way."""
    node = FakeNode(tmp_path)
    tree = node.host.lib_modules("6.1.0-test")
    write_bytes(tree / "kernel/straw.ko", module_bytes("straw", "of the tree"))
    write(tree / "modules.dep", "kernel/straw.ko:\n")
    load = node.kernel.finit_module

    def after_udev(fd: int, parameters: str, timeout: float) -> None:
        node.kernel.finit_module = load  # type: ignore[method-assign]
        node.kernel.add("straw", FakeModule(taint=""))
        load(fd, parameters, timeout)

    node.kernel.finit_module = after_udev  # type: ignore[method-assign]
    node.fill()

    assert node.run("unload", "-o", "json").document["restored"] == ["straw"]


@pytest.mark.parametrize("when", ["before the clearing", "after the clearing"])
def test_a_driver_that_was_killed_at_its_load_has_left_a_record_of_what_it_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    class Killed(BaseException):
        """Nothing of ours runs after it."""

    def killed(*_: object, **__: object) -> None:
        raise Killed

    node = rival_loaded(tmp_path)
    task = node.task(conflicts=RIVAL)
    node.put_bundle(task)
    with monkeypatch.context() as patch:
        patch.setattr(
            *((conflicts, "remove_all") if when[0] == "b" else (installation, "load_sequence")),
            killed,
        )
        with pytest.raises(Killed):
            node.bring_up(task)
    assert node.loaded == (("rival",) if when[0] == "b" else ())

    node.bring_up(task)
    assert node.record is not None
    assert node.record.cleared.removed == ("rival",)
    node.run("unload")

    assert node.loaded == ("rival",)


def test_the_next_boot_records_anew_what_it_removes(replaced: FakeNode) -> None:
    """In one boot udev has loaded the in-tree module, in another one it has not."""
    for number, rivals in enumerate([("rival",), ()]):
        boot = f"{BOOT_ID[:-1]}{number}"
        write(replaced.host.proc / "sys/kernel/random/boot_id", f"{boot}\n")
        replaced.kernel.modules.clear()
        for name in rivals:
            replaced.kernel.add(name, FakeModule(taint=""))
        replaced.kernel.show()
        task = replaced.task(conflicts=RIVAL)
        replaced.bring_up(task)

        record = read_loaded(replaced.host, replaced.name, boot)
        assert record is not None
        assert record.cleared.removed == rivals


def test_an_upgrade_whose_driver_yaml_no_longer_names_it_says_so(replaced: FakeNode) -> None:
    replaced.upgrade(conflicts={})
    task = replaced.task()
    replaced.put_bundle(task)
    replaced.bring_up(task)

    done = replaced.run("unload", "-o", "json")

    said = "leave alone what driver.yaml does not name: rival"
    assert done.document["notRestored"] == [said]
    assert said in done.errors
    assert replaced.loaded == ()


def test_what_a_failed_load_could_not_put_back_is_not_forgotten(tmp_path: Path) -> None:
    node = rival_loaded(tmp_path)
    task = node.task(conflicts=RIVAL)
    node.put_bundle(task)
    node.kernel.refuse_load |= {
        "straw": [Refusal(errno.ENODEV)],
        "rival": [Refusal(errno.ENOMEM)],
    }
    with pytest.raises(SequenceFailed):
        node.bring_up(task)
    assert not node.loaded

    assert node.run("unload", "-o", "json").document["restored"] == ["rival"]
    assert node.loaded == ("rival",)
    assert node.record is None


def test_firmware_of_the_driver_is_gone_before_the_in_tree_module_asks_for_its_own(
    replaced: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel looks into the directory of the driver first."""
    done: list[str] = []
    write(replaced.host.sys_module / "firmware_class/parameters/path", "")
    replaced.task(conflicts=RIVAL, firmware={"path": "firmware"})
    monkeypatch.setattr(FirmwareDirectory, "remove_files", lambda *_: done.append("firmware"))
    load = replaced.kernel.finit_module

    def told(fd: int, parameters: str, timeout: float) -> None:
        done.append("rival")
        load(fd, parameters, timeout)

    monkeypatch.setattr(replaced.kernel, "finit_module", told)
    replaced.run("unload")

    assert done == ["firmware", "rival"]
