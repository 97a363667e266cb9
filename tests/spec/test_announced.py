"""Would an API server accept it? Labels and NodeDriver objects."""

from __future__ import annotations

from typing import Any

import pytest

from nodeside.driver.announce.documents import node_driver_document, node_labels
from nodeside.protocol.labels import state_label
from nodeside.protocol.node_status import NodeDriverStatus, Rung, State
from nodeside.spec import check_labels, check_node_driver

STATUS = NodeDriverStatus(
    driver="edu",
    node="worker-1.example.com",
    state=State.READY,
    version="1.0",
    kernel="6.1.0-40-cloud-amd64",
    boot_id="2c4a7ba8-2e9b-4d4c-9f2e-1d2f3a4b5c6d",
    source=Rung.BUILT,
    modules=("edu",),
    stages={"build": 3.5, "load": 1},
)


def test_what_a_node_announces_is_acceptable() -> None:
    assert check_labels(node_labels(STATUS)) == []
    assert check_node_driver(node_driver_document(STATUS, node_uid="1")) == []


@pytest.mark.parametrize("state", State)
def test_every_state_is_a_label_value(state: State) -> None:
    assert check_labels({state_label("edu"): state.value}) == []


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            {"nodeside.io/edu.state": "6.12.107+deb12"},
            (
                'label "nodeside.io/edu.state": expected at most 63 letters, digits and _.-, a '
                'letter or digit at both ends, got "6.12.107+deb12"'
            ),
        ),
        (
            {"edu.state": "ready"},
            'label "edu.state": a node may only set labels that begin with nodeside.io/',
        ),
        (
            {f"nodeside.io/{'x' * 64}": "ready"},
            (
                f'label "nodeside.io/{"x" * 64}": the part after / has at most 63 letters, digits '
                "and _.-, a letter or digit at both ends"
            ),
        ),
        (
            {"nodeside.io/edu.state": "ready\n"},
            (
                'label "nodeside.io/edu.state": expected at most 63 letters, digits and _.-, a '
                'letter or digit at both ends, got "ready\\n"'
            ),
        ),
    ],
)
def test_a_bad_label_is_explained(found: dict[str, str], sentence: str) -> None:
    assert check_labels(found) == [sentence]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"kind": "Driver"}, '$.kind: expected NodeDriver, got "Driver"'),
        (
            {"metadata": {"name": "Edu"}},
            (
                "$.metadata.name: expected <driver>.<node>, a DNS name of at most 253 characters, "
                'got "Edu"'
            ),
        ),
        ({"status": None}, "$.status: expected a mapping, got nothing"),
    ],
)
def test_a_bad_node_driver_is_explained(change: dict[str, Any], sentence: str) -> None:
    assert check_node_driver(node_driver_document(STATUS) | change) == [sentence]


def test_a_bad_status_is_explained() -> None:
    document = node_driver_document(STATUS)
    document["status"] |= {"state": "happy", "stages": {"build": "3"}, "extra": 1}
    del document["status"]["bootId"]
    assert sorted(check_node_driver(document)) == [
        "$.status.bootId: is missing",
        (
            "$.status.extra: unknown field; known fields: driver, node, state, version, kernel, "
            "bootId, reason, message, hint, source, key, revision, toolkit, modules, stages, "
            "services, parameters, conditions"
        ),
        '$.status.stages.build: expected a number, got "3"',
        (
            "$.status.state: expected one of waiting, building, loading, ready, failed, unloading, "
            'reboot-required, got "happy"'
        ),
    ]


def test_something_else_is_no_node_driver() -> None:
    assert check_node_driver([]) == ["$: expected a mapping, got a list"]
