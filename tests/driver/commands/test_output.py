"""docs/output.md is true: every field that a verb prints is there, with its type, and no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeside.driver.bringup.journal import Journal
from nodeside.driver.commands.dry_run import preview_run
from nodeside.driver.ladder.rungs import request_of
from nodeside.driver.node.run_directory import hold_lock
from nodeside.protocol.build_records import FailureKind, Toolchain
from nodeside.protocol.node_status import State
from nodeside.protocol.ready_file import read_ready, write_ready
from nodeside.protocol.shared_directory import SharedDir
from nodeside.spec.services import Service
from tests.driver.fakes.handoff import failed
from tests.driver.fakes.kernel import (
    RELEASE,
    FakeModule,
    add_pci_device,
    link,
    write,
    write_bytes,
)
from tests.driver.fakes.node import BOOT_ID, FakeNode, module_bytes
from tests.driver.fakes.pages import compare
from tests.driver.services.programs import kept


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


def test_reports(node: FakeNode) -> None:
    node.write_driver(modules=[{"name": "straw", "parameters": {"mode": "fast"}}])
    failed = node.run("run", "--once", "-o", "json")
    assert failed.code == 31
    node.put_bundle(node.task(), {"straw": module_bytes("straw", parameters=["mode"])})
    node.kernel.add("rival")
    node.write_driver(conflicts={"modules": ["rival"]})
    loaded = node.run("load", "-o", "json").document
    assert loaded["state"] == "ready"
    validated = node.run("validate", "-o", "json").document
    node.write_driver(services=[{"name": "s", "command": ["sh", "-c", "exit 1"]}], conflicts={})
    served = node.run("run", "--once", "--with-services", "-o", "json")
    assert served.code == 47
    compare("run --once", failed.document, loaded, validated, served.document)
    compare("load", failed.document, loaded, validated, served.document)


def test_nothing_is_announced_by_who_was_kept_out(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.fill()
    monkeypatch.setattr("nodeside.driver.agent.run._LOCK_TIMEOUT", 0.0)
    with hold_lock(node.host, "straw", timeout=0):
        done = node.run("run", "--once", "-o", "json")
    assert done.code == 45
    assert done.document["announced"] is None


def test_plans(node: FakeNode) -> None:
    node.write_driver(modules=[{"name": "straw", "parameters": {"mode": "fast"}}])
    document = node.run("plan", "-o", "json").document
    assert document == node.run("run", "--dry-run", "-o", "json").document
    compare("plan", document)


def test_plan_and_status_show_where_each_parameter_comes_from(node: FakeNode) -> None:
    write(node.host.lib_modules(RELEASE) / "modules.dep", "core.ko:\nrival.ko:\n")
    lines = "options core a=1\noptions rival b=2\noptions straw c=3\n"
    write(node.host.proc / "1/root/etc/modprobe.d/site.conf", lines)
    write(node.host.proc / "cmdline", "straw.mode=slow rival.b=4")
    task = node.task(
        modules=[{"name": "straw", "parameters": {"speed": "1"}}], conflicts={"modules": ["rival"]}
    )
    node.put_bundle(task, {"straw": module_bytes("straw", depends=["core"])})
    words = (
        "straw: mode=slow (the kernel's command line)",
        "straw: speed=1 (driver.yaml)",
        "core: a=1 (the host's modprobe.d)",
        "rival: b=4 (the kernel's command line)",
    )
    for verb in ("plan", "status"):
        text = node.run(verb).output
        assert [line for line in words if line not in text] == []
        assert "straw: c=3" not in text
    journal = Journal(task)
    told = journal.status_of_report(journal.make_report(State.READY))
    assert told.parameters == ("straw: mode=slow (the kernel's command line)",)


def test_a_plan_knows_that_the_driver_is_not_made_for_this_kernel(
    node: FakeNode, tmp_path: Path
) -> None:
    node.shared = SharedDir(tmp_path / "shared")
    node.shared.create()
    task = node.task()
    assert preview_run(task).document["would"][0] == "ask the toolkit to build"

    request = request_of(task)
    node.shared.publish_request(request)
    words = "straw 1.0 is not made for this kernel: OBSOLETE_BY is 6.0"
    node.shared.publish_result(failed(request, FailureKind.EXCLUDED, message=words))
    document = preview_run(task).document
    assert document["would"] == [f"fail: {words}"]
    why = f"the same build failed before: {words}"
    assert document["rungs"][-1] == {"rung": "built", "served": False, "why": why}

    node.shared.publish_result(failed(request, message="straw.c:1: error"))
    document = preview_run(task).document
    assert document["would"][0] == "ask the toolkit to build"
    assert document["rungs"][-1]["why"] == "the same build failed before: straw.c:1: error"
    hint = "add a line to spec in driver.yaml: after: [spl]"
    node.shared.publish_result(failed(request, message="straw.c:1: error", hint=hint))
    assert preview_run(task).document["rungs"][-1]["why"] == (
        f"the same build failed before: straw.c:1: error ({hint})"
    )


@pytest.mark.parametrize("verb", ["fetch", "build", "load", "validate", "unload", "publish"])
def test_dry_runs(node: FakeNode, tmp_path: Path, verb: str) -> None:
    node.put_bundle(node.task(prebuilt={"sources": [{"directory": str(tmp_path)}]}))
    document = node.run(verb, "--dry-run", "-o", "json").document
    compare("--dry-run", document)


def test_bundles(node: FakeNode, tmp_path: Path) -> None:
    task = node.task(prebuilt={"sources": [{"directory": str(tmp_path / "store")}]})
    node.put_bundle(task, toolchain=Toolchain("gcc 12", "/usr/src", "7" * 64, "gcc 12", 2))
    compare("build", node.run("build", "-o", "json").document)
    node.run("publish", "--to", tmp_path / "store")
    node.forget_cache()
    compare("fetch", node.run("fetch", "-o", "json").document)


def test_unloading(node: FakeNode) -> None:
    tree = node.host.lib_modules(RELEASE)
    write_bytes(tree / "kernel/rival.ko", module_bytes("rival"))
    write(tree / "modules.dep", "kernel/rival.ko:\n")
    for name in ("rival", "not_on_disk"):
        node.kernel.add(name, FakeModule(taint=""))
    node.write_driver(conflicts={"modules": ["rival", "not_on_disk"]})
    node.fill()
    compare("unload", node.run("unload", "-o", "json").document)


def test_status(node: FakeNode, tmp_path: Path) -> None:
    node.kernel.add("rival", FakeModule(taint=""))
    add_pci_device(node.host, "0000:00:04.0", "1234", "11e8", "rival", "rival")
    before = node.task(
        modules=[{"name": "straw", "parameters": {"mode": "fast"}}],
        conflicts={"modules": ["rival"]},
    )
    node.put_bundle(before, {"straw": module_bytes("straw", parameters=["mode"])})
    empty = node.run("status", "-o", "json")
    assert empty.code == 46
    node.new_device_at_load("c10:99")
    node.run("load")
    ready = node.run("status", "-o", "json")
    assert ready.code == 0
    (tmp_path / "opt").mkdir()
    record = read_ready(node.host, "straw", BOOT_ID)
    assert record is not None
    write_ready(node.host, replace(record, driver="hay"))
    node.write_driver(userspace={"paths": [str(tmp_path / "opt")]}, after=["hay"])
    node.run("load")
    node.write_driver(services=[service()])
    write_ready(node.host, replace(record, services={"s": 1}))
    with kept() as running:
        running.bring_up("straw", [Service("s", ("sleep", "60"))])
        served = node.run("status", "-o", "json").document
        compare("services", node.run("services", "-o", "json").document)
    compare("status", empty.document, ready.document, served)


def service() -> dict[str, Any]:
    return {"name": "s", "command": ["sleep", "60"]}


def test_devices(node: FakeNode) -> None:
    node.put_bundle(
        node.task(devices=[{"resource": "example.com/straw", "discover": {"count": 2}}])
    )
    before = node.run("devices", "-o", "json").document
    assert [each["healthy"] for each in before["resources"][0]["devices"]] == [False, False]
    node.run("load")
    pci = {"pci": [{"vendor": "1234"}]}
    give = {"nodes": {"class": "misc"}}
    entry = {"resource": "example.com/edu", "discover": pci, "give": give}
    node.write_driver(devices=[entry | {"attributes": [{"name": "id", "path": "device"}]}])
    none = node.run("devices", "-o", "json").document
    real = add_pci_device(node.host, "0000:00:05.0", "1234", "11e8")
    write(real / "misc/edu0/uevent", "DEVNAME=edu0\n")
    link(node.host.sys / "class/misc/edu0", real / "misc/edu0")
    found = node.run("devices", "-o", "json").document
    [device] = found["resources"][0]["devices"]
    assert device["nodes"] == ["/dev/edu0"]
    compare("devices", before, none, found)


def test_an_attribute_cannot_look_like_another_device(node: FakeNode) -> None:
    entry = {"resource": "example.com/edu", "discover": {"pci": [{"vendor": "1234"}]}}
    node.write_driver(devices=[entry | {"attributes": [{"name": "name", "path": "name"}]}])
    real = add_pci_device(node.host, "0000:00:05.0", "1234", "11e8")
    write(real / "name", "edu\nexample.com/edu  00:09.0  /dev/sda  healthy\x1b[2J")
    rows = node.run("devices").output.splitlines()
    assert [row.split()[0] for row in rows] == ["RESOURCE", "example.com/edu"]
    assert "\\n" in rows[1]
    assert "\x1b" not in rows[1]


def test_publishing(node: FakeNode, tmp_path: Path) -> None:
    node.put_bundle(node.task())
    store = tmp_path / "store"
    store.mkdir()
    first = node.run("publish", "--to", store, "-o", "json").document
    again = node.run("publish", "--to", store, "-o", "json").document
    assert (first["already"], again["already"]) == (False, True)
    compare("publish", first, again)


@pytest.mark.slow
def test_the_doctor(node: FakeNode) -> None:
    node.write_driver()
    compare("doctor", node.run("doctor", "-o", "json").document)


def test_env(node: FakeNode) -> None:
    node.write_driver()
    compare("env", node.run("env", "-o", "json").document)
