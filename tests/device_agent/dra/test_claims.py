"""What a claim was allocated, and its CDI specification."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from nodeside.device_agent.allocation import ContainerGrant
from nodeside.device_agent.dra.claims import (
    AllottedDevice,
    Claim,
    ClaimUnfit,
    Edits,
    cdi_kind,
    cdi_spec,
    read_claim,
)
from nodeside.spec.devices import Mount
from tests.device_agent.dra.documents import OTHER_UID, POOL, UID, claim, result

FIRST, SECOND = "edu-00-06-0-47d5b5925eb3", "edu-00-07-0-b18c0f2d66a1"  # devices


def read(document: Any, uid: str = UID) -> Claim:
    return read_claim(
        document, uid=uid, namespace="default", name="one", driver=POOL.driver, pool=POOL.node
    )


def test_only_our_devices_are_taken_from_a_claim() -> None:
    found = read(
        claim(
            result(FIRST),
            result("other", driver="gpu.example.com"),
            result(SECOND, "fast/second"),
        )
    )
    assert found == Claim(
        UID,
        "default",
        "one",
        (
            AllottedDevice("main", FIRST),
            AllottedDevice("fast", SECOND),
        ),
    )
    assert found.by_request == {
        "main": [FIRST],
        "fast": [SECOND],
    }


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (
            claim(result("a"), uid=OTHER_UID),
            f"ResourceClaim default/one is another one now: its uid is {OTHER_UID}, not {UID}",
        ),
        (claim(), "ResourceClaim default/one is not allocated"),
        (
            claim(result("a", driver="gpu.example.com")),
            "ResourceClaim default/one is allocated 0 devices of edu.nodeside.io; expected",
        ),
        (
            claim(*[result("a")] * 300),
            "ResourceClaim default/one is allocated 300 devices of edu.nodeside.io; expected",
        ),
        (
            claim(result("a", pool="n2")),
            "ResourceClaim default/one is allocated a device of 'n2', not of n1",
        ),
        (claim(result("../../etc")), "'../../etc' is no DNS label"),
        (claim(result("a", request="A=B\n")), "'A=B\\n' is no DNS label"),
        (claim(result("x" * 64)), f"'{'x' * 64}' is no DNS label"),
    ],
)
def test_a_claim_that_does_not_fit_is_explained(document: Any, words: str) -> None:
    with pytest.raises(ClaimUnfit) as error:
        read(document)
    assert str(error.value).removesuffix(" 1 to 256") == words


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["metadata", "status", "allocation", "devices", "results", "driver", "uid"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=20,
)


@examples(document=st.dictionaries(st.sampled_from(["metadata", "status"]), JSON), results=JSON)
def test_whatever_the_api_server_says_is_a_claim_or_an_error(document: Any, results: Any) -> None:
    allocated = {"metadata": {"uid": UID}}
    allocated |= {"status": {"allocation": {"devices": {"results": results}}}}  # type: ignore[dict-item]
    for each in (document, allocated):
        with pytest.raises(ClaimUnfit):
            read(each)


def test_a_request_is_a_cdi_device_with_what_the_device_plugin_would_give() -> None:
    mounts = (Mount("/opt/edu"), Mount("/run/edu.sock", "/run/accelerator", read_only=False))
    given = ContainerGrant(("/dev/edu0", "/dev/edu1"), {"EDU_NODES": "/dev/edu0,/dev/edu1"})
    one = Claim(UID, "default", "one", (AllottedDevice("main", "a"), AllottedDevice("main", "b")))

    assert cdi_spec("nodeside.io/edu", one, {"main": Edits(((given, mounts),))}) == {
        "cdiVersion": "0.5.0",
        "kind": "nodeside.io/edu",
        "devices": [
            {
                "name": f"{UID}-main",
                "containerEdits": {
                    "env": ["EDU_NODES=/dev/edu0,/dev/edu1"],
                    "deviceNodes": [
                        {"path": "/dev/edu0", "permissions": "rw"},
                        {"path": "/dev/edu1", "permissions": "rw"},
                    ],
                    "mounts": [
                        {
                            "hostPath": "/opt/edu",
                            "containerPath": "/opt/edu",
                            "options": ["rbind", "rprivate", "ro"],
                        },
                        {
                            "hostPath": "/run/edu.sock",
                            "containerPath": "/run/accelerator",
                            "options": ["rbind", "rprivate", "rw"],
                        },
                    ],
                },
            }
        ],
    }


def test_a_request_that_gives_nothing_is_no_cdi_device() -> None:
    one = Claim(UID, "default", "one", (AllottedDevice("main", "a"),))
    assert (
        cdi_spec("nodeside.io/edu", one, {"main": Edits(((ContainerGrant((), {}), ()),))}) is None
    )


@pytest.mark.parametrize(
    ("driver", "kind"), [("edu", "nodeside.io/edu"), ("3c59x", "nodeside.io/driver_3c59x")]
)
def test_a_kind_is_one_that_cdi_takes(driver: str, kind: str) -> None:
    assert cdi_kind(driver) == kind
