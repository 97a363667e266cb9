"""The lab's network, for real: it takes root, and the kernel's bridge, veth and tun."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from nodeside.errors import Locked
from nodeside.system import process
from tests.lab.lab import only_lab
from tests.lab.network import HOST, Network, address, pods, routes
from tests.patience import patience

pytestmark = pytest.mark.vm

_TIMEOUT = patience(60.0)  # seconds
_HOLDS_A_LAB = """\
from tests.lab.lab import only_lab
from tests.lab.network import Network
import signal
with only_lab(), Network() as network:
    network.cable(1)
    print("ready", flush=True)
    signal.pause()
"""


def _links() -> dict[str, dict[str, str]]:
    """Of the namespace, by name."""
    done = process.run(["ip", "-netns", "nodeside-lab", "-json", "link"], timeout=_TIMEOUT)
    return {each["ifname"]: each for each in json.loads(done.output)}


def test_a_cable_is_in_the_bridge_until_it_is_pulled_and_lives_as_its_descriptor() -> None:
    with only_lab(), Network() as network:
        cable = network.cable(1)
        assert _links()["tap-1"]["master"] == "lab"
        network.plug(1, into=False)
        assert "UP" not in _links()["tap-1"]["flags"]
        network.plug(1, into=True)
        assert "UP" in _links()["tap-1"]["flags"]
        os.close(cable.descriptor)
        assert "tap-1" not in _links()


def test_the_host_is_in_the_network_and_nothing_is_left_of_it_afterwards() -> None:
    with only_lab(), Network():
        said = process.run(["ip", "address", "show", "nodeside-lab"], timeout=_TIMEOUT).output
        assert f"{HOST}/24" in said
    assert not Path("/sys/class/net/nodeside-lab").exists()
    assert not Path("/run/netns/nodeside-lab").exists()


def test_a_node_has_routes_to_the_pods_of_all_others() -> None:
    assert pods(3) not in routes(3)
    assert routes(3)[pods(1)] == address(1)


def test_what_a_killed_lab_leaves_is_removed_by_the_next(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as output:
        child = process.start([sys.executable, "-c", _HOLDS_A_LAB], stdout=output)
    while log.read_text() != "ready\n":
        assert child.poll() is None
    with pytest.raises(Locked, match="another lab runs"), only_lab():
        pass
    child.send_signal(signal.SIGKILL)
    child.wait(_TIMEOUT)
    assert Path("/run/netns/nodeside-lab").exists()
    with only_lab(), Network():
        assert "tap-1" not in _links()
