"""The door to the API server: pages, repetitions, deadlines, tokens, and errors in words."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import SSLError

from cluster.kube.client import Watch, connect
from cluster.kube.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    NotFound,
    RequestInfo,
    TooLarge,
    Unreachable,
)
from cluster.kube.resources import DRIVERS, NODES
from cluster.kube.transport import translate_errors
from nodeside.errors import ExitCode
from tests.cluster.fakes.scripted import Said, ScriptedServer, event, gone, kubeconfig, page
from tests.console import LONG


def name_of(item: Mapping[str, Any]) -> str:
    return str(item["metadata"]["name"])


def status(code: int, message: str) -> Said:
    return Said(code, json.dumps({"kind": "Status", "code": code, "message": message}))


def test_a_list_follows_the_continue_token_and_keeps_only_what_is_wanted(tmp_path: Path) -> None:
    with ScriptedServer(Said(body=page("a", "b", more="tok")), Said(body=page("c"))) as server:
        found = server.api(tmp_path).list(NODES, name_of, selector="x=y")

    assert found.items == ["a", "b", "c"]
    assert found.resource_version == "7"
    assert server.asked[0].path == "/api/v1/nodes?labelSelector=x%3Dy&limit=500"
    assert server.asked[1].path.endswith("&limit=500&continue=tok")


def test_an_object_of_a_list_has_its_kind_as_one_of_a_watch_has_it(tmp_path: Path) -> None:
    """In a list of nodes, the API server says the kind once, and not in each of them."""
    seen: list[dict[str, Any]] = []
    watched = Said(body=event("ADDED", "a", "7"))
    with ScriptedServer(Said(body=page("a")), watched) as server:
        api = server.api(tmp_path)
        api.list(NODES, seen.append)
        seen += [each.object for each in api.watch(NODES, "7")]

    listed, told = seen
    assert (listed["apiVersion"], listed["kind"]) == ("v1", "Node")
    assert listed == told


def test_what_an_object_of_a_list_says_of_itself_stays(tmp_path: Path) -> None:
    """Custom resources say their kind there."""
    item = {"apiVersion": "nodeside.io/v1beta1", "kind": "Driver", "metadata": {"name": "edu"}}
    listed = json.dumps({"metadata": {}, "items": [item]})
    with ScriptedServer(Said(body=listed)) as server:
        assert server.api(tmp_path).list(DRIVERS, lambda each: each).items == [item]


def test_a_list_of_large_objects_is_read_in_smaller_pages(tmp_path: Path) -> None:
    """Who may make an ImageStream somewhere, or a pod, may make hundreds of large ones."""
    large = Said(body=page("a" * (33 << 20)))
    rest = [Said(body=page("a", more="tok")), Said(body=page("b"))]
    with ScriptedServer(large, *rest) as server:
        found = server.api(tmp_path).list(NODES, name_of)

    assert found.items == ["a", "b"]
    assert [asked.path.partition("?")[2] for asked in server.asked] == [
        "limit=500",
        "limit=62",
        "limit=62&continue=tok",
    ]


@pytest.mark.parametrize(
    ("letter", "mib"), [("\U0001f600", 9), pytest.param("\u6f22", 17, marks=pytest.mark.slow)]
)
def test_one_wide_character_makes_a_page_too_large_sooner(
    letter: str, mib: int, tmp_path: Path
) -> None:
    """Python gives every character of a text as many bytes as the widest of them takes."""
    large = Said(body=page("a" * (mib << 20), "wide").replace("wide", letter))
    with ScriptedServer(large, Said(body=page("a"))) as server:
        assert server.api(tmp_path).list(NODES, name_of).items == ["a"]

    assert [asked.path.partition("=")[2] for asked in server.asked] == ["500", "62"]


@pytest.mark.slow
def test_a_single_object_is_read_whatever_its_text_takes(tmp_path: Path) -> None:
    """Else whoever can make one large object, as a kubelet its Node, keeps all others from us."""
    name = "a" * (9 << 20)
    large = Said(body=page(f"{name}wide").replace("wide", "\U0001f600"))
    with ScriptedServer(*[large] * 4) as server:
        assert server.api(tmp_path).list(NODES, name_of).items == [f"{name}\U0001f600"]

    assert [asked.path.partition("=")[2] for asked in server.asked] == ["500", "62", "7", "1"]


def test_a_single_object_that_is_too_large_is_an_error_that_is_not_tried_again(
    tmp_path: Path,
) -> None:
    large = Said(body=page("a" * (33 << 20)))
    with ScriptedServer(*[large] * 4) as server, pytest.raises(TooLarge) as caught:
        server.api(tmp_path).list(NODES, name_of)

    assert str(caught.value) == "the answer to list nodes has more than 32768 KiB"
    assert [asked.path.partition("=")[2] for asked in server.asked] == ["500", "62", "7", "1"]
    assert server.pauses == []


def test_a_request_that_was_answered_429_waits_as_long_as_it_is_told(tmp_path: Path) -> None:
    busy = Said(429, "{}", {"Retry-After": "3"})
    with ScriptedServer(busy, Said(body='{"a": 1}')) as server:
        assert server.api(tmp_path).get(NODES, "n") == {"a": 1}

    assert server.pauses == [3.0]


def test_an_error_of_the_server_is_tried_again_ever_more_slowly(tmp_path: Path) -> None:
    with ScriptedServer(Said(500), Said(503), Said(502), Said(body="{}")) as server:
        server.api(tmp_path).get(NODES, "n")

    assert server.pauses == [0.1, 0.2, 0.4]


def test_nothing_is_tried_again_beyond_the_deadline(tmp_path: Path) -> None:
    busy = Said(429, '{"message": "slow down"}', {"Retry-After": "60"})
    with (
        ScriptedServer(busy) as server,
        pytest.raises(ApiError, match='asks to repeat the request to get nodes "n": slow down'),
    ):
        server.api(tmp_path, deadline=10).get(NODES, "n")

    assert server.pauses == []


def test_a_conflict_is_not_tried_again(tmp_path: Path) -> None:
    with ScriptedServer(status(409, "it was changed")) as server, pytest.raises(Conflict):
        server.api(tmp_path).merge_patch(NODES, "n", {})

    assert len(server.asked) == 1


def test_a_field_that_no_schema_has_is_refused_once_though_the_status_is_500(
    tmp_path: Path,
) -> None:
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
    words = "failed to create typed patch object (/x; v1): .dta: field not declared in schema"
    with ScriptedServer(status(500, words)) as server, pytest.raises(ApiError) as caught:
        server.api(tmp_path).apply(document)

    assert str(caught.value) == f'the API server refuses to patch configmaps "x": {words}'
    assert not caught.value.retryable
    assert len(server.asked) == 1


def test_an_apply_that_may_not_create_is_hinted_at_as_a_create(tmp_path: Path) -> None:
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
    words = 'configmaps "x" is forbidden: User "u" cannot create resource "configmaps"'
    with ScriptedServer(status(403, words)) as server, pytest.raises(Forbidden) as caught:
        server.api(tmp_path).apply(document)

    assert "kubectl auth can-i create configmaps" in caught.value.hint


def test_a_missing_rule_is_named_with_the_command_that_shows_it(tmp_path: Path) -> None:
    refusal = status(403, "drivers.nodeside.io is forbidden")
    with ScriptedServer(refusal) as server, pytest.raises(Forbidden) as caught:
        server.api(tmp_path).merge_patch(DRIVERS, "edu", {}, subresource="status")

    assert str(caught.value) == (
        'no permission to patch drivers/status "edu": drivers.nodeside.io is forbidden'
    )
    assert "kubectl auth can-i patch drivers.nodeside.io --subresource=status" in caught.value.hint
    assert caught.value.exit_code is ExitCode.CLUSTER
    assert len(server.asked) == 1


def test_missing_definitions_are_named(tmp_path: Path) -> None:
    with ScriptedServer(Said(404, "404 page not found")) as server, pytest.raises(NotFound) as got:
        server.api(tmp_path).list(DRIVERS, name_of)

    assert got.value.hint == "install the custom resource definitions: nodeside-cluster install"


def test_an_expired_token_is_read_again_once(tmp_path: Path) -> None:
    with ScriptedServer(Said(401), Said(body="{}")) as server:
        api = server.api(tmp_path, token="old")
        original = server.next

        def renewing(asked: Any) -> Said:
            said = original(asked)
            (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig(server.url, "new")))
            return said

        server.next = renewing  # type: ignore[method-assign]
        api.get(NODES, "n")

    assert [asked.headers["authorization"] for asked in server.asked] == [
        "Bearer old",
        "Bearer new",
    ]


def test_an_answer_that_breaks_off_is_asked_for_again(tmp_path: Path) -> None:
    with ScriptedServer(Said(body='{"a":', cut=True), Said(body='{"a": 1}')) as server:
        assert server.api(tmp_path).get(NODES, "n") == {"a": 1}


def test_an_answer_that_is_no_json_is_an_error_in_words(tmp_path: Path) -> None:
    with (
        ScriptedServer(Said(body="<html>proxy</html>")) as server,
        pytest.raises(
            Unreachable, match=r'the answer to get nodes "n" is not a JSON object: b.<html>'
        ),
    ):
        server.api(tmp_path).get(NODES, "n")


def test_an_answer_that_does_not_come_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    never = threading.Event()
    with (
        ScriptedServer(Said(body="{}", hold=never)) as server,
        pytest.raises(Unreachable, match=r'no answer from the API server to get nodes "n"'),
    ):
        server.api(tmp_path, deadline=0.2).get(NODES, "n")
    never.set()


def test_a_server_that_is_gone_is_said_in_one_line(tmp_path: Path) -> None:
    with ScriptedServer() as server:
        api = server.api(tmp_path, deadline=0.5)
    with pytest.raises(Unreachable) as caught:
        api.get(NODES, "n")

    assert str(caught.value) == (
        'no answer from the API server to get nodes "n": Connection refused'
    )
    assert "\n" not in str(caught.value)


def test_a_watch_gives_events_in_order_and_ends_with_the_answer(tmp_path: Path) -> None:
    body = event("ADDED", "a", "8") + event("BOOKMARK", "", "9") + event("DELETED", "a", "10")
    with ScriptedServer(Said(body=body)) as server:
        seen = [(e.kind, e.object["metadata"]["resourceVersion"])
                for e in server.api(tmp_path).watch(NODES, "7")]  # fmt: skip

    assert seen == [("ADDED", "8"), ("BOOKMARK", "9"), ("DELETED", "10")]
    assert "resourceVersion=7" in server.asked[0].path
    assert "allowWatchBookmarks=true" in server.asked[0].path


def test_an_object_is_read_however_deeply_its_managed_fields_nest(tmp_path: Path) -> None:
    deep = '{"f:a":' * 9990 + "{}" + "}" * 9990
    line = event("MODIFIED", "a", "8", more="DEEP").replace('"DEEP"', deep)
    script = [Said(body=line), Said(body='{"kind": "Node", "deep": DEEP}'.replace("DEEP", deep))]
    with ScriptedServer(*script) as server:
        (seen,) = server.api(tmp_path).watch(NODES, "7")
        read = server.api(tmp_path).get(NODES, "a")

    assert (seen.kind, seen.object["metadata"]["name"]) == ("MODIFIED", "a")
    assert read["kind"] == "Node"


def test_a_watch_that_is_too_old_raises_gone(tmp_path: Path) -> None:
    with ScriptedServer(Said(body=gone())) as server, pytest.raises(Gone, match="too old"):
        list(server.api(tmp_path).watch(NODES, "7"))


class InPieces:
    """A response to a watch that comes in small pieces, as TLS makes them."""

    def __init__(self, body: bytes) -> None:
        self._pieces = iter([body[at : at + 4096] for at in range(0, len(body), 4096)])

    def read1(self, _: int) -> bytes:
        return next(self._pieces, b"")

    def close(self) -> None:
        pass


def test_a_large_event_takes_time_in_proportion_to_its_size() -> None:
    """A kubelet may change a Node of 8 MB every second."""
    large, small = event("MODIFIED", "a" * (8 << 20), "8"), event("MODIFIED", "b", "9")
    response = cast("BaseHTTPResponse", InPieces((large + small).encode()))
    watch, began = Watch(RequestInfo("watch", "nodes"), response), time.thread_time()
    seen = [each.object["metadata"]["name"][:1] for each in watch]

    assert seen == ["a", "b"]
    assert time.thread_time() - began < 2.0  # seconds; a copy for each piece takes seven


def test_a_watch_is_ended_from_another_thread(tmp_path: Path) -> None:
    """It is being read, and the server does not end it."""
    never, reads = threading.Event(), threading.Event()
    with ScriptedServer(Said(body=event("ADDED", "a", "8"), hold=never)) as server:
        watch = server.api(tmp_path).watch(NODES, "7")
        read = watch._read_more

        def read_and_tell() -> bytes:
            reads.set()
            return read()

        watch._read_more = read_and_tell  # type: ignore[method-assign]

        def close() -> None:
            reads.wait(LONG)
            watch.close()

        closer = threading.Thread(target=close)
        closer.start()
        assert list(watch) == []
        closer.join()
        never.set()


def test_an_apply_is_forced_and_named_after_us(tmp_path: Path) -> None:
    document = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}
    with ScriptedServer(Said(body="{}")) as server:
        server.api(tmp_path).apply(document)

    [asked] = server.asked
    assert asked.path == "/api/v1/namespaces/x?fieldManager=nodeside-cluster&force=true"
    assert asked.headers["content-type"] == "application/apply-patch+yaml"
    assert json.loads(asked.body) == document


DRIVER = {"apiVersion": "nodeside.io/v1alpha1", "kind": "Driver", "metadata": {"name": "edu"}}


@pytest.mark.parametrize(
    ("send", "method", "kind"),
    [
        (lambda api: api.try_create(DRIVER), "POST", "application/json"),
        (
            lambda api: api.try_merge_patch(DRIVER, {"spec": {}}),
            "PATCH",
            "application/merge-patch+json",
        ),
        (lambda api: api.try_apply(DRIVER, "kubectl"), "PATCH", "application/apply-patch+yaml"),
    ],
)
def test_a_dry_run_stores_nothing_and_returns_the_warnings(
    tmp_path: Path, send: Any, method: str, kind: str
) -> None:
    warning = '299 - "every node, and \\"all\\" of them", 299 k8s "old"'
    with ScriptedServer(Said(body='{"spec": {"a": 1}}', headers={"Warning": warning})) as server:
        answer = send(server.api(tmp_path))

    [asked] = server.asked
    path, _, query = asked.path.partition("?")
    assert (asked.method, asked.headers["content-type"]) == (method, kind)
    assert "dryRun=All" in query.split("&")
    assert "fieldValidation=Strict" in query.split("&")
    assert path.endswith("/drivers" if method == "POST" else "/drivers/edu")
    assert answer.object == {"spec": {"a": 1}}
    assert answer.warnings == ('every node, and "all" of them', "old")


def test_a_deletion_asks_for_the_very_object_and_leaves_no_orphans(tmp_path: Path) -> None:
    with ScriptedServer(Said(body="{}")) as server:
        server.api(tmp_path).delete(NODES, "n", uid="u")

    assert json.loads(server.asked[0].body) == {
        "propagationPolicy": "Background",
        "preconditions": {"uid": "u"},
    }


def test_the_token_stands_in_no_message(tmp_path: Path) -> None:
    with ScriptedServer(Said(500)) as server, pytest.raises(ApiError) as caught:
        server.api(tmp_path, token="s3cret", deadline=0.01).get(NODES, "n")

    assert "s3cret" not in str(caught.value) + caught.value.hint


def test_a_certificate_of_another_authority_is_said_without_the_names_of_a_library() -> None:
    raised = SSLError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed (_ssl.c:1006)")
    with pytest.raises(Unreachable) as caught, translate_errors(RequestInfo("get", "version")):
        raise raised

    said = "no answer from the API server to get version: certificate verify failed"
    assert str(caught.value) == said
    assert caught.value.hint.startswith("the certificate authority of the kubeconfig is not that")


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ApiError, match=f"there is no kubeconfig {tmp_path}/none") as caught:
        connect(tmp_path / "none").get(NODES, "n")

    assert "--kubeconfig" in caught.value.hint
