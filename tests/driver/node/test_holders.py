from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeside.driver.node.devices import device_numbers, devices_of
from nodeside.driver.node.holders import Holding, who_holds
from nodeside.driver.node.processes import (
    Process,
    parse_mountinfo,
    pod_and_container,
    users_of,
)
from nodeside.system import child
from nodeside.system.child import ChildLimits, run_in_child
from tests.driver.fakes.kernel import (
    FakeKernel,
    FakeModule,
    add_device,
    add_pci_device,
    add_process,
    write,
)

# /dev/null and /dev/zero have the same numbers everywhere, and anybody may look at them.
NULL = "c1:3"
ZERO = "c1:5"
POD = "0b1e3c5d-1111-2222-3333-444455556666"
CONTAINER = "c" * 64


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


def test_an_open_misc_device_is_held_by_a_named_process_of_a_pod(kernel: FakeKernel) -> None:
    kernel.add("vpoll", FakeModule(refcnt=1))
    add_device(kernel.host, NULL, "vpoll", "virtual/misc/vpoll")
    process = add_process(kernel.host, 4711, "/usr/bin/python3 hold.py", ("/dev/null", "/tmp/x"))
    add_process(kernel.host, 4712, "/bin/sh", ("/dev/zero",))
    write(
        process / "cgroup",
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
        f"{POD.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope\n",
    )

    holding = who_holds("vpoll", kernel.host)

    assert holding.in_words() == (
        "vpoll is held by 1 open file of python3 (pid 4711, pod 0b1e3c5d…)"
    )
    assert holding.processes == (
        Process(4711, "python3", "/usr/bin/python3 hold.py", "/dev/null", 1, POD, CONTAINER),
    )


def test_a_holder_cannot_forge_lines_or_move_the_cursor_by_its_name(kernel: FakeKernel) -> None:
    kernel.add("vpoll", FakeModule(refcnt=1))
    add_device(kernel.host, NULL, "vpoll", "virtual/misc/vpoll")
    process = add_process(kernel.host, 4711, "x", ("/dev/null",))
    write(process / "cmdline", f"x\x1b[2J\nNODESIDE_READY driver=edu{'y' * 999}\0")

    holding = who_holds("vpoll", kernel.host)

    assert holding.in_words().isprintable()
    assert "1 open file of x\\x1b[2J\\nNODESIDE_READY" in holding.in_words()
    assert len(holding.in_words()) < 150
    assert holding.processes[0].command.isprintable()


def test_a_mount_cannot_either(kernel: FakeKernel) -> None:
    kernel.add("vpollfs", FakeModule(refcnt=1))
    process = add_process(kernel.host, 4711, "/bin/sh", ())
    write(process / "mountinfo", "36 35 0:42 / /mnt/\x1b[2J rw - vpollfs none rw\n")

    assert who_holds("vpollfs", kernel.host).mounts == ("/mnt/\\x1b[2J",)


def test_a_device_without_the_modules_name_is_known_by_its_recorded_number(
    kernel: FakeKernel,
) -> None:
    kernel.add("rapiddisk", FakeModule(refcnt=2))
    before = device_numbers(kernel.host)
    add_device(kernel.host, NULL, "rd-control", "virtual/misc/rd-control")
    appeared = device_numbers(kernel.host) - before
    add_process(kernel.host, 9, "rdctl", ("/dev/null", "/dev/null"))

    assert appeared == {NULL}
    assert who_holds("rapiddisk", kernel.host).processes == ()
    assert who_holds("rapiddisk", kernel.host, appeared).in_words() == (
        "rapiddisk is held by 2 open files of rdctl (pid 9)"
    )


def test_a_device_below_a_pci_device_belongs_to_that_devices_driver(kernel: FakeKernel) -> None:
    kernel.add("edu")
    kernel.add("other")
    add_pci_device(kernel.host, "0000:00:04.0", "1234", "11e8", "edu", "edu")
    add_device(kernel.host, NULL, "edu0", "pci0000:00/0000:00:04.0/edu/edu0")
    add_device(kernel.host, ZERO, "other0", "pci0000:00/0000:00:04.0/other/other0")

    assert [item.node for item in devices_of("edu", kernel.host)] == ["edu0", "other0"]
    assert devices_of("other", kernel.host) == ()


def test_a_device_is_known_by_the_major_number_that_has_the_modules_name(
    kernel: FakeKernel,
) -> None:
    write(
        kernel.host.proc / "devices",
        "Character devices:\n  1 mem\n 10 misc\n\nBlock devices:\n  1 nat-rtsp\n",
    )
    add_device(kernel.host, NULL, "thing", "virtual/thing/thing")
    add_device(kernel.host, "b1:3", "disk", "virtual/block/disk")

    assert [item.number for item in devices_of("nat_rtsp", kernel.host)] == ["b1:3"]


def test_a_mounted_device_and_a_filesystem_of_the_name_hold(kernel: FakeKernel) -> None:
    kernel.add("zram", FakeModule(refcnt=1))
    add_device(kernel.host, "b252:0", "zram0", "virtual/block/zram0")
    init = add_process(kernel.host, 1, "/sbin/init")
    write(
        init / "mountinfo",
        "36 35 252:0 / /mnt/fast rw - ext4 /dev/zram0 rw\n37 35 0:5 / /dev rw - devtmpfs udev rw\n",
    )

    assert who_holds("zram", kernel.host).in_words() == "zram is held by the mount /mnt/fast"
    text = "40 35 259:1 / /media rw shared:1 - apfs /dev/nvme0n1p1 rw\n"
    assert list(parse_mountinfo([text], "apfs", frozenset())) == ["/media"]


def test_mounts_of_other_namespaces_are_seen(kernel: FakeKernel) -> None:
    kernel.add("apfs", FakeModule(refcnt=1))
    for pid, namespace in ((1, "mnt:[1]"), (2, "mnt:[1]"), (3, "mnt:[2]")):
        process = add_process(kernel.host, pid, "p")
        (process / "ns").mkdir()
        (process / "ns/mnt").symlink_to(namespace)
        write(process / "mountinfo", "")
    write(kernel.host.proc / "3/mountinfo", "40 35 259:1 / /data rw - apfs /dev/sdb rw\n")

    assert who_holds("apfs", kernel.host).mounts == ("/data",)


def test_swap_and_device_mapper_hold_a_disk(kernel: FakeKernel) -> None:
    kernel.add("zram", FakeModule(refcnt=2))
    real = add_device(kernel.host, "b252:0", "zram0", "virtual/block/zram0")
    (real / "holders/dm-0").mkdir(parents=True)
    write(kernel.host.proc / "swaps", "Filename Type Size\n/dev/zram0 partition 1024 0 100\n")

    assert who_holds("zram", kernel.host).in_words() == (
        "zram is held by the disk dm-0 on top of it and the disk zram0 (swap) on top of it"
    )


def test_a_mapping_outlives_its_file(kernel: FakeKernel) -> None:
    kernel.add("vpoll", FakeModule(refcnt=1))
    add_device(kernel.host, NULL, "vpoll", "virtual/misc/vpoll")
    process = add_process(kernel.host, 5, "app")
    write(process / "maps", "7f00-7f01 rw-s 00000000 00:05 12 /dev/vpoll\n7f02-7f03 r 0 0:0 0\n")

    assert who_holds("vpoll", kernel.host).processes[0].path == "/dev/vpoll"


@pytest.mark.slow
def test_what_a_process_makes_endless_takes_no_memory(kernel: FakeKernel) -> None:
    """It may map a file 65,530 times, and say that its arguments are a gigabyte of zeros."""
    kernel.add("vpoll", FakeModule(refcnt=1))
    add_device(kernel.host, NULL, "vpoll", "virtual/misc/vpoll")
    process = add_process(kernel.host, 5, "app")
    row = f"7f00-7f01 rw-s 00000000 00:05 12 /{'x' * 4000}\n"
    write(process / "maps", f"{row * 10_000}7f00-7f01 rw-s 00000000 00:05 12 /dev/vpoll\n")
    os.truncate(process / "cmdline", 1 << 30)
    host, numbers, nodes = kernel.host, frozenset({NULL}), frozenset({"vpoll"})

    def look() -> bytes:
        return b"vpoll" if users_of(numbers, nodes, host).processes else b""

    limits = ChildLimits(memory=32 << 20, processor=60, answer=1000)
    assert run_in_child(look, 60, limits=limits) == b"vpoll"


@pytest.mark.slow
def test_endless_open_files_take_no_memory(kernel: FakeKernel) -> None:
    """A process may have a billion of them, where a container runtime sets no limit."""
    process = add_process(kernel.host, 5, "app", ("/dev/null",))
    for number in range(15_000):
        (process / "fd" / f"{number:0255}").symlink_to("/tmp/x")
    host = kernel.host

    def look() -> bytes:
        return str(len(users_of(frozenset({NULL}), frozenset(), host).processes)).encode()

    limits = ChildLimits(memory=3 << 20, processor=60, answer=1000)
    assert run_in_child(look, 60, limits=limits) == b"1"


def test_references_that_nothing_explains_are_said_so(kernel: FakeKernel) -> None:
    kernel.add("edu", FakeModule(refcnt=1))

    assert who_holds("edu", kernel.host).in_words() == (
        "edu has 1 reference that no module, open file or mount explains"
    )


def test_what_could_not_be_seen_names_the_missing_capability(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.add("edu", FakeModule(refcnt=1))
    add_process(kernel.host, 5, "app", ("/dev/null",))
    write(kernel.host.proc / "self/status", "CapEff:\t0000000000010004\n")
    real = os.scandir

    def denied(path: Path) -> object:
        if path.name == "fd":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", denied)

    assert who_holds("edu", kernel.host).in_words() == (
        "edu has 1 reference that no module, open file or mount explains (the open files of "
        "1 process could not be seen: the capability SYS_PTRACE is missing)"
    )


def test_with_all_capabilities_a_security_module_is_to_blame(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.add("edu", FakeModule(refcnt=1))
    add_process(kernel.host, 5, "app", ("/dev/null",))

    def denied(path: Path) -> Path:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "readlink", denied)

    assert "AppArmor or SELinux denies it" in who_holds("edu", kernel.host).unseen


def test_a_filesystem_that_does_not_answer_holds_nobody_up(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fifo that nobody writes hangs as a dead mount does, but for the way out of it."""
    kernel.add("vpoll", FakeModule(refcnt=1))
    add_device(kernel.host, NULL, "vpoll", "virtual/misc/vpoll")
    process = add_process(kernel.host, 4711, "/bin/sh", ())
    os.mkfifo(process / "maps")
    monkeypatch.setattr("nodeside.driver.node.processes._SECONDS", 0.2)

    for _ in range(2):
        assert who_holds("vpoll", kernel.host).in_words() == (
            "vpoll has 1 reference that no module, open file or mount explains (the open files of "
            "processes could not be inspected: a filesystem that one of them uses does not answer)"
        )

    (process / "maps").open("w").close()  # the child that was left behind ends
    os.waitpid(child._left_behind.pop("look for holders"), 0)


def test_a_look_that_crashes_is_said_so(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def surprised(*_: object) -> None:
        raise KeyError("nobody thought of this")

    monkeypatch.setattr("nodeside.driver.node.processes.users_of", surprised)
    kernel.add("vpoll", FakeModule(refcnt=1))

    assert "KeyError: 'nobody thought of this'" in who_holds("vpoll", kernel.host).unseen


def test_many_holders_are_counted() -> None:
    processes = tuple(Process(pid, "app", "app", "/dev/edu0") for pid in range(1, 6))

    sentence = Holding("edu", 7, ("a", "b", "c", "d"), processes).in_words()

    assert sentence == (
        "edu is held by the modules a, b, c and 1 more, 1 open file of app (pid 1), "
        "1 open file of app (pid 2), 1 open file of app (pid 3) and 2 more processes"
    )


def test_an_idle_module_is_held_by_nothing() -> None:
    assert Holding("edu").in_words() == "edu is not held by anything"


@pytest.mark.parametrize(
    ("cgroup", "pod", "container"),
    [
        (f"0::/kubepods/burstable/pod{POD}/{CONTAINER}", POD, CONTAINER),
        (f"11:cpu:/kubepods.slice/crio-{CONTAINER}.scope", "", CONTAINER),
        (
            f"0::/../../kubepods-pod{'a' * 32}.slice/cri-containerd-{CONTAINER}.scope",
            "a" * 32,
            CONTAINER,
        ),
        (f"0::/system.slice/docker-{CONTAINER}.scope", "", CONTAINER),
        ("0::/user.slice/user-1000.slice/session-2.scope", "", ""),
    ],
)
def test_pod_and_container_stand_in_the_cgroup(cgroup: str, pod: str, container: str) -> None:
    assert pod_and_container(cgroup) == (pod, container)


def test_the_numbers_used_here_are_the_real_ones() -> None:
    assert Path("/dev/null").stat().st_rdev == os.makedev(1, 3)
    assert Path("/dev/zero").stat().st_rdev == os.makedev(1, 5)
