"""`nodeside driver doctor`: one row for each thing that could be wrong, and what to do about it."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nodeside.driver.commands import doctor
from nodeside.driver.node.load_mark import LoadMark, write_mark
from nodeside.errors import ExitCode
from nodeside.protocol.build_records import SidecarRecord
from nodeside.protocol.shared_directory import SharedDir
from tests.driver.fakes.kernel import write
from tests.driver.fakes.node import BOOT_ID, FakeNode
from tests.sidecar_lock import hold_sidecar_lock


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    made = FakeNode(tmp_path)
    made.write_driver()
    return made


@pytest.fixture(autouse=True)
def no_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The questions to this machine's own compiler are left out: each takes a second."""
    questions = tuple(q for q in doctor._QUESTIONS if q is not doctor._check_toolkit)
    monkeypatch.setattr(doctor, "_QUESTIONS", questions)


def rows(node: FakeNode, *more: str | Path) -> dict[str, Any]:
    """The rows by their question; a row that is not right must say what to do."""
    done = node.run("doctor", *more, "-o", "json")
    found = {row["question"]: row for row in done.document["checks"]}
    for row in found.values():
        assert row["level"] == "ok" or row["todo"], row
    bad = any(row["level"] == "bad" for row in found.values())
    assert done.code == (ExitCode.SYSTEM if bad else 0)
    return found


def test_a_wrong_driver_yaml_is_a_row_and_no_end(node: FakeNode) -> None:
    node.driver_file.unlink()
    found = rows(node)
    assert found["driver.yaml"]["level"] == "bad"
    assert "kernel" in found


def test_the_bundle_is_looked_for(node: FakeNode) -> None:
    assert "is not in the cache" in rows(node)["bundle"]["found"]
    node.put_bundle(node.task())
    assert "is in the cache" in rows(node)["bundle"]["found"]


def test_who_has_the_search_path_of_firmware_is_named(node: FakeNode) -> None:
    path = write(node.host.sys_module / "firmware_class/parameters/path", "\n")
    write(node.image / "fw/straw.bin", "firmware")
    assert "firmware" not in rows(node)
    write(path, "/run/nvidia/driver/lib/firmware\n")
    found = rows(node)["firmware"]
    assert (found["level"], "GPU Operator" in found["found"]) == ("ok", True)

    node.write_driver(firmware={"path": "fw"})  # and the host's root cannot be reached
    found = rows(node)["firmware"]
    assert (found["level"], "GPU Operator" in found["found"]) == ("bad", True)


def test_others_at_work_are_named_where_they_concern_the_driver(node: FakeNode) -> None:
    assert "others at work" not in rows(node)
    (node.host.proc / "1/root/run/nvidia/driver").mkdir(parents=True)
    assert "others at work" not in rows(node)
    node.write_driver(hardware={"pci": [{"vendor": "10de"}]})
    found = rows(node)["others at work"]
    assert found["level"] == "warn"
    assert found["found"].startswith("NVIDIA's GPU Operator: ")


def test_a_module_that_nodeside_did_not_load_is_named(node: FakeNode) -> None:
    node.kernel.add("straw")
    found = rows(node)["others at work"]
    assert found["found"] == "straw loaded, and not by nodeside in this boot"


def test_a_load_in_which_the_kernel_ended_is_shown(node: FakeNode) -> None:
    mark = LoadMark("straw", "1.0", "0123456789abcdef", "", BOOT_ID, "6.12", 1.8e9, {})
    write_mark(node.host, mark)
    assert "earlier load" not in rows(node), "the load of this boot goes on"
    write_mark(node.host, replace(mark, boot_id="another"))
    found = rows(node)["earlier load"]
    assert found["level"] == "warn"
    assert "2027-01-15T08:00:00Z, bundle 0123456789ab" in found["found"]


def test_what_modprobe_d_says_of_the_driver_is_shown_and_not_heeded(node: FakeNode) -> None:
    lines = "options straw a=1\nblacklist straw\nblacklist nouveau\n"
    write(node.host.proc / "1/root/etc/modprobe.d/site.conf", lines)

    assert rows(node)["modprobe.d"]["found"].splitlines() == [
        (
            "straw: the host's modprobe.d has options for it (a=1), which it is not given: set "
            "spec.modules[].parameters in driver.yaml"
        ),
        "straw: the host's modprobe.d has it in blacklist; it is loaded all the same",
    ]


def test_a_kernel_without_modules_is_sent_to_the_throwaway_machine(node: FakeNode) -> None:
    (node.host.proc / "modules").unlink()
    row = rows(node)["modules"]
    assert (row["level"], row["todo"]) == (
        "bad",
        "try the driver in a throwaway machine: nodeside try",
    )


def test_lockdown_signatures_and_disabled_loading_are_seen(node: FakeNode) -> None:
    assert rows(node)["signatures"]["level"] == "ok"
    write(node.host.sys / "kernel/security/lockdown", "none [integrity] confidentiality\n")
    row = rows(node)["signatures"]
    assert row["level"] == "warn"
    assert "lockdown integrity, signatures enforced" in row["found"]
    assert "mokutil" in row["todo"]
    write(node.host.proc / "sys/kernel/modules_disabled", "1\n")
    todo = rows(node)["loading"]["todo"]
    assert todo.startswith("reboot; find who sets it: grep -r modules_disabled /etc/sysctl.d")


def test_secure_boot_is_read_from_the_efi_variable(node: FakeNode) -> None:
    assert rows(node)["secure boot"]["found"] == "not visible (no EFI variables)"
    variable = node.host.sys / doctor._SECURE_BOOT
    variable.parent.mkdir(parents=True)
    variable.write_bytes(b"\6\0\0\0\1")
    assert rows(node)["secure boot"]["found"] == "on"


@pytest.mark.parametrize("mount", ["sys", "proc", "dev", "lib/modules"])
def test_each_mount_of_a_pod_is_asked_for(node: FakeNode, mount: str) -> None:
    row = rows(node)[f"mount /{mount}"]
    assert row["level"] == ("ok" if mount == "sys" else "warn")
    for path in ("proc/1", "dev", "lib/modules"):
        (node.root / path).mkdir(parents=True, exist_ok=True)
    assert rows(node)[f"mount /{mount}"]["level"] == "ok"
    if mount in ("dev", "lib/modules"):
        shutil.rmtree(node.root / mount)
        row = rows(node)[f"mount /{mount}"]
        assert row["todo"] == f"in a pod, mount the host's /{mount} at {node.root / mount}"


def test_a_disk_that_is_small_is_named(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = node.directory / "shared"
    assert rows(node, "--shared", shared)["shared directory"]["level"] == "ok"
    monkeypatch.setattr(doctor, "_LITTLE_SPACE", 1 << 62)
    assert rows(node)["cache"]["todo"].startswith("free some space: df -h")


@pytest.mark.parametrize(
    ("flag", "found"), [(os.ST_RDONLY, "is mounted read-only"), (os.ST_NOEXEC, "is mounted noexec")]
)
def test_a_shared_directory_on_a_wrong_mount_is_named(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, flag: int, found: str
) -> None:
    flags = SimpleNamespace(f_flag=flag, f_bavail=1 << 30, f_frsize=1, f_blocks=1, f_bfree=1)
    monkeypatch.setattr(os, "statvfs", lambda _: flags)
    row = doctor._check_disk("shared directory", node.directory, programs=True)
    assert (row.level.value, row.found) == ("bad", f"{node.directory} {found}")
    assert "mount it " in row.todo


def test_capabilities_that_are_missing_say_what_is_lost(node: FakeNode) -> None:
    status = "Name:\tx\nCapEff:\t{:016x}\n"
    write(node.host.proc / "self/status", status.format(0))
    found = {name: row for name, row in rows(node).items() if name.startswith("CAP_")}
    assert {name: (row["level"], row["found"]) for name, row in found.items()} == {
        "CAP_SYS_MODULE": ("bad", "missing: no module can be loaded or unloaded"),
        "CAP_SYSLOG": ("warn", "missing: failure messages lack the kernel log lines"),
        "CAP_SYS_PTRACE": ("warn", "missing: holders of a module cannot be named"),
        "CAP_DAC_READ_SEARCH": ("warn", "missing: holders of a module cannot be named"),
    }
    assert {row["todo"] for row in found.values()} == {
        "run as root, or add it to the container's securityContext"
    }

    write(node.host.proc / "self/status", status.format(1 << 16 | 1 << 34))
    present = {name for name, row in rows(node).items() if row["found"] == "present"}
    assert present == {"CAP_SYS_MODULE", "CAP_SYSLOG"}


def test_a_sidecar_that_lives_that_went_and_that_never_came(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_QUESTIONS", (doctor._check_toolkit,))
    shared = SharedDir(node.directory / "shared")
    shared.create()
    more = ("--shared", shared.root)
    assert "has not run in this boot" in rows(node, *more)["toolkit"]["found"]
    shared.publish_sidecar(SidecarRecord(7, BOOT_ID, 0.0, "6.1.0-test"))
    assert "ran in this boot and is gone" in rows(node, *more)["toolkit"]["found"]
    with hold_sidecar_lock(shared):
        found = rows(node, *more)["toolkit"]["found"]
    assert found == "a sidecar is running, with headers for 6.1.0-test"


def test_a_sidecar_that_lives_but_has_no_record_of_this_boot(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_QUESTIONS", (doctor._check_toolkit,))
    shared = SharedDir(node.directory / "shared")
    shared.create()
    more = ("--shared", shared.root)
    with hold_sidecar_lock(shared):
        row = rows(node, *more)["toolkit"]
        assert row["found"] == "a sidecar is running, and has not written its record yet"
        shared.publish_sidecar(SidecarRecord(7, "another", 0.0, "6.1.0-test"))
        row = rows(node, *more)["toolkit"]
    assert row["found"] == (
        f"a sidecar is running, but it reads the boot id another, the driver reads {BOOT_ID}: "
        "it ignores the driver's requests"
    )
    assert "compare /proc/sys/kernel/random/boot_id" in row["todo"]


def test_a_lock_of_a_sidecar_that_is_no_file_is_a_row_and_no_end(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_QUESTIONS", (doctor._check_toolkit,))
    shared = SharedDir(node.directory / "shared")
    shared.create()
    shared.lock.mkdir()
    row = rows(node, "--shared", shared.root)["toolkit"]
    assert row["found"].startswith("could not be checked: ")


@pytest.mark.slow
def test_this_machines_own_toolkit_is_asked_by_the_sidecars_own_check(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_QUESTIONS", (doctor._check_toolkit,))
    found = rows(node)
    assert {"toolkit: headers", "toolkit: make", "toolkit: compiler", "toolkit: jobs"} <= set(found)
