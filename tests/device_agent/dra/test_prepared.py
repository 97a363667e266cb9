"""PreparedClaims claims and CDI files on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nodeside.device_agent.dra.claims import AllottedDevice, Claim
from nodeside.device_agent.dra.prepared import PreparedClaims
from nodeside.errors import SystemRefused
from tests.device_agent.dra.documents import OTHER_UID, UID

KIND = "nodeside.io/edu"
ONE = Claim(UID, "default", "one", (AllottedDevice("main", "edu-00-06-0-47d5b5925eb3"),))
OTHER = Claim(OTHER_UID, "default", "other", (AllottedDevice("main", "edu-00-07-0-b18c0f2d66a1"),))
SPEC = {"cdiVersion": "0.5.0", "kind": KIND, "devices": []}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def cdi(tmp_path: Path) -> Path:
    return tmp_path / "cdi"


def prepared(state: Path, cdi: Path) -> PreparedClaims:
    return PreparedClaims(state, cdi, KIND)


def cdi_file(cdi: Path, uid: str = UID) -> Path:
    return cdi / f"nodeside.io-edu_{uid}.json"


def test_a_claim_survives_the_agent(state: Path, cdi: Path) -> None:
    prepared(state, cdi).record_claim(ONE, SPEC)
    assert prepared(state, cdi).claims == {UID: ONE}
    assert json.loads(cdi_file(cdi).read_text()) == SPEC


def test_a_claim_survives_a_reboot_and_its_cdi_file_does_not(state: Path, cdi: Path) -> None:
    prepared(state, cdi).record_claim(ONE, SPEC)
    cdi_file(cdi).unlink()
    again = prepared(state, cdi)
    again.record_claim(again.claims[UID], SPEC)
    assert cdi_file(cdi).exists()


def test_what_is_the_same_is_not_written_again(state: Path, cdi: Path) -> None:
    ours = prepared(state, cdi)
    ours.record_claim(ONE, SPEC)
    before = cdi_file(cdi).stat()
    ours.record_claim(ONE, SPEC)
    assert cdi_file(cdi).stat() == before


def test_an_unprepared_claim_leaves_nothing_and_may_be_unprepared_again(
    state: Path, cdi: Path
) -> None:
    ours = prepared(state, cdi)
    ours.record_claim(ONE, SPEC)
    assert ours.forget_claim(UID)
    assert not ours.forget_claim(UID)
    assert list(cdi.iterdir()) == list((state / "claims").iterdir()) == []


def test_a_claim_that_is_given_nothing_has_no_cdi_file(state: Path, cdi: Path) -> None:
    ours = prepared(state, cdi)
    ours.record_claim(ONE, SPEC)
    ours.record_claim(ONE, None)
    assert list(cdi.iterdir()) == []
    assert prepared(state, cdi).claims == {UID: ONE}


def test_cdi_files_of_no_claim_are_removed_and_those_of_others_are_not(
    state: Path, cdi: Path
) -> None:
    prepared(state, cdi).record_claim(ONE, SPEC)
    cdi_file(cdi, OTHER_UID).write_text("{}")
    others = [cdi / "nodeside.io-edu2_x.json", cdi / "vendor.json", cdi / "nodeside.io-edu_x.txt"]
    others.append(cdi / f"nodeside.io-edu_3c59x_{UID}.json")
    for path in others:
        path.write_text("{}")

    prepared(state, cdi)

    assert sorted(cdi.iterdir()) == sorted([cdi_file(cdi), *others])


def test_what_a_killed_agent_was_writing_is_no_cdi_file_and_is_removed(
    state: Path, cdi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container runtime reads each *.json there, hidden ones too: two would name one device."""

    def killed(_from: Path, _to: Path) -> None:
        raise KeyboardInterrupt

    ours = prepared(state, cdi)
    ours.record_claim(ONE, SPEC)
    others = cdi / ".tmp-vendor.json-1-1"
    others.write_text("{}")
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", killed)
        patch.setattr("pathlib.Path.unlink", lambda *_args, **_more: None)
        for claim in (ONE, OTHER):  # in the middle of its CDI file, and of its record
            with pytest.raises(KeyboardInterrupt):
                ours.record_claim(claim, SPEC | {"devices": [{}]})
    left = {*cdi.iterdir(), *(state / "claims").iterdir()}
    assert len(left) == 5
    assert sum(path.suffix == ".json" for path in left) == 2

    prepared(state, cdi)

    assert set(cdi.iterdir()) == {cdi_file(cdi), others}
    assert [path.name for path in (state / "claims").iterdir()] == [f"{UID}.json"]


def valid() -> dict[str, Any]:
    devices = [{"request": "main", "device": "a"}]
    return {"uid": UID, "namespace": "default", "name": "one", "devices": devices}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 100,
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"uid": NaN}',
        b" " * (2 << 20),
        json.dumps(valid() | {"uid": OTHER_UID}).encode(),
        json.dumps(valid() | {"devices": [{"request": "../x", "device": "a"}]}).encode(),
        json.dumps(valid() | {"devices": [{"request": "main", "device": "a=b"}]}).encode(),
        json.dumps(valid() | {"devices": 7}).encode(),
    ],
)
def test_a_record_that_is_broken_counts_as_absent(
    state: Path, cdi: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("nodeside.log.warning", lambda text, **more: said.append(text))
    ours = prepared(state, cdi)
    ours.record_claim(ONE, SPEC)
    ours.record_claim(OTHER, SPEC)
    (state / "claims" / f"{UID}.json").write_bytes(content)

    again = prepared(state, cdi)

    assert again.claims == {OTHER_UID: OTHER}
    assert list(cdi.iterdir()) == [cdi_file(cdi, OTHER_UID)]
    assert said == ["a record of a claim is ignored"]
    again.record_claim(ONE, SPEC)
    assert prepared(state, cdi).claims == {UID: ONE, OTHER_UID: OTHER}


def test_odd_files_among_the_records_are_ignored(state: Path, cdi: Path, tmp_path: Path) -> None:
    prepared(state, cdi)
    (state / "claims" / "..json").write_text("{}")
    (state / "claims" / f"{OTHER_UID}.json").symlink_to(tmp_path / "elsewhere")
    (state / "claims" / f"{UID}.json").mkdir()
    (state / "claims" / ".tmp-1-2-x.json").write_text("half")
    assert prepared(state, cdi).claims == {}


def test_a_directory_that_cannot_be_made_is_said(state: Path, cdi: Path) -> None:
    cdi.write_text("a file")
    with pytest.raises(SystemRefused, match="cdi"):
        prepared(state, cdi)
