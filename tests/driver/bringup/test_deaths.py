"""A kernel that died in a load, and what the next boot does about it."""

from __future__ import annotations

import json
import os
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from nodeside.driver.bringup.deaths import KernelDied
from nodeside.driver.bringup.validate import ValidationFailed
from nodeside.driver.ladder.task import Task
from nodeside.driver.node import last_words
from nodeside.driver.node.load_mark import LoadMark, mark_path, read_mark, write_mark
from nodeside.errors import ExitCode, NodesideError
from nodeside.protocol.node_status import State
from nodeside.protocol.timestamps import rfc3339
from tests.driver.fakes.kernel import Refusal, write
from tests.driver.fakes.node import BOOT_ID, FakeNode, module_bytes

ANOTHER_BOOT = "6c3f5c2e-0f4e-4f6e-9a34-0000000000bb"
# As Linux 6.12 writes it to EFI variables: the newest piece is Part1, each line has its priority.
PSTORE = {
    "dmesg-efi_pstore-179583840102001": """\
Panic#1 Part2
<6>[   61.200000] straw: loading out-of-tree module taints kernel.
<1>[   61.210002] BUG: kernel NULL pointer dereference, address: 0000000000000010
<4>[   61.210010] CPU: 0 UID: 0 PID: 811 Comm: python3 Tainted: G           O
""",
    "dmesg-efi_pstore-179583840101001": """\
Panic#1 Part1
<0>[   61.220000] Kernel panic - not syncing: Fatal exception in interrupt
<0>[   61.220100] ---[ end Kernel panic - not syncing: Fatal exception in interrupt ]---
""",
}


class Died(BaseException):
    """The end of the kernel, and so of this process: nothing of ours runs after it."""


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


def die(*_: object) -> None:
    raise Died


def die_in_load(node: FakeNode, task: Task) -> None:
    """Load, and lose the kernel in it. The next boot has an empty /run and no modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.kernel, "_load", die)
        with pytest.raises(Died):
            node.bring_up(task)
    boot_again(node)


def boot_again(node: FakeNode, boot_id: str = ANOTHER_BOOT) -> None:
    write(node.root / "proc/sys/kernel/random/boot_id", f"{boot_id}\n")
    for name in node.loaded:
        node.kernel.delete_module(name)
    for directory in (node.host.run, node.host.locks):
        shutil.rmtree(directory, ignore_errors=True)
    node.kernel.loads.clear()
    node.told.clear()


def test_the_bundle_in_whose_load_the_kernel_died_is_not_loaded_again_by_itself(
    node: FakeNode,
) -> None:
    node.put_bundle(node.task())
    die_in_load(node, node.task())

    for _ in range(2):
        done = node.run("run", "--once", "--output", "json")
        assert done.code == ExitCode.REFUSED
        report = done.document
        assert (report["state"], report["reason"]) == ("failed", "KernelDied")
        assert "an earlier boot of this node ended after the load of straw" in report["message"]
        assert f"nodeside driver load -f {node.driver_file}" in report["hint"]
        assert "journalctl -k -b -1" in report["hint"]
        assert report["retryable"] is False
    assert node.kernel.loads == []
    assert "refuse: an earlier boot" in node.run("plan").output


def test_a_person_lifts_it_and_then_it_is_forgotten(node: FakeNode) -> None:
    node.put_bundle(node.task())
    die_in_load(node, node.task())

    assert node.run("load").code == 0

    assert node.kernel.loads == ["straw"]
    assert not mark_path(node.host, "straw").exists()
    boot_again(node, BOOT_ID)
    assert node.bring_up(node.task()).state is State.READY


def test_another_bundle_revision_or_parameter_lifts_it(node: FakeNode) -> None:
    task = node.task()
    node.put_bundle(task, {"straw": module_bytes("straw", task.key, parameters=["mode"])})
    for lifted in (
        replace(task, config=replace(task.config, revision="straw-2")),
        node.task(modules=[{"name": "straw", "parameters": {"mode": "safe"}}]),
    ):
        die_in_load(node, task)
        with pytest.raises(KernelDied):
            node.bring_up(replace(task, boot_id=ANOTHER_BOOT))
        assert node.bring_up(replace(lifted, boot_id=ANOTHER_BOOT)).state is State.READY
        boot_again(node, BOOT_ID)

    die_in_load(node, task)
    node.upgrade(modules=[{"name": "straw"}])
    node.put_bundle(node.task())
    assert node.bring_up(node.task()).state is State.READY


def order(node: FakeNode, orders: object) -> Path:
    """Write the controller's file on this node."""
    node.policy = write(node.directory / "policy.json", json.dumps({"retry": orders}))
    return node.policy


@pytest.mark.parametrize("name", ["n1", "*"])
def test_an_order_of_the_cluster_lifts_it_once(node: FakeNode, name: str) -> None:
    # Times of the API server, whatever this node takes for the time.
    before, after, later = (rfc3339(seconds) for seconds in (3600.0, 7200.0, 4e9))
    order(node, {"n2": after, "n1": before})
    node.put_bundle(node.task())
    die_in_load(node, node.task())
    with pytest.raises(KernelDied, match="an earlier boot") as died:
        node.bring_up(node.task())
    assert "nodeside-cluster retry straw n1" in died.value.hint
    policy = order(node, {"n2": after, "n1": before})
    assert "refuse: an earlier boot" in node.run("plan", "--policy", policy).output

    order(node, {"n1": before, name: after})
    die_in_load(node, node.task())
    boot_again(node, ANOTHER_BOOT.replace("bb", "cc"))
    for orders in ({"n1": before, name: after}, {name: after}, {"n1": before}):
        order(node, orders)
        with pytest.raises(KernelDied):
            node.bring_up(node.task())

    policy = order(node, {name: later})
    assert "refuse: an earlier boot" not in node.run("plan", "--policy", policy).output
    assert node.bring_up(node.task()).state is State.READY
    assert read_mark(node.host, "straw") is None


@pytest.mark.parametrize("orders", [None, [], "n1", {"n1": 7}, {"n1": ""}, {"n1": "tuesday"}])
def test_what_is_no_order_lifts_nothing(node: FakeNode, orders: object) -> None:
    node.put_bundle(node.task())
    die_in_load(node, node.task())
    order(node, orders)
    with pytest.raises(KernelDied):
        node.bring_up(node.task())


def test_a_pod_that_was_killed_in_a_load_is_no_death(node: FakeNode) -> None:
    node.put_bundle(node.task())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.kernel, "_load", die)
        with pytest.raises(Died):
            node.bring_up(node.task())

    assert node.bring_up(node.task()).state is State.READY
    assert not mark_path(node.host, "straw").exists()


def test_a_load_that_the_kernel_survived_leaves_no_mark(node: FakeNode) -> None:
    node.put_bundle(node.task())
    node.kernel.refuse_load["straw"] = [Refusal(22)]
    with pytest.raises(NodesideError):
        node.bring_up(node.task())
    assert not mark_path(node.host, "straw").exists()


def test_until_the_validation_has_passed_the_mark_stays_but_not_after_an_end_in_order(
    node: FakeNode,
) -> None:
    sysfs = [{"path": "class/straw/state", "value": "up"}]
    node.write_driver(validate={"timeoutSeconds": 1, "sysfs": sysfs})
    node.put_bundle(node.task())
    with pytest.raises(ValidationFailed):
        node.bring_up(node.task())
    mark = read_mark(node.host, "straw")
    assert mark is not None
    assert (mark.boot_id, mark.driver, mark.key) == (BOOT_ID, "straw", node.task().key)

    assert node.run("run", "--once").code == ExitCode.VALIDATION_FAILED
    assert read_mark(node.host, "straw") is None, "the kernel lives, and this process has ended"


def test_what_the_kernel_said_last_is_told_if_pstore_has_it(node: FakeNode) -> None:
    node.put_bundle(node.task())
    die_in_load(node, node.task())
    kept = node.host.proc / "1/root/var/lib/systemd/pstore/1795838401"
    for name, text in PSTORE.items():
        write(kept / name, text)
    old = write(node.host.sys / "fs/pstore/dmesg-ramoops-0", "Oops#1 Part1\n<0>Kernel panic - not")
    os.utime(old, (1, 1))
    (node.host.sys / "fs/pstore/dmesg-ramoops-1").symlink_to("/dev/zero")

    with pytest.raises(KernelDied) as caught:
        node.bring_up(node.task())

    said = "BUG: kernel NULL pointer dereference, address: 0000000000000010; Kernel panic - not"
    assert f"the kernel's last words: {said}" in str(caught.value)
    assert "journalctl" not in caught.value.hint


def test_a_host_with_many_dumps_fills_no_memory_and_the_newest_are_read(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    kept = node.host.root / "var/lib/systemd/pstore"
    for number in range(40):
        dump = write(kept / f"{number}/dmesg.txt", f"<0>Kernel panic - not syncing: {number:03d}\n")
        os.truncate(dump, 1 << 17)
        os.utime(dump, (1000 + number, 1000 + number))

    tracemalloc.start()
    words = last_words.read_last_words(node.host, 1.0)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert held < 16 << 20
    assert caplog.messages[0] == (
        f"32 of 40 dumps of the kernel were not read, such as {kept}/31/dmesg.txt: of the newest "
        "together 1048576 bytes are read"
    )
    assert words == "Kernel panic - not syncing: 038; Kernel panic - not syncing: 039"


def test_a_host_with_many_directories_of_dumps_is_looked_at_up_to_a_limit(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(last_words, "_ENTRIES", 40)
    kept = node.host.root / "var/lib/systemd/pstore"
    for number in range(30):
        write(kept / f"{number}/dmesg.txt", "<0>Kernel panic - not syncing: 0\n")

    assert last_words.read_last_words(node.host, 1.0).startswith("Kernel panic")

    assert caplog.messages == [f"of {kept}, only 40 entries were looked at for a kernel's dumps"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"boot_id": 7}', "\0", '{"driver": "straw"}'])
def test_a_mark_that_is_damaged_counts_as_absent(node: FakeNode, text: str) -> None:
    node.put_bundle(node.task())
    write(mark_path(node.host, "straw"), text)
    assert node.bring_up(node.task()).state is State.READY


@pytest.mark.parametrize("began", [-1e18, 1e18, 1e308, float("inf")])
def test_a_mark_of_an_impossible_time_counts_as_absent(node: FakeNode, began: float) -> None:
    write_mark(node.host, LoadMark("straw", "1", "key", "", "another", "6.1", began, {}))
    assert read_mark(node.host, "straw") is None


def test_a_disk_that_takes_no_mark_keeps_no_driver_from_being_loaded(node: FakeNode) -> None:
    node.put_bundle(node.task())
    write(node.host.loading, "a file where the directory should be")
    report = node.bring_up(node.task())
    assert report.state is State.READY
    assert any("will not be known" in note for note in report.notes)
