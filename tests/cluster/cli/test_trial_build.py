"""A build that a person asks for now: what is made, what is shown, and that nothing is left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.cli.installed_settings import as_installed
from cluster.cli.preflight import _print_log_line
from cluster.cli.status import NoSuchObject
from cluster.cli.trial_build import TrialBuild, tolerated_taints, trial_of
from cluster.kube.errors import NotFound
from cluster.model.parse import driver_from
from cluster.model.snapshot import Settings, Snapshot
from cluster.options.build_once.job_manifest import job_spec
from cluster.options.preflight import build_for
from nodeside.errors import DeadlinePassed, ExitCode
from nodeside.protocol.build_job import BuildOutcome, BuildVerdict, termination_message
from nodeside.spec.fleet import Preflight
from nodeside.spec.pods import Pods
from tests.cluster.fakes.model import document
from tests.cluster.fakes.scripted import Asked, Said, ScriptedServer

POD = {"metadata": {"name": "edu-x"}, "status": {"phase": "Pending"}}


def pod(phase: str, code: int = 0, outcome: BuildOutcome | None = None) -> dict[str, Any]:
    message = termination_message(outcome) if outcome else ""
    state = {"terminated": {"exitCode": code, "reason": "Error", "message": message}}
    return {
        "metadata": {"name": "edu-x"},
        "status": {
            "phase": phase,
            "initContainerStatuses": [{"name": "answer", "state": {"running": {}}}],
            "containerStatuses": [{"name": "finish", "state": state}] if phase != "Running" else [],
        },
    }


@dataclass
class Cluster:
    """An API server with one pod, which is another one at each look."""

    pods: list[dict[str, Any]]
    log: str = '{"message": "gcc edu.c"}\nplain\n'
    said: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    clock: float = 0.0

    def answer(self, asked: Asked) -> Said:
        self.asked.append(asked)
        path = asked.path.partition("?")[0]
        if path.endswith("/log"):
            return Said(body=self.log)
        if asked.method == "GET":
            found = self.pods.pop(0) if len(self.pods) > 1 else self.pods[0]
            return Said(body=json.dumps({"metadata": {}, "items": [found]}))
        return Said(body=json.dumps({"metadata": {"uid": "u1"}}))

    @contextmanager
    def trial(self, directory: Path, timeout: float = 60.0) -> Iterator[TrialBuild]:
        driver = driver_from(document()).driver
        assert driver is not None
        place = Preflight(toolkit="quay.example.com/dtk:503")
        build, _ = build_for(place, driver, "0123456789ab", Snapshot(), "x86_64")
        assert build is not None
        with ScriptedServer() as server:
            server.always = self.answer
            api = server.api(directory)
            yield TrialBuild(
                *(api, Settings(), build, self.said.append, self.lines.append, timeout),
                now=lambda: self.clock,
                pause=self._pass,
            )

    def _pass(self, seconds: float) -> None:
        self.clock += seconds

    def done(self) -> list[tuple[str, str]]:
        return [
            (asked.method, asked.path.partition("?")[0].rpartition("/")[2].partition("-")[0])
            for asked in self.asked
            if asked.method != "GET"
        ]


def test_a_build_is_followed_to_its_end_and_nothing_is_left(tmp_path: Path) -> None:
    outcome = BuildOutcome(BuildVerdict.BUILT, "5.14.0-503.el9.x86_64")
    waiting = {"name": "kernels", "state": {"waiting": {"reason": "ErrImagePull"}}}
    pulls = {**POD, "status": {"phase": "Pending", "initContainerStatuses": [waiting]}}
    cluster = Cluster([pulls, pulls, pod("Running"), pod("Succeeded", 0, outcome)])
    with cluster.trial(tmp_path) as trial:
        done = trial.run()

    assert (done.exit_code, done.outcome) == (ExitCode.OK, outcome)
    assert "verdict  it builds" in done.text()
    assert cluster.lines == ["gcc edu.c", "plain"]
    assert cluster.said[1:] == ["waiting: kernels: ErrImagePull"]
    assert cluster.done() == [
        ("POST", "jobs"),
        ("POST", "configmaps"),
        ("PATCH", "edu"),
        ("DELETE", "edu"),
    ]
    job = json.loads(cluster.asked[0].body)
    assert job["spec"]["suspend"] is True
    assert job["spec"]["ttlSecondsAfterFinished"] == 600
    assert job["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "nodeside-preflight"
    owned = json.loads(cluster.asked[1].body)
    assert owned["metadata"]["ownerReferences"][0]["uid"] == "u1"


def test_the_exit_code_is_that_of_the_build(tmp_path: Path) -> None:
    refused = BuildOutcome(BuildVerdict.REFUSED, reason="Excluded", message="not for this kernel")
    with Cluster([pod("Failed", ExitCode.EXCLUDED, refused)]).trial(tmp_path) as trial:
        done = trial.run()
    assert done.exit_code == ExitCode.EXCLUDED
    assert "why      Excluded: not for this kernel" in done.text()
    assert json.loads(done.json())["outcome"]["verdict"] == "refused"


def test_a_container_that_was_killed_is_the_systems_fault(tmp_path: Path) -> None:
    with Cluster([pod("Failed", 137)]).trial(tmp_path) as trial:
        done = trial.run()
    assert done.exit_code == ExitCode.SYSTEM
    assert "finish: Error, exit code 137" in done.text()


def test_a_build_that_does_not_end_is_removed_at_its_deadline(tmp_path: Path) -> None:
    cluster = Cluster([POD])
    with (
        cluster.trial(tmp_path, timeout=3.0) as trial,
        pytest.raises(DeadlinePassed, match="the build did not end within 3 s"),
    ):
        trial.run()
    assert cluster.done()[-1] == ("DELETE", "edu")


def test_ctrl_c_removes_what_was_made(tmp_path: Path) -> None:
    cluster = Cluster([POD])
    with cluster.trial(tmp_path) as trial:

        def interrupted(_: float) -> None:
            raise KeyboardInterrupt

        trial.pause = interrupted
        with pytest.raises(KeyboardInterrupt):
            trial.run()
    assert cluster.done()[-1] == ("DELETE", "edu")


def test_a_cluster_without_the_definitions_is_said(tmp_path: Path) -> None:
    with ScriptedServer(Said(404)) as server, pytest.raises(NotFound) as caught:
        trial_of(server.api(tmp_path), "edu", Preflight(kernel="6.1"), "x86_64")
    assert "does not serve this kind: cannot get drivers" in str(caught.value)
    assert caught.value.hint == "install the custom resource definitions: nodeside-cluster install"


def test_a_trial_mounts_no_secret(tmp_path: Path) -> None:
    signed = document(signing={"key": "/signing/edu.key", "certificate": "/signing/edu.pem"})
    with ScriptedServer(Said(body=json.dumps(signed)), Said(404)) as server:
        place = Preflight(toolkit="quay.example.com/dtk:503")
        build = trial_of(server.api(tmp_path), "edu", place, "x86_64")
    made = job_spec(build, Settings(), Pods(), config_map="x")
    assert "secret" not in json.dumps(made).lower()


def test_a_trial_tolerates_the_taints_of_the_nodes_where_they_may_be_read(tmp_path: Path) -> None:
    driver = driver_from(document(hardware={"nodeSelector": {"gpu": "yes"}})).driver
    assert driver is not None
    taints = [{"key": "gpu", "value": "only", "effect": "NoSchedule"}]
    nodes = [
        {"metadata": {"name": "n1", "labels": {"gpu": "yes"}}, "spec": {"taints": taints}},
        {"metadata": {"name": "n2"}, "spec": {"taints": [taints[0] | {"key": "other"}]}},
    ]
    body = json.dumps({"metadata": {}, "items": nodes})
    with ScriptedServer(Said(body=body), Said(403)) as server:
        api = server.api(tmp_path)
        [one] = tolerated_taints(api, driver)
        refused = tolerated_taints(api, driver)

    assert (one.key, one.value) == ("gpu", "only")
    assert refused == []


def test_a_driver_that_is_not_there_is_named(tmp_path: Path) -> None:
    gone = Said(404, json.dumps({"message": 'drivers.nodeside.io "eud" not found'}))
    with ScriptedServer(gone) as server, pytest.raises(NoSuchObject, match="no Driver 'eud'"):
        trial_of(server.api(tmp_path), "eud", Preflight(kernel="6.1.0"), "x86_64")


def test_the_settings_are_those_that_the_controller_was_installed_with(tmp_path: Path) -> None:
    words = ["run", "--scc=nodeside-driver", "--pull-secret=a", "--pull-secret=b"]
    words += ["--proxy=HTTPS_PROXY=http://p:3128", "--agent-image=r.example.com/agent:1"]
    words += ["--kubelet-root=/data/kubelet"]
    template = {"spec": {"containers": [{"args": words}]}}
    found = json.dumps({"spec": {"template": template}})
    with ScriptedServer(Said(body=found), Said(403)) as server:
        api = server.api(tmp_path)
        settings = as_installed(api, Settings())
        assert as_installed(api, Settings()) == Settings()
    assert (settings.scc, settings.pull_secrets) == ("nodeside-driver", ("a", "b"))
    assert settings.proxy == {"HTTPS_PROXY": "http://p:3128"}
    assert settings.agent_image == "r.example.com/agent:1"
    assert settings.kubelet_root == "/data/kubelet"


def test_a_log_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with ScriptedServer(Said(404)) as server, pytest.raises(NotFound):
        list(server.api(tmp_path).stream_log("p", "answer", namespace="nodeside", seconds=5))


def test_a_log_that_never_ends_is_left_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timeout of a connection is for one read: whoever sends a byte now and then outlives it."""
    clock = SimpleNamespace(monotonic=iter([0.0, 1.0, 6.0]).__next__)
    with ScriptedServer(Said(body="gcc\n" * 100_000)) as server:
        api = server.api(tmp_path)
        monkeypatch.setattr("cluster.kube.client.time", clock)
        lines = list(api.stream_log("p", "answer", namespace="nodeside", seconds=5))

    assert 1 < len(lines) < 100_000


def test_a_line_without_end_is_shown_in_parts(tmp_path: Path) -> None:
    with ScriptedServer(Said(body="x" * (5 << 20))) as server:
        api = server.api(tmp_path)
        lines = list(api.stream_log("p", "answer", namespace="nodeside", seconds=60))

    assert sum(map(len, lines)) == 5 << 20
    assert max(map(len, lines)) < 2 << 20


@pytest.mark.parametrize("line", ["\x1b]52;c;aGk=\x07", '{"message": "\\u001b]52;c;aGk=\\u0007"}'])
def test_a_build_cannot_write_the_clipboard_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    cluster = Cluster([pod("Running"), pod("Succeeded")], log=line)
    with cluster.trial(tmp_path) as trial:
        trial.show_line = _print_log_line
        trial.run()

    assert capsys.readouterr().err == "build | \\x1b]52;c;aGk=\\x07\n"


def test_a_line_that_nests_deeply_is_shown_as_it_is(tmp_path: Path) -> None:
    cluster = Cluster([pod("Running"), pod("Succeeded")], log="[" * 100_000)
    with cluster.trial(tmp_path) as trial:
        trial.run()

    assert cluster.lines == ["[" * 100_000]
