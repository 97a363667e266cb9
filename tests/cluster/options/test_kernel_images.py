"""Driver images for one kernel each: who gets them, and what happens where there is none."""

from __future__ import annotations

import pytest

from cluster.driver.nodes import pull_failure_of
from cluster.model.actions import LabelNode
from cluster.model.names import before_label
from cluster.model.snapshot import DriverPod, Pool
from cluster.model.waiting import Waiting
from cluster.options.kernel_images import image_for
from nodeside.errors import SpecError
from nodeside.protocol.labels import assigned_label
from nodeside.protocol.node_status import State
from nodeside.spec import parse
from tests.cluster.fakes.images import MISSING, TEMPLATE, cannot_have_it, prebuilt
from tests.cluster.fakes.model import EDU, KERNEL, Model, document

ASSIGNED = assigned_label("edu")
IMAGE = f"registry.example.com/edu:1.0.0-{KERNEL}"
IMAGE_OF_2 = f"registry.example.com/edu:2.0.0-{KERNEL}"


def containers(model: Model, node: str) -> dict[str, str]:
    """The pod that a node would have: its containers, and their images."""
    found = model.serving(node)
    assert found is not None
    spec = found.spec["template"]["spec"]
    return {c["name"]: c["image"] for c in spec["containers"]}


BUILDS = {"driver": EDU["image"], "toolkit": f"registry.example.com/toolkits:{KERNEL}"}


def test_a_pool_gets_the_image_for_its_kernel_and_no_sidecar() -> None:
    model = prebuilt()

    assert containers(model, "n0") == {"driver": IMAGE}
    assert len(model.daemonsets) == 1


def test_a_node_that_cannot_pull_it_builds_and_the_others_stay() -> None:
    model = prebuilt()
    model.report("n0")
    cannot_have_it(model, "n1")

    model.settle()

    assert containers(model, "n0") == {"driver": IMAGE}
    assert containers(model, "n1") == BUILDS
    assert containers(model, "n2") == {"driver": IMAGE}
    assert model.revision("n0") == model.revision("n1")


@pytest.mark.parametrize("paused", [False, True])
def test_pods_that_restart_while_the_registry_is_down_move_no_node_that_works(paused: bool) -> None:
    model = prebuilt(rollout={"paused": paused})
    model.settle()
    model.apply_driver(prebuilt={"image": TEMPLATE}, rollout={"paused": False})
    model.settle_ready()
    model.apply_driver(prebuilt={"image": TEMPLATE}, rollout={"paused": paused})
    for node in model.nodes:
        cannot_have_it(model, node)

    actions = model.settle()

    assert not any(isinstance(action, LabelNode) for action in actions)
    assert f"its pod cannot start: driver: {MISSING}" in model.condition("Ready")["message"]
    model.reboot("n0")  # what it said of the boot before is void: the driver works there no more
    model.settle()
    assert containers(model, "n0") == BUILDS
    assert containers(model, "n1") == {"driver": IMAGE}


def test_fallback_is_in_pool_row_event_and_ready() -> None:
    model = prebuilt()
    cannot_have_it(model, "n1")
    model.settle_ready()

    words = f"image {IMAGE} cannot be pulled ({MISSING}); building instead"
    [row] = model.drivers["edu"].status["pools"]
    assert (row["reason"], row["message"]) == ("FellBack", f"n1: {words}")
    ready = model.condition("Ready")
    assert ready["status"] == "True"
    assert ready["message"] == f"works on 3 nodes; fell back: n1: {words}"
    assert model.condition("Degraded")["status"] == "False"
    assert [(say.reason, say.note) for say in model.said if say.warning] == [("FellBack", words)]


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName"])
def test_what_a_kubelet_says_of_an_image_that_it_cannot_have(reason: str) -> None:
    why = Waiting(reason, "no")
    assert pull_failure_of(DriverPod("p", waiting={"driver": why})) == why
    assert (str(why), str(Waiting(reason))) == (f"{reason}: no", reason)


@pytest.mark.parametrize(
    "waiting",
    [
        {},
        {"driver": Waiting("CrashLoopBackOff", "again")},
        {"toolkit": Waiting("ErrImagePull")},
        {"pod": Waiting("ErrImagePull")},
    ],
)
def test_what_is_no_matter_of_the_image_is_no_reason_to_build(waiting: dict[str, Waiting]) -> None:
    assert pull_failure_of(DriverPod("p", waiting=waiting)) is None


def test_one_node_that_cannot_have_it_sends_no_other_node_to_build() -> None:
    model = prebuilt(6, rollout={"maxUnavailable": "1"})
    model.report_all()
    model.settle()
    model.apply_driver(
        version="2.0.0", prebuilt={"image": TEMPLATE}, rollout={"maxUnavailable": "1"}
    )
    model.carry_out(model.plan(0.0).actions)
    [first] = [node for node in model.nodes if "2.0.0" in containers(model, node)["driver"]]
    cannot_have_it(model, first)
    for _ in range(20):
        model.carry_out(model.plan(0.0).actions)
        model.pods.clear()
        model.report_all()

    assert "toolkit" in containers(model, first)
    others = model.nodes.keys() - {first}
    assert [containers(model, node) for node in others] == [{"driver": IMAGE_OF_2}] * 5


def test_a_new_node_tries_the_image_though_no_other_could_pull_it() -> None:
    model = prebuilt()
    for node in ("n0", "n1", "n2"):
        cannot_have_it(model, node)
    model.settle()
    model.pods.clear()
    model.add(["late", "later"])
    model.settle()  # by any controller: nothing but the API server's objects was carried over
    assert containers(model, "late") == {"driver": IMAGE}

    cannot_have_it(model, "late", Waiting("ErrImagePull", "503"))
    model.settle()
    model.pods.clear()
    model.settle_ready()

    assert containers(model, "late") == BUILDS
    assert containers(model, "later") == {"driver": IMAGE}
    assert len(model.daemonsets) == 2
    [row] = model.drivers["edu"].status["pools"]
    assert row["message"].startswith("n0, n1, n2 and 1 more node: image ")
    assert len([say for say in model.said if say.reason == "FellBack"]) == 1


def test_it_ends_with_the_next_revision() -> None:
    model = prebuilt(1)
    cannot_have_it(model, "n0")
    model.settle_ready()
    model.pods.clear()

    model.apply_driver(version="2.0.0", prebuilt={"image": TEMPLATE})
    model.settle_ready()

    assert containers(model, "n0") == {"driver": IMAGE.replace("1.0.0", "2.0.0")}
    assert len(model.daemonsets) == 1


def test_a_canary_of_a_first_rollout_that_falls_back_is_no_failure() -> None:
    model = prebuilt(rollout={"canary": 1})
    cannot_have_it(model, "n0")
    model.settle()

    assert model.condition("Progressing")["reason"] == "Canary"
    assert model.serving("n1") is None
    model.pods.clear()
    model.report_all()
    model.settle_ready()
    assert model.condition("Ready")["status"] == "True"


def test_a_canary_that_falls_back_is_no_failure_of_the_rollout() -> None:
    model = prebuilt()
    model.report_all()
    model.settle_ready()
    model.apply_driver(version="2.0.0", prebuilt={"image": TEMPLATE})
    model.settle()
    before = model.nodes["n0"].labels[before_label("edu")]
    cannot_have_it(model, "n0")

    model.settle()

    assert model.condition("Progressing")["reason"] == "Canary"
    assert containers(model, "n0")["driver"] == EDU["image"]
    assert model.nodes["n0"].labels[before_label("edu")] == before
    model.pods.clear()
    model.report_all()
    model.settle_ready()
    assert model.condition("Ready")["status"] == "True"


def test_the_failure_of_the_build_after_it_is_one() -> None:
    model = prebuilt()
    model.report_all()
    model.settle_ready()
    model.apply_driver(version="2.0.0", prebuilt={"image": TEMPLATE})
    model.settle()
    cannot_have_it(model, "n0")
    model.settle()
    model.pods.clear()
    model.report("n0", State.FAILED)
    model.settle()

    assert model.condition("Progressing")["reason"] == "RolloutStopped"


def test_without_a_toolkit_there_is_no_way_back_and_the_image_is_the_failure() -> None:
    model = prebuilt(toolkit={})
    cannot_have_it(model, "n1")

    actions = model.settle()

    assert not any(isinstance(action, LabelNode) for action in actions)
    degraded = model.condition("Degraded")
    assert degraded["message"] == f"n1: its pod cannot start: driver: {MISSING}"


def test_another_kernel_has_an_image_of_its_own() -> None:
    model = prebuilt(1)
    cannot_have_it(model, "n0")
    model.settle_ready()
    model.pods.clear()

    model.reboot("n0", kernel="6.1.0-51-amd64")
    model.settle_ready()

    assert containers(model, "n0") == {"driver": "registry.example.com/edu:1.0.0-6.1.0-51-amd64"}
    assert len(model.daemonsets) == 1


def test_a_daemonset_that_builds_is_made_again_if_somebody_deletes_it() -> None:
    model = prebuilt(1)
    cannot_have_it(model, "n0")
    model.settle_ready()
    model.pods.clear()
    [name] = model.daemonsets
    del model.daemonsets[name]

    model.settle_ready()

    assert list(model.daemonsets) == [name]
    assert containers(model, "n0") == BUILDS


def test_every_placeholder_is_filled_in_and_a_tag_holds_no_plus() -> None:
    template = "example.com/{arch}/{osVersion}:{version}-{kernel}"
    driver = parse(document(version="1.0+git", prebuilt={"image": template}), where="test")
    pool = Pool("x86_64", "debian12", "6.12.1+deb12-amd64")

    made = image_for(driver, pool)

    assert made == "example.com/x86_64/debian12:1.0_git-6.12.1_deb12-amd64"


def test_an_image_that_is_not_named_by_kernel_is_refused() -> None:
    with pytest.raises(SpecError, match=r"prebuilt\.image: expected \{kernel\} in the pull spec"):
        parse(document(prebuilt={"image": "example.com/edu:1"}), where="test")
