"""Feature labels: what they say, when they are written, and where to."""

from __future__ import annotations

import itertools
import logging
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeside.device_agent.feature_sinks import (
    CALLER,
    EXPIRES,
    FeatureFile,
    NodeLabels,
    Sinks,
)
from nodeside.device_agent.features import (
    FIRST_INTERVAL,
    INTERVAL,
    MIN_CHANGE_INTERVAL,
    Features,
    LabelLoop,
    label_in_thread,
    label_value,
)
from nodeside.device_agent.inventory import Inventory, ResourceSnapshot
from nodeside.devices.discovery import FoundDevice, FoundDevices
from nodeside.errors import SystemRefused
from nodeside.kube.client import Client, PodAccess
from nodeside.protocol.labels import FEATURE_LIMIT, LABEL_VALUE
from nodeside.protocol.ready_file import clear_ready
from nodeside.spec import Driver, patterns
from nodeside.spec.devices import LABEL_LIMIT
from nodeside.system.host import Host
from tests.console import until
from tests.device_agent import feature_files
from tests.device_agent.agent_process import agent, kubelet_directory, node, write_driver
from tests.device_agent.agent_thread import agent_thread
from tests.device_agent.node import driver, say_ready
from tests.device_agent.played_kubelet import LONG, PlayedKubelet
from tests.driver.fakes.apiserver import ApiServer, Fault, make_certificates

EDU: dict[str, Any] = {
    "resource": "example.com/edu",
    "discover": {"pci": [{"vendor": "1234"}]},
    "attributes": [
        {"name": "revision", "path": "revision", "label": True},
        {"name": "interrupts", "path": "interrupts"},
    ],
}
UNITS: dict[str, Any] = {"resource": "example.com/unit", "discover": {"count": 3}, "shares": 4}
PREFIX = "feature.nodeside.io/edu."
THREE = {f"{PREFIX}count": "2", f"{PREFIX}revision": "0x10", f"{PREFIX}version": "1.0.0"}


def snapshot(of: Driver, resource: str, *attributes: dict[str, str]) -> ResourceSnapshot:
    """So many devices, with what their files say."""
    device = next(each for each in of.spec.devices if each.resource == resource)
    inventory = Inventory(resource, device.shares)
    found = (FoundDevice(str(n), attributes=each) for n, each in enumerate(attributes))
    inventory.update(FoundDevices(resource, tuple(found)), 0.0)
    return ResourceSnapshot(resource, device.attributes, inventory.known, True, 1, 0)


def edu(*revisions: str, of: Driver | None = None) -> list[ResourceSnapshot]:
    said = ({"revision": each, "interrupts": "4"} if each else {} for each in revisions)
    return [snapshot(of or driver(EDU), "example.com/edu", *said)]


def labels(features: Features, *revisions: str, version: str = "1.0.0") -> dict[str, str]:
    """Without what they begin with."""
    made = features.make_labels(edu(*revisions), version)
    assert made is not None
    assert all(key.startswith(PREFIX) for key in made)
    return {key.removeprefix(PREFIX): value for key, value in made.items()}


def warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


# --- what they say -------------------------------------------------------------------------------


def test_they_say_what_the_devices_and_the_driver_are() -> None:
    found = labels(Features(driver(EDU)), "0x10", "0x10")
    assert found == {"count": "2", "revision": "0x10", "version": "1.0.0"}


def test_devices_are_counted_over_all_entries_and_not_their_shares() -> None:
    declared = driver(EDU, UNITS)
    seen = [*edu("0x10", of=declared), snapshot(declared, "example.com/unit", {}, {}, {})]
    found = Features(declared).make_labels(seen, "")
    assert found == {f"{PREFIX}count": "4", f"{PREFIX}revision": "0x10"}


def test_nothing_is_said_before_all_devices_were_looked_for() -> None:
    declared = driver(EDU, UNITS)
    assert Features(declared).make_labels(edu("0x10", of=declared), "1.0.0") is None


def test_a_node_without_the_devices_has_a_count_of_none() -> None:
    assert labels(Features(driver(EDU))) == {"count": "0", "version": "1.0.0"}


def test_what_the_devices_disagree_about_is_left_out_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    features = Features(driver(EDU))
    for _ in range(3):
        assert "revision" not in labels(features, "0x10", "0x11")
    [record] = warnings(caplog)
    assert record.message == "a label is left out"
    assert getattr(record, "fields", None) == {
        "label": f"{PREFIX}revision",
        "why": "the node's devices disagree",
        "says": "0x10, 0x11",
    }


def test_a_device_that_says_nothing_at_the_moment_changes_no_label() -> None:
    features = Features(driver(EDU))
    assert labels(features, "0x10", "")["revision"] == "0x10"
    assert labels(features, "", "")["revision"] == "0x10"
    assert labels(features, "0x11", "")["revision"] == "0x11"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0x10", "0x10"),
        (" Arria 10\n", "Arria_10"),
        ("6.1.0+x~1", "6.1.0_x_1"),
        ("(rev 2)", "rev_2"),
        ("f64e598bea11517fa28e7bc65d885104", "f64e598bea11517fa28e7bc65d885104"),
        ("-1", ""),
        ("1.", ""),
        ("x" * 63, "x" * 63),
        ("x" * 64, ""),
        ("\u00e4\u00f6\n\x00", ""),
        ("", ""),
    ],
)
def test_values_are_those_that_a_label_may_have(text: str, value: str) -> None:
    assert label_value(text) == value


@given(st.text(max_size=80))
def test_whatever_a_device_says_is_a_legal_value_or_left_out(text: str) -> None:
    value = label_value(text)
    assert value == "" or (LABEL_VALUE.fullmatch(value) and value.isascii())


def test_a_value_that_no_label_may_have_is_left_out_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    features = Features(driver(EDU))
    for text in ("x" * 64, "y" * 64):
        assert labels(features, text) == {"count": "1", "version": "1.0.0"}
    assert len(warnings(caplog)) == 1


def test_the_longest_driver_and_attribute_make_a_legal_key() -> None:
    key = f"{'d' * 40}.{'a' * LABEL_LIMIT}"
    assert len(key) == 63
    assert re.search(patterns.DRIVER_NAME.regex, "d" * 40)
    assert not re.search(patterns.DRIVER_NAME.regex, "d" * 41)


# --- when they are written -----------------------------------------------------------------------


@dataclass
class Recorded:
    """A sink that remembers."""

    renew: float = 1000.0
    written: list[Mapping[str, str]] = field(default_factory=list)
    fails: int = 0

    def write_labels(self, labels: Mapping[str, str]) -> None:
        if self.fails:
            self.fails -= 1
            raise SystemRefused("no way")
        self.written.append(labels)


class One(Sinks):
    """The sink of a test."""

    def __init__(self, sink: Recorded | None) -> None:
        self.sink = sink

    def choose_sink(self) -> Recorded | None:
        return self.sink


@dataclass
class Scene:
    host: Host
    sink: Recorded
    revisions: tuple[str, ...] = ("0x10", "0x10")

    def __post_init__(self) -> None:
        self.sinks = One(self.sink)
        self.labelling = LabelLoop(
            driver(EDU), self.host, lambda: iter(edu(*self.revisions)), self.sinks
        )

    def step(self, now: float) -> float:
        return self.labelling.update_labels(now)

    @property
    def revisions_written(self) -> list[str | None]:
        return [each.get(f"{PREFIX}revision") for each in self.sink.written]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(Host(tmp_path), Recorded())


def test_they_are_written_once_the_driver_is_ready_and_stay_when_it_is_not(scene: Scene) -> None:
    assert scene.step(0.0) == FIRST_INTERVAL
    say_ready(scene.host)
    assert scene.step(1.0) == INTERVAL
    assert scene.sink.written == [THREE]

    clear_ready(scene.host, "edu")
    scene.revisions = ()  # its devices are gone
    scene.step(MIN_CHANGE_INTERVAL + 2.0)
    assert scene.sink.written == [THREE]
    scene.step(1001.0)
    assert scene.sink.written == [THREE, THREE], "what expires is renewed"


def test_a_look_from_before_the_driver_was_ready_makes_no_labels(scene: Scene) -> None:
    """It has seen no device, which would hold for five minutes."""
    say_ready(scene.host)
    looked, scene.labelling.snapshots = (
        scene.labelling.snapshots,
        lambda: [replace(each, known=replace(each.known, is_ready=False)) for each in edu()],
    )
    assert scene.step(0.0) == FIRST_INTERVAL
    scene.labelling.snapshots = looked
    scene.step(1.0)
    assert scene.sink.written == [THREE]


def test_a_ready_file_of_another_boot_is_none(scene: Scene) -> None:
    say_ready(scene.host, "another")
    scene.step(0.0)
    assert scene.sink.written == []


def test_changes_are_written_at_once_for_a_while_and_one_after_another_later(scene: Scene) -> None:
    """The devices of a node appear one after the other, and a count of one does not stay for long.

    Who labels what changes all the time does not keep the API server busy.
    """
    say_ready(scene.host)
    for second in range(0, 1000, 30):
        scene.revisions = (f"0x{second}",)
        scene.step(float(second))
    at_once = [f"0x{second}" for second in range(0, 301, 30)]
    assert scene.revisions_written == [*at_once, "0x600", "0x900"]


def test_unchanged_ones_are_written_again_when_they_are_due(scene: Scene) -> None:
    say_ready(scene.host)
    for second in range(0, 2100, 30):
        scene.step(float(second))
    assert scene.revisions_written == ["0x10"] * 3


def test_a_failure_is_said_once_and_tried_again_after_growing_pauses(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    say_ready(scene.host)
    scene.sink.fails = 3
    assert [scene.step(float(n)) for n in range(4)] == [
        INTERVAL,
        2 * INTERVAL,
        4 * INTERVAL,
        INTERVAL,
    ]
    assert scene.sink.written == [THREE]
    [record] = warnings(caplog)
    assert record.message == "the node's labels are not up to date"


def test_another_sink_gets_them_at_once(scene: Scene) -> None:
    say_ready(scene.host)
    scene.step(0.0)
    other = Recorded()
    scene.sinks.sink = other
    scene.step(1.0)
    assert other.written == [THREE]
    scene.sinks.sink = None
    assert scene.step(2.0) == INTERVAL


# --- Node Feature Discovery ----------------------------------------------------------------------


def test_a_feature_file_says_the_labels_until_it_expires(tmp_path: Path) -> None:
    now = 1_700_000_000.0
    file = FeatureFile(tmp_path, "edu", lambda: now)
    file.write_labels(THREE)

    assert names(tmp_path) == ["nodeside-edu"]
    assert feature_files.read(tmp_path, now) == THREE
    assert feature_files.read(tmp_path, now + EXPIRES - 1) == THREE
    assert feature_files.read(tmp_path, now + EXPIRES) == {}
    assert file.renew * 2 < EXPIRES, "one that is late is no flap"


def test_a_feature_file_appears_whole(tmp_path: Path) -> None:
    file = FeatureFile(tmp_path, "edu")
    file.write_labels(THREE)
    before = file.path.stat().st_ino
    with file.path.open() as reader:
        file.write_labels({f"{PREFIX}count": "1"})
        assert f"{PREFIX}revision=0x10" in reader.read()
    assert file.path.stat().st_ino != before
    assert feature_files.read(tmp_path, time.time()) == {f"{PREFIX}count": "1"}


def test_the_largest_file_is_read_by_nfd(tmp_path: Path) -> None:
    many = {f"feature.nodeside.io/{'d' * 40}.{n:022}": "v" * 63 for n in range(FEATURE_LIMIT)}
    FeatureFile(tmp_path, "d" * 40).write_labels(many)
    assert feature_files.read(tmp_path, time.time()) == many


def test_a_directory_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemRefused, match="gone"):
        FeatureFile(tmp_path / "gone", "edu").write_labels(THREE)


# --- the node itself -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def server(tmp_path: Path, certificates: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path / "serviceaccount", certificates).running() as running:
        yield running


def test_a_change_is_one_patch_which_removes_what_is_stale(server: ApiServer) -> None:
    others = {"team": "storage", "feature.nodeside.io/edu2.count": "1"}
    server.labels["n1"] = {**others, f"{PREFIX}serial": "7", f"{PREFIX}count": "2"}
    sink = NodeLabels(Client(server.access, CALLER), "n1", "edu")

    sink.write_labels(THREE)
    sink.write_labels(THREE)

    assert server.labels["n1"] == others | THREE
    assert [request.method for request in server.seen] == ["GET", "PATCH", "GET"]
    assert server.seen[1].body == {
        "metadata": {
            "labels": {
                f"{PREFIX}revision": "0x10",
                f"{PREFIX}version": "1.0.0",
                f"{PREFIX}serial": None,
            }
        }
    }


def test_a_refusal_says_which_rule_is_missing(
    server: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.faults = [Fault(403, "forbidden")]
    sinks = Sinks(None, NodeLabels(Client(server.access, CALLER), "n1", "edu"))
    labelling = LabelLoop(driver(EDU), Host(tmp_path), lambda: iter(edu("0x10")), sinks)
    say_ready(labelling.host)

    labelling.update_labels(0.0)
    [warning] = warnings(caplog)
    hint = str(getattr(warning, "fields", {})["hint"])
    assert 'resources: ["nodes"], verbs: ["get", "patch"]' in hint
    labelling.update_labels(1.0)
    assert server.labels["n1"][f"{PREFIX}revision"] == "0x10"


# --- which of them -------------------------------------------------------------------------------


def environ(server: ApiServer) -> dict[str, str]:
    return {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(server.port),
        "NODESIDE_TOKEN_DIR": str(server.credentials),
        "NODE_NAME": "n1",
    }


def test_nfd_is_the_one_that_labels_where_it_is_which_is_said_once(
    server: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="nodeside")
    directory = tmp_path / "features.d"
    variables = environ(server)
    access = PodAccess.from_environment(variables)
    sinks = Sinks.of("edu", directory, access, variables["NODE_NAME"])

    assert isinstance(sinks.choose_sink(), NodeLabels)
    assert isinstance(sinks.choose_sink(), NodeLabels)
    directory.mkdir()
    assert isinstance(sinks.choose_sink(), FeatureFile)
    assert isinstance(sinks.choose_sink(), FeatureFile)
    messages = [record.message for record in caplog.records]
    assert [each for each in messages if "label" in each] == [
        "the device agent labels the node itself",
        "Node Feature Discovery labels the node",
    ]


@pytest.mark.parametrize("missing", ["KUBERNETES_SERVICE_HOST", "NODE_NAME", "token"])
def test_without_nfd_and_without_a_token_there_are_no_labels_which_is_said_once(
    server: ApiServer, tmp_path: Path, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    variables = environ(server)
    variables.pop(missing, "")
    if missing == "token":
        (server.credentials / "token").unlink()
    access = PodAccess.from_environment(variables)
    sinks = Sinks.of("edu", tmp_path / "features.d", access, variables.get("NODE_NAME", ""))
    assert sinks.choose_sink() is None
    assert sinks.choose_sink() is None
    [record] = warnings(caplog)
    assert record.message.startswith("the node gets no labels: neither")


# --- the agent -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_agent_writes_a_feature_file_and_leaves_it_when_it_ends(
    tmp_path: Path, kubelets: PlayedKubelet
) -> None:
    host, features = node(tmp_path / "host"), tmp_path / "features.d"
    features.mkdir()
    for path in sorted(host.root.glob("sys/bus/pci/devices/*")):
        (path.resolve() / "revision").write_text("0x10\n")
    write_driver(host, EDU)
    with (
        kubelet_directory() as directory,
        agent(host, directory, "--features-directory", str(features)) as process,
    ):
        kubelets.move(directory)
        until(lambda: feature_files.read(features, time.time()), "a feature file")
        process.process.terminate()
        assert process.process.wait(LONG) == 0
    assert feature_files.read(features, time.time()) == THREE


def test_a_driver_that_asks_for_no_label_writes_none(
    tmp_path: Path, kubelets: PlayedKubelet
) -> None:
    host, features = node(tmp_path / "host"), tmp_path / "features.d"
    features.mkdir()
    with (
        kubelet_directory() as directory,
        agent_thread(host, directory, sinks=Sinks.of("edu", features, None, "")),
    ):
        kubelets.move(directory)
        kubelets.until_registered("example.com/edu")
    assert names(features) == []


def test_a_bug_in_one_look_does_not_end_the_labels(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeside.device_agent.features.INTERVAL", 0.01)
    snapshots, looks = scene.labelling.snapshots, itertools.count()

    def fail_once() -> Iterator[ResourceSnapshot]:
        if next(looks) == 0:
            raise ZeroDivisionError
        return iter(snapshots())

    scene.labelling.snapshots = fail_once
    say_ready(scene.host)
    with label_in_thread(scene.labelling):
        until(lambda: scene.sink.written, "labels after a bug")


def names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]
