"""`nodeside device-agent` with `expose: dra`: real sockets, a played kubelet and API server.

Where neither its command line nor its end is tried, the agent is a thread.
"""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from nodeside.device_agent.dra.names import device_name
from nodeside.device_agent.dra.site import Site
from nodeside.device_agent.feature_sinks import Sinks
from nodeside.kube.client import PodAccess
from nodeside.protocol.ready_file import clear_ready
from nodeside.system.host import Host
from tests.console import nodeside, until
from tests.device_agent.agent_process import EDU, Agent, Logged, add_edu, agent, node, write_driver
from tests.device_agent.agent_thread import agent_thread
from tests.device_agent.dra.documents import OTHER_UID, POOL, UID, claim, result
from tests.device_agent.dra.played_api import DraApiServer, dra_api_server
from tests.device_agent.dra.played_kubelet import DraKubelet, dra_kubelet_process
from tests.device_agent.node import say_ready
from tests.device_agent.played_kubelet import LONG, PlayedKubelet
from tests.driver.fakes.apiserver import Fault, make_certificates
from tests.tries import sampled

CLAIMED = {**EDU, "expose": "dra"}
FIRST, SECOND, THIRD, MISSING = (
    device_name(EDU["resource"], f"00:{slot}.0") for slot in ("05", "06", "07", "99")
)


@dataclass
class Place:
    """A node with an agent: its host, and the directories that the kubelet and it share."""

    host: Host
    root: Path
    server: DraApiServer

    @property
    def registry(self) -> Path:
        return self.root / "plugins_registry"

    @property
    def plugins(self) -> Path:
        return self.root / "plugins"

    @property
    def cdi(self) -> Path:
        return self.root / "cdi"

    @property
    def claims(self) -> Path:
        return self.host.root / "state" / "edu" / "claims"

    def agent(self, **options: Any) -> AbstractContextManager[Logged]:
        """The agent as a thread."""
        access = PodAccess.from_environment(self.server.environment())
        assert access is not None
        state = self.host.root / "state" / "edu"
        site = Site(POOL.node, access, self.plugins, self.registry, state, self.cdi)
        sinks = Sinks.of("edu", None, access, POOL.node)
        options |= {"site": site, "state": state, "sinks": sinks}
        return agent_thread(self.host, self.root / "device-plugins", **options)

    def agent_process(self, *options: str) -> AbstractContextManager[Agent]:
        return agent(
            self.host,
            self.root / "device-plugins",
            f"--plugins-directory={self.plugins}",
            f"--plugins-registry={self.registry}",
            f"--cdi-directory={self.cdi}",
            *options,
            environment=self.server.environment(),
        )

    def spec(self, uid: str = UID) -> dict[str, Any]:
        found = json.loads((self.cdi / f"nodeside.io-edu_{uid}.json").read_text())
        assert isinstance(found, dict)
        return found

    def allocate(self, *devices: str, name: str = "one", uid: str = UID, **more: Any) -> None:
        results = [result(each, **more) for each in devices]
        self.server.claims[f"default/{name}"] = claim(*results, uid=uid, name=name)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def place(tmp_path: Path, certificates: Path) -> Iterator[Place]:
    host = node(tmp_path / "host")
    write_driver(host, CLAIMED)
    with (
        tempfile.TemporaryDirectory(prefix="dra-") as root,
        dra_api_server(tmp_path, certificates) as server,
    ):
        place = Place(host, Path(root), server)
        for name in ("plugins", "plugins_registry", "device-plugins"):
            (place.root / name).mkdir()
        yield place


@pytest.fixture
def kubelet(place: Place, dra_kubelets: DraKubelet) -> DraKubelet:
    dra_kubelets.move(place.registry)
    return dra_kubelets


def scraped(process: Logged) -> dict[tuple[str, ...], float]:
    """The agent's metrics, by name and the values of their labels, which are sorted by name."""
    text = requests.get(f"http://127.0.0.1:{process.metrics_port()}/metrics", timeout=LONG).text
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def said(process: Logged) -> str:
    return "".join(process.log)


@pytest.mark.slow
def test_a_claim_is_prepared_and_unprepared(place: Place, kubelet: DraKubelet) -> None:
    place.allocate(SECOND, FIRST)
    with place.agent_process() as process:
        kubelet.until_registered()
        place.server.until_published(FIRST, SECOND)

        answer = kubelet.prepare("one")

        device = {"request_names": ["main"], "pool_name": "n1"}
        assert answer == {
            UID: {
                "devices": [
                    {
                        **device,
                        "device_name": SECOND,
                        "cdi_device_ids": [f"nodeside.io/edu={UID}-main"],
                    },
                    {**device, "device_name": FIRST},
                ]
            }
        }
        (cdi,) = place.spec()["devices"]
        assert cdi["name"] == f"{UID}-main"
        assert cdi["containerEdits"]["env"] == [
            "ACCELERATOR_DEVICES=00:05.0,00:06.0",
            "EDU_NODES=/dev/edu0,/dev/edu1",
        ]
        assert [each["path"] for each in cdi["containerEdits"]["deviceNodes"]] == [
            "/dev/edu0",
            "/dev/edu1",
        ]
        assert kubelet.prepare("one") == answer
        assert kubelet.unprepare(UID) == {UID: {}}
        assert list(place.cdi.iterdir()) == list(place.claims.iterdir()) == []
        assert kubelet.unprepare(UID) == {UID: {}}

        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(LONG) == 0
    kubelet.until(lambda each: each.get("gone") == "edu.nodeside.io-reg.sock")
    assert place.server.devices == [FIRST, SECOND]  # the kubelet deletes them, if nobody comes back


def test_devices_are_published_with_what_is_known_of_them(
    place: Place, kubelet: DraKubelet
) -> None:
    with place.agent():
        place.server.until_published(FIRST, SECOND)
    (found,) = place.server.slices.values()
    assert found["metadata"]["ownerReferences"][0]["uid"] == "uid-of-n1"
    attributes = found["spec"]["devices"][0]["attributes"]
    assert attributes["resource"] == {"string": "example.com/edu"}
    assert attributes["resource.kubernetes.io/pciBusID"] == {"string": "0000:00:05.0"}
    assert attributes["driverVersion"] == {"version": "1.0.0"}
    assert (attributes["vendor"], attributes["device"]) == ({"string": "1234"}, {"string": "11e8"})
    assert attributes["numaNode"] == {"int": 0}


def test_an_unhealthy_device_is_not_published_and_not_given(
    place: Place, kubelet: DraKubelet
) -> None:
    liveness = next(place.host.sys.glob("devices/**/0000:00:06.0/liveness"))
    place.allocate(SECOND)
    with place.agent():
        kubelet.until_registered()
        place.server.until_published(FIRST, SECOND)
        liveness.write_text("dead\n")
        place.server.until_published(FIRST)
        why = "liveness says 'dead', not 'ok'"
        kubelet.until(lambda each: each.get("health") == {FIRST: 1, SECOND: why})

        words = "device 00:06.0 does not work: liveness says 'dead', not 'ok'"
        assert kubelet.prepare("one") == {UID: {"error": words}}
        assert list(place.claims.iterdir()) == []

        liveness.write_text("ok\n")
        place.server.until_published(FIRST, SECOND)
        assert "error" not in kubelet.prepare("one")[UID]


def test_a_driver_that_is_not_ready_has_no_devices(place: Place, kubelet: DraKubelet) -> None:
    with place.agent():
        place.server.until_published(FIRST, SECOND)
        clear_ready(place.host, "edu")
        place.server.until_published()
        assert place.server.slices == {}
        say_ready(place.host)
        place.server.until_published(FIRST, SECOND)


def test_a_device_that_comes_is_published(place: Place, kubelet: DraKubelet) -> None:
    with place.agent():
        place.server.until_published(FIRST, SECOND)
        add_edu(place.host, "0000:00:07.0", 2)
        place.server.until_published(FIRST, SECOND, THIRD)


@pytest.mark.parametrize(
    ("name", "uid", "words"),
    sampled(
        [
            ("gone", UID, '"gone" not found'),
            ("one", OTHER_UID, "is another one now"),
            ("foreign", UID, "is allocated 0 devices of edu.nodeside.io"),
            ("elsewhere", UID, "is allocated a device of 'n2', not of n1"),
            ("unknown", UID, f"this node has no device {MISSING} of edu.nodeside.io now"),
            ("one", "../../etc/passwd", "is no uid"),
            ("../x", UID, '"..%2Fx" not found'),
        ],
        4,
    ),
)
def test_a_claim_that_does_not_fit_is_explained_to_the_pod(
    place: Place, kubelet: DraKubelet, name: str, uid: str, words: str
) -> None:
    place.allocate(FIRST)
    place.allocate(FIRST, name="foreign", driver="gpu.example.com")
    place.allocate(FIRST, name="elsewhere", pool="n2")
    place.allocate(MISSING, name="unknown")
    with place.agent():
        kubelet.until_registered()
        (answer,) = kubelet.prepare(name, uid=uid).values()
        assert words in answer["error"]
        assert list(place.claims.iterdir()) == list(place.cdi.iterdir()) == []


def test_an_api_server_that_fails_is_said_and_the_next_attempt_succeeds(
    place: Place, kubelet: DraKubelet
) -> None:
    place.allocate(FIRST)
    with place.agent():
        kubelet.until_registered()
        place.server.until_published(FIRST, SECOND)
        place.server.faults.append(Fault(403, "forbidden"))
        error = kubelet.prepare("one")[UID]["error"]
        assert "this pod's service account may not get resourceclaims" in error
        assert 'resources: ["resourceclaims"], verbs: ["get"]' in error
        assert "error" not in kubelet.prepare("one")[UID]


def test_a_prepared_claim_can_do_without_the_api_server(place: Place, kubelet: DraKubelet) -> None:
    place.allocate(FIRST)
    with place.agent():
        kubelet.until_registered()
        place.server.until_published(FIRST, SECOND)
        answer = kubelet.prepare("one")
        place.server.faults.append(Fault(503, "busy"))
        assert kubelet.prepare("one") == answer


def test_a_claim_that_was_allocated_anew_gets_what_it_has_now(
    place: Place, kubelet: DraKubelet
) -> None:
    """It lives longer than its pods, and need not have been unprepared in time."""
    place.allocate(FIRST)
    with place.agent():
        kubelet.until_registered()
        kubelet.prepare("one")
        place.allocate(SECOND)
        assert kubelet.prepare("one")[UID]["devices"][0]["device_name"] == SECOND
        (cdi,) = place.spec()["devices"]
        assert [each["path"] for each in cdi["containerEdits"]["deviceNodes"]] == ["/dev/edu1"]
        place.server.claims.clear()
        assert '"one" not found' in kubelet.prepare("one")[UID]["error"]


@pytest.mark.slow
def test_what_is_prepared_survives_a_killed_agent(place: Place, kubelet: DraKubelet) -> None:
    place.allocate(FIRST)
    with place.agent_process() as process:
        kubelet.until_registered()
        answer = kubelet.prepare("one")
        process.process.kill()
        process.process.wait()
    (place.cdi / f"nodeside.io-edu_{OTHER_UID}.json").write_text("half prepared")
    after = len(kubelet.said)
    with place.agent_process():
        kubelet.until_registered(after=after)
        assert kubelet.prepare("one") == answer
        assert [path.name for path in place.cdi.iterdir()] == [f"nodeside.io-edu_{UID}.json"]
        assert kubelet.unprepare(UID) == {UID: {}}
        assert list(place.cdi.iterdir()) == []


def test_another_entry_renames_no_device(place: Place, kubelet: DraKubelet) -> None:
    """One that a claim has would be published as a new one, which nobody has."""
    place.allocate(FIRST)
    with place.agent():
        kubelet.until_registered()
        place.server.until_published(FIRST, SECOND)
        answer = kubelet.prepare("one")
    units = {"resource": "example.com/unit", "discover": {"count": 1}, "expose": "dra"}
    write_driver(place.host, CLAIMED, units)
    after = len(kubelet.said)
    with place.agent():
        kubelet.until_registered(after=after)
        place.server.until_published(FIRST, SECOND, device_name("example.com/unit", "0"))
        assert kubelet.prepare("one") == answer


def test_after_a_reboot_the_files_say_what_the_nodes_are_called_now(
    place: Place, kubelet: DraKubelet
) -> None:
    place.allocate(FIRST)
    with place.agent():
        kubelet.until_registered()
        kubelet.prepare("one")
    shutil.rmtree(place.cdi)  # below /run
    uevent = next(place.host.sys.glob("devices/**/0000:00:05.0/misc/edu0/uevent"))
    uevent.write_text("DEVNAME=edu7\n")
    after = len(kubelet.said)
    with place.agent():
        kubelet.until_registered(after=after)
        (cdi,) = place.spec()["devices"]
        assert [each["path"] for each in cdi["containerEdits"]["deviceNodes"]] == ["/dev/edu7"]


def test_a_broken_record_does_not_stop_the_agent(place: Place, kubelet: DraKubelet) -> None:
    place.claims.mkdir(parents=True)
    (place.claims / f"{UID}.json").write_text("{")
    (place.claims / f"{OTHER_UID}.json").symlink_to("/dev/zero")
    with place.agent() as process:
        kubelet.until_registered()
        assert said(process).count("a record of a claim is ignored") == 2


def test_sockets_that_vanish_come_back(place: Place, kubelet: DraKubelet) -> None:
    with place.agent():
        kubelet.until_registered()
        after = len(kubelet.said)
        for path in place.registry.iterdir():
            path.unlink()
        kubelet.until_registered(after=after)
        after = len(kubelet.said)
        shutil.rmtree(place.plugins / POOL.driver)
        kubelet.until_registered(after=after)


def test_a_kubelet_that_starts_finds_the_driver_and_the_slices_it_wiped_come_back(
    place: Place, kubelet: DraKubelet
) -> None:
    with place.agent():
        kubelet.until_registered()
        place.server.until_published(FIRST, SECOND)
        kubelet.move(place.registry)
        kubelet.until_registered()
        place.server.wipe()
        place.server.until_published(FIRST, SECOND)


def test_a_kubelet_that_does_not_take_the_driver_is_heard(
    place: Place, kubelet: DraKubelet
) -> None:
    kubelet.move(place.registry, refuses="odd versions")
    with place.agent() as process:
        kubelet.until_registered()
        place.server.until_published(FIRST, SECOND)
    assert (
        'the kubelet refused to register the driver driver=edu.nodeside.io why="odd versions"'
        in said(process)
    )


def test_a_directory_that_cannot_be_used_is_named(place: Place, kubelet: DraKubelet) -> None:
    (place.plugins / POOL.driver).write_text("a file")
    with place.agent() as process:
        process.until_said(rf"cannot serve the kubelet: .*File exists.*{POOL.driver}")
        (place.plugins / POOL.driver).unlink()
        kubelet.until_registered()


@pytest.mark.slow
def test_the_second_agent_waits_for_the_end_of_the_first(place: Place, kubelet: DraKubelet) -> None:
    with place.agent_process() as first:
        kubelet.until_registered()
        with place.agent_process() as second:
            second.until_said("another agent is the DRA driver here")
            after = len(kubelet.said)
            first.process.kill()
            kubelet.until_registered(after=after)


def test_an_api_server_without_dra_is_said_once_and_the_agent_goes_on(
    place: Place, kubelet: DraKubelet
) -> None:
    place.server.has_dra = False
    with place.agent() as process:
        kubelet.until_registered()
        kubelet.prepare("one")
        process.until_said("the API server has no resource.k8s.io/v1")
        assert "error" not in kubelet.unprepare(UID)[UID]


def test_both_ways_beside_each_other(place: Place, kubelet: DraKubelet) -> None:
    units = {"resource": "example.com/unit", "discover": {"count": 3}, "expose": "dra"}
    other = {**EDU, "resource": "example.com/other"}
    write_driver(place.host, CLAIMED, units, other)
    with place.agent():
        kubelet.until_registered()
        with place.server.changed:
            assert place.server.changed.wait_for(lambda: len(place.server.devices) == 5, LONG)
        names = [each for each in place.server.devices if each.startswith("unit-0")]
        place.allocate(*names)
        (answer,) = kubelet.prepare("one").values()
        assert answer == {
            "devices": [{"request_names": ["main"], "pool_name": "n1", "device_name": names[0]}]
        }
        assert list(place.cdi.iterdir()) == []  # a unit gives nothing


@pytest.mark.slow
def test_a_scraper_is_told_which_pods_share_the_device_of_a_claim(
    place: Place, kubelets: PlayedKubelet
) -> None:
    results = [{"driver_name": POOL.driver, "device_name": FIRST}]
    results += [{"driver_name": "gpu.example.com", "device_name": SECOND}]
    container = {"name": "main", "dynamic_resources": [{"claim_resources": results}]}
    pods = [{"name": name, "namespace": "default", "containers": [container]} for name in "ab"]
    directory = place.root / "device-plugins"
    kubelets.move(directory)
    kubelets.call(pods=pods)
    with dra_kubelet_process() as claims, place.agent(metrics_port=0) as process:
        claims.move(place.registry)
        claims.until_registered()
        place.allocate(FIRST)
        claims.prepare("one")
        claims.until(lambda each: "health" in each)
        found = scraped(process)
        claims.process.kill()
        watched = ("nodeside_device_plugin_watched", "example.com/edu")
        until(lambda: not scraped(process)[watched], "the kubelet is gone")
    resource = "example.com/edu"
    for pod in "ab":
        key = ("nodeside_device_allocated", "main", "00:05.0", "default", pod, resource)
        assert found.pop(key) == 1
    assert not any(name == "nodeside_device_allocated" for name, *_ in found)
    assert found["nodeside_device_plugin_watched", resource] == 1
    assert found["nodeside_device_plugin_registrations_total", resource] == 1
    assert found["nodeside_device_plugin_allocations_total", resource] == 1


@pytest.mark.slow
def test_ten_thousand_devices_are_published(place: Place, kubelet: DraKubelet) -> None:
    for number in range(160):
        (place.host.sys / "devices" / "odd" / f"Unit_{number}").mkdir(parents=True)
    units = {"resource": "example.com/unit", "discover": {"sysfs": ["devices/odd/*"]}}
    write_driver(place.host, {**units, "shares": 64, "expose": "dra"})
    with place.agent():
        kubelet.until_registered()
        with place.server.changed:
            assert place.server.changed.wait_for(
                lambda: len(place.server.slices) == 80 and len(place.server.devices) == 10240, LONG
            )
        names = place.server.devices[:2]
        place.allocate(*names)
        (answer,) = kubelet.prepare("one").values()
        assert [each["device_name"] for each in answer["devices"]] == names


@pytest.mark.slow
def test_a_flood_of_claims_is_answered(place: Place, kubelet: DraKubelet) -> None:
    place.allocate(FIRST)
    with place.agent():
        kubelet.until_registered()
        uids = [f"0b1c2d3e-4f50-6172-8394-{number:012x}" for number in range(5000)]
        answers = kubelet.unprepare(*uids)
        assert len(answers) == 5000
        assert sum("error" in each for each in answers.values()) == 5000 - 256
        assert "error" not in kubelet.prepare("one")[UID]


@pytest.mark.usefixtures("not_run")
def test_without_an_api_server_it_says_what_is_missing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    directory = place.root / "device-plugins"
    done = nodeside("device-agent", "-f", place.host.root, "--kubelet-directory", directory)
    assert done.code == 3
    assert "devices with expose: dra need the API server, and the name of this node" in done.error
