"""What is kept of the API server's objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest

from cluster.model import parse
from cluster.model.actions import EmitEvent
from cluster.model.names import STAGE_LABEL
from cluster.model.parse import (
    daemonset_from,
    driver_from,
    image_stream_from,
    node_driver_from,
    node_from,
    revision_from,
)
from cluster.model.parse_pods import CREATING, PULLING, build_pod_from, pod_from
from cluster.model.snapshot import DriverPod, Pool
from cluster.model.waiting import Waiting
from cluster.reconcile.executor import event_document
from nodeside.driver.announce.documents import node_driver_document
from nodeside.protocol.node_status import REPORT_TEXT, NodeDriverStatus, Rung, ServiceStatus, State
from tests.cluster.fakes.model import document

NODE: dict[str, Any] = {
    "metadata": {
        "name": "n1",
        "uid": "u1",
        "labels": {"a": "b"},
        "annotations": {"long": "x" * 99},
        "managedFields": [
            {"manager": "kubelet", "time": "2027-01-15T08:00:09Z"},
            {"manager": "nodeside-cluster", "time": "2027-01-15T08:00:02Z"},
        ],
    },
    "spec": {"unschedulable": True},
    "status": {
        "nodeInfo": {
            "architecture": "amd64",
            "bootID": "b1",
            "kernelVersion": "6.1.0-50-amd64",
            "osImage": "Debian GNU/Linux 12 (bookworm)",
        },
        "conditions": [
            {"type": "MemoryPressure", "status": "False"},
            {"type": "Ready", "status": "True", "lastTransitionTime": "2027-01-15T08:00:00Z"},
        ],
        "images": [{"names": ["x"]}] * 50,
    },
}


def test_of_a_node_only_what_is_read_is_kept() -> None:
    node = node_from(NODE)

    assert (node.name, node.uid, node.labels) == ("n1", "u1", {"a": "b"})
    assert (node.architecture, node.boot_id, node.kernel) == ("x86_64", "b1", "6.1.0-50-amd64")
    assert node.os_image == "Debian GNU/Linux 12 (bookworm)"
    assert node.ready
    assert (node.ready_since, node.labelled) == (1_800_000_000.0, 1_800_000_002.0)


def test_of_what_a_node_offers_extended_resources_are_kept() -> None:
    offers = {"cpu": "2", "example.com/edu": "2", "example.com/share": "10k", "a.example/b": 3}
    odd = {
        "example.com/odd": "many",
        "example.com/list": [],
        "kubernetes.io/x": "1",
        "a/b": "1500m",
    }
    long = {"example.com/long": "9" * 10_000}
    node = node_from({"status": {"allocatable": {**offers, **odd, **long}}})
    assert node.allocatable == {
        "example.com/edu": 2,
        "example.com/share": 10_000,
        "a.example/b": 3,
        "a/b": 1,
    }
    absurd = {"example.com/edu": "9" * 60, "example.com/less": "-1"}
    assert node_from({"status": {"capacity": absurd}}).capacity == {
        "example.com/edu": 1 << 32,  # what the API server takes in a status, on every node
        "example.com/less": 0,
    }
    many = {f"example.com/r{number}": "1" for number in range(10_000)}
    assert len(node_from({"status": {"allocatable": many}}).allocatable) == 256
    assert node_from({"status": {"allocatable": "all"}}).allocatable == {}


def test_when_we_labelled_a_node_is_known_though_many_have_updated_it_since() -> None:
    folded = [
        {"manager": "kubelet", "operation": "Update", "time": "2027-01-15T08:00:09Z"},
        {"manager": "ancient-changes", "operation": "Update", "time": "2027-01-15T08:00:03Z"},
    ]

    node = node_from({**NODE, "metadata": {**NODE["metadata"], "managedFields": folded}})

    assert node.labelled == 1_800_000_003.0


@pytest.mark.parametrize(
    "kind", ["amd64 x86_64", "arm64 aarch64", "ppc64le ppc64le", "s390x s390x"]
)
def test_an_architecture_is_a_word_of_uname(kind: str) -> None:
    go, uname = kind.split()

    assert node_from({"status": {"nodeInfo": {"architecture": go}}}).architecture == uname


@pytest.mark.parametrize("told", ["x86_64~", "-x", "x_", "X", "a.b", "a" * 33, "", None])
def test_what_can_be_no_architecture_is_not_told_and_nothing_is_built_for_it(told: Any) -> None:
    """As a node selector the API server would refuse it, again and again."""
    info = {"architecture": told, "kernelVersion": "6.1.0-50-amd64"}

    found = node_from({"status": {"nodeInfo": info}})

    assert (found.architecture, found.kernel) == ("", "")


@pytest.mark.parametrize("read", [node_from, daemonset_from, pod_from, revision_from])
def test_an_object_that_lacks_everything_is_read(read: Any) -> None:
    assert read({"metadata": {"name": "x"}}).name == "x"


def test_a_node_that_is_unknown_is_not_ready() -> None:
    unknown = [{"type": "Ready", "status": "Unknown"}]

    assert not node_from({"status": {"conditions": unknown}}).ready
    assert not node_from({}).ready


def test_a_driver_with_mistakes_has_them_in_words() -> None:
    found = driver_from(document(modules=[{}]))

    assert found.driver is None
    assert found.mistakes.startswith("driver edu: $.spec.modules")


def test_a_driver_that_a_bug_of_ours_cannot_read_is_still_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(parse, "parse", broken)

    found = driver_from(document())

    assert (found.name, found.uid, found.driver) == ("edu", "uid-edu", None)
    assert "a bug in nodeside" in found.mistakes


def test_a_driver_tells_whether_it_goes_and_who_holds_it() -> None:
    written = document()
    written["metadata"] |= {
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "finalizers": ["nodeside.io/driver"],
        "creationTimestamp": "2025-01-01T00:00:00Z",
        "generation": 7,
        "annotations": {"nodeside.io/retry": "n1=2026-01-01T00:00:00Z,what is no order"},
    }
    written["status"] = {"lastGoodRevision": "r"}

    found = driver_from(written)

    assert (found.deleting, found.finalizers, found.generation) == (
        True,
        ("nodeside.io/driver",),
        7,
    )
    assert found.retries == (("n1", 1767225600.0),)
    assert (found.created, found.status) == ("2025-01-01T00:00:00Z", {"lastGoodRevision": "r"})
    assert found.driver is not None


def test_what_the_node_writes_is_what_the_controller_reads() -> None:
    status = NodeDriverStatus(
        driver="edu",
        node="n1.example.com",
        state=State.FAILED,
        version="1.0.0",
        kernel="6.1.0-50-amd64",
        boot_id="b1",
        reason="BuildFailed",
        message="edu.c:7: error",
        hint="mend it",
        source=Rung.BUILT,
        revision="0123456789ab",
    )

    found = node_driver_from(node_driver_document(status, node_uid="u1"))

    assert found is not None
    assert found.name == "edu.n1.example.com"
    assert (found.driver, found.node, found.state) == ("edu", "n1.example.com", "failed")
    assert (found.boot_id, found.kernel, found.revision) == ("b1", "6.1.0-50-amd64", "0123456789ab")
    assert (found.reason, found.message, found.hint) == ("BuildFailed", "edu.c:7: error", "mend it")
    assert (found.source, found.version) == ("built", "1.0.0")


def test_what_a_node_says_of_services_is_a_line_for_each() -> None:
    rows = (
        ServiceStatus("monitor", ready=True),
        ServiceStatus("exporter", ready=False, restarts=3, message="ended: exit code 1\nno\x1b[2J"),
        ServiceStatus("late", ready=False, restarts=1, message="it starts"),
    )
    status = NodeDriverStatus("edu", "n1", State.FAILED, "1", "6.1", "b1", services=rows)
    found = node_driver_from(node_driver_document(status))
    assert found is not None
    assert found.services == (
        "monitor: ready",
        "exporter: not ready, started again 3 times: ended: exit code 1",
        "late: not ready, started again once: it starts",
    )


@pytest.mark.parametrize(
    ("services", "kept"),
    [
        ("monitor", 0),
        (["monitor", None, 7], 0),
        ([{"name": ["x"], "restarts": "many", "ready": "true", "message": {}}], 1),
        ([{"name": "x" * 5000, "message": "y" * 5000}] * 100, 16),
    ],
)
def test_odd_services_are_no_more_than_odd_lines(services: object, kept: int) -> None:
    found = node_driver_from({"metadata": {"name": "edu.n1"}, "status": {"services": services}})
    assert found is not None
    assert len(found.services) == kept
    assert all(len(line) < 3 * REPORT_TEXT for line in found.services)


def test_a_report_that_nobody_filled_in_belongs_to_the_node_in_its_name() -> None:
    found = node_driver_from({"metadata": {"name": "edu.n1.example.com"}})

    assert found is not None
    assert (found.driver, found.node, found.state) == ("edu", "n1.example.com", "")


def test_of_whom_a_report_speaks_its_name_says_and_no_word_of_its_own() -> None:
    status = {"driver": "other", "node": "n2"}
    found = node_driver_from({"metadata": {"name": "edu.n1"}, "status": status})

    assert found is not None
    assert (found.driver, found.node) == ("edu", "n1")
    for name in ("edu", "edu.", ".n1", "Edu.n1", f"{'e' * 41}.n1", "e_du.n1"):
        assert node_driver_from({"metadata": {"name": name}}) is None


def test_of_a_long_report_no_more_is_kept_than_a_node_of_ours_writes() -> None:
    texts = ("state", "bootId", "kernel", "revision", "version", "source", "toolkit", "reason")
    status = dict.fromkeys((*texts, "message", "hint"), "x" * 32768)
    found = node_driver_from({"metadata": {"name": "edu.n1"}, "status": status})

    assert found is not None
    kept = [getattr(found, each.name) for each in fields(found) if each.name != "time"]
    assert max(map(len, kept)) == REPORT_TEXT


@pytest.mark.parametrize(
    "odd", ["5.14/../../evil", "5.14@sha256:0", "5.14:latest", "6" * 65, "a b"]
)
def test_what_can_be_no_kernel_is_not_told_and_comes_into_no_pull_spec(odd: str) -> None:
    info = {"kernelVersion": odd, "architecture": odd, "osImage": "x" * 5000, "bootID": "b" * 5000}
    node = node_from({"metadata": {"name": "n1"}, "status": {"nodeInfo": info}})

    assert (node.kernel, node.architecture) == ("", "")
    assert len(node.os_image) == len(node.boot_id) == REPORT_TEXT


def test_what_a_node_says_moves_no_cursor_of_a_terminal() -> None:
    status = {"message": "\x1b[2Jready\nline 2\tx\x07\u202eoy", "reason": "\r\x9b"}
    found = node_driver_from({"metadata": {"name": "edu.n1"}, "status": status})

    assert found is not None
    assert found.message == "\ufffd[2Jready\nline 2\tx\ufffd\ufffdoy"
    assert found.reason == "\ufffd\ufffd"


def test_what_a_kubelet_says_of_a_pod_moves_no_cursor_either() -> None:
    waiting = {"name": "a\x1b", "state": {"waiting": {"reason": "b\x1b"}}}
    ended = {"name": "c\x1b", "state": {"terminated": {"exitCode": 1, "reason": "d\x1b"}}}
    status = {"containerStatuses": [waiting, ended]}

    assert pod_from({"status": status}).waiting == {"a\ufffd": Waiting("b\ufffd")}
    assert build_pod_from({"status": status}).ended == "c\ufffd: d\ufffd, exit code 1"


def test_a_pod_tells_why_its_containers_wait() -> None:
    waiting = {"reason": "ImagePullBackOff", "message": "manifest unknown"}
    found = pod_from(
        {
            "metadata": {
                "name": "edu-x-1",
                "namespace": "nodeside",
                "labels": {"nodeside.io/driver": "edu"},
                "ownerReferences": [{"kind": "DaemonSet", "name": "edu-0123456789ab"}],
            },
            "spec": {"nodeName": "n1"},
            "status": {
                "containerStatuses": [
                    {"name": "driver", "state": {"running": {}}},
                    {"name": "toolkit", "state": {"waiting": waiting}},
                ],
                "initContainerStatuses": [
                    {"name": "provide", "state": {"waiting": {"reason": "PodInitializing"}}}
                ],
            },
        }
    )

    assert isinstance(found, DriverPod)
    assert (found.driver, found.node, found.daemonset) == ("edu", "n1", "edu-0123456789ab")
    assert found.waiting == {"toolkit": Waiting("ImagePullBackOff", "manifest unknown")}


_CREATED = {"name": "driver", "state": {"waiting": {"reason": "ContainerCreating"}}}
_INITIALIZED = {"name": "driver", "state": {"waiting": {"reason": "PodInitializing"}}}
_PROVIDE = {"name": "provide", "state": {"waiting": {"reason": "PodInitializing"}}}
_RUNS = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
_ENDED = {"terminated": {"exitCode": 0}}


@pytest.mark.parametrize(
    ("inits", "containers", "is_set_up", "creating"),
    [
        ([], [], None, ""),
        ([], [_CREATED], None, CREATING),
        ([], [_CREATED], False, CREATING),
        ([], [_CREATED], True, PULLING),
        ([], [_CREATED | {"state": _RUNS}], True, ""),
        ([], [_CREATED | {"state": _RUNS}, _CREATED | {"name": "toolkit"}], True, PULLING),
        ([_PROVIDE], [_INITIALIZED], True, PULLING),
        ([_PROVIDE | {"state": _RUNS}], [_INITIALIZED], True, ""),
        ([_PROVIDE | {"state": _ENDED}], [_INITIALIZED], True, PULLING),
        ([], [{"name": "driver", "state": {"waiting": {"reason": "ErrImagePull"}}}], True, ""),
    ],
)
def test_what_a_kubelet_does_before_a_pod_runs(
    inits: list[dict[str, Any]],
    containers: list[dict[str, Any]],
    is_set_up: bool | None,
    creating: str,
) -> None:
    condition = {"type": "PodReadyToStartContainers", "status": str(is_set_up)}
    status = {
        "initContainerStatuses": inits,
        "containerStatuses": containers,
        "conditions": [] if is_set_up is None else [condition],
    }

    found = pod_from({"status": status})

    assert isinstance(found, DriverPod)
    assert found.creating == creating


@pytest.mark.parametrize(
    ("name", "code", "labels", "is_reported"),
    [
        ("toolkit", 137, {}, False),
        ("toolkit", 1, {}, True),
        ("driver", 137, {}, True),
        ("toolkit", 137, {STAGE_LABEL: "runtime"}, True),
    ],
)
def test_a_toolkit_that_was_killed_is_left_to_the_driver(
    name: str, code: int, labels: Mapping[str, str], is_reported: bool
) -> None:
    """It builds again with fewer jobs; a stage's container of that name is something else."""
    container = {
        "name": name,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": code}},
    }
    pod = {"metadata": {"labels": labels}, "status": {"containerStatuses": [container]}}

    assert (name in pod_from(pod).waiting) == is_reported


def test_of_the_containers_that_a_kubelet_reports_few_are_kept() -> None:
    """There may be thousands, with any name: the API server does not compare them with the pod."""
    every = [
        {"name": f"{i:04}" * 25, "state": {"waiting": {"reason": "ErrImagePull"}}}
        for i in range(1000)
    ]
    found = pod_from({"metadata": {"name": "p"}, "status": {"containerStatuses": every}})

    assert len(found.waiting) == 64
    assert max(map(len, found.waiting)) == 63


def test_a_pod_without_a_place_belongs_to_the_node_that_it_is_pinned_to() -> None:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    found = pod_from(
        {
            "metadata": {"name": "p"},
            "spec": {"affinity": {"nodeAffinity": required}},
            "status": {"conditions": [{**condition, "message": "Insufficient cpu"}]},
        }
    )

    assert found.node == "n1"
    assert found.waiting == {"pod": Waiting("Unschedulable", "Insufficient cpu")}


def test_tags_without_a_name_or_a_pull_spec_are_none() -> None:
    tags = [
        {"name": "", "from": {"kind": "DockerImage", "name": "quay.io/a"}},
        {"name": "latest", "from": {"kind": "ImageStreamTag", "name": "other:latest"}},
        {"name": "9.6.20260616-0", "from": {"kind": "DockerImage", "name": "quay.io/b"}},
        {"name": "annotated"},
    ]
    metadata = {"namespace": "openshift", "name": "driver-toolkit"}

    found = image_stream_from({"metadata": metadata, "spec": {"tags": tags}})

    assert found.name == "openshift/driver-toolkit"
    assert found.tags == {"9.6.20260616-0": "quay.io/b"}


def test_a_daemonset_tells_when_anybody_was_at_work_on_it() -> None:
    document = {
        "metadata": {
            "name": "edu-0123456789ab",
            "deletionTimestamp": "now",
            "managedFields": [
                {"manager": "kube-controller-manager", "time": "2027-01-15T08:00:09Z"},
                {"manager": "nodeside-cluster", "time": "2027-01-15T08:00:02Z"},
            ],
        },
        "status": {"desiredNumberScheduled": 3, "numberReady": 2},
    }

    found = daemonset_from(document)

    assert (found.touched, found.deleting) == (1_800_000_009.0, True)
    assert found.assignment == "0123456789ab"
    assert found.pool == Pool("", "", "")


def test_a_count_of_pods_or_a_later_time_is_no_change_that_wakes_anybody() -> None:
    before = {"metadata": {"name": "edu-1", "managedFields": [{"time": "2027-01-15T08:00:09Z"}]}}
    after = {
        "metadata": {"name": "edu-1", "managedFields": [{"time": "2027-01-15T08:00:10Z"}]},
        "status": {"numberReady": 1},
    }

    assert daemonset_from(before) == daemonset_from(after)


def test_an_event_names_the_driver_and_fits() -> None:
    say = EmitEvent("edu", "u1", True, "RolloutStopped", "é" * 2000)

    made = event_document(say, now=1.5, instance="controller-1")

    assert made["regarding"]["name"] == "edu"
    assert made["type"] == "Warning"
    assert made["eventTime"] == "1970-01-01T00:00:01.500000Z"
    assert len(made["note"].encode()) <= 1024


def test_a_driver_is_read_though_its_metadata_have_a_field_of_a_later_kubernetes() -> None:
    later = document()
    later["metadata"]["someFieldOfLater"] = {"x": 1}

    found = driver_from(later)

    assert found.mistakes == ""
    assert found.driver is not None
    assert found.driver.name == "edu"


@pytest.mark.parametrize(
    ("parameters", "kept"),
    [
        (["straw: mode=slow (the kernel's command line)"], 1),
        ([], 0),
        (None, 0),
        ("x", 0),
        ({"a": 1}, 0),
        ([None, "", 7, ["a"], "\x1b[2J\n" * 9000], 3),
        ([f"straw: a={number}" for number in range(5000)], 16),
    ],
)
def test_odd_parameters_are_no_more_than_odd_lines(parameters: object, kept: int) -> None:
    status = {"parameters": parameters}
    found = node_driver_from({"metadata": {"name": "edu.n1"}, "status": status})
    assert found is not None
    assert len(found.parameters) == kept
    assert all(len(line) <= REPORT_TEXT and line.isprintable() for line in found.parameters)


def test_a_tag_that_was_pushed_or_is_an_alias_has_the_image_of_the_status() -> None:
    """At a site with a mirror, tags are pushed: the spec has none of them."""
    spec = [
        {"name": "9.6.20260616-0", "from": {"kind": "DockerImage", "name": "quay.io/b"}},
        {"name": "alias", "from": {"kind": "ImageStreamTag", "name": "dtk:9.6.20260616-0"}},
    ]
    status = [
        {"tag": "9.6.20260616-0", "items": [{"dockerImageReference": "mirror.example.com/b@x"}]},
        {"tag": "alias", "items": [{"dockerImageReference": "quay.io/b@sha256:1"}]},
        {
            "tag": "9.6.20260701-0",
            "items": [
                {"dockerImageReference": "mirror.example.com/c@sha256:2", "image": "sha256:2"},
                {"dockerImageReference": "mirror.example.com/c@sha256:1", "image": "sha256:1"},
            ],
        },
        {"tag": "refused", "items": None, "conditions": [{"type": "ImportSuccess"}]},
        {"tag": "", "items": [{"dockerImageReference": "quay.io/d"}]},
    ]
    metadata = {"name": "dtk", "namespace": "openshift"}

    found = image_stream_from(
        {"metadata": metadata, "spec": {"tags": spec}, "status": {"tags": status}}
    )

    assert found.tags == {
        "9.6.20260616-0": "quay.io/b",
        "alias": "quay.io/b@sha256:1",
        "9.6.20260701-0": "mirror.example.com/c@sha256:2",
    }
