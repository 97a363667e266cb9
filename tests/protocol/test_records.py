"""Records: whole or not at all, and read without trusting who wrote them."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeside.errors import NodesideError, NoSpace, SystemRefused
from nodeside.protocol.build_records import BuildRequest, BuildResult, SidecarRecord
from nodeside.protocol.node_status import NodeDriverStatus
from nodeside.protocol.records import MalformedRecord, decode, encode, publish, read_untrusted
from nodeside.system import process
from nodeside.system.files import UntrustedFile, disk_errors, open_untrusted, publish_bytes
from tests.tries import sampled


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    size: int


@dataclass(frozen=True)
class Record:
    name: str
    inner: Inner
    colour: Colour | None = None
    sizes: tuple[int, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    good: bool = False


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB (needs root, as the tests of the node side do)."""
    mount = tmp_path / "small"
    mount.mkdir()
    process.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", mount], timeout=10)
    try:
        yield mount
    finally:
        process.run(["umount", mount], timeout=10)


# --- writing ---


def test_a_published_record_is_there_whole_and_readable(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    publish(path, {"b": 1, "a": "ä"})
    assert json.loads(path.read_bytes()) == {"a": "ä", "b": 1}
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_a_record_replaces_the_one_before(tmp_path: Path) -> None:
    publish(tmp_path / "a.json", {"n": 1})
    publish(tmp_path / "a.json", {"n": 2})
    assert read_untrusted(tmp_path / "a.json") == {"n": 2}


def test_a_full_disk_keeps_the_old_record_and_leaves_nothing(small_disk: Path) -> None:
    path = small_disk / "a.json"
    publish(path, {"n": 1})
    with pytest.raises(NoSpace, match=rf"no space left writing {path}") as caught:
        publish_bytes(path, b"x" * 1_000_000)
    assert caught.value.hint == f"free some space: df -h {small_disk}"
    assert read_untrusted(path) == {"n": 1}
    assert [entry.name for entry in small_disk.iterdir()] == ["a.json"]


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemRefused, match=r"No such file or directory: .*/none/"):
        publish(tmp_path / "none" / "a.json", {})


def test_a_leftover_of_a_process_with_the_same_number_is_in_nobodys_way(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    name = f".tmp-a.json-{os.getpid()}-{threading.get_native_id()}"
    (tmp_path / name).symlink_to(victim)
    publish(tmp_path / "a.json", {"n": 1})
    assert victim.read_text() == "mine"
    assert not (tmp_path / "a.json").is_symlink()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.json", "victim"]


def test_threads_that_publish_one_record_do_not_disturb_each_other(tmp_path: Path) -> None:
    path, failures = tmp_path / "a.json", []

    def write(number: int) -> None:
        try:
            for _ in range(20):
                publish(path, {"n": number})
        except NodesideError as exc:
            failures.append(exc)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert list(tmp_path.iterdir()) == [path]


# --- reading what another party wrote ---


def test_a_file_that_is_not_there_is_none(tmp_path: Path) -> None:
    assert read_untrusted(tmp_path / "none.json") is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a JSON record"),
        (b"{", "not a JSON record"),
        (b"\xff", "not a JSON record"),
        (b"[]", "expected a JSON object, got list"),
        (b"[" * 100_000, "not a JSON record"),
        (b'{"n": ' + b"9" * 10_000 + b"}", "not a JSON record"),
        (b'{"n": NaN}', "not a JSON record: NaN is not a number"),
        (b'{"n": -Infinity}', "not a JSON record: -Infinity is not a number"),
    ],
)
def test_a_file_that_is_no_record_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(UntrustedFile, match=rf"a\.json: {message}"):
        read_untrusted(tmp_path / "a.json")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a sparse file: no disk is filled
    with pytest.raises(UntrustedFile, match="1099511627776 bytes, at most 1048576 are read"):
        read_untrusted(path)


def test_links_devices_pipes_and_directories_are_refused(tmp_path: Path) -> None:
    (tmp_path / "good").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "good")
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    for name, message in (
        ("link", "refused to open: a symbolic link"),
        ("dangling", "refused to open: a symbolic link"),
        ("pipe", "expected a regular file"),
        ("directory", "expected a regular file"),
        ("good/inside", "refused to open: Not a directory"),
    ):
        with pytest.raises(UntrustedFile, match=message):
            read_untrusted(tmp_path / name)
    with (
        pytest.raises(UntrustedFile, match="expected a regular file"),
        open_untrusted(Path("/dev/zero"), limit=10),
    ):
        pass


# --- records as values ---


def test_a_record_survives_being_written_and_read() -> None:
    record = Record("a", Inner(1), Colour.RED, (1, 2), {"build": 1.5}, good=True)
    data = encode(record)
    assert data == {
        "name": "a",
        "inner": {"size": 1},
        "colour": "red",
        "sizes": [1, 2],
        "seconds": {"build": 1.5},
        "good": True,
    }
    assert decode(Record, json.loads(json.dumps(data))) == record


def test_fields_newer_than_us_are_ignored_and_missing_ones_have_their_default() -> None:
    assert decode(Record, {"name": "a", "inner": {"size": 1, "new": 2}, "newer": []}) == Record(
        "a", Inner(1)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 3}, r"^record\.name: expected str, got 3"),
        ({"name": None}, r"^record\.name: expected str, got None"),
        ({"name": "a\0b"}, r"^record\.name: expected str, got 'a\\x00b'"),
        ({"name": "\ud800"}, r"^record\.name: expected str, got '\\ud800'"),
        ({"inner": []}, r"^record\.inner: expected Inner, got \[\]"),
        ({"inner": {}}, r"^record\.inner: the field 'size' is missing"),
        ({"inner": {"size": True}}, r"^record\.inner\.size: expected int, got True"),
        ({"colour": "green"}, r"^record\.colour: expected one of red, blue; got 'green'"),
        ({"colour": []}, r"^record\.colour: expected one of red, blue; got \[\]"),
        ({"sizes": [1, "2"]}, r"^record\.sizes\[1\]: expected int, got '2'"),
        ({"seconds": {"build": "3"}}, r"^record\.seconds\.build: expected float, got '3'"),
        ({"seconds": {"build": 10**400}}, r"^record\.seconds\.build: expected float, got 1000"),
        ({"good": 1}, r"^record\.good: expected bool, got 1"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(MalformedRecord, match=message):
        decode(Record, {"name": "a", "inner": {"size": 1}} | change)


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    "kind", sampled([BuildRequest, BuildResult, SidecarRecord, NodeDriverStatus], 4)
)
@given(data=st.data())
def test_any_json_object_is_a_record_or_a_malformed_one(kind: type[Any], data: Any) -> None:
    names = [item.name for item in fields(kind)]
    found = data.draw(st.fixed_dictionaries({}, optional=dict.fromkeys(names, VALUES)))
    try:
        record = decode(kind, found)
    except MalformedRecord:
        return
    assert decode(kind, encode(record)) == record


def test_a_full_disk_in_the_middle_of_a_copied_tree_is_told_as_one(tmp_path: Path) -> None:
    full = f"[Errno {errno.ENOSPC}] {os.strerror(errno.ENOSPC)}: 'b/x'"

    with pytest.raises(NoSpace, match="no space left writing"), disk_errors(tmp_path / "b"):
        raise shutil.Error([("a/w", "b/w", "denied"), ("a/x", "b/x", full)])
    with pytest.raises(SystemRefused, match="cannot copy to b/w: denied"), disk_errors(tmp_path):
        raise shutil.Error([("a/w", "b/w", "denied")])
