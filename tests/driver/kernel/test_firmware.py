from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from nodeside.driver.kernel.firmware import FirmwareDirectory, FirmwareRefused
from nodeside.errors import Locked
from nodeside.system.host import Host
from tests.driver.fakes.kernel import FakeKernel, write


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path / "node")
    write(host.sys_module / "firmware_class/parameters/path", "\n")
    return host


class Attribute:
    """firmware_class.path as the kernel keeps it: the last write, up to its first NUL."""

    def __init__(self, host: Host) -> None:
        self.directory = FirmwareDirectory(host, write=self.write)
        self.written: list[str] = []

    def write(self, path: Path, value: str) -> None:
        self.written.append(value)
        path.write_text(value.split("\0", maxsplit=1)[0] + "\n")


def tree(tmp_path: Path, name: str, **files: str) -> Path:
    for file, content in files.items():
        write(tmp_path / name / f"{file}.bin", content)
    return tmp_path / name


def test_files_are_findable_by_the_kernel(host: Host, tmp_path: Path) -> None:
    kernel = Attribute(host)
    source = tmp_path / "fw"
    write(source / "edu/a.bin", "A")

    assert kernel.directory.install_files(source, "edu") == ("edu/a.bin",)
    assert (host.run / "firmware/edu/a.bin").read_text() == "A"
    assert kernel.written == ["/run/nodeside/firmware"]


def test_a_second_time_nothing_is_written(host: Host, tmp_path: Path) -> None:
    kernel = Attribute(host)
    source = tree(tmp_path, "fw", a="A")
    kernel.directory.install_files(source, "edu")
    inode = (host.run / "firmware/a.bin").stat().st_ino

    kernel.directory.install_files(source, "edu")

    assert (host.run / "firmware/a.bin").stat().st_ino == inode
    assert len(kernel.written) == 1


def test_a_lease_of_a_reader_delays_no_installation(host: Host, tmp_path: Path) -> None:
    """A blocking open would wait for the kernel to break it: 45 s for each file."""
    kernel = Attribute(host)
    source = tree(tmp_path, "fw", a="A")
    kernel.directory.install_files(source, "edu")
    file = host.run / "firmware/a.bin"
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # how the holder is asked to let go
    fd = os.open(file, os.O_RDONLY)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        started = time.monotonic()
        kernel.directory.install_files(source, "edu")
        waited = time.monotonic() - started
    finally:
        os.close(fd)
        signal.signal(signal.SIGIO, before)

    assert waited < 10
    assert file.read_text() == "A"


def test_a_file_of_another_driver_is_refused_before_modules_are_unloaded(
    host: Host, tmp_path: Path
) -> None:
    kernel = Attribute(host)
    kernel.directory.install_files(tree(tmp_path, "fw", a="A"), "edu")
    kernel.directory.check_files(tree(tmp_path, "same", a="A"), "other")
    with pytest.raises(FirmwareRefused, match="the driver edu has installed a different"):
        kernel.directory.check_files(tree(tmp_path, "changed", a="B"), "other")
    kernel.directory.check_files(tmp_path / "changed", "edu")


THEIRS = "/var/lib/firmware"


@pytest.fixture
def theirs(host: Host, tmp_path: Path) -> Path:
    """The directory that somebody has set before us, below the root of the host's init."""
    root = tmp_path / "root-of-init"
    host.proc.mkdir()
    (host.proc / "1").mkdir()
    (host.proc / "1/root").symlink_to(root)
    write(host.sys_module / "firmware_class/parameters/path", f"{THEIRS}\n")
    return write(root / "var/lib/firmware/other.bin", "other").parent


def test_files_go_below_the_search_path_of_somebody_else_and_leave_it(
    host: Host, theirs: Path, tmp_path: Path
) -> None:
    kernel = Attribute(host)
    source = tree(tmp_path, "fw", a="A")
    write(source / "edu/b.bin", "B")

    kernel.directory.check_files(source, "edu")
    kernel.directory.install_files(source, "edu")
    assert (theirs / "edu/b.bin").read_text() == "B"
    assert kernel.written == []
    assert not (host.run / "firmware").exists()

    shutil.rmtree(host.run, ignore_errors=True)  # a reboot; that directory and its files stay
    newer = tree(tmp_path, "newer", a="A2")
    kernel.directory.check_files(newer, "edu")
    kernel.directory.install_files(newer, "edu")
    assert (theirs / "a.bin").read_text() == "A2"
    assert not (theirs / "edu").exists()

    kernel.directory.remove_files("edu")
    assert [path.name for path in theirs.iterdir()] == ["other.bin"]
    assert kernel.written == []


def test_a_search_path_that_is_set_after_ours_is_followed_and_so_is_its_end(
    host: Host, theirs: Path, tmp_path: Path
) -> None:
    attribute = host.sys_module / "firmware_class/parameters/path"
    attribute.write_text("\n")
    kernel = Attribute(host)
    source = tree(tmp_path, "fw", a="A")
    kernel.directory.install_files(source, "edu")
    assert not kernel.directory.follow_search_path(source, "edu")

    attribute.write_text(f"{THEIRS}\n")  # by them
    assert kernel.directory.follow_search_path(source, "edu")
    assert not kernel.directory.follow_search_path(source, "edu")
    assert (theirs / "a.bin").read_text() == "A"
    assert not (host.run / "firmware").exists()

    other = f"{THEIRS}-2"
    attribute.write_text(f"{other}\n")
    assert kernel.directory.follow_search_path(source, "edu")
    assert (theirs.with_name("firmware-2") / "a.bin").read_text() == "A"
    assert not (theirs / "a.bin").exists()

    attribute.write_text("\n")
    assert kernel.directory.follow_search_path(source, "edu")
    assert kernel.written == ["/run/nodeside/firmware"] * 2
    assert (host.run / "firmware/a.bin").read_text() == "A"


def test_a_file_of_somebody_else_is_used_if_it_is_the_same_and_never_touched(
    host: Host, theirs: Path, tmp_path: Path
) -> None:
    kernel = Attribute(host)
    kernel.directory.install_files(tree(tmp_path, "same", other="other"), "edu")
    kernel.directory.remove_files("edu")
    assert (theirs / "other.bin").read_text() == "other"

    with pytest.raises(FirmwareRefused, match=r"firmware/other\.bin is there with other content"):
        kernel.directory.check_files(tree(tmp_path, "fw", other="mine"), "edu")
    with pytest.raises(FirmwareRefused, match=r"firmware/other\.bin is there with other content"):
        kernel.directory.install_files(tmp_path / "fw", "edu")
    assert (theirs / "other.bin").read_text() == "other"


def test_links_of_the_host_are_followed_in_its_root(
    host: Host, theirs: Path, tmp_path: Path
) -> None:
    real = theirs.rename(theirs.parents[2] / "data")
    theirs.symlink_to("/data")  # absolute: /data of the host
    Attribute(host).directory.install_files(tree(tmp_path, "fw", a="A"), "edu")
    assert (real / "a.bin").read_text() == "A"


def test_links_of_the_host_below_the_search_path_are_the_hosts_too(
    host: Host, theirs: Path, tmp_path: Path
) -> None:
    real = theirs.parents[2] / "opt/edu"
    real.mkdir(parents=True)
    (theirs / "edu").symlink_to("/opt/edu")  # of the host: there is none in this root
    source = tree(tmp_path, "fw")
    write(source / "edu/b.bin", "B")
    kernel = Attribute(host)

    kernel.directory.check_files(source, "edu")
    kernel.directory.install_files(source, "edu")
    assert (real / "b.bin").read_text() == "B"
    kernel.directory.remove_files("edu")
    assert list(real.iterdir()) == []
    assert (theirs / "edu").is_symlink()


def test_a_damaged_record_of_another_driver_refuses_nobody(
    host: Host, theirs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = Attribute(host)
    record = write(kernel.directory.owners_elsewhere / "other.json", '{"dir')
    source = tree(tmp_path, "fw", a="A")

    kernel.directory.check_files(source, "edu")
    kernel.directory.install_files(source, "edu")

    assert (theirs / "a.bin").read_text() == "A"
    assert "counts as absent" in caplog.text
    assert record.exists()


def test_a_search_path_with_two_slashes_is_one(host: Host, theirs: Path, tmp_path: Path) -> None:
    write(host.sys_module / "firmware_class/parameters/path", f"/{THEIRS}\n")
    Attribute(host).directory.install_files(tree(tmp_path, "fw", a="A"), "edu")
    assert (theirs / "a.bin").read_text() == "A"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (f"{THEIRS}/other.bin", "it cannot be written"),
        ("firmware", "no absolute path"),
        ("/var/lib/../../firmware", "no absolute path"),
        ("/var/lib/loop", "too many links"),
    ],
)
def test_a_search_path_that_takes_no_file_is_refused_and_left_alone(
    host: Host, theirs: Path, tmp_path: Path, path: str, words: str
) -> None:
    (theirs.parent / "loop").symlink_to("loop")
    attribute = write(host.sys_module / "firmware_class/parameters/path", f"{path}\n")
    write(host.proc / "cmdline", f"quiet firmware_class.path={path}\n")
    source = tree(tmp_path, "fw", a="A")
    for attempt in (FirmwareDirectory(host).check_files, FirmwareDirectory(host).install_files):
        with pytest.raises(FirmwareRefused, match=words) as caught:
            attempt(source, "edu")
        assert f"search path is taken: {path}, by the kernel's command line" in str(caught.value)
        assert f"put the firmware below {path}" in caught.value.hint
    assert attribute.read_text() == f"{path}\n"


def test_a_kernel_without_a_firmware_loader_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(FirmwareRefused, match=r"cannot read .*/firmware_class/parameters/path"):
        FirmwareDirectory(Host(tmp_path / "node")).install_files(tree(tmp_path, "fw", a="A"), "edu")


def test_the_last_driver_gives_the_search_path_back(host: Host, tmp_path: Path) -> None:
    kernel = Attribute(host)
    kernel.directory.install_files(tree(tmp_path, "one", a="A", shared="S"), "edu")
    kernel.directory.install_files(tree(tmp_path, "two", b="B", shared="S"), "nic")

    kernel.directory.remove_files("edu")
    left = sorted(path.name for path in (host.run / "firmware").iterdir())
    kernel.directory.remove_files("nic")

    assert left == ["b.bin", "shared.bin"]
    assert not (host.run / "firmware").exists()
    assert kernel.written == ["/run/nodeside/firmware", "\0"]


def test_two_drivers_cannot_have_different_files_of_one_name(host: Host, tmp_path: Path) -> None:
    kernel = Attribute(host)
    kernel.directory.install_files(tree(tmp_path, "one", a="A"), "edu")

    with pytest.raises(
        FirmwareRefused, match=r"driver edu has installed a different .* file a\.bin"
    ):
        kernel.directory.install_files(tree(tmp_path, "two", a="B"), "nic")
    assert (host.run / "firmware/a.bin").read_text() == "A"


def test_a_new_version_replaces_and_drops_files(host: Host, tmp_path: Path) -> None:
    kernel = Attribute(host)
    kernel.directory.install_files(tree(tmp_path, "old", a="A", b="B"), "edu")
    kernel.directory.install_files(tree(tmp_path, "new", b="B2"), "edu")

    files = {path.name: path.read_text() for path in (host.run / "firmware").iterdir()}
    assert files == {"b.bin": "B2"}


def test_a_driver_without_firmware_has_nothing_to_remove(host: Host) -> None:
    FirmwareDirectory(host).remove_files("edu")

    assert not host.run.exists()


def test_no_name_in_a_record_removes_a_file_elsewhere(host: Host, tmp_path: Path) -> None:
    """Consumers mount the directory of the records; one may have it writable."""
    elsewhere = write(tmp_path / "important", "x")
    inside = write(host.root / "var/lib/important", "x")
    kernel = Attribute(host)
    kernel.directory.install_files(tree(tmp_path, "fw", a="A"), "edu")
    names = [str(elsewhere), "../../../var/lib/important", "a/../../../../var/lib/important"]
    names += ["", ".", "a\0b", "a.bin"]
    write(host.locks / "firmware-owners/edu.json", json.dumps({"files": dict.fromkeys(names, "")}))

    kernel.directory.remove_files("edu")

    assert elsewhere.exists()
    assert inside.exists()
    assert not (host.run / "firmware/a.bin").exists()


def test_a_link_out_of_the_directory_is_refused(host: Host, tmp_path: Path) -> None:
    source = tree(tmp_path, "fw", a="A")
    (source / "secret.bin").symlink_to("/etc/hostname")

    with pytest.raises(FirmwareRefused, match=r"secret\.bin is a link that leads out of"):
        FirmwareDirectory(host).install_files(source, "edu")


def test_a_link_to_a_directory_is_followed_as_in_lib_firmware(host: Host, tmp_path: Path) -> None:
    source = tmp_path / "fw"
    write(source / "v2/a.bin", "A")
    (source / "vendor").symlink_to("v2")
    (source / "v2/again").symlink_to("..")

    assert Attribute(host).directory.install_files(source, "edu") == ("v2/a.bin", "vendor/a.bin")
    assert (host.run / "firmware/vendor/a.bin").read_text() == "A"


def test_links_that_multiply_directories_are_refused(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeside.driver.kernel.firmware._ENTRIES_LIMIT", 100)
    for number in range(20):
        for name in ("a", "b"):
            (tmp_path / f"fw/{number}").mkdir(parents=True, exist_ok=True)
            (tmp_path / f"fw/{number}/{name}").symlink_to(f"../{number + 1}")
    (tmp_path / "fw/20").mkdir()

    with pytest.raises(FirmwareRefused, match="fw has more than 100 entries, links followed"):
        Attribute(host).directory.check_files(tmp_path / "fw", "edu")


def test_a_link_within_the_directory_becomes_a_file(host: Host, tmp_path: Path) -> None:
    kernel = Attribute(host)
    source = tree(tmp_path, "fw", a="A")
    (source / "b.bin").symlink_to("a.bin")

    kernel.directory.install_files(source, "edu")

    assert (host.run / "firmware/b.bin").read_text() == "A"


def test_a_missing_directory_is_refused(host: Host, tmp_path: Path) -> None:
    with pytest.raises(FirmwareRefused, match="no firmware directory") as caught:
        FirmwareDirectory(host).install_files(tmp_path / "absent", "edu")

    assert "firmware.path" in caught.value.hint


def test_another_driver_at_work_is_waited_for_and_then_named(host: Host, tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path / "clock")
    host.locks.mkdir(parents=True)
    with (host.locks / "firmware.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Locked, match=r"is working on firmware on this node: .*; waited 10 s"):
            FirmwareDirectory(host, kernel.clock).install_files(tree(tmp_path, "fw", a="A"), "edu")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("b.bin", "is a link that leads to itself"),
        ("absent", "is a link to nothing"),
        ("a.bin/c", "cannot follow .*: Not a directory"),
    ],
)
def test_a_link_that_leads_nowhere_is_refused(
    host: Host, tmp_path: Path, target: str, words: str
) -> None:
    source = tree(tmp_path, "fw", a="A")
    (source / "b.bin").symlink_to(target)

    with pytest.raises(FirmwareRefused, match=words):
        FirmwareDirectory(host).check_files(source, "edu")
    assert not host.run.exists()


def test_a_foreign_search_path_is_seen_by_the_check(host: Host, tmp_path: Path) -> None:
    (host.sys_module / "firmware_class/parameters/path").write_text("/var/lib/firmware\n")
    with pytest.raises(FirmwareRefused, match="search path is taken"):
        FirmwareDirectory(host).check_files(tree(tmp_path, "fw", a="A"), "edu")
