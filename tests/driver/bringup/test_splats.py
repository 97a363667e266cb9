"""What the kernel complained of after a load, for whoever looks at the same modules later."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nodeside.driver.bringup import bringup
from nodeside.driver.bringup.validate import ValidationFailed
from nodeside.driver.node.run_directory import loaded_path, write_loaded
from nodeside.errors import ExitCode
from nodeside.protocol.node_status import Rung, State
from tests.driver.fakes.kernel import write
from tests.driver.fakes.node import FakeNode, module_bytes

SPLAT = "BUG: kernel NULL pointer dereference, address: 0000000000000000"
NO_CALM = f"kernel log: expected no splat since the load, found {SPLAT}"


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


def complain_at_load(node: FakeNode) -> None:
    """Every load from now on makes the kernel complain, and succeeds."""
    load = node.kernel._load

    def complaining(image: bytes, parameters: str) -> None:
        load(image, parameters)
        node.kernel.say(SPLAT)

    node.kernel._load = complaining  # type: ignore[method-assign]


def test_a_driver_that_made_a_splat_is_not_ready_at_the_next_look_either(node: FakeNode) -> None:
    """A load wakes the watch by its own event, and nothing is loaded again then."""
    node.put_bundle(node.task())
    complain_at_load(node)
    for _ in range(2):
        with pytest.raises(ValidationFailed, match=NO_CALM):
            node.bring_up(node.task())
    assert node.kernel.loads == ["straw"]
    assert State.READY not in node.states


def test_a_splat_stays_one_when_the_kernel_log_is_empty_again(node: FakeNode) -> None:
    node.put_bundle(node.task())
    complain_at_load(node)
    with pytest.raises(ValidationFailed):
        node.bring_up(node.task())
    node.kernel.log.clear()
    with pytest.raises(ValidationFailed, match=NO_CALM):
        node.bring_up(node.task())


def test_what_was_killed_after_the_load_is_judged_by_the_log_since_then(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.put_bundle(node.task())
    complain_at_load(node)
    with monkeypatch.context() as patch:
        patch.setattr(bringup, "validate", killed)
        with pytest.raises(KeyboardInterrupt):
            node.bring_up(node.task())
    with pytest.raises(ValidationFailed, match=NO_CALM):
        node.bring_up(node.task())


def killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_until_a_validation_passes_every_look_reads_the_log_since_the_load(
    node: FakeNode,
) -> None:
    node.write_driver(
        validate={"timeoutSeconds": 1, "sysfs": [{"path": "class/straw/state", "value": "up"}]}
    )
    node.put_bundle(node.task())
    with pytest.raises(ValidationFailed, match="no such attribute"):
        node.bring_up(node.task())
    write(node.host.sys / "class/straw/state", "up\n")
    node.kernel.say(SPLAT)
    with pytest.raises(ValidationFailed, match=NO_CALM):
        node.bring_up(node.task())


def test_what_the_kernel_says_of_others_after_a_validation_passed_is_not_counted(
    node: FakeNode,
) -> None:
    node.fill()
    node.kernel.say(SPLAT)
    assert node.bring_up(node.task()).state is State.READY


def test_a_module_that_is_loaded_again_keeps_its_splat_though_the_kernel_said_it_once(
    node: FakeNode,
) -> None:
    node.put_bundle(node.task())
    node.kernel.say("up")
    complain_at_load(node)
    with pytest.raises(ValidationFailed):
        node.bring_up(node.task())
    node.kernel.delete_module("straw")
    del node.kernel.__dict__["_load"]
    with pytest.raises(ValidationFailed, match=NO_CALM):
        node.bring_up(node.task())
    assert node.kernel.loads == ["straw", "straw"]


def test_a_new_version_of_the_same_modules_has_their_splat(node: FakeNode) -> None:
    task = node.task()
    node.put_bundle(task)
    complain_at_load(node)
    with pytest.raises(ValidationFailed):
        node.bring_up(task)
    node.write_driver(version="2.0")
    with pytest.raises(ValidationFailed, match=NO_CALM):
        node.bring_up(node.task(version="2.0"))
    assert node.record is not None
    assert (node.record.version, node.record.splat) == ("2.0", SPLAT)
    assert node.kernel.loads == ["straw"]


def test_another_build_is_judged_anew(node: FakeNode) -> None:
    node.put_bundle(node.task())
    complain_at_load(node)
    with pytest.raises(ValidationFailed):
        node.bring_up(node.task())
    del node.kernel.__dict__["_load"]
    node.source("obj-m := straw.o  # 2.0\n")
    task = node.task(version="2.0")
    node.put_bundle(task)
    assert node.bring_up(task).state is State.READY


def test_a_mended_module_is_judged_anew_beside_one_that_has_not_changed(node: FakeNode) -> None:
    modules = [{"name": "straw_core"}, {"name": "straw"}]
    core = module_bytes("straw_core", "the same")
    broken = node.task(modules=modules)
    node.put_bundle(broken, {"straw": module_bytes("straw", "broken"), "straw_core": core})
    complain_at_load(node)
    with pytest.raises(ValidationFailed, match=NO_CALM):
        node.bring_up(broken)
    del node.kernel.__dict__["_load"]
    node.source("obj-m := straw_core.o straw.o  # mended\n")
    mended = node.task(modules=modules)
    node.put_bundle(mended, {"straw": module_bytes("straw", "mended"), "straw_core": core})
    assert node.bring_up(mended).state is State.READY


def test_a_person_who_unloads_the_driver_begins_anew(node: FakeNode) -> None:
    node.put_bundle(node.task())
    complain_at_load(node)
    assert node.run("load").code == ExitCode.VALIDATION_FAILED
    again = node.run("load")
    assert again.code == ExitCode.VALIDATION_FAILED
    assert "nodeside driver unload" in " ".join(again.output.split())
    assert node.run("validate").code == ExitCode.VALIDATION_FAILED
    assert node.run("status", "-o", "json").document["record"]["splat"] == SPLAT
    del node.kernel.__dict__["_load"]
    assert node.run("unload").code == 0
    assert node.run("load").code == 0


def test_a_record_of_an_older_version_proves_what_it_did(node: FakeNode) -> None:
    node.fill()
    assert node.record is not None
    path = loaded_path(node.host, "straw")
    document = json.loads(path.read_text())
    del document["mark"], document["splat"]
    path.write_text(json.dumps(document))
    assert node.bring_up(node.task()).state is State.READY
    assert node.kernel.loads == []


def test_where_the_log_cannot_be_read_nothing_is_remembered_of_it(node: FakeNode) -> None:
    node.put_bundle(node.task())
    node.kernel.log_error = 1
    node.bring_up(node.task())
    node.kernel.log_error = 0
    node.kernel.say(SPLAT)
    assert node.bring_up(node.task()).state is State.READY


def test_a_mark_with_any_characters_can_be_read_back(node: FakeNode) -> None:
    """A record that cannot be read counts as none, and the modules then as somebody else's."""
    node.put_bundle(node.task())
    node.kernel.say("a \x00 and \x1b[2J")
    complain_at_load(node)
    with pytest.raises(ValidationFailed):
        node.bring_up(node.task())
    assert node.record is not None
    assert node.record.splat == SPLAT


def test_the_splat_of_other_builds_says_nothing(node: FakeNode) -> None:
    node.fill()
    assert node.record is not None
    others = tuple(replace(m, build_id="0" * 40) for m in node.record.modules)
    write_loaded(node.host, replace(node.record, key="0" * 64, modules=others, splat=SPLAT))
    report = node.bring_up(node.task())
    assert (report.state, report.source) == (State.READY, Rung.LOADED)
