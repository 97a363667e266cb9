"""Built once for a kernel on a real control plane: N nodes, one kernel, one build."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nodeside.errors import ExitCode
from nodeside.protocol.build_job import BuildOutcome, BuildVerdict
from tests.cluster.e2e.builders import Builders, Ending
from tests.cluster.e2e.controllers import Replicas
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.scene import NEW, OLD, Scene
from tests.controlplane.controlplane import ControlPlane

pytestmark = pytest.mark.cluster

STORE = {"sources": [{"oci": "registry.example.com/bundles/edu", "publish": True}]}
TOOLKITS = [f"quay.example.com/toolkit:{kernel}" for kernel, _ in (OLD, NEW)]


@pytest.fixture
def builders(control_plane: ControlPlane, scene: Scene) -> Iterator[Builders]:
    with Builders(control_plane) as builders:
        yield builders


def containers(scene: Scene) -> set[str]:
    return {c["name"] for pod in scene.pods() for c in pod["spec"]["containers"]}


def test_many_nodes_of_a_kernel_are_one_build_and_the_coming_kernel_is_there_before_them(
    scene: Scene, replicas: Replicas, fleet: Fleet, builders: Builders
) -> None:
    names = [scene.node(f"n{number}") for number in range(6)]
    scene.toolkits(OLD)
    replicas.start()
    builders.held.set()
    scene.driver(prebuilt=STORE)
    message = scene.until_reason("Ready", "Building")
    assert "Job edu-build-" in message
    assert scene.column("STATUS") == "Building"
    assert scene.daemonsets() == []
    builders.held.clear()
    scene.until_ready(6)
    assert containers(scene) == {"driver"}
    assert builders.built == TOOLKITS[:1]

    scene.toolkits(OLD, NEW)  # nodes run the old kernel still
    scene.control_plane.wait_for(
        lambda: len(builders.built) == 2 and all(_noted(job) for job in builders.jobs()),
        "the coming kernel to be built",
    )
    for name in names:
        scene.reboot(name, NEW)
    scene.until_kernels(NEW[0])
    scene.until_ready(6)

    assert containers(scene) == {"driver"}
    assert builders.built == TOOLKITS
    scene.control_plane.wait_for(lambda: len(builders.jobs()) == 1, "the old kernel's Job to go")
    scene.control_plane.kubectl("delete", "driver", "edu", "--timeout=60s")
    scene.control_plane.wait_for(lambda: builders.jobs() == [], "all Jobs to be gone")


def _noted(job: dict[str, object]) -> bool:
    return "nodeside.io/outcome" in str(job["metadata"])


def test_a_driver_that_does_not_compile_reaches_no_node_until_it_is_corrected(
    scene: Scene, replicas: Replicas, fleet: Fleet, builders: Builders
) -> None:
    refused = BuildOutcome(BuildVerdict.REFUSED, OLD[0], first_error="edu.c:42: error: few")
    scene.node("n1")
    scene.toolkits(OLD)
    builders.outcome = lambda _: (ExitCode.BUILD_FAILED, refused)
    replicas.start()
    scene.driver(prebuilt=STORE)
    message = scene.until_reason("Degraded", "BuildFailed")
    assert f"does not build for kernel {OLD[0]}: edu.c:42: error: few" in message
    assert scene.daemonsets() == []
    said = scene.cli("explain", "edu", "n1").output
    assert "BuildFailed: the driver does not build for this kernel: edu.c:42: error: few" in said
    assert len(builders.built) == 1  # a compiler says the same thing twice

    builders.outcome = lambda _: works_for(OLD[0])
    scene.driver("2.0.0", prebuilt=STORE)
    scene.until_ready(1)


def test_a_build_that_cannot_be_published_is_made_on_the_nodes(
    scene: Scene, replicas: Replicas, fleet: Fleet, builders: Builders
) -> None:
    broken = BuildOutcome(BuildVerdict.BROKEN, reason="SigningFailed", message="no key")
    scene.node("n1")
    scene.toolkits(OLD)
    builders.outcome = lambda _: (ExitCode.SIGNING, broken)
    replicas.start()
    scene.driver(prebuilt=STORE)
    scene.until_ready(1)
    assert containers(scene) == {"driver", "toolkit"}
    [row] = scene.status()["pools"]
    assert row["reason"] == "BuildingOnNodes"
    assert row["message"].startswith("the build failed: SigningFailed: no key")


def test_a_question_about_a_coming_kernel_is_answered_in_the_status_and_by_hand(
    scene: Scene, replicas: Replicas, fleet: Fleet, builders: Builders
) -> None:
    refused = BuildOutcome(BuildVerdict.REFUSED, NEW[0], "", "", "Compile", "make failed", "",
                           "edu.c:42: error: few")  # fmt: skip
    scene.node("n1")
    scene.toolkits(OLD, NEW)
    builders.outcome = lambda _: (ExitCode.BUILD_FAILED, refused)
    replicas.start()
    scene.driver()
    scene.until_ready(1)
    scene.change({"preflight": [{"osVersion": NEW[1]}]})
    scene.control_plane.wait_for(
        lambda: [row["verdict"] for row in scene.status().get("preflight", ())] == ["DoesNotBuild"],
        "the answer",
    )
    assert scene.status()["preflight"][0]["message"] == "edu.c:42: error: few"
    assert scene.condition("Ready")["status"] == "True"  # a question harms nobody
    scene.change({"preflight": None})
    scene.control_plane.wait_for(lambda: builders.jobs() == [], "the question's Job to go")

    asked = scene.cli("preflight", "edu", "--os-version", NEW[1])
    assert asked.exit_code == ExitCode.BUILD_FAILED
    assert "verdict      it does not build" in asked.output
    assert "first error  edu.c:42: error: few" in asked.output
    assert builders.jobs() == []
    builders.outcome = lambda _: (ExitCode.OK, BuildOutcome(BuildVerdict.BUILT, NEW[0]))
    asked = scene.cli("preflight", "edu", "--toolkit", TOOLKITS[1])
    assert (asked.exit_code, builders.jobs()) == (ExitCode.OK, [])
    assert scene.cli("preflight", "edu", "--os-version", "410.1").exit_code == ExitCode.NOT_READY


def works_for(kernel: str) -> Ending:
    return ExitCode.OK, BuildOutcome(BuildVerdict.PUBLISHED, kernel=kernel)
