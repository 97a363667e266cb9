"""`nodeside-cluster diff` as a person types it: what is asked, what is said, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from cluster.cli import driver_diff
from cluster.cli.options import LOOKING
from cluster.kube.merge_patch import apply_merge_patch
from cluster.kube.transport import ApiTransport
from cluster.model.names import NAMESPACE
from cluster.model.snapshot import Snapshot
from nodeside.errors import ExitCode
from nodeside.spec.yamltext import write_yaml
from tests.cluster.fakes.model import document
from tests.cluster.fakes.recording import Recording
from tests.cluster.fakes.scripted import Asked, Said, ScriptedServer, kubeconfig
from tests.cluster.fakes.stagedriver import daemonset
from tests.cluster.fakes.stored import StoredObjects
from tests.console import Done
from tests.console import nodeside as node_command
from tests.console import nodeside_cluster as command
from tests.refusals import refusal

LAST = "kubectl.kubernetes.io/last-applied-configuration"
Answer = Callable[[Asked, dict[str, Any]], Said]
FORBIDDEN = 'drivers.nodeside.io "edu" is forbidden: User "jane" cannot patch resource "drivers"'


def stored(_: Asked, result: dict[str, Any]) -> Said:
    return Said(body=json.dumps(result))


class Scene:
    """A cluster with the Driver edu on three nodes. `answer` is given to dry runs."""

    def __init__(self, server: ScriptedServer, directory: Path) -> None:
        made = Recording()
        made.add(["n0", "n1", "n2"])
        made.apply_driver()
        made.settle_ready()
        self.objects = StoredObjects(made.documents())
        self.driver = next(d for d in self.objects.documents if d["kind"] == "Driver")
        self.answer: Answer = stored
        self.server, self.directory = server, directory
        self.sent: list[tuple[Asked, Any]] = []
        server.always = self._answer

    def _answer(self, asked: Asked) -> Said:
        if asked.method == "GET":
            return self.objects.answer(asked)
        path, _, query = asked.path.partition("?")
        assert parse_qs(query)["dryRun"] == ["All"], f"a write that is none of a dry run: {path}"
        body = json.loads(asked.body)
        self.sent.append((asked, body))
        result = body if asked.method == "POST" else apply_merge_patch(self.driver, body)
        return self.answer(asked, result)

    def diff(self, *documents: dict[str, Any], output: str = "table") -> Done:
        file = self.directory / "driver.yaml"
        file.write_text("---\n".join(map(write_yaml, documents)))
        return self.run("-f", file, "-o", output)

    def run(self, *words: str | Path) -> Done:
        place = self.directory / "kubeconfig"
        place.write_text(json.dumps(kubeconfig(self.server.url, "secret")))
        return command("diff", "--kubeconfig", place, *words)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ScriptedServer() as server:
        yield Scene(server, tmp_path)


def file_of(name: str = "edu", **spec: Any) -> dict[str, Any]:
    """A Driver as a person writes it."""
    return {**document(name, **spec), "metadata": {"name": name}}


def test_nothing_changes_is_exit_code_0_and_nothing_is_sent(scene: Scene) -> None:
    done = scene.diff(file_of())

    assert (done.code, done.output, done.errors) == (0, "edu: nothing changes\n", "")
    assert scene.sent == []


def test_something_changes_is_exit_code_1_and_kubectls_patch_is_tried(scene: Scene) -> None:
    before = json.dumps(scene.objects.documents)

    done = scene.diff(file_of(version="2.0.0", rollout={"maxUnavailable": 2}))

    assert done.code == 1
    assert done.output.startswith(
        "edu: a new revision, on 3 nodes: 1 canary first, then 2 at a time\n"
    )
    [(asked, patch)] = scene.sent
    assert asked.headers["content-type"] == "application/merge-patch+json"
    assert patch == {"spec": {"version": "2.0.0", "rollout": {"maxUnavailable": 2}}}
    assert json.dumps(scene.objects.documents) == before


def test_what_was_applied_last_and_is_gone_from_the_file_goes_and_a_pause_stays(
    scene: Scene,
) -> None:
    last = file_of(conflicts={"modules": ["other"]})
    scene.driver["spec"] |= {"conflicts": {"modules": ["other"]}, "rollout": {"paused": True}}
    scene.driver["metadata"]["annotations"] = {LAST: json.dumps(last)}

    done = scene.diff(file_of())

    [(_, patch)] = scene.sent
    assert patch == {"spec": {"conflicts": None}}
    words = " ".join(done.output.split())
    assert "spec.conflicts.modules: [other] -> nothing" in words
    assert "set by another hand: spec.rollout.paused: true" in words


def test_what_kubectl_itself_keeps_in_a_driver_is_no_change(scene: Scene) -> None:
    """A file that `kubectl get -o yaml` wrote has the annotation as it was then."""
    exported = file_of()
    exported["metadata"]["annotations"] = {LAST: json.dumps(file_of(version="0.9.0"))}
    scene.driver["metadata"]["annotations"] = {LAST: json.dumps(file_of())}

    done = scene.diff(exported)

    assert (done.code, done.output) == (0, "edu: nothing changes\n")


def test_pods_that_request_the_device_are_read_though_no_plan_asks_for_them(scene: Scene) -> None:
    requests = {"requests": {"example.com/edu": "1"}, "limits": {"example.com/edu": "1"}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train-0", "namespace": "ml", "uid": "u"},
        "spec": {"nodeName": "n0", "containers": [{"name": "main", "resources": requests}]},
        "status": {"phase": "Running"},
    }
    scene.objects.documents.append(pod)
    devices = [{"resource": "example.com/edu", "discover": {"count": 1}}]

    done = scene.diff(file_of(version="2.0.0", devices=devices))

    assert "held by ml/train-0 on n0" in done.output


def test_a_driver_that_was_applied_on_the_server_is_tried_so(scene: Scene) -> None:
    applied = {"manager": "kubectl", "operation": "Apply", "fieldsType": "FieldsV1"}
    scene.driver["metadata"]["managedFields"] = [applied]

    scene.diff(file_of(version="2.0.0"))

    [(asked, _)] = scene.sent
    assert asked.headers["content-type"] == "application/apply-patch+yaml"
    assert "fieldManager=kubectl&" in f"{asked.path}&"


def test_a_driver_that_is_not_there_is_tried_as_a_new_one(scene: Scene) -> None:
    done = scene.diff(file_of("two", hardware={"nodeSelector": {"a": "b"}}))

    assert done.code == 1
    assert done.output.startswith("two: a new Driver, for no node of this cluster\n")
    [(asked, body)] = scene.sent
    assert (asked.method, body) == ("POST", file_of("two", hardware={"nodeSelector": {"a": "b"}}))


def test_several_documents_are_compared_and_what_is_no_driver_is_named(scene: Scene) -> None:
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "edu-manifests"}}

    done = scene.diff(file_of(), other, file_of("two"))

    assert done.code == 1
    first, second, last = done.output.split("\n\n")[0], done.output, done.output.splitlines()[-1]
    assert first == "edu: nothing changes"
    assert "\n\ntwo: a new Driver" in second
    assert last.startswith("not compared, since they are no Drivers: ConfigMap edu-manifests (")


def config_map(name: str) -> dict[str, Any]:
    metadata = {"name": "one", "namespace": NAMESPACE}
    data = {"ds.yaml": daemonset(name)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


@pytest.mark.slow
def test_templates_of_stages_in_the_same_file_are_taken_as_they_are_there(scene: Scene) -> None:
    stages = [{"name": "first", "manifests": "one"}]

    absent = scene.diff(file_of(stages=stages))
    present = scene.diff(config_map("plugin"), file_of(stages=stages))

    words = " ".join(absent.output.split())
    assert "note stage first: there is no ConfigMap one in namespace nodeside" in words
    assert "stage first: create DaemonSet plugin" in present.output
    assert "not compared" not in present.output


@pytest.mark.slow
def test_a_change_of_templates_alone_is_a_change(scene: Scene) -> None:
    stages = [{"name": "first", "manifests": "one"}]
    scene.driver["spec"]["stages"] = stages
    scene.objects.documents.append(config_map("plugin"))

    same = scene.diff(config_map("plugin"), file_of(stages=stages))
    other = scene.diff(config_map("monitor"), file_of(stages=stages))

    assert (same.code, same.output) == (0, "edu: nothing changes\n")
    assert other.code == 1
    assert other.output.startswith("edu: objects of its stages change\n")
    assert "stage first: create DaemonSet monitor" in other.output


def test_defaults_that_the_api_server_fills_in_are_no_change(scene: Scene) -> None:
    def fill_in(_: Asked, result: dict[str, Any]) -> Said:
        spec = {**result["spec"], "upgrade": "live", "rollout": {"canary": 1, "paused": False}}
        return Said(body=json.dumps({**result, "spec": spec}))

    scene.answer = fill_in
    written_out = file_of(devices=[])  # makes a patch, and means the same

    done = scene.diff(written_out)

    assert len(scene.sent) == 1
    assert (done.code, done.output) == (0, "edu: nothing changes\n")


def test_warnings_of_the_api_server_are_shown(scene: Scene) -> None:
    def warn(_: Asked, result: dict[str, Any]) -> Said:
        headers = {"Warning": '299 - "every node gets it"'}
        return Said(body=json.dumps(result), headers=headers)

    scene.answer = warn

    done = scene.diff(file_of(version="2.0.0"))

    assert done.code == 1
    assert "warning     every node gets it\n" in done.output


@pytest.mark.parametrize("status", [422, 403])
def test_a_refusal_by_admission_is_shown_with_the_rest_and_is_an_error(
    scene: Scene, status: int
) -> None:
    words = 'ValidatingAdmissionPolicy "x" denied the request: no'
    scene.answer = lambda *_: Said(status, json.dumps(refusal(status, words)))

    done = scene.diff(file_of(version="2.0.0"))
    document = scene.diff(file_of(version="2.0.0"), output="json").document

    assert done.code == ExitCode.CLUSTER
    assert done.output.startswith("edu: kubectl apply fails; without that: a new revision")
    assert words in done.output
    assert words in document["drivers"][0]["admission"]["refused"]


def test_without_the_right_to_ask_it_says_so_and_goes_on(scene: Scene) -> None:
    scene.answer = lambda *_: Said(403, json.dumps(refusal(403, FORBIDDEN)))

    done = scene.diff(file_of(version="2.0.0"))

    assert done.code == 1
    assert done.output.startswith("edu: a new revision, on 3 nodes: ")
    words = " ".join(done.output.split())
    assert "not asked what the API server would say: no permission to patch drivers" in words


def test_an_outage_while_it_asks_is_an_error(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[float] = []  # seconds: only pauses take time
    defaults = ApiTransport.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "now", lambda: sum(passed))
    monkeypatch.setitem(defaults, "pause", passed.append)
    scene.answer = lambda *_: Said(503, json.dumps(refusal(503, "etcd is away")))

    done = scene.diff(file_of(version="2.0.0"))

    assert (done.code, done.output) == (ExitCode.CLUSTER, "")
    assert "etcd is away" in done.errors
    assert len(scene.sent) > 1


def test_a_mistake_is_the_one_of_spec_check_and_nobody_is_asked(scene: Scene) -> None:
    wrong = file_of(modules=[{"name": "x", "parametres": {}}])

    done = scene.diff(wrong)
    checked = node_command("spec", "check", scene.directory / "driver.yaml")

    assert done.code == checked.code == ExitCode.SPEC
    assert done.errors == checked.errors
    assert f"{scene.directory}/driver.yaml:" in done.errors
    assert scene.server.asked == []


def test_who_may_not_look_is_told_which_role_it_takes(scene: Scene) -> None:
    scene.server.always = lambda _: Said(403, json.dumps({"message": "it is forbidden"}))

    done = scene.diff(file_of())

    assert done.code == ExitCode.CLUSTER
    assert done.errors.rstrip().endswith(LOOKING)


def test_a_bug_has_not_the_exit_code_of_a_change(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Snapshot:
        raise AssertionError("a bug")

    monkeypatch.setattr(driver_diff, "read_once", fail)

    done = scene.diff(file_of(version="2.0.0"))

    assert done.code == 2
    assert "AssertionError: a bug" in done.errors


def test_a_file_is_asked_for() -> None:
    done = command("diff")
    assert done.code == ExitCode.USAGE
    assert "--file" in done.errors
