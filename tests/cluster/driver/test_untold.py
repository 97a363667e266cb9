"""Nodes whose kubelet has not told its kernel: no pool, no driver, and no fault of anybody."""

from __future__ import annotations

from cluster.cli.explain import explain_node
from tests.cluster.fakes.model import KERNEL, OS_IMAGE, Model


def test_node_without_kernel_is_not_assigned_and_not_degraded() -> None:
    model = Model()
    model.add(["n0", "n1", "n2"])
    model.add(["n3", "n4"], kernel="", os_image="", architecture="")
    model.apply_driver()

    model.settle_ready()

    assert {model.revision(name) for name in ("n3", "n4")} == {""}
    words = "2 nodes have not reported their kernel yet: n3, n4"
    ready, degraded = model.condition("Ready"), model.condition("Degraded")
    assert (ready["status"], ready["reason"]) == ("False", "KernelUnknown")
    assert (ready["message"], degraded["status"]) == (words, "False")
    [row] = [row for row in model.drivers["edu"].status["pools"] if not row["kernel"]]
    assert (row["reason"], row["message"], row["toolkit"]) == ("KernelUnknown", words, "")
    said = explain_node(model.snapshot, "edu", "n3")
    assert said.blocks == ("its kubelet has not reported its kernel yet",)

    for name in ("n3", "n4"):
        model.change(name, kernel=KERNEL, os_image=OS_IMAGE, architecture="x86_64")
    model.settle_ready()
    assert model.condition("Ready")["message"] == "works on 5 nodes"


def test_a_node_that_is_not_up_yet_and_has_told_nothing_makes_no_driver_unready() -> None:
    model = Model()
    model.add(["n0"])
    model.add(["n1"], kernel="", os_image="", architecture="", ready=False)
    model.apply_driver()

    model.settle_ready()

    ready = model.condition("Ready")
    assert (ready["status"], ready["message"]) == (
        "True",
        "works on 1 node; 1 node has not reported its kernel yet: n1",
    )


def test_prebuilt_modules_serve_no_kernel_that_nobody_knows() -> None:
    model = Model()
    model.add(["n0"], kernel="")
    model.apply_driver(prebuilt={"sources": [{"http": "https://example.com/edu"}]})

    model.settle_ready()

    assert model.daemonsets == {}


def test_a_kubelet_that_says_nothing_for_a_while_takes_no_driver_away() -> None:
    model = Model()
    model.add(["n0"])
    model.apply_driver()
    model.settle_ready()

    model.change("n0", kernel="", os_image="", architecture="")

    assert model.settle() == ()
