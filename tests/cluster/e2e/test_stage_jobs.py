"""Jobs of stages on a real control plane, with the real Job controller and scheduler.

The nodes are KWOK's. A pod of a Job ends when a test says so.
"""

from __future__ import annotations

import json

import pytest

from cluster.model.names import NAMESPACE
from tests.cluster.e2e.controllers import Replicas
from tests.cluster.e2e.fleet import Fleet
from tests.cluster.e2e.scene import DRIVERS, OLD, Scene
from tests.cluster.e2e.stage_jobs import at_work, end, held, jobs, until_at_work
from tests.cluster.e2e.staged import FIRST, SECOND, TWO, Watched, stage_pods, until_staged, write
from tests.cluster.fakes.stagejobs import job

pytestmark = pytest.mark.cluster

_JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"


def test_a_job_runs_on_each_node_fails_is_run_again_and_follows_every_boot_and_version(
    staged: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    plane = staged.control_plane
    write(staged, "one", held("selftest", "perNode"))
    for name in ("n0", "n1"):
        staged.node(name)
    replicas.start()
    with Watched(plane) as seen:
        staged.driver()
        staged.change({"stages": TWO})
        until_at_work(staged, "n0", "n1")
        first = jobs(staged)
        end(staged, "n0")
        plane.wait_for(lambda: FIRST in staged.labels("n0"), "n0 to pass")
        end(staged, "n1", 3, "testing\nLED 2 is dark")

        failed = staged.until_reason("StagesReady", "StageFailed")
        assert failed == (
            "stage first: n1: Job selftest failed there: BackoffLimitExceeded: Job has reached the "
            "specified backoff limit; main: Error, exit code 3: LED 2 is dark: kubectl -n nodeside "
            f"logs job/{first['n1']}; to run it again, delete that Job"
        )
        assert "LED 2 is dark" in staged.cli("explain", "edu", "n1").output
        assert "LED 2 is dark" in staged.cli("status").output
        plane.wait_for(lambda: "monitor on n0" in stage_pods(staged), "the next stage on n0")
        assert FIRST not in staged.labels("n1")

        plane.kubectl("delete", "job", first["n1"], "-n", NAMESPACE)
        until_at_work(staged, "n1")
        assert jobs(staged) == first, "of the same name: it is the same run"
        end(staged, "n1")
        until_staged(staged, 2)

        fleet.power_off("n0")
        staged.reboot("n0", OLD)
        fleet.power_on("n0")
        until_at_work(staged, "n0")
        assert jobs(staged)["n0"] != first["n0"]
        assert jobs(staged)["n1"] == first["n1"]
        plane.wait_for(lambda: SECOND not in staged.labels("n0"), "n0 to begin again")

        staged.driver("2.0.0", maxUnavailable=2)  # while one runs there
        staged.change({"stages": TWO})
        plane.wait_for(
            lambda: set(staged.versions().values()) == {"2.0.0"}, "all nodes to have the new one"
        )
        until_at_work(staged, "n0", "n1")
        assert not set(jobs(staged).values()) & set(first.values())
        for name in ("n0", "n1"):
            end(staged, name)
        until_staged(staged, 2)
        plane.kubectl("delete", "driver", "edu", "--wait=true")

    seen.check_ends()
    assert staged.items(DRIVERS) == []
    assert jobs(staged) == {}
    plane.wait_for(lambda: stage_pods(staged) == [], "their pods to be gone")
    assert not [key for key in staged.labels("n0") if "nodeside.io/" in key]


def test_a_job_that_runs_once_leaves_a_node_before_its_driver_changes(
    staged: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    plane = staged.control_plane
    write(staged, "one", held("register", "once"))
    for name in ("n0", "n1"):
        staged.node(name)
    replicas.start()
    with Watched(plane) as seen:
        staged.driver(maxUnavailable=1)
        staged.change({"stages": TWO})
        plane.wait_for(lambda: len(at_work(staged)) == 1, "it to run")
        [before] = jobs(staged).values()
        assert not [each for each in stage_pods(staged) if each.startswith("monitor")]

        staged.driver("2.0.0", maxUnavailable=1)
        staged.change({"stages": TWO})
        plane.wait_for(
            lambda: set(staged.versions().values()) == {"2.0.0"}, "all nodes to have the new one"
        )
        plane.wait_for(lambda: jobs(staged).get("", before) != before, "one of the new version")
        plane.wait_for(lambda: len(at_work(staged)) == 1, "it to run")
        [node] = at_work(staged)
        end(staged, node)
        until_staged(staged, 2)

    seen.check_ends()
    staged.change({"stages": TWO[1:]})
    plane.wait_for(lambda: jobs(staged) == {}, "it to go with its stage")


def test_what_the_api_server_refuses_is_said_and_a_job_of_somebody_else_is_left_alone(
    staged: Scene, replicas: Replicas, fleet: Fleet
) -> None:
    plane = staged.control_plane
    write(staged, "one", job().replace("restartPolicy", "restartPolicyy: x\n      restartPolicy"))
    staged.node("n0")
    replicas.start()
    staged.driver()
    staged.change({"stages": TWO})
    plane.wait_for(
        lambda: "restartPolicyy" in staged.condition("StagesReady")["message"], "the refusal"
    )
    said = staged.condition("StagesReady")["message"]
    assert said.startswith("cannot create Job selftest-")
    assert staged.condition("Ready")["status"] == "True"

    write(staged, "one", held("selftest", "perNode"))
    until_at_work(staged, "n0")
    [name] = jobs(staged).values()
    staged.change({"stages": TWO[1:]})
    plane.wait_for(lambda: jobs(staged) == {}, "it to go with its stage")
    theirs = json.loads(_FOREIGN % name)
    plane.do("POST", _JOBS, theirs)
    try:
        staged.change({"stages": TWO})
        message = staged.until_said("StagesReady", f"cannot create Job {name}")
        assert "already exists" in message
        found = plane.do("GET", f"{_JOBS}/{name}")
        assert found["spec"]["template"]["spec"]["containers"][0]["image"] == "theirs:1"
        assert FIRST not in staged.labels("n0")
    finally:
        plane.request("DELETE", f"{_JOBS}/{name}", {"propagationPolicy": "Background"})
    until_at_work(staged, "n0")


_FOREIGN = """{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "%s"}, "spec": {
"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "theirs:1"}]}}
}}"""
