"""Files of a driver image on the host: whole or not at all, and kept while something uses them."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodeside.driver.userspace import versions as versions_module
from nodeside.driver.userspace.tree import Tree, UserspaceRefused
from nodeside.driver.userspace.use import is_in_use
from nodeside.driver.userspace.versions import Versions
from nodeside.errors import ExitCode, NodesideError, NoSpace
from nodeside.system.host import Host
from tests.driver.fakes.kernel import link, write
from tests.tries import sampled


class Image:
    """The root of a driver image, and what of it is for the host."""

    def __init__(self, root: Path) -> None:
        self.root = root
        write(root / "opt/edu/lib/libedu.so.1", "library 1\n").chmod(0o644)
        (root / "opt/edu/lib/libedu.so").symlink_to("libedu.so.1")
        write(root / "opt/edu/bin/tool", "#!/bin/sh\n").chmod(0o755)
        (root / "opt/edu/empty").mkdir()
        (root / "opt/edu/empty").chmod(0o750)

    def tree(self, *paths: str, is_trusted: bool = False) -> Tree:
        return Tree(paths or ("/opt/edu",), self.root, is_trusted)


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path / "image")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path / "host")
    write(host.proc / "sys/kernel/random/boot_id", "one\n")
    return host


def names(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


def publish(versions: Versions, tree: Tree) -> str:
    digest = tree.digest()
    versions.copy_version(tree, digest)
    versions.make_current(digest)
    return digest


def process(host: Host, pid: int, **files: str) -> Path:
    """A process of the node with a mount namespace of its own."""
    directory = host.proc / str(pid)
    (directory / "fd").mkdir(parents=True)
    (directory / "ns").mkdir()
    (directory / "ns/mnt").symlink_to(f"mnt:[{pid}]")
    for name in ("exe", "cwd"):
        (directory / name).symlink_to(files.get(name, "/"))
    for name in ("mountinfo", "maps"):
        write(directory / name, files.get(name, ""))
    return directory


def test_a_tree_is_copied_as_it_is(image: Image, host: Host) -> None:
    versions = Versions(host, "edu")
    digest = publish(versions, image.tree())
    assert versions.current == digest
    assert names(host.userspace / "edu") == sorted([digest, "current"])
    copy = host.userspace / "edu/current/opt/edu"
    assert (copy / "lib/libedu.so").read_text() == "library 1\n"
    assert (copy / "lib/libedu.so").readlink() == Path("libedu.so.1")
    modes = {"bin/tool": 0o755, "lib/libedu.so.1": 0o644, "empty": 0o750}
    assert {name: (copy / name).stat().st_mode & 0o7777 for name in modes} == modes
    assert not versions.copy_version(image.tree(), digest)
    assert not versions.make_current(digest)


@pytest.mark.parametrize(
    "change",
    [
        lambda opt: write(opt / "lib/libedu.so.1", "library 2\n"),
        lambda opt: (opt / "bin/tool").chmod(0o700),
        lambda opt: (opt / "lib/libedu.so").unlink(),
        lambda opt: (opt / "bin/tool").rename(opt / "bin/tool2"),
        lambda opt: (opt / "lib/new").symlink_to("libedu.so.1"),
        lambda opt: (opt / "another").mkdir(),
    ],
)
def test_the_digest_is_of_everything(image: Image, change: Callable[[Path], object]) -> None:
    before = image.tree().digest()
    assert image.tree().digest() == before
    change(image.root / "opt/edu")
    assert image.tree().digest() != before


def test_single_files_and_overlapping_paths_are_taken_once(image: Image, host: Host) -> None:
    tree = image.tree("/opt/edu/lib/libedu.so.1", "/opt/edu/lib", "/opt/edu/bin/tool")
    publish(Versions(host, "edu"), tree)
    copy = host.userspace / "edu/current/opt/edu"
    assert names(copy) == ["bin", "lib"]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda opt: (opt / "bin/tool").chmod(0o4755), "/opt/edu/bin/tool is setuid or setgid"),
        (lambda opt: os.mkfifo(opt / "pipe"), "/opt/edu/pipe: neither a file nor a directory"),
        (
            lambda opt: (opt / "out").symlink_to("/etc/passwd"),
            "/opt/edu/out is a link to /etc/passwd, which is not in userspace.paths",
        ),
        (
            lambda opt: (opt / "out").symlink_to("../../etc"),
            "/opt/edu/out is a link to ../../etc, which is not in userspace.paths",
        ),
        (
            lambda opt: (opt / "out").symlink_to("../edu-more"),
            "/opt/edu/out is a link to ../edu-more, which is not in userspace.paths",
        ),
        (shutil.rmtree, "/opt/edu: No such file or directory"),
    ],
)
def test_what_is_more_than_files_is_refused(
    image: Image, spoil: Callable[[Path], object], words: str
) -> None:
    spoil(image.root / "opt/edu")
    with pytest.raises(UserspaceRefused) as refused:
        image.tree().digest()
    assert words in str(refused.value)
    assert refused.value.exit_code == ExitCode.REFUSED


def test_files_with_privileges_are_kept_if_driver_yaml_says_so(image: Image, host: Host) -> None:
    tool = image.root / "opt/edu/bin/tool"
    tool.chmod(0o4755)
    capability = bytes.fromhex("0100000200200000000000000000000000000000")  # CAP_NET_RAW, v2
    os.setxattr(tool, "security.capability", capability)
    with pytest.raises(UserspaceRefused):
        image.tree().digest()
    publish(Versions(host, "edu"), image.tree(is_trusted=True))
    copy = host.userspace / "edu/current/opt/edu/bin/tool"
    assert copy.stat().st_mode & 0o7777 == 0o4755
    assert os.getxattr(copy, "security.capability") == capability
    tool.chmod(0o755)
    with pytest.raises(UserspaceRefused, match="a file with capabilities"):
        image.tree().digest()


def test_what_cannot_be_copied_leaves_nothing(
    image: Image, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    versions, tree = Versions(host, "edu"), image.tree()
    old = publish(versions, tree)
    write(image.root / "opt/edu/lib/libedu.so.1", "library 2\n")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", full)
        with pytest.raises(NoSpace):
            versions.copy_version(tree, tree.digest())
    assert (versions.current, names(versions.directory)) == (old, sorted([old, "current"]))
    (versions.directory / ".tmp-left/opt").mkdir(parents=True)  # by a process that was killed
    new = publish(versions, tree)
    assert names(versions.directory) == sorted([old, new, "current"])


def test_directories_that_a_container_runtime_made_are_no_obstacle(
    image: Image, host: Host
) -> None:
    versions = Versions(host, "edu")
    (versions.directory / "current/opt/edu/lib").mkdir(parents=True)
    digest = publish(versions, image.tree())
    assert names(versions.directory) == sorted([digest, "current"])
    (versions.directory / "current").unlink()
    (versions.directory / "current/opt").mkdir(parents=True)
    (versions.directory / ".tmp-gone-current/opt").mkdir(parents=True)  # by one that was killed
    versions.remove_all()
    assert not versions.directory.exists()


def test_links_lead_to_files_of_the_same_version_from_anywhere(image: Image, host: Host) -> None:
    (image.root / "opt/edu-1").mkdir()
    shutil.move(image.root / "opt/edu/lib", image.root / "opt/edu-1/lib")
    (image.root / "opt/edu/lib").symlink_to("/opt/edu-1/lib")
    (image.root / "opt/now").symlink_to("/opt/edu-1")
    publish(Versions(host, "edu"), image.tree("/opt/edu", "/opt/edu-1", "/opt/now"))
    copy = host.userspace / "edu/current/opt"
    assert (copy / "edu/lib/libedu.so").read_text() == "library 1\n"
    assert (copy / "now/lib/libedu.so").read_text() == "library 1\n"


def test_old_versions_go_when_nothing_has_them(image: Image, host: Host) -> None:
    now = 0.0
    versions = Versions(host, "edu", now=lambda: now)
    old = publish(versions, image.tree())
    write(image.root / "opt/edu/lib/libedu.so.1", "library 2\n")
    new = publish(versions, image.tree())

    for moment in (0.0, 10.0):
        now = moment
        versions.remove_unused()
        assert old in names(versions.directory), "a container may be starting"

    now = 1000.0
    below = f"/lib/nodeside/userspace/edu/{old}/opt/edu"
    consumer = process(host, 7, mountinfo=f"36 35 98:0 {below} /opt/edu ro - ext4 /dev/sda rw\n")
    versions.remove_unused()
    assert old in names(versions.directory)

    shutil.rmtree(consumer)
    versions.remove_unused()
    assert names(versions.directory) == sorted([new, "current"])

    process(host, 8, exe=f"/var/lib/nodeside/userspace/edu/{new}/opt/edu/bin/tool")
    versions.remove_all()
    assert names(versions.directory) == [new]
    shutil.rmtree(host.proc / "8")
    versions.remove_all()
    assert not versions.directory.exists()
    versions.remove_all()
    versions.remove_unused()


@pytest.mark.parametrize("years", [-60, 10])
def test_a_clock_that_was_or_is_set_wrong_neither_keeps_nor_removes_a_version(
    image: Image, host: Host, years: int
) -> None:
    now = 5000.0
    versions = Versions(host, "edu", now=lambda: now)
    old = publish(versions, image.tree())
    write(image.root / "opt/edu/lib/libedu.so.1", "library 2\n")
    publish(versions, image.tree())
    wrong = time.time() + years * 365 * 86400
    os.utime(versions.directory / "current", (wrong, wrong), follow_symlinks=False)

    versions.remove_unused()
    assert old in names(versions.directory)
    now += 601
    versions.remove_unused()
    assert old not in names(versions.directory)


def test_after_a_reboot_the_wait_begins_anew(image: Image, host: Host) -> None:
    now = 5000.0
    versions = Versions(host, "edu", now=lambda: now)
    old = publish(versions, image.tree())
    write(image.root / "opt/edu/lib/libedu.so.1", "library 2\n")
    publish(versions, image.tree())
    versions.remove_unused()

    write(host.proc / "sys/kernel/random/boot_id", "two\n")
    for moment, left in ((20.0, True), (610.0, True), (630.0, False)):
        now = moment
        versions.remove_unused()
        assert (old in names(versions.directory)) is left


def test_a_directory_that_cannot_be_listed_makes_no_version(
    image: Image, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def broken(path: str) -> Any:
        if str(path).endswith("/lib"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", broken)
    with pytest.raises(NodesideError, match="Input/output error"):
        publish(Versions(host, "edu"), image.tree())
    assert Versions(host, "edu").current == ""


def test_a_link_that_steps_out_of_a_link_is_refused(image: Image) -> None:
    """Its words say /opt/edu/tool or /etc/shadow; the kernel goes elsewhere."""
    (image.root / "opt/edu/lib/up").symlink_to("/opt/edu")
    for number, target in enumerate(("lib/up/../edu/bin/tool", "lib/up/../../etc/shadow")):
        link = image.root / f"opt/edu/x{number}"
        link.symlink_to(target)
        with pytest.raises(UserspaceRefused, match="steps out of the link /opt/edu/lib/up"):
            image.tree().digest()
        link.unlink()
    (image.root / "opt/edu/y").symlink_to("lib/../bin/tool")
    image.tree().digest()


def test_many_mappings_are_read_to_their_end(host: Host) -> None:
    process(host, 7, maps="7f00-7f01 rw-p 0 00:00 0\n" * 70_000)
    assert not is_in_use(host, "edu", "1234")


def test_a_process_that_cannot_be_read_is_named(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    found = process(host, 4711)
    shutil.rmtree(found / "fd")
    write(found / "fd", "")
    with caplog.at_level("INFO"):
        assert is_in_use(host, "edu", "1234")
    assert "process 4711 may have them, and cannot be read" in str(
        [record.__dict__ for record in caplog.records]
    )


@pytest.mark.parametrize("name", sampled(["exe", "cwd", "maps", "mountinfo"], 4))
def test_whatever_has_a_version_keeps_it(host: Host, name: str) -> None:
    process(host, 7)
    (host.proc / "self").mkdir()
    assert not is_in_use(host, "edu", "1234")
    place = "/var/lib/nodeside/userspace/edu/1234/opt"
    process(host, 8, **{name: f"x {place} y" if name in ("maps", "mountinfo") else place})
    assert is_in_use(host, "edu", "1234")
    assert not is_in_use(host, "edu", "123")
    assert not is_in_use(host, "peer", "1234")


def test_an_open_file_keeps_it_and_what_cannot_be_read_too(host: Host) -> None:
    found = process(host, 7)
    link(found / "fd/3", Path("/nothing"))
    (found / "fd/4").symlink_to("/var/lib/nodeside/userspace/edu/1234/opt/edu/lib/libedu.so")
    assert is_in_use(host, "edu", "1234")
    shutil.rmtree(found / "fd")
    write(found / "fd", "")  # no directory: EINVAL or the like
    assert is_in_use(host, "edu", "1234")
    shutil.rmtree(found)
    found = process(host, 8)
    (found / "exe").unlink()  # a thread of the kernel
    assert not is_in_use(host, "edu", "1234")


def test_a_real_process_keeps_what_it_runs(image: Image, tmp_path: Path) -> None:
    host = Host(tmp_path / "host")
    host.proc.mkdir(parents=True)
    shutil.copy("/bin/sleep", image.root / "opt/edu/bin/tool")
    versions = Versions(host, "edu")
    digest = publish(versions, image.tree())
    program = versions.directory / "current/opt/edu/bin/tool"
    child = subprocess.Popen([program, "60"])
    (host.proc / str(child.pid)).symlink_to(f"/proc/{child.pid}")
    try:
        assert is_in_use(host, "edu", digest)
    finally:
        child.kill()
        child.wait()
    assert not is_in_use(host, "edu", digest)


def test_a_disk_that_is_broken_is_named(image: Image, tmp_path: Path) -> None:
    host = Host(tmp_path / "host")
    write(host.root / "var/lib/nodeside", "a file\n")
    with pytest.raises(NodesideError, match="userspace"):
        publish(Versions(host, "edu"), image.tree())


def test_a_version_is_labelled_before_it_appears(
    image: Image, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    labelled: list[tuple[list[str], str]] = []
    monkeypatch.setattr(
        versions_module, "label_tree", lambda top, kind: labelled.append((names(top), kind))
    )
    publish(Versions(host, "edu"), image.tree())
    assert labelled == [(["opt"], "container_file_t")]
