"""The calls to the API server, against a real HTTP server with TLS."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeside.driver.announce.api import CALLER, RecordingClient, StatusClient, connect
from nodeside.driver.announce.documents import event_call, node_driver_call
from nodeside.errors import ExitCode
from nodeside.http.status import KubernetesError
from nodeside.kube.client import PodAccess, Response, api_error
from nodeside.kube.nodes import label_node, read_node
from tests.driver.fakes.apiserver import TOKEN, ApiServer, Fault, make_certificates

LABELS = {"nodeside.io/edu.state": "ready"}
NODE_DRIVER = {
    "apiVersion": "nodeside.io/v1alpha1",
    "kind": "NodeDriver",
    "metadata": {"name": "edu.n1"},
    "status": {"state": "ready", "stages": {"load": 1.0}},
}
EVENT = {"metadata": {"name": "edu.n1.5f", "namespace": "default"}, "reason": "DriverReady"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def server(tmp_path: Path, certificates: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path / "serviceaccount", certificates).running() as running:
        yield running


@pytest.fixture
def cluster(server: ApiServer) -> Iterator[StatusClient]:
    client = StatusClient(server.access, connect=2, read=2)
    yield client
    client.close()


def refused(cluster: StatusClient) -> KubernetesError:
    with pytest.raises(KubernetesError) as info:
        cluster.patch_node_labels("n1", LABELS)
    assert info.value.exit_code is ExitCode.CLUSTER
    return info.value


def test_label_patch_names_only_our_label_and_answers_with_the_uid(
    server: ApiServer, cluster: StatusClient
) -> None:
    assert cluster.patch_node_labels("n1", LABELS) == "uid-of-n1"

    (request,) = server.seen
    assert request.line == "PATCH /api/v1/nodes/n1"
    assert request.body == {"metadata": {"labels": {"nodeside.io/edu.state": "ready"}}}
    assert request.headers["Content-Type"] == "application/merge-patch+json"
    assert request.headers["Authorization"] == f"Bearer {TOKEN}"
    assert "as=PartialObjectMetadata" in request.headers["Accept"]


def test_get_node_answers_with_the_uid(cluster: StatusClient) -> None:
    assert cluster.get_node("n1") == "uid-of-n1"


def test_node_driver_without_status_subresource_is_one_request(
    server: ApiServer, cluster: StatusClient
) -> None:
    cluster.apply_node_driver(NODE_DRIVER)

    (request,) = server.seen
    assert request.line == "PATCH /apis/nodeside.io/v1alpha1/nodedrivers/edu.n1"
    assert request.query == "fieldManager=nodeside-node&force=true"
    assert request.headers["Content-Type"] == "application/apply-patch+yaml"
    assert request.body == NODE_DRIVER


def test_node_driver_with_status_subresource_is_two_requests_and_then_one(
    server: ApiServer, cluster: StatusClient
) -> None:
    server.status_subresource = True
    failed: dict[str, Any] = {**NODE_DRIVER, "status": {"state": "failed"}}

    cluster.apply_node_driver(NODE_DRIVER)
    cluster.apply_node_driver(failed)

    assert server.lines == [
        "PATCH /apis/nodeside.io/v1alpha1/nodedrivers/edu.n1",
        "PATCH /apis/nodeside.io/v1alpha1/nodedrivers/edu.n1/status",
        "PATCH /apis/nodeside.io/v1alpha1/nodedrivers/edu.n1/status",
    ]
    assert server.node_drivers["edu.n1"]["status"] == {"state": "failed"}
    assert server.seen[2].body == {
        "apiVersion": "nodeside.io/v1alpha1",
        "kind": "NodeDriver",
        "metadata": {"name": "edu.n1"},
        "status": {"state": "failed"},
    }


def test_node_driver_of_an_earlier_life_gets_the_new_status(
    server: ApiServer, cluster: StatusClient
) -> None:
    server.status_subresource = True
    server.node_drivers["edu.n1"] = {**NODE_DRIVER, "status": {"state": "building"}}

    cluster.apply_node_driver(NODE_DRIVER)

    assert server.node_drivers["edu.n1"]["status"]["state"] == "ready"


def test_node_driver_that_was_deleted_is_made_again(
    server: ApiServer, cluster: StatusClient
) -> None:
    server.status_subresource = True
    cluster.apply_node_driver(NODE_DRIVER)
    del server.node_drivers["edu.n1"]

    cluster.apply_node_driver(NODE_DRIVER)

    assert server.node_drivers["edu.n1"]["status"]["state"] == "ready"


def test_field_that_the_crd_does_not_know_is_no_failure(
    server: ApiServer, cluster: StatusClient
) -> None:
    pruned = {**NODE_DRIVER, "status": {"state": "ready"}}
    server.faults.append(Fault(200, body=json.dumps(pruned).encode()))

    cluster.apply_node_driver(NODE_DRIVER)  # asks for the subresource, and there is none


def test_event_that_is_there_already_is_a_success(server: ApiServer, cluster: StatusClient) -> None:
    cluster.create_event(EVENT)
    cluster.create_event(EVENT)

    assert server.lines == ["POST /apis/events.k8s.io/v1/namespaces/default/events"] * 2
    assert list(server.events) == ["edu.n1.5f"]


def test_requests_of_one_announcement_share_a_connection(
    server: ApiServer, cluster: StatusClient
) -> None:
    cluster.patch_node_labels("n1", LABELS)
    first = cluster._client._session
    cluster.create_event(EVENT)
    assert cluster._client._session is first
    cluster.close()
    cluster.patch_node_labels("n1", LABELS)

    assert cluster._client._session is not first
    assert len(server.seen) == 3


# --- the token ---------------------------------------------------------------------------------


def test_rotated_token_is_used_without_a_refused_request(
    server: ApiServer, cluster: StatusClient
) -> None:
    cluster.patch_node_labels("n1", LABELS)
    server.tokens = {"second-token"}
    (server.credentials / "token").write_text("second-token\n")

    cluster.patch_node_labels("n1", LABELS)

    assert [r.headers["Authorization"] for r in server.seen] == [
        f"Bearer {TOKEN}",
        "Bearer second-token",
    ]


def test_token_replaced_during_a_request_is_tried_at_once(
    server: ApiServer, cluster: StatusClient
) -> None:
    server.tokens = {"second-token"}
    server.before_answer = lambda: _write(server.credentials / "token", "second-token")

    assert cluster.patch_node_labels("n1", LABELS) == "uid-of-n1"
    assert len(server.seen) == 2


def test_token_that_is_not_accepted_is_said_and_may_be_tried_again(
    server: ApiServer, cluster: StatusClient
) -> None:
    server.tokens = {"another"}

    error = refused(cluster)

    assert str(error) == (
        'the API server does not accept this pod\'s token: cannot patch nodes "n1": Unauthorized'
    )
    assert error.retryable
    assert "expired" in error.hint
    assert len(server.seen) == 1


def test_missing_token_names_the_file(server: ApiServer, cluster: StatusClient) -> None:
    path = server.credentials / "token"
    path.unlink()

    error = refused(cluster)

    assert str(error) == (
        f"cannot read the service account token {path}: No such file or directory"
    )
    assert "kube-root-ca.crt" in error.hint
    assert server.seen == []


@pytest.mark.parametrize("content", ["", "two words", "line\nline", "caf\u00e9", "\x00"])
def test_file_that_holds_no_token_is_never_quoted(
    server: ApiServer, cluster: StatusClient, content: str
) -> None:
    (server.credentials / "token").write_text(content)

    error = refused(cluster)

    assert str(error) == f"{server.credentials / 'token'} does not hold a token"
    assert server.seen == []


# --- refusals and faults -----------------------------------------------------------------------


def test_forbidden_label_names_the_rbac_rule_to_add(
    server: ApiServer, cluster: StatusClient
) -> None:
    server.faults.append(Fault(403, 'nodes "n1" is forbidden: User "u" cannot patch'))

    error = refused(cluster)

    assert str(error) == (
        'this pod\'s service account may not patch nodes "n1": '
        'nodes "n1" is forbidden: User "u" cannot patch'
    )
    assert error.hint == (
        "add to the ClusterRole of the driver pod's service account: "
        '{apiGroups: [""], resources: ["nodes"], verbs: ["get", "patch"]}'
    )
    assert not error.retryable


def test_forbidden_status_and_event_name_their_own_rules(
    server: ApiServer, cluster: StatusClient
) -> None:
    server.status_subresource = True
    cluster.apply_node_driver(NODE_DRIVER)
    server.faults += [Fault(403), Fault(403)]

    with pytest.raises(KubernetesError) as status:
        cluster.apply_node_driver({**NODE_DRIVER, "status": {"state": "failed"}})
    with pytest.raises(KubernetesError) as event:
        cluster.create_event(EVENT)

    assert status.value.hint.endswith(
        '{apiGroups: ["nodeside.io"], resources: ["nodedrivers/status"], verbs: ["patch"]}'
    )
    assert event.value.hint.endswith(
        '{apiGroups: ["events.k8s.io"], resources: ["events"], verbs: ["create"]}'
    )


def test_missing_crd_is_said_with_the_command_to_look(
    server: ApiServer, cluster: StatusClient
) -> None:
    server.faults.append(Fault(404, "the server could not find the requested resource"))

    with pytest.raises(KubernetesError) as info:
        cluster.apply_node_driver(NODE_DRIVER)

    assert str(info.value).startswith("the API server has no resource NodeDriver: cannot patch")
    assert info.value.hint.endswith("kubectl get crd nodedrivers.nodeside.io")
    assert not info.value.retryable


@pytest.mark.parametrize("status", [409, 429, 500, 502, 503, 504])
def test_passing_trouble_is_retryable(
    server: ApiServer, cluster: StatusClient, status: int
) -> None:
    server.faults.append(Fault(status, "busy", {"Retry-After": "7"}))

    error = refused(cluster)

    assert error.retryable
    assert error.retry_after == 7
    assert error.status == status


def test_answer_that_is_not_json_is_said_by_its_status(
    server: ApiServer, cluster: StatusClient
) -> None:
    server.faults.append(Fault(503, body=b"<html>gateway</html>", headers={"Retry-After": "soon"}))

    error = refused(cluster)

    assert str(error) == 'the API server failed to patch nodes "n1" (HTTP status 503)'
    assert error.retry_after is None


@pytest.mark.parametrize("status", [400, 415, 422])
def test_refused_document_is_not_tried_again(
    server: ApiServer, cluster: StatusClient, status: int
) -> None:
    server.faults.append(Fault(status, "denied by policy x"))

    error = refused(cluster)

    assert str(error) == 'the API server refuses to patch nodes "n1": denied by policy x'
    assert not error.retryable


def test_definition_that_is_older_than_the_node_is_said_and_not_asked_again(
    server: ApiServer, cluster: StatusClient
) -> None:
    untyped = "failed to create typed patch object (/edu.n1): .status.mood: field not declared"
    server.faults.append(Fault(500, untyped))

    with pytest.raises(KubernetesError) as info:
        cluster.apply_node_driver(NODE_DRIVER)

    assert str(info.value).startswith(
        'the API server refuses to patch nodedrivers "edu.n1": failed'
    )
    assert info.value.hint.endswith(
        "older than this program, update them: nodeside-cluster install"
    )
    assert not info.value.retryable


def test_redirect_is_not_followed_with_the_token(server: ApiServer, cluster: StatusClient) -> None:
    server.faults.append(Fault(302, headers={"Location": "https://127.0.0.1:1/"}))

    assert refused(cluster).status == 302
    assert len(server.seen) == 1


def test_reset_connection_is_retryable_and_the_next_request_succeeds(
    server: ApiServer, cluster: StatusClient
) -> None:
    server.faults.append(Fault(reset=True))

    error = refused(cluster)

    assert error.retryable
    assert str(error).startswith(f"no answer from the API server {server.access.url} to patch")
    assert cluster.patch_node_labels("n1", LABELS) == "uid-of-n1"


def test_silent_server_is_left_after_the_deadline(server: ApiServer) -> None:
    done = threading.Event()
    server.faults.append(Fault(silent_until=done))
    client = StatusClient(server.access, connect=2, read=0.05)

    error = refused(client)
    done.set()

    assert error.retryable
    assert "timed out" in str(error)


def test_an_answer_that_comes_byte_by_byte_has_a_deadline(server: ApiServer) -> None:
    """Each byte is in time; the whole never is. It ends no request after it."""
    done = threading.Event()
    server.faults.append(Fault(byte_by_byte=done))
    client = StatusClient(server.access, connect=600, read=600, whole=0.1)

    error = refused(client)
    done.set()

    assert error.retryable
    assert "too slow or too large: the limits are 0.1 s" in str(error)
    assert client._client._deadline is not None
    client._client._deadline.seconds = 600
    server.faults.clear()
    assert client.patch_node_labels("n1", LABELS) == "uid-of-n1"
    client.close()


def test_endless_answer_is_cut(server: ApiServer, cluster: StatusClient) -> None:
    server.faults.append(Fault(200, body=b"x" * (2 << 20)))

    assert "too slow or too large" in str(refused(cluster))


def test_nobody_listening_is_said_without_the_library_s_wrapping(
    server: ApiServer, cluster: StatusClient
) -> None:
    server.stop()

    error = refused(cluster)

    assert error.retryable
    assert str(error) == (
        f'no answer from the API server {server.access.url} to patch nodes "n1": '
        "[Errno 111] Connection refused"
    )


def test_server_of_another_ca_is_not_trusted(
    server: ApiServer, cluster: StatusClient, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    make_certificates(other)
    (server.credentials / "ca.crt").write_bytes((other / "ca.crt").read_bytes())

    error = refused(cluster)

    assert "certificate verify failed" in str(error)
    assert server.seen == []


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_missing_or_broken_ca_is_an_expected_error(
    server: ApiServer, cluster: StatusClient, content: str | None
) -> None:
    path = server.credentials / "ca.crt"
    path.unlink()
    if content is not None:
        path.write_text(content)

    assert refused(cluster).retryable


def test_no_error_carries_the_token(server: ApiServer, cluster: StatusClient) -> None:
    server.faults += [Fault(403), Fault(500), Fault(reset=True), Fault(401), Fault(418)]

    for _ in range(5):
        error: BaseException | None = refused(cluster)
        while error is not None:
            assert TOKEN not in f"{error!r} {getattr(error, 'hint', '')}"
            error = error.__cause__ or error.__context__


def test_proxy_and_netrc_of_the_environment_are_ignored(
    server: ApiServer, cluster: StatusClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login someone password else\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere")

    assert cluster.patch_node_labels("n1", LABELS) == "uid-of-n1"


# --- where the cluster is ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "port", "url"),
    [
        ("10.0.0.1", "443", "https://10.0.0.1:443"),
        ("fd00::1", "6443", "https://[fd00::1]:6443"),
        ("kubernetes.default", "", "https://kubernetes.default:443"),
    ],
)
def test_address_is_taken_from_the_pod_s_environment(host: str, port: str, url: str) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}

    access = PodAccess.from_environment(environ)

    assert access == PodAccess(url, Path("/var/run/secrets/kubernetes.io/serviceaccount"))


def test_projected_token_has_a_directory_of_its_own(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usual = tmp_path / "usual"
    shutil.copytree(server.credentials, usual)
    _write(usual / "token", "the-usual-token")
    server.tokens.add("the-usual-token")
    monkeypatch.setattr("nodeside.kube.client.TOKEN_DIRECTORY", usual)
    environ = {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(server.port),
        "NODESIDE_TOKEN_DIR": str(server.credentials),
    }

    cluster = connect(environ)

    assert isinstance(cluster, StatusClient)
    assert cluster.patch_node_labels("n1", LABELS) == "uid-of-n1"
    cluster.close()
    assert [seen.headers["Authorization"] for seen in server.seen] == [f"Bearer {TOKEN}"]


def test_without_a_cluster_the_calls_are_kept() -> None:
    nothing = connect({})
    assert isinstance(nothing, RecordingClient)

    nothing.patch_node_labels("n1", LABELS)
    nothing.apply_node_driver(NODE_DRIVER)
    nothing.create_event(EVENT)

    assert [call.in_words() for call in nothing.would_write] == [
        'patch nodes "n1"',
        'patch nodedrivers "edu.n1"',
        'create events "edu.n1.5f"',
    ]
    assert [call.method for call in nothing.would_write] == ["PATCH", "PATCH", "POST"]
    assert nothing.would_write[1].body == NODE_DRIVER


def test_record_of_a_long_run_does_not_grow() -> None:
    nothing = RecordingClient()

    for number in range(250):
        nothing.patch_node_labels(f"n{number}", LABELS)

    assert len(nothing.would_write) == 100
    assert nothing.would_write[-1].name == "n249"


def test_words_of_a_call_are_those_of_rbac() -> None:
    """Each is a rule that the driver pod's role has; `refusal` quotes it."""
    calls = [
        label_node("n1", LABELS),
        read_node("n1"),
        node_driver_call(NODE_DRIVER),
        node_driver_call(NODE_DRIVER, "status"),
        event_call(EVENT),
    ]
    assert [call.in_words() for call in calls] == [
        'patch nodes "n1"',
        'get nodes "n1"',
        'patch nodedrivers "edu.n1"',
        'patch nodedrivers/status "edu.n1"',
        'create events "edu.n1.5f"',
    ]
    for call in calls:
        hint = api_error(CALLER, call, Response(403)).hint
        assert f'resources: ["{call.resource}"]' in hint
        assert f'"{call.verb}"' in hint


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def test_where_no_thread_can_be_started_it_is_said_and_may_be_tried_again(
    cluster: StatusClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under a limit of processes: the deadline of a request is a thread."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Timer, "start", start)
        error = refused(cluster)

    assert str(error) == "cannot start a thread: can't start new thread"
    assert error.retryable
    assert cluster.patch_node_labels("n1", LABELS) == "uid-of-n1"
