"""Taking modules out of a directory that vendor code can write: every trick there is."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeside.driver.handoff import artifacts
from nodeside.driver.handoff.artifacts import copy_modules
from nodeside.driver.handoff.request import request_build
from nodeside.errors import NoSpace
from nodeside.protocol.build_records import BuiltModule
from nodeside.protocol.shared_directory import SharedDir
from nodeside.system.files import UntrustedFile
from tests.driver.fakes.handoff import succeeded, wish


@pytest.fixture
def shared(tmp_path: Path) -> SharedDir:
    found = SharedDir(tmp_path / "shared")
    found.create()
    return found


class Delivery:
    """The output of a build that reports one module, `straw`."""

    def __init__(self, shared: SharedDir, to: Path) -> None:
        self.shared, self.to = shared, to
        self.request = request_build(shared, wish())
        self.modules = shared.out_dir(self.request.id) / "modules"
        self.modules.mkdir(parents=True)
        self.file = self.modules / "straw.ko"
        self.file.write_bytes(b"\x7fELF straw")
        to.mkdir()

    def report(self, name: str = "straw", file: str = "modules/straw.ko") -> BuiltModule:
        return BuiltModule(name, file, hashlib.sha256(b"\x7fELF straw").hexdigest(), 10)

    def take(self, *modules: BuiltModule) -> dict[str, Path]:
        result = succeeded(self.request, *(modules or (self.report(),)))
        return copy_modules(self.shared, result, self.to)


@pytest.fixture
def delivery(shared: SharedDir, tmp_path: Path) -> Delivery:
    return Delivery(shared, tmp_path / "taken")


def test_modules_are_copied_and_the_copies_are_ours(delivery: Delivery) -> None:
    taken = delivery.take()
    delivery.file.write_bytes(b"swapped after the check")
    assert taken["straw"].read_bytes() == b"\x7fELF straw"
    assert taken["straw"].parent == delivery.to


def test_a_module_that_changed_after_the_report_is_refused(delivery: Delivery) -> None:
    delivery.file.write_bytes(b"\x7fELF other")
    with pytest.raises(UntrustedFile, match="changed after the sidecar reported it"):
        delivery.take()


def test_a_link_to_a_file_is_refused(delivery: Delivery, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"\x7fELF straw")
    delivery.file.unlink()
    delivery.file.symlink_to(secret)
    with pytest.raises(UntrustedFile, match="refused to open"):
        delivery.take()


@pytest.mark.parametrize("which", ["modules", "out"])
def test_a_link_in_place_of_a_directory_is_refused(
    delivery: Delivery, tmp_path: Path, which: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    path = delivery.modules if which == "modules" else delivery.modules.parent
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(UntrustedFile, match="refused to open"):
        delivery.take()


@pytest.mark.parametrize(
    "file", ["../../../etc/passwd", "/etc/passwd", "modules/../../x.ko", "", "modules"]
)
def test_a_path_that_leads_out_or_names_no_file_is_refused(delivery: Delivery, file: str) -> None:
    with pytest.raises(UntrustedFile):
        delivery.take(delivery.report(file=file))


@pytest.mark.parametrize("name", ["../straw", "", "st raw", "straw.ko", "x" * 56])
def test_a_name_that_is_none_of_a_module_is_refused(delivery: Delivery, name: str) -> None:
    with pytest.raises(UntrustedFile, match="the sidecar reports a bad or repeated module name"):
        delivery.take(delivery.report(name=name))
    assert list(delivery.to.iterdir()) == []


def test_a_name_that_is_there_twice_is_refused(delivery: Delivery) -> None:
    with pytest.raises(UntrustedFile, match="bad or repeated module name '"):
        delivery.take(delivery.report(), delivery.report())


def test_a_pipe_is_refused_and_not_waited_for(delivery: Delivery) -> None:
    delivery.file.unlink()
    os.mkfifo(delivery.file)
    with pytest.raises(UntrustedFile, match="expected a regular file"):
        delivery.take()


def test_a_device_is_refused(delivery: Delivery, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., int] = os.open

    def zero(path: object, flags: int, *args: object, **more: object) -> int:
        if path == "straw.ko":
            return real("/dev/zero", flags)
        return real(path, flags, *args, **more)

    monkeypatch.setattr(os, "open", zero)
    with pytest.raises(UntrustedFile, match="expected a regular file"):
        delivery.take()


def test_more_than_the_limit_is_refused_however_many_files_it_is(
    delivery: Delivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = delivery.modules / "second.ko"
    second.write_bytes(b"\x7fELF straw")
    both = delivery.report(), delivery.report("second", "modules/second.ko")
    monkeypatch.setattr(artifacts, "_BYTES_LIMIT", 15)
    with pytest.raises(
        UntrustedFile, match=r"second.ko: expected a regular file, at most 1 GiB for all"
    ):
        delivery.take(*both)


def test_more_modules_than_a_bundle_may_have_are_refused_before_one_is_copied(
    delivery: Delivery,
) -> None:
    many = [delivery.report(f"straw{number}") for number in range(2001)]
    with pytest.raises(UntrustedFile, match="reports 2001 modules; a bundle has at most 2000"):
        delivery.take(*many)
    assert list(delivery.to.iterdir()) == []


def test_a_file_that_grows_while_it_is_read_is_not_read_for_ever(
    delivery: Delivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery.file.write_bytes(b"x" * 100)
    monkeypatch.setattr(artifacts, "_BYTES_LIMIT", 100)
    monkeypatch.setattr(artifacts, "_CHUNK", 10)
    real = os.fstat

    def growing(fd: int) -> os.stat_result:
        status = real(fd)
        with open(delivery.file, "ab") as file:
            file.write(b"x" * 1000)
        return status

    monkeypatch.setattr(os, "fstat", growing)
    with pytest.raises(UntrustedFile, match="at most 1 GiB for all modules together"):
        delivery.take()


def test_a_full_disk_is_said_as_that(delivery: Delivery, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(artifacts, "_copy_module", full)
    with pytest.raises(NoSpace, match=r"no space left writing .*straw\.ko"):
        delivery.take()
