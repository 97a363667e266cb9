"""The ids of devices over restarts of the agent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nodeside.device_agent.kept_ids import KeptIds
from nodeside.devices.identity import DeviceIds

PORTS = [Path(f"/sys/devices/pci0000:00/0000:00:06.0/fpga_region/dfl-port.{n}") for n in range(3)]


def kept(state: Path | None, resource: str = "example.com/port", boot: str = "boot-1") -> KeptIds:
    return KeptIds(state, resource, boot)


def seen(
    state: Path, *paths: Path, resource: str = "example.com/port", boot: str = "boot-1"
) -> DeviceIds:
    """What an agent keeps that saw these."""
    ours = kept(state, resource, boot)
    ids = ours.read()
    ids.assign_ids(paths)
    ours.write(ids)
    return ids


def test_what_is_left_of_a_function_keeps_its_id_when_the_agent_starts(tmp_path: Path) -> None:
    seen(tmp_path, *PORTS)

    ids = kept(tmp_path).read()

    assert ids.assign_ids(PORTS[1:]) == {PORTS[1]: "00:06.0-2", PORTS[2]: "00:06.0-3"}
    assert ids.assign_ids(PORTS)[PORTS[0]] == "00:06.0"


@pytest.mark.parametrize(
    ("resource", "boot"), [("example.com/port", "boot-2"), ("example.com/other", "boot-1")]
)
def test_another_boot_or_resource_has_ids_of_its_own(
    tmp_path: Path, resource: str, boot: str
) -> None:
    """After a reboot, drivers may count in another order."""
    seen(tmp_path, *PORTS)
    assert kept(tmp_path, resource, boot).read().assign_ids(PORTS[1:])[PORTS[1]] == "00:06.0"


def test_what_has_not_changed_is_not_written(tmp_path: Path) -> None:
    seen(tmp_path, *PORTS)
    (file,) = (tmp_path / "ids").iterdir()
    before = file.stat()
    seen(tmp_path, *PORTS)
    assert file.stat() == before


RECORD = {"resource": "example.com/port", "boot_id": "boot-1"}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        json.dumps(RECORD | {"paths": ["/a"], "ids": []}),
        json.dumps(RECORD | {"paths": ["/a"], "ids": ["x y"]}),
        json.dumps(RECORD | {"paths": [7], "ids": ["a"]}),
        json.dumps(RECORD | {"paths": ["/a"], "ids": ["x" * 100]}),
        "[" * 100_000,
    ],
)
def test_a_broken_file_is_said_and_made_anew(
    tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("nodeside.log.warning", lambda text, **more: said.append(text))
    seen(tmp_path, *PORTS)
    (file,) = (tmp_path / "ids").iterdir()
    file.write_text(content)

    seen(tmp_path, *PORTS[1:])

    assert said == ["the saved device ids cannot be used; devices get new ids"]
    assert kept(tmp_path).read().known_ids == {PORTS[1]: "00:06.0", PORTS[2]: "00:06.0-2"}


def test_two_devices_never_have_one_id_though_a_file_says_so(tmp_path: Path) -> None:
    seen(tmp_path, *PORTS)
    (file,) = (tmp_path / "ids").iterdir()
    paths = [str(path) for path in PORTS]
    file.write_text(json.dumps(RECORD | {"paths": paths, "ids": ["00:06.0"] * 3}))
    assert len(set(kept(tmp_path).read().assign_ids(PORTS).values())) == 3


def test_a_directory_that_cannot_be_written_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("nodeside.log.warning", lambda text, **more: said.append(text))
    state = tmp_path / "state"
    state.write_text("a file")
    ours = kept(state)
    ids = ours.read()
    for number in (1, 2, 3):
        ids.assign_ids(PORTS[:number])
        ours.write(ids)
    assert said[-1:] == ["cannot save the ids of devices"]
    assert said.count("cannot save the ids of devices") == 1


@pytest.mark.slow
def test_of_too_many_those_that_were_seen_last_are_kept(tmp_path: Path) -> None:
    long = "x" * 200
    gone = [Path(f"/sys/devices/virtual/{long}/{n}") for n in range(4000)]
    there = [Path(f"/sys/devices/virtual/{long}/{n}") for n in range(4000, 7000)]
    ours = kept(tmp_path)
    ids = ours.read()
    for paths in (gone, there):
        ids.assign_ids(paths)
        ours.write(ids)

    again = kept(tmp_path).read().known_ids

    assert (
        {path: ids.known_ids[path] for path in there}.items()
        <= again.items()
        <= ids.known_ids.items()
    )
    assert len(again) < len(ids.known_ids)


def test_without_a_directory_nothing_is_kept() -> None:
    ours = kept(None)
    ids = ours.read()
    ids.assign_ids(PORTS)
    ours.write(ids)
    assert kept(None).read().known_ids == {}
