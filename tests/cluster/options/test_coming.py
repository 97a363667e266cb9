"""Builds before the reboot: which toolkits are of systems that are still to come to a node.

The versions are those that OpenShift and OKD give their CoreOS, and the image stream
openshift/driver-toolkit keeps every tag that a release ever brought.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from cluster.model.actions import Apply
from cluster.model.snapshot import ImageStream, ToolkitLabels
from tests.cluster.fakes.model import Model

STREAM = "openshift/driver-toolkit"
STORE = {"oci": "registry.example.com/bundles/edu", "publish": True}
_TOOLKIT = re.compile(r'"quay\.example\.com/dtk:([^"]*)"')

V416, V417, V418 = "416.94.202407081958-0", "417.94.202411261619-0", "418.94.202501221327-0"
V419, V420, V420_LATER = "9.6.20250530-0", "9.6.20250916-0", "9.6.20251023-0"
V422, V422_LATER = "9.8.20260808-0", "9.8.20260915-0"
RHEL_10, RHEL_10_LATER = "10.2.20260622-0", "10.2.20260924-0"
TWO_STREAMS = ("latest", V422, V422_LATER, "latest-rhel-10", RHEL_10, RHEL_10_LATER)


def cluster(systems: dict[str, str], *tags: str, **spec: Any) -> Model:
    """A cluster with a node for each system, which is `osImage`: kernel release."""
    model = Model(image_streams=stream(*tags))
    for number, (os_image, kernel) in enumerate(systems.items()):
        model.add([f"n{number}"], os_image=os_image, kernel=kernel)
    fields: dict[str, Any] = {"prebuilt": {"sources": [STORE]}, "toolkit": {"imageStream": STREAM}}
    model.apply_driver(**fields, **spec)
    return model


def stream(*tags: str) -> dict[str, ImageStream]:
    return {STREAM: ImageStream(STREAM, {tag: f"quay.example.com/dtk:{tag}" for tag in tags})}


def rhcos(*versions: str) -> dict[str, str]:
    kernels = {version: f"5.14.0-{n}.el9_6.x86_64" for n, version in enumerate(versions)}
    return {f"Red Hat Enterprise Linux CoreOS {v} (Plow)": k for v, k in kernels.items()}


def built(model: Model) -> list[str]:
    """The tags whose toolkits are built with, once for each Job."""
    jobs = [json.dumps(a.document) for a in model.plan().actions if isinstance(a, Apply)]
    found = [set(_TOOLKIT.findall(job)) for job in jobs if '"kind": "Job"' in job]
    assert all(len(tags) == 1 for tags in found)
    return sorted(tag for tags in found for tag in tags)


@pytest.mark.parametrize(
    ("runs", "tags", "coming"),
    [
        (V418, [V418, V419, V420], [V419, V420]),
        (V418, [V416, V417, V418, V419], [V419]),
        (V420, [V416, V417, V418, V419, V420], []),
        (V420, [V416, V417, V418, V419, V420, V420_LATER], [V420_LATER]),
        ("46.82.202010091720-0", ["46.82.202010091720-0", "47.83.202102090044-0"], ["47.83.2021"]),
        ("49.84.202212201621-0", ["49.84.202212201621-0", "410.84.202301241128-0"], ["410.84"]),
        ("412.86.202306132230-0", ["412.86.202306132230-0", "413.92.202307260246-0"], []),
        (V422, TWO_STREAMS, [V422_LATER]),
        (V422_LATER, TWO_STREAMS, []),
        (RHEL_10, TWO_STREAMS, [RHEL_10_LATER]),
        ("9.6.20250826-0", ["9.6.20250826-0", "9.6.20250826-1"], ["9.6.20250826-1"]),
        ("418.9.202504250632-0", ["418.9.202504250632-0", "9.0.20250827-0"], ["9.0.20250827-0"]),
        ("9.0.20250827-0", ["9.0.20250827-0", "10.0.20260307-0"], []),
    ],
)
def test_a_tag_is_coming_if_it_is_of_the_same_rhel_and_of_a_later_day(
    runs: str, tags: list[str], coming: list[str]
) -> None:
    model = cluster(rhcos(runs), *tags)

    found = built(model)

    assert runs in found
    found.remove(runs)
    assert len(found) == len(coming)
    assert all(tag.startswith(begin) for tag, begin in zip(found, sorted(coming), strict=True))


# What runs, what the release brings into the image stream, and what is built before the reboot.
# From one release with extended support to the next, the nodes reboot once: their pool is paused.
# The image stream keeps all tags, so a release in between is built for as long as it may come.
V414, V415 = "414.92.202310210434-0", "415.92.202402130021-0"
V50, V50_RHEL_10 = "9.8.20261102-0", "10.2.20261102-0"
EUS_TO_EUS = [
    (V414, [V414], []),
    (V414, [V415], [V415]),
    (V414, [V416], [V415, V416]),
    (V416, [], []),
    (V416, [V417], [V417]),
    (V416, [V418], [V417, V418]),
    (V418, [], []),
    (V418, [V419], [V419]),
    (V418, [V420], [V419, V420]),
    (V420, [], []),
    (V420, ["latest", "latest-rhel-10", V422, RHEL_10], [V422]),
    (V420, [V50, V50_RHEL_10], [V422, V50]),
    (V50, [], []),
    (V50_RHEL_10, [], []),  # the pool has chosen the other stream of the same release
    (V50_RHEL_10, [V422_LATER, RHEL_10_LATER], []),  # an older release's, tagged late
]


def test_from_eus_to_eus_each_step_has_its_toolkits_built_before_the_reboot() -> None:
    tags: list[str] = []
    for runs, brought, coming in EUS_TO_EUS:
        tags += brought
        model = cluster(rhcos(runs), *tags)

        assert built(model) == sorted([runs, *coming]), (runs, brought)


@pytest.mark.parametrize(
    ("runs", "tags", "coming"),
    [
        (  # OKD: CentOS Stream 9 in both forms, then 10
            "CentOS Stream CoreOS 416.9.202407021215-0",
            ["416.9.202407021215-0", "418.9.202504250632-0", "9.0.20250827-0", "10.0.20260307-0"],
            ["418.9.202504250632-0", "9.0.20250827-0"],
        ),
        (
            "CentOS Stream CoreOS 10.0.20260307-0",
            ["9.0.20260401-0", "10.0.20260307-0", "10.0.20260401-0"],
            ["10.0.20260401-0"],
        ),
        (  # a layered image: its release, with a kernel of its own
            f"Red Hat Enterprise Linux CoreOS {V418}",
            [V418, V419],
            [V419],
        ),
        (
            f"Red Hat Enterprise Linux CoreOS {V422} (Plow)",
            ["", V422, V422_LATER],
            [V422_LATER],
        ),
    ],
)
def test_okd_and_layered_images_have_their_next_toolkit_built(
    runs: str, tags: list[str], coming: list[str]
) -> None:
    model = cluster({runs: "5.14.0-570.77.1.el9_6.x86_64"}, *tags)

    assert built(model) == sorted([next(tag for tag in tags if tag and tag in runs), *coming])


@pytest.mark.parametrize(
    "tag",
    [
        "latest",
        "latest-rhel-10",
        "0.0.1-snapshot-machine-os",
        "418.94.999999",
        "418.94.20250122132799-0",
        "9.6.99999999999999999999-0",
        f"9.6.20260101-{'9' * 5000}",
        f"{'9' * 5000}.6.20260101-0",
        "9.6.\uff12\uff10\uff12\uff16\uff10\uff11\uff10\uff11-0",
        "9.6.²0260101-0",
        "9.6.20260101-0\n",
        "99.20260101-0",
        "",
    ],
)
def test_a_tag_that_is_no_version_is_never_coming(tag: str) -> None:
    assert built(cluster(rhcos(V418), V418, tag)) == [V418]


def test_nodes_of_two_rhels_have_each_their_own_coming_toolkit_built() -> None:
    model = cluster(rhcos(V422, RHEL_10), *TWO_STREAMS)

    assert built(model) == sorted([V422, V422_LATER, RHEL_10, RHEL_10_LATER])


def test_another_rhel_is_built_for_if_somebody_asks() -> None:
    model = cluster(rhcos(V422), *TWO_STREAMS, preflight=[{"osVersion": RHEL_10_LATER}])

    assert built(model) == sorted([V422, V422_LATER, RHEL_10_LATER])


def test_nodes_that_stay_behind_have_the_system_of_the_others_built_for_their_variant() -> None:
    systems = rhcos(V418) | {f"Red Hat Enterprise Linux CoreOS {V417}": "5.14.0-9.el9_4.x86_64+rt"}
    model = cluster(systems, V417, V418)

    assert built(model) == [V417, V418, V418]  # the last with its real-time kernel


def test_a_node_whose_system_has_no_version_runs_the_tag_of_its_image() -> None:
    model = cluster(rhcos(V418), V417, V418, V419)
    kernel = model.nodes["n0"].kernel
    model.change("n0", os_image="Red Hat Enterprise Linux 9.4 (Plow)")
    model.toolkit_labels[f"quay.example.com/dtk:{V418}"] = ToolkitLabels(kernel)

    assert built(model) == sorted([V418, V419])


def test_only_the_two_newest_are_built_for() -> None:
    model = cluster(rhcos(V416), V416, V417, V418, V419, V420)

    assert built(model) == sorted([V416, V419, V420])
