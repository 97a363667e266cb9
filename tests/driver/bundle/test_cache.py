"""The node's cache of bundles: crashes, damage, two processes, disks that are full or read-only."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nodeside.driver.bundle.bundle import Bundle, read_bundle, verify_bundle
from nodeside.driver.bundle.cache import Cache, CachedManifest
from nodeside.driver.bundle.manifest import BundleError
from nodeside.errors import ExitCode, Locked, NoSpace, SystemRefused
from nodeside.system import process
from nodeside.system.clock import Clock
from nodeside.system.file_lock import take_lock
from nodeside.system.host import Kernel
from tests import TOP
from tests.driver.fakes.bundles import KERNEL, KEY, TAG, sample_bundle

OTHER = Kernel("6.1.0-51-cloud-amd64", "#1 SMP Debian 6.1.195-1 (2026-12-01)", "x86_64")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What is logged; `nodeside.log` does not propagate once it was set up."""
    logger = logging.getLogger("nodeside")
    propagate, logger.propagate = logger.propagate, True
    caplog.set_level(logging.DEBUG, logger="nodeside")
    yield caplog
    logger.propagate = propagate


def put(cache: Cache, **different: Any) -> Bundle:
    with cache.staging_directory() as staging:
        return cache.adopt_bundle(sample_bundle(staging / "bundle", **different).directory)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_what_was_adopted_is_found_at_its_tag(cache: Cache) -> None:
    bundle = put(cache)

    assert bundle.directory == cache.root / "edu" / TAG
    assert cache.look_up_bundle(TAG, KEY, "edu") == bundle
    described = cache.describe(TAG, "edu")
    assert described is not None
    assert described.manifest == bundle.manifest
    assert names(cache.root) == ["edu"]
    assert names(cache.root / "edu") == [".lock", TAG]


def test_an_empty_cache_has_nothing_and_is_not_created_by_looking(cache: Cache) -> None:
    assert cache.look_up_bundle(TAG, KEY, "edu") is None
    assert cache.describe(TAG, "edu") is None
    assert list(cache.list_manifests("edu")) == []
    assert cache.remove_other_bundles("edu", set()) == ()
    assert not cache.root.exists()


def test_another_key_or_driver_is_not_served(cache: Cache, said: pytest.LogCaptureFixture) -> None:
    put(cache)

    assert cache.look_up_bundle(TAG, "f" * 64, "edu") is None
    assert cache.look_up_bundle(TAG, KEY, "other") is None
    assert "a bundle with this tag has another key" in said.text
    assert cache.look_up_bundle(TAG, KEY, "edu") is not None


def test_another_version_of_the_same_key_serves_unless_it_is_damaged(cache: Cache) -> None:
    bundle = put(cache)
    next_one = TAG.replace("1.2.0", "1.3.0-rc1")

    assert (
        cache.look_up_bundle(next_one, KEY, "edu")
        == cache.peek_bundle(next_one, KEY, "edu")
        == bundle
    )
    described = cache.describe(next_one, "edu")
    assert described is not None
    assert described.manifest == bundle.manifest
    assert cache.look_up_bundle(next_one, KEY, "other") is None

    damage_flip(bundle.directory)
    with pytest.raises(BundleError):
        cache.peek_bundle(next_one, KEY, "edu")
    assert cache.look_up_bundle(next_one, KEY, "edu") is None


def test_its_own_version_is_looked_for_first_and_another_helps_out(cache: Cache) -> None:
    own = put(cache)
    other = cache.root / "edu" / TAG.replace("1.2.0", "1.1.0")
    shutil.copytree(own.directory, other)
    assert cache.look_up_bundle(TAG, KEY, "edu") == own

    damage_flip(own.directory)
    assert cache.peek_bundle(TAG, KEY, "edu") is not None
    found = cache.look_up_bundle(TAG, KEY, "edu")
    assert found is not None
    assert found.directory == other


@pytest.mark.parametrize("tag", ["", ".tmp-x", "../edu", "a/b", ".damaged-x-1"])
def test_what_is_no_tag_is_refused(cache: Cache, tag: str) -> None:
    with pytest.raises(BundleError, match="is not the tag of a bundle"):
        cache.look_up_bundle(tag, KEY, "edu")


def damage_truncate(directory: Path) -> None:
    os.truncate(directory / "modules/edu.ko", 17)


def damage_flip(directory: Path) -> None:
    (directory / "modules/edu_dma.ko").write_bytes(b"\x7fELF dmb")


def damage_zeroes(directory: Path) -> None:
    path = directory / "manifest.json"
    path.write_bytes(bytes(path.stat().st_size))


def damage_no_manifest(directory: Path) -> None:
    (directory / "manifest.json").unlink()


def damage_half_written(directory: Path) -> None:
    shutil.rmtree(directory / "modules")


def damage_empty(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.mkdir()


def damage_link(directory: Path) -> None:
    (directory / "modules/edu.ko").unlink()
    (directory / "modules/edu.ko").symlink_to("/etc/passwd")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damage_truncate, "edu.ko has 17 bytes, expected 8991"),
        (damage_flip, "edu_dma.ko has sha256"),
        (damage_zeroes, "the manifest is not JSON"),
        (damage_no_manifest, "has no manifest.json, so it is not a bundle"),
        (damage_half_written, "modules/edu.ko is missing"),
        (damage_empty, "has no manifest.json, so it is not a bundle"),
        (damage_link, "neither a file nor a directory"),
    ],
)
def test_a_damaged_bundle_is_set_aside_and_said_and_later_collected(
    cache: Cache, said: pytest.LogCaptureFixture, damage: Any, words: str
) -> None:
    directory = put(cache).directory
    damage(directory)

    assert cache.look_up_bundle(TAG, KEY, "edu") is None

    assert names(directory.parent) == [f".damaged-{TAG}-1", ".lock"]
    record = next(r for r in said.records if r.getMessage() == "a damaged bundle was set aside")
    assert record.levelno == logging.WARNING
    assert words in str(vars(record)["fields"]["why"])
    put(cache)
    assert cache.look_up_bundle(TAG, KEY, "edu") is not None
    assert cache.remove_other_bundles("edu", {TAG}) == ()
    assert names(directory.parent) == [".lock", TAG]


def test_two_damaged_bundles_of_one_tag_are_both_set_aside(cache: Cache) -> None:
    for _ in range(2):
        damage_flip(put(cache).directory)
        assert cache.look_up_bundle(TAG, KEY, "edu") is None

    assert names(cache.root / "edu") == [f".damaged-{TAG}-1", f".damaged-{TAG}-2", ".lock"]


def test_a_damaged_bundle_makes_way_for_a_good_one(cache: Cache) -> None:
    damage_flip(put(cache).directory)

    verify_bundle(put(cache))

    assert cache.look_up_bundle(TAG, KEY, "edu") is not None


def test_an_equal_bundle_stays_and_a_different_one_of_the_key_makes_way(
    cache: Cache, said: pytest.LogCaptureFixture
) -> None:
    first = put(cache)
    inode = first.directory.stat().st_ino
    assert put(cache).directory.stat().st_ino == inode

    second = put(cache, contents={"edu": b"rebuilt"})

    assert second.digest != first.digest
    assert cache.look_up_bundle(TAG, KEY, "edu") == second
    assert "replaced a bundle with the same key" in said.text
    assert names(cache.root / "edu") == [".lock", TAG]


def test_a_bundle_that_does_not_verify_is_not_adopted(cache: Cache) -> None:
    with cache.staging_directory() as staging:
        bundle = sample_bundle(staging / "bundle")
        damage_truncate(bundle.directory)
        with pytest.raises(BundleError, match="has 17 bytes, expected 8991"):
            cache.adopt_bundle(bundle.directory)

    assert cache.look_up_bundle(TAG, KEY, "edu") is None
    assert names(cache.root) == []


def test_manifests_are_those_of_one_driver_newest_first(cache: Cache) -> None:
    old = put(cache)
    os.utime(old.directory, (1, 1))
    new = put(cache, kernel=OTHER)
    put(cache, driver="other")
    (cache.root / "edu" / ".tmp-x").mkdir()
    (cache.root / "edu" / "junk").mkdir()

    assert list(cache.list_manifests("edu")) == [
        CachedManifest(new.directory.name, new.manifest),
        CachedManifest(old.directory.name, old.manifest),
    ]


def test_a_manifest_that_the_disk_cannot_read_any_more_is_no_manifest(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cache)

    def unreadable(directory: Path) -> None:
        raise SystemRefused(f"Input/output error: {directory}")

    monkeypatch.setattr("nodeside.driver.bundle.cache.read_manifest", unreadable)

    assert cache.describe(TAG, "edu") is None
    assert list(cache.list_manifests("edu")) == []


def test_a_bundle_in_hand_is_a_verified_one_whichever_way_it_came(cache: Cache) -> None:
    """A manifest is to be had of a damaged bundle, but no path that leads to its modules."""
    damage_flip(put(cache).directory)

    (known,) = cache.list_manifests("edu")
    assert (known.tag, known.manifest.key) == (TAG, KEY)
    assert not any(isinstance(value, Path) for value in vars(known).values())
    takes: list[Callable[[], object]] = [
        lambda: cache.peek_bundle(TAG, KEY, "edu"),
        lambda: read_bundle(cache.root / "edu" / TAG),
        lambda: cache.adopt_bundle(cache.root / "edu" / TAG),
    ]
    for take in takes:
        with pytest.raises(BundleError, match="has sha256"):
            take()
    assert names(cache.root / "edu") == [".lock", TAG], "who only looks sets nothing aside"
    assert cache.look_up_bundle(TAG, KEY, "edu") is None


def test_who_peeks_finds_a_whole_bundle_and_none_of_another_key(cache: Cache) -> None:
    bundle = put(cache)

    assert cache.peek_bundle(TAG, KEY, "edu") == bundle
    assert cache.peek_bundle(TAG, "0" * 64, "edu") is None
    assert cache.peek_bundle(TAG, KEY, "other") is None


def test_collect_keeps_what_is_wanted_and_drops_the_rest(cache: Cache) -> None:
    put(cache)
    dropped = put(cache, kernel=OTHER).directory
    kept = put(cache, driver="other").directory

    assert cache.remove_other_bundles("edu", {TAG, "never-built"}) == (dropped.name,)

    assert names(cache.root / "edu") == [".lock", TAG]
    verify_bundle(read_bundle(kept))


def test_collect_removes_what_crashes_left_behind_but_nothing_in_use(cache: Cache) -> None:
    put(cache)
    for left in (cache.root / ".tmp-dead", cache.root / "edu" / ".tmp-dead"):
        sample_bundle(left / "bundle")
    (cache.root / ".tmp-file").write_text("x")

    with cache.staging_directory() as staging:
        cache.remove_other_bundles("edu", {TAG})

        assert names(cache.root) == [staging.name, "edu"]
        assert staging.is_dir()
    assert names(cache.root / "edu") == [".lock", TAG]


def test_staging_is_removed_also_after_an_error(cache: Cache) -> None:
    with pytest.raises(BundleError, match="already exists"), cache.staging_directory() as staging:
        sample_bundle(sample_bundle(staging / "bundle").directory)

    assert names(cache.root) == []


# --- crashes: the process is killed at its n-th change of the disk ------------------------------


@contextmanager
def killed_at(number: int) -> Iterator[None]:
    """Kill this process with SIGKILL just before its n-th sync, rename, removal or new file."""
    left = number

    def counting(real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    for name in ("fsync", "rename", "replace", "mkdir", "open", "unlink", "rmdir"):
        setattr(os, name, counting(getattr(os, name)))
    yield


def die_while_writing(cache: Cache, number: int) -> bool:
    """Replace the bundle in a child that is killed at its n-th change; whether it was."""
    child = os.fork()
    if child == 0:
        with killed_at(number):
            put(cache, contents={"edu": b"new"})
            cache.remove_other_bundles("edu", {TAG})
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.slow
def test_killed_at_any_moment_the_cache_holds_the_old_bundle_or_the_new_one_or_none(
    cache: Cache,
) -> None:
    seen = set()
    number = 0
    put(cache)
    while die_while_writing(cache, number):
        found = cache.look_up_bundle(TAG, KEY, "edu")
        seen.add(found and found.module_path("edu").read_bytes())
        assert not list((cache.root / "edu").glob(".damaged-*"))
        cache.remove_other_bundles("edu", {TAG})
        assert names(cache.root) == ["edu"]
        shutil.rmtree(cache.root)
        put(cache)
        number += 1

    assert number > 20
    assert seen == {b"\x7fELF edu " * 999, b"new", None}


# --- two processes ------------------------------------------------------------------------------

_WRITER = """
import sys
from pathlib import Path
from nodeside.driver.bundle.cache import Cache, CachedManifest
from tests.driver.fakes.bundles import KEY, TAG
from tests.driver.bundle.test_cache import put
cache = Cache(Path(sys.argv[1]))
for number in range(25):
    put(cache, contents={"edu": sys.argv[2].encode() * (number + 1)})
    found = cache.look_up_bundle(TAG, KEY, "edu")
    assert found is not None, "a good bundle was not found"
    cache.remove_other_bundles("edu", {TAG})
"""


@pytest.mark.slow
def test_two_processes_at_once_do_not_harm_each_other(cache: Cache) -> None:
    writers = [
        process.start(
            [sys.executable, "-c", _WRITER, str(cache.root), name],
            env={"PYTHONPATH": str(TOP), "PYTHONWARNINGS": "ignore"},
            stderr=2,
        )
        for name in ("one", "two")
    ]

    assert [writer.wait(120) for writer in writers] == [0, 0]

    assert cache.look_up_bundle(TAG, KEY, "edu") is not None
    assert names(cache.root) == ["edu"]
    assert names(cache.root / "edu") == [".lock", TAG]


def test_a_lock_that_is_never_released_is_an_error_not_a_hang(cache: Cache) -> None:
    put(cache)
    hours = iter(range(0, 36000, 3600))
    impatient = Cache(cache.root, clock=Clock(now=lambda: next(hours), sleep=lambda _: None))
    with open(cache.root / "edu" / ".lock", "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        with pytest.raises(Locked, match=r"another process has held .*/edu/\.lock for 60 s"):
            impatient.look_up_bundle(TAG, KEY, "edu")


def test_what_killed_processes_left_in_staging_goes_with_the_next_one(cache: Cache) -> None:
    abandoned = cache.root / ".tmp-abandoned"
    abandoned.mkdir(parents=True)
    (abandoned / "edu.ko").touch()
    with cache.staging_directory() as first, cache.staging_directory():
        assert not abandoned.exists()
        assert first.is_dir(), "it is in use"


def test_a_leftover_is_nobody_elses_while_it_is_removed(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache.root / ".tmp-left").mkdir(parents=True)
    free: list[bool] = []

    def removing(_: Cache, directory: Path) -> None:
        fd = os.open(directory, os.O_RDONLY)
        free.append(take_lock(fd))
        os.close(fd)

    monkeypatch.setattr(Cache, "_remove_directory", removing)
    cache.remove_other_bundles("edu", set())

    assert free == [False]


def test_lock_is_nobody_elses_to_open_also_one_of_an_older_version(cache: Cache) -> None:
    put(cache)
    lock = cache.root / "edu" / ".lock"
    lock.chmod(0o644)

    cache.look_up_bundle(TAG, KEY, "edu")

    assert lock.stat().st_mode & 0o777 == 0o600


# --- disks --------------------------------------------------------------------------------------


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[None]:
    """A file system of its own; mounting takes root, which the other tests do not need."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs for the full-disk test takes root: run as root")
    path.mkdir()
    process.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], timeout=10)
    try:
        yield
    finally:
        process.run(["umount", path], timeout=10)


def test_a_full_disk_is_named_and_nothing_half_written_stays(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "disk" / "cache")
    with small_disk(tmp_path / "disk", "256k"):
        put(cache)
        with pytest.raises(NoSpace, match=r"no space left writing .*bundle") as caught:
            put_from(tmp_path / "elsewhere", cache, b"\xff" * 300_000)

        assert caught.value.exit_code is ExitCode.NO_SPACE
        assert caught.value.hint.startswith("free some space: df -h ")
        assert names(cache.root) == ["edu"]
        assert cache.look_up_bundle(TAG, KEY, "edu") is not None


def put_from(elsewhere: Path, cache: Cache, content: bytes) -> None:
    """As `put`, but the sources do not lie on the cache's own disk."""
    from nodeside.driver.bundle.archive import pack_bundle, unpack_bundle

    elsewhere.mkdir()
    pack_bundle(sample_bundle(elsewhere / "b", contents={"edu": content}), elsewhere / "b.tar.gz")
    with cache.staging_directory() as staging:
        unpack_bundle(elsewhere / "b.tar.gz", staging / "bundle", 1 << 30)


def test_a_read_only_disk_serves_and_refuses_in_words(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "disk" / "cache")
    with small_disk(tmp_path / "disk", "1m"):
        good = put(cache)
        bad = put(cache, kernel=OTHER, key="0" * 64)
        damage_flip(bad.directory)
        process.run(["mount", "-o", "remount,ro", tmp_path / "disk"], timeout=10)

        assert cache.look_up_bundle(TAG, KEY, "edu") == good
        assert cache.look_up_bundle(bad.directory.name, "0" * 64, "edu") is None
        assert cache.remove_other_bundles("edu", set()) == ()
        with pytest.raises(SystemRefused, match=r"Read-only file system: .*/disk/cache"):
            put(cache)


def test_a_disk_that_fills_during_the_sync_is_no_space_too(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Network file systems and quotas say so only at fsync."""

    def full(_: int) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with cache.staging_directory() as staging:
        directory = sample_bundle(staging / "bundle").directory
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(NoSpace, match=f"no space left writing .*{TAG}"):
            cache.adopt_bundle(directory)

    assert cache.look_up_bundle(TAG, KEY, "edu") is None


def test_a_disk_that_cannot_read_a_module_any_more_is_a_damaged_bundle(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    put(cache)

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("hashlib.file_digest", broken)

    assert cache.look_up_bundle(TAG, KEY, "edu") is None
    assert "Input/output error" in str([vars(r).get("fields") for r in said.records])


def test_the_kernel_of_the_sample_is_the_one_in_its_tag() -> None:
    assert KERNEL.release in TAG
