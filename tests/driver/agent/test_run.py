"""The driver container's whole life: once, and for ever. The kernel is fake, the rest is real."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeside.driver.agent import watch
from nodeside.driver.agent.run import DriverLoop, PodLock
from nodeside.driver.agent.watch import Reason, Why
from nodeside.driver.announce import documents
from nodeside.driver.bringup import observe
from nodeside.driver.handoff.listener import Listener
from nodeside.driver.handoff.result import StoppedWaiting
from nodeside.driver.ladder import rungs
from nodeside.driver.node.node_lock import is_locked
from nodeside.driver.node.run_directory import hold_lock, hold_pod_lock
from nodeside.errors import ExitCode, SpecError
from nodeside.protocol.build_records import BuiltModule, FailureKind
from nodeside.protocol.node_status import READY_PATTERN, NodeDriverStatus, Rung, State
from nodeside.protocol.ready_file import read_ready, ready_path
from nodeside.protocol.shared_directory import SharedDir
from nodeside.spec import check_node_driver
from nodeside.system import process
from nodeside.system.child import run_in_child
from nodeside.system.clock import Clock
from nodeside.system.uevents import Uevent
from tests import console
from tests.driver.fakes.handoff import failed, succeeded
from tests.driver.fakes.kernel import FakeModule, Refusal, write, write_bytes
from tests.driver.fakes.node import BOOT_ID, FakeNode, module_bytes
from tests.driver.fakes.uevents import Queue
from tests.sidecar_lock import hold_sidecar_lock
from tests.tries import sampled


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


def run_of(node: FakeNode, *, expected_kernel: str = "") -> DriverLoop:
    return DriverLoop(
        node.config(), Listener(), node.told.append, expected_kernel, node.kernel.loader
    )


# --- once ------------------------------------------------------------------------------------


def test_once_brings_the_driver_up_and_tells_every_state(node: FakeNode) -> None:
    node.put_bundle(node.task())
    _, report = run_of(node).run_once()
    assert report.state is State.READY
    assert node.states == [State.LOADING, State.READY]
    assert node.told[-1].node == "n1"
    assert node.told[-1].boot_id == BOOT_ID
    assert node.told[-1].source is Rung.CACHED


def test_a_failure_is_told_with_reason_message_and_hint(node: FakeNode) -> None:
    node.write_driver()
    _, report = run_of(node).run_once()
    assert report.exit_code == ExitCode.FETCH
    told = node.told[-1]
    assert told.state is State.FAILED
    assert told.reason == "NoRungServed"
    assert told.message.startswith("no way to get the modules: ")
    assert "--shared" in told.hint


def test_a_failure_is_told_before_another_process_can_make_the_driver_ready(
    node: FakeNode,
) -> None:
    node.write_driver()
    held: list[bool] = []

    def tell(_: NodeDriverStatus) -> None:
        held.append(is_locked(node.host, "straw"))

    _, report = replace(run_of(node), announce=tell).run_once()

    assert report.state is State.FAILED
    assert held
    assert all(held)


def test_a_module_that_cannot_go_is_a_state_of_its_own(node: FakeNode) -> None:
    node.fill()
    node.upgrade(upgrade="onReboot")
    node.put_bundle(node.task())
    run_of(node).run_once()
    assert node.told[-1].state is State.REBOOT_REQUIRED
    assert "reboot the node" in node.told[-1].hint


def test_while_another_process_is_at_work_nothing_is_told(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.fill()
    monkeypatch.setattr("nodeside.driver.agent.run._LOCK_TIMEOUT", 0.0)
    with hold_lock(node.host, "straw", timeout=0):
        journal, report = run_of(node).run_once()
    assert report.exit_code == ExitCode.LOCKED
    assert report.retryable
    assert "another process is working on driver straw" in report.message
    assert node.told == []
    assert journal.announced is None


def test_a_pod_of_another_kernel_does_nothing_and_tells_nothing(node: FakeNode) -> None:
    node.put_bundle(node.task())
    _, report = run_of(node, expected_kernel="5.10.0-other").run_once()
    assert report.message == "this pod was made for kernel 5.10.0-other, the node runs 6.1.0-test"
    assert node.told == []
    assert node.kernel.loads == []


def test_the_wait_for_the_lock_ends_when_the_process_is_told_to_stop(node: FakeNode) -> None:
    node.fill()
    run = run_of(node)
    stopping = replace(run, listener=Listener(stopping=lambda: True))
    with hold_lock(node.host, "straw", timeout=0):
        _, report = stopping.run_once()
    assert report.reason == StoppedWaiting.reason
    assert node.told == []


def test_a_pod_waits_for_the_end_of_the_one_before_it_and_then_has_its_turn(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.put_bundle(node.task())
    monkeypatch.setattr("nodeside.driver.agent.run._LOCK_TIMEOUT", 0.0)
    with ExitStack() as life:
        pod = replace(run_of(node), pod_lock=PodLock(life))
        with hold_pod_lock(node.host, "straw", timeout=0):
            _, report = pod.run_once()
            assert (report.reason, report.retryable, node.told) == ("Locked", True, [])
            assert "another process is working on driver straw on this node: pid " in report.message
            assert node.kernel.loads == []
        assert pod.run_once()[1].state is State.READY


def test_a_pod_that_was_replaced_takes_nothing_back(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.put_bundle(node.task())
    monkeypatch.setattr("nodeside.driver.agent.run._LOCK_TIMEOUT", 0.0)
    with ExitStack() as life, ExitStack() as next_life:
        old = replace(run_of(node), pod_lock=PodLock(life))
        old.run_once()
        new = replace(run_of(node), pod_lock=PodLock(next_life))
        assert new.run_once()[1].reason == "Locked", "the old one has not ended"
        life.close()
        assert new.run_once()[1].state is State.READY
        with ExitStack() as again:
            late = replace(old, pod_lock=PodLock(again))
            assert late.run_once()[1].reason == "Locked"


def test_a_command_by_hand_works_beside_the_pod(node: FakeNode) -> None:
    node.put_bundle(node.task())
    with hold_pod_lock(node.host, "straw", timeout=0):
        assert run_of(node).run_once()[1].state is State.READY


def test_what_a_controller_handed_over_may_be_newer_than_this_node(node: FakeNode) -> None:
    node.put_bundle(node.task())
    text = node.driver_file.read_text().replace("spec:\n", "spec:\n  colour: blue\n")
    node.driver_file.write_text(text)
    strict = run_of(node)
    with pytest.raises(Exception, match="colour"):
        strict.run_once()
    _, report = replace(strict, config=replace(strict.config, revision="r1")).run_once()
    assert report.state is State.READY


# --- a bug of ours ---------------------------------------------------------------------------


def surprised(*_: object, **__: object) -> None:
    raise KeyError("nobody thought of this")


def test_a_bug_is_told_like_a_failure_that_may_pass_with_its_traceback_in_the_log(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("nodeside"), "propagate", True)
    monkeypatch.setattr(rungs, "try_rung", surprised)
    node.write_driver()

    _, report = run_of(node).run_once()

    assert (report.reason, report.exit_code, report.retryable) == ("Bug", ExitCode.BUG, True)
    assert node.states == [State.FAILED]
    assert node.told[-1].message == "a bug in nodeside: KeyError: 'nobody thought of this'"
    assert check_node_driver(documents.node_driver_document(node.told[-1])) == []
    assert "in surprised" in caplog.text


def test_a_bug_on_the_way_says_nothing_about_a_module_that_is_loaded_and_works(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.fill()
    node.forget_cache()
    node.write_driver(prebuilt={"sources": [{"http": "http://127.0.0.1:1/d"}]})
    monkeypatch.setattr(observe, "remote_manifest", surprised)

    _, report = run_of(node).run_once()

    assert (report.state, report.source) == (State.READY, Rung.LOADED)
    assert report.notes == ("a bug in nodeside: KeyError: 'nobody thought of this'",)
    assert node.kernel.loads == []


def test_after_a_bug_what_is_loaded_is_validated(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.fill()
    node.forget_cache()
    node.write_driver(
        prebuilt={"sources": [{"http": "http://127.0.0.1:1/d"}]},
        validate={"commands": [{"command": ["false"]}], "timeoutSeconds": 1},
    )
    monkeypatch.setattr(observe, "remote_manifest", surprised)

    _, report = run_of(node).run_once()

    assert (report.state, report.reason) == (State.FAILED, "Bug")
    assert report.notes[1].startswith("the loaded modules cannot be judged: ")
    assert report.checks


# --- a driver.yaml that is wrong -------------------------------------------------------------


def test_a_wrong_driver_yaml_is_told_under_the_name_that_stands_in_it(node: FakeNode) -> None:
    node.write_driver(colour="blue")
    with pytest.raises(SpecError, match="colour"):
        run_of(node).run_once()
    (told,) = node.told
    assert (told.driver, told.node, told.version) == ("straw", "n1", "1.0")
    assert (told.state, told.reason, told.boot_id) == (State.FAILED, "InvalidSpec", BOOT_ID)
    assert "colour" in told.message
    assert check_node_driver(documents.node_driver_document(told)) == []


def test_one_that_is_no_yaml_any_more_is_told_under_the_name_of_before(node: FakeNode) -> None:
    node.put_bundle(node.task())
    run = run_of(node)
    run.run_once()
    node.driver_file.write_text("spec: [")
    with pytest.raises(SpecError):
        run.run_once()
    told = node.told[-1]
    assert (told.driver, told.version, told.state) == ("straw", "1.0", State.FAILED)


def test_a_wrong_version_is_told_as_an_unknown_one(node: FakeNode) -> None:
    node.write_driver(version="../1")
    with pytest.raises(SpecError, match="version"):
        run_of(node).run_once()
    assert node.told[-1].version == "unknown"
    assert check_node_driver(documents.node_driver_document(node.told[-1])) == []


def test_a_source_that_is_not_there_is_told_too(node: FakeNode) -> None:
    node.write_driver(source={"path": "nowhere"})
    with pytest.raises(SpecError):
        run_of(node).run_once()
    assert "nowhere is not a directory" in node.told[-1].message


@pytest.mark.parametrize("text", ["spec: [", "- a list", "metadata: {name: Not_A_Name}"])
def test_without_a_name_nothing_can_be_told_and_the_log_says_why(
    node: FakeNode, text: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("nodeside"), "propagate", True)
    node.write_driver()
    node.driver_file.write_text(text)
    with pytest.raises(SpecError):
        run_of(node).run_once()
    assert node.told == []
    assert "failure not announced: metadata.name cannot be read" in caplog.text


def test_a_pod_of_another_kernel_does_not_tell_of_a_wrong_driver_yaml(node: FakeNode) -> None:
    node.write_driver(colour="blue")
    with pytest.raises(SpecError):
        run_of(node, expected_kernel="5.10.0-other").run_once()
    assert node.told == []


# --- for ever --------------------------------------------------------------------------------


class Script:
    """A Watch that gives one reason after the other, then SIGTERM. `acts` come with the reasons."""

    def __init__(self, reasons: Iterable[Why]) -> None:
        self.reasons = list(reasons)
        self.patience: list[float | None] = []
        self.calm: list[float] = []
        self.ready: list[Path | None] = []
        self.stopping: signal.Signals | None = None
        self.modules: tuple[str, ...] = ()
        self.inputs: tuple[Path, ...] = ()
        self.often: tuple[Path, ...] = ()
        self.acts: dict[int, Any] = {}

    def __call__(
        self, modules: Iterable[str], inputs: Iterable[Path], often: Iterable[Path], **_: Any
    ) -> Script:
        self.set_targets(modules, inputs, often)
        return self

    def set_targets(
        self, modules: Iterable[str], inputs: Iterable[Path], often: Iterable[Path]
    ) -> None:
        self.modules, self.inputs, self.often = tuple(modules), tuple(inputs), tuple(often)

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def discard_events(self) -> None:
        pass

    def wait_for_reason(self, timeout: float | None, *, calm: float, ready: Path | None) -> Reason:
        self.patience.append(timeout)
        self.ready.append(ready)
        self.calm.append(calm)
        act = self.acts.get(len(self.patience))
        if act:
            act()
        if not self.reasons:
            self.stopping = signal.SIGTERM
            return Reason(Why.STOP, "SIGTERM")
        return Reason(self.reasons.pop(0))


def live(
    node: FakeNode,
    monkeypatch: pytest.MonkeyPatch,
    *reasons: Why,
    acts: dict[int, Any] | None = None,
) -> Script:
    script = Script(reasons)
    script.acts = acts or {}
    monkeypatch.setattr(watch, "Wakeups", script)
    run_of(node).run_for_ever()
    return script


def test_a_failed_driver_never_ends_the_process_and_is_tried_ever_less_often(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.write_driver()
    script = live(node, monkeypatch, *[Why.TIMEOUT] * 8)
    assert script.patience == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert set(node.states) == {State.FAILED}


@pytest.mark.parametrize(
    "where", ["run.bring_up", "resolution.resolve_task", "run.Journal.announce_state"]
)
def test_a_bug_never_ends_the_process_and_is_tried_ever_less_often(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    node.put_bundle(node.task())
    monkeypatch.setattr(f"nodeside.driver.agent.{where}", surprised)
    script = live(node, monkeypatch, *[Why.TIMEOUT] * 2)
    assert script.patience == [5, 10, 20]
    assert set(node.states) == {State.FAILED}
    assert {status.reason for status in node.told} == {"Bug"}


def test_only_a_failure_that_nothing_else_ends_waits_for_another_driver_yaml(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("nodeside"), "propagate", True)
    caplog.set_level(logging.INFO, "nodeside")
    node.write_driver(source={"path": "nowhere"})
    assert live(node, monkeypatch).patience == [None]
    assert "waiting for a change of the file" in caplog.text
    caplog.clear()
    monkeypatch.setattr("nodeside.driver.agent.resolution.resolve_task", surprised)
    assert live(node, monkeypatch).patience == [5]
    assert "a bug in nodeside" in caplog.text
    assert "waiting for a change of the file" not in caplog.text


def test_where_nothing_can_even_be_told_the_process_goes_on(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.put_bundle(node.task())
    monkeypatch.setattr("nodeside.driver.agent.run.Journal.report_failure", surprised)
    monkeypatch.setattr("nodeside.driver.agent.run.bring_up", surprised)
    assert live(node, monkeypatch, Why.TIMEOUT).patience == [5, 10]


def test_process_one_of_a_container_collects_orphans_after_each_look(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.put_bundle(node.task())
    looks: list[int] = []
    monkeypatch.setattr(process, "reap_orphans", lambda _: looks.append(len(node.told)))
    monkeypatch.setattr(os, "getpid", lambda: 4711)  # the tests may be the first process themselves
    live(node, monkeypatch, Why.POLL)
    assert looks == [], "another process has no orphans, and perhaps children"
    monkeypatch.setattr(os, "getpid", lambda: 1)
    live(node, monkeypatch, Why.POLL)
    assert len(looks) == 2


def test_a_changed_input_starts_the_retries_anew_and_is_followed(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.write_driver()

    def edit() -> None:
        node.write_driver(modules=[{"name": "hay"}])

    script = live(node, monkeypatch, Why.TIMEOUT, Why.TIMEOUT, Why.INPUT, acts={3: edit})
    assert script.patience == [5, 10, 20, 5]
    assert script.modules == ("hay",)


def test_every_file_that_driver_yaml_depends_on_is_watched(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.write_driver(
        signing={"key": "secret/key.pem", "certificate": "secret/cert.pem"},
        prebuilt={"trust": {"certificate": "/etc/trust.pem"}},
    )
    script = live(node, monkeypatch)
    assert script.often == ()
    assert set(script.inputs) == {
        node.driver_file,
        node.image / "secret/key.pem",
        node.image / "secret/cert.pem",
        Path("/etc/trust.pem"),
    }


def test_a_driver_after_another_looks_often_whether_that_one_comes_or_goes(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.write_driver(after=["hay"])
    script = live(node, monkeypatch)
    assert script.often == (
        node.root / "run/nodeside/hay/ready",
        node.root / "run/nodeside-locks/hay.leaving.json",
    )
    assert node.states == [State.WAITING]


def test_a_policy_that_changes_is_followed_by_the_pod_that_runs(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.fill()
    node.policy = policy = node.directory / "policy.json"
    policy.write_text('{"upgrade": "onReboot"}')
    node.upgrade()
    node.put_bundle(node.task())

    script = live(node, monkeypatch, Why.INPUT, acts={1: lambda: policy.write_text("{}")})

    assert policy in script.inputs
    assert [s for s in node.states if s is not State.LOADING] == [
        State.REBOOT_REQUIRED,
        State.UNLOADING,
        State.READY,
    ]


def test_a_driver_that_is_ready_waits_for_the_slow_poll(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.put_bundle(node.task())
    script = live(node, monkeypatch, Why.UEVENT, Why.POLL)
    assert script.patience == [None, None, None]
    assert node.states[-3:] == [State.READY] * 3
    assert node.kernel.loads == ["straw"], "looking again loads nothing again"


def test_a_ready_file_that_somebody_removed_is_missed_and_written_again(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.put_bundle(node.task())
    path = ready_path(node.host, "straw")
    script = live(node, monkeypatch, Why.NOT_READY)
    assert script.ready == [path, path]
    assert node.states[-2:] == [State.READY] * 2
    assert node.kernel.loads == ["straw"]


def test_a_module_that_somebody_unloaded_is_loaded_again(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.put_bundle(node.task())
    live(node, monkeypatch, Why.UEVENT, acts={1: lambda: node.kernel.delete_module("straw")})
    assert node.kernel.loads == ["straw", "straw"]


def test_a_wrong_driver_yaml_waits_for_a_new_one(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.put_bundle(node.task())
    good = node.driver_file.read_text()
    node.driver_file.write_text("spec: [")
    script = live(node, monkeypatch, Why.INPUT, acts={1: lambda: node.driver_file.write_text(good)})
    assert script.patience == [None, None]
    assert node.states == [State.LOADING, State.READY]


def test_a_load_that_the_kernel_refused_for_good_is_not_hurried(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.put_bundle(node.task())
    node.kernel.refuse_load["straw"] = [Refusal(19)] * 2
    script = live(node, monkeypatch, Why.POLL)
    assert script.patience == [None, None]


@pytest.mark.parametrize("error", sampled([errno.ENODEV, errno.ENOMEM], 2))
@pytest.mark.parametrize("previous", ["ours", "the kernel's own"])
def test_a_replacement_that_failed_for_good_takes_the_working_module_away_once(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, previous: str, error: int
) -> None:
    """Until an input changes: a device plugin, or a network, depends on what works."""
    if previous == "ours":
        node.fill()
        node.upgrade()
    else:
        tree = node.host.lib_modules("6.1.0-test")
        write_bytes(tree / "kernel/straw.ko", module_bytes("straw"))
        write(tree / "modules.dep", "kernel/straw.ko:\n")
        node.kernel.add("straw", FakeModule(taint=""))
    node.put_bundle(node.task())
    node.kernel.refuse_load["straw"] = [Refusal(error)]
    seen: list[int] = []
    acts = dict.fromkeys(range(1, 7), lambda: seen.append(len(node.kernel.unloads)))

    live(node, monkeypatch, Why.UEVENT, Why.POLL, Why.POLL, Why.INPUT, acts=acts)

    passes = error == errno.ENOMEM
    assert seen == ([1, 2, 2, 2, 2] if passes else [1, 1, 1, 1, 2])
    failed = [told for told in node.told if told.state is State.FAILED]
    assert len(failed) == (1 if passes else 4)
    assert len({(told.message, told.hint) for told in failed}) == 1
    assert ("tries it again if an input changes" in failed[0].hint) != passes
    assert node.states[-1] is State.READY


def test_a_card_that_is_plugged_in_is_a_reason_to_try_a_replacement_again(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.fill()
    node.upgrade()
    node.put_bundle(node.task())
    node.kernel.refuse_load["straw"] = [Refusal(errno.ENODEV)]
    device = node.host.sys / "bus/pci/devices/0000:00:09.0"
    acts = {2: lambda: [write(device / each, "0x1234\n") for each in ("vendor", "device", "class")]}
    live(node, monkeypatch, Why.UEVENT, Why.UEVENT, acts=acts)
    assert node.kernel.unloads == ["straw"] * 2
    assert node.states[-1] is State.READY


def test_a_replacement_that_worked_once_is_tried_again(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It failed, then it worked, and then the kernel loaded its own module in its place."""
    tree = node.host.lib_modules("6.1.0-test")
    write_bytes(tree / "kernel/straw.ko", module_bytes("straw"))
    write(tree / "modules.dep", "kernel/straw.ko:\n")
    node.kernel.add("straw", FakeModule(taint=""))
    node.put_bundle(node.task())
    node.kernel.refuse_load["straw"] = [Refusal(errno.ENODEV)]

    def in_tree() -> None:
        node.kernel.delete_module("straw")
        node.kernel.add("straw", FakeModule(taint=""))

    live(node, monkeypatch, Why.INPUT, Why.POLL, acts={2: in_tree})
    assert node.kernel.unloads == ["straw"] * 4
    assert node.states[-1] is State.READY


@pytest.mark.slow
def test_uevents_of_a_load_that_fails_for_good_are_heeded_ever_less_often(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One module is loaded, the next is refused, the first goes again: each of it is an event."""
    node.put_bundle(node.task(modules=[{"name": "straw"}, {"name": "hay"}]))
    node.kernel.refuse_load["hay"] = [Refusal(19)] * 9
    script = live(node, monkeypatch, *[Why.UEVENT] * 7, Why.POLL)
    assert script.patience == [None] * 9
    assert script.calm == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert node.kernel.unloads == ["straw"] * 9


@pytest.mark.slow
def test_a_poll_makes_nobody_deafer_and_an_edit_is_heeded_at_once(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.put_bundle(node.task())
    node.kernel.refuse_load["straw"] = [Refusal(19)] * 5
    script = live(node, monkeypatch, Why.POLL, Why.POLL, Why.UEVENT, Why.INPUT)
    assert script.calm == [5, 5, 5, 10, 5]


def test_uevents_of_a_look_that_was_good_wait_a_moment(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check of driver.yaml may write what makes the kernel send one, such as a rescan."""
    node.put_bundle(node.task())
    script = live(node, monkeypatch, Why.UEVENT, Why.UEVENT)
    assert script.calm == [2, 2, 2]


@pytest.mark.slow
def test_a_stuck_module_is_waited_for_once_and_then_takes_a_reboot(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wait takes as long as the pause between two looks: the node would always be loading."""
    node.fill()

    def becomes(state: str) -> None:
        node.kernel.modules["straw"].state = state
        node.kernel.show()

    becomes("Loading")
    acts = {3: lambda: becomes("Live"), 4: lambda: becomes("Loading")}
    live(node, monkeypatch, *[Why.POLL] * 5, acts=acts)

    results = {State.READY, State.REBOOT_REQUIRED}
    waited = "straw is coming; waiting until that ends"
    told = [t.state.value for t in node.told if t.state in results or t.message == waited]
    stuck = ["loading", "reboot-required", "reboot-required"]
    assert told == [*stuck, "reboot-required", "ready", *stuck], "after it has settled, again"


@pytest.mark.slow
def test_a_driver_that_wakes_itself_looks_a_few_times_only(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the real Wakeups: its clock goes on only while it waits."""
    node.put_bundle(node.task(modules=[{"name": "straw"}, {"name": "hay"}]))
    node.kernel.refuse_load["hay"] = [Refusal(19)] * 1000
    events = Queue()
    now = 0.0
    real = watch.Wakeups

    def told(status: NodeDriverStatus) -> None:
        if status.state is State.FAILED:
            events.put(Uevent("remove", "module", "straw"))

    class Hurried(real):  # type: ignore[valid-type, misc]
        def __init__(self, *arguments: Any, **_: Any) -> None:
            super().__init__(*arguments, uevents=lambda: events, clock=Clock(now=lambda: now))

        def _await_events(self, heard_from: float, until: float | None) -> None:
            nonlocal now
            now += 1
            if now >= 60:
                signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(watch, "Wakeups", Hurried)
    replace(run_of(node), announce=told).run_for_ever()
    assert node.kernel.unloads == ["straw"] * 4, "at once, and after 5, 15 and 35 seconds"


def test_a_compile_error_is_not_compiled_again_at_every_poll_but_after_an_edit(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    node.shared = SharedDir(tmp_path / "shared")
    node.write_driver()
    answered: list[str] = []

    def answer(stop: threading.Event) -> None:
        """A sidecar for which nothing compiles."""
        assert node.shared is not None
        while not stop.wait(0.01):
            for name in node.shared.request_ids() if node.shared.root.exists() else ():
                request = node.shared.read_request(name)
                if request is not None and name not in answered:
                    answered.append(name)
                    node.shared.publish_result(failed(request, FailureKind.COMPILE))

    stop = threading.Event()
    sidecar = threading.Thread(target=answer, args=(stop,))
    sidecar.start()
    try:
        node.shared.create()
        with hold_sidecar_lock(node.shared):
            live(node, monkeypatch, Why.POLL, Why.UEVENT, Why.POLL)
            assert len(answered) == 1
            assert {status.message for status in node.told if status.state is State.FAILED} == {
                "it failed"
            }
            live(node, monkeypatch, Why.INPUT)
            assert len(answered) == 3, "a restart and an edit each try once more"
    finally:
        stop.set()
        sidecar.join()


def test_what_a_build_delivered_and_cannot_be_read_is_not_built_again_at_every_poll(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A module that kills its reader; nor does its reader die of it at every look."""
    node.shared = shared = SharedDir(tmp_path / "shared")
    node.write_driver()
    shared.create()
    answered: list[str] = []
    parent = os.getpid()

    def answer(stop: threading.Event) -> None:
        while not stop.wait(0.01):
            for name in shared.request_ids():
                request = shared.read_request(name)
                if request is not None and name not in answered:
                    answered.append(name)
                    write(shared.out_dir(name) / "straw.ko", "x")
                    digest = hashlib.sha256(b"x").hexdigest()
                    module = BuiltModule("straw", "straw.ko", digest, 1)
                    shared.publish_result(succeeded(request, module))

    def fatal(_: Path) -> None:
        assert os.getpid() != parent, "the file of a vendor is read in a child"
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr("nodeside.driver.module.modulefile.run_in_child", run_in_child)
    monkeypatch.setattr("nodeside.driver.module.modulefile.parse_module", fatal)
    stop = threading.Event()
    sidecar = threading.Thread(target=answer, args=(stop,))
    sidecar.start()
    try:
        with hold_sidecar_lock(shared):
            live(node, monkeypatch, Why.POLL, Why.UEVENT)
            assert len(answered) == 1
            failures = [status for status in node.told if status.state is State.FAILED]
            assert {status.reason for status in failures} == {"UnreadableModule"}
            assert {"killed by SIGKILL" in status.message for status in failures} == {True}
            assert len({status.message for status in failures}) == 1
            live(node, monkeypatch, Why.INPUT)
            assert len(answered) == 3, "a restart and an edit each try once more"
    finally:
        stop.set()
        sidecar.join()


# --- a real process --------------------------------------------------------------------------


@pytest.mark.slow
def test_sigterm_ends_the_process_and_leaves_the_module_alone(node: FakeNode) -> None:
    """What runs here is the real thing; it finds the right module loaded."""
    node.fill()
    with console_run(node) as child:
        line = next(line for line in lines(child) if "NODESIDE_READY" in line)
        assert READY_PATTERN.fullmatch(line)
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate(timeout=console.LONG)
    assert child.returncode == 0
    assert b"stopping; the modules stay loaded signal=SIGTERM" in errors
    assert "straw " in (node.host.proc / "modules").read_text()
    assert read_ready(node.host, "straw", BOOT_ID) is not None


@pytest.mark.slow
def test_sigkill_leaves_nothing_that_keeps_the_next_one_out(node: FakeNode) -> None:
    node.fill()
    for _ in range(2):
        with console_run(node) as child:
            assert any("NODESIDE_READY" in line for line in lines(child))
            child.kill()
    done = console.run(*node.command("run", "--once"))
    assert done.code == 0, done.errors


@pytest.mark.slow
def test_a_failed_driver_keeps_a_real_process_alive_until_it_is_stopped(node: FakeNode) -> None:
    node.write_driver()
    with console_run(node) as child:
        assert any("no way to get the modules" in line for line in lines(child))
        assert child.poll() is None
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=console.LONG)
    assert child.returncode == 0


@pytest.mark.slow
def test_once_in_a_real_process_exits_with_the_code_and_prints_the_report(node: FakeNode) -> None:
    node.write_driver()
    done = console.run(*node.command("run", "--once", "--output", "json"))
    assert done.code == ExitCode.FETCH
    report = json.loads(done.output)
    assert report["state"] == "failed"
    assert report["announced"]["labels"] == {"nodeside.io/straw.state": "failed"}
    assert "Traceback" not in done.errors


@pytest.mark.slow
def test_the_log_in_json_has_one_object_a_line_but_for_the_marker(node: FakeNode) -> None:
    node.fill()
    done = console.run(*node.command("run", "--once", "--log-format", "json"))
    assert done.code == 0
    lines_ = done.errors.splitlines()
    assert [line for line in lines_ if not line.startswith("{")] == [
        line for line in lines_ if READY_PATTERN.fullmatch(line)
    ]
    assert all(json.loads(line)["component"] == "driver" for line in lines_ if line[0] == "{")


def console_run(node: FakeNode) -> Any:
    return console.running(*node.command("run"))


def lines(child: subprocess.Popen[bytes]) -> Iterable[str]:
    assert child.stderr is not None
    for line in child.stderr:
        yield line.decode().rstrip("\n")
