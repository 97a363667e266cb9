"""Who may read the metrics, by an API server that says what a test wrote down."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from cluster.manager.metrics_auth import AccessVerdict, TokenReviewer
from tests.cluster.fakes.scripted import Said, ScriptedServer

USER = {
    "username": "system:serviceaccount:monitoring:prometheus",
    "uid": "u1",
    "groups": ["system:serviceaccounts"],
    "extra": {"authentication.kubernetes.io/pod-name": ["p"]},
}
KNOWN = {"authenticated": True, "user": USER}
UNKNOWN = {"authenticated": False, "error": "token expired"}


def status(found: Mapping[str, Any]) -> Said:
    return Said(201, json.dumps({"status": found}))


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def reviews(server: ScriptedServer, now: list[float], tmp_path: Path) -> TokenReviewer:
    return TokenReviewer(server.api(tmp_path), now=lambda: now[0])


def asked(server: ScriptedServer) -> list[dict[str, Any]]:
    return [json.loads(each.body) for each in server.asked]


def test_who_is_known_and_allowed_may_read(server: ScriptedServer, reviews: TokenReviewer) -> None:
    server.script += [status(KNOWN), status({"allowed": True})]

    assert reviews.judge_request("Bearer t0ken", "/metrics") == AccessVerdict(HTTPStatus.OK)
    token, access = asked(server)
    assert token["spec"] == {"token": "t0ken"}
    assert access["spec"] == {
        "user": USER["username"],
        "uid": "u1",
        "groups": USER["groups"],
        "extra": USER["extra"],
        "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
    }


def test_who_is_known_and_not_allowed_is_told_what_allows_it(
    server: ScriptedServer, reviews: TokenReviewer
) -> None:
    server.script += [status(KNOWN), status({"allowed": False})]

    found = reviews.judge_request("bearer t0ken", "/metrics")

    assert found.status is HTTPStatus.FORBIDDEN
    assert found.message == (
        "system:serviceaccount:monitoring:prometheus may not get /metrics; the ClusterRole "
        "nodeside-metrics-reader allows it"
    )


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer  ", "Basic dXNlcg==", "t0ken"])
def test_no_token_is_unauthorized_and_nobody_is_asked(
    header: str, server: ScriptedServer, reviews: TokenReviewer
) -> None:
    assert reviews.judge_request(header, "/metrics").status is HTTPStatus.UNAUTHORIZED
    assert server.asked == []


def test_a_token_of_absurd_length_is_not_sent_on(
    server: ScriptedServer, reviews: TokenReviewer
) -> None:
    found = reviews.judge_request(f"Bearer {'x' * 20_000}", "/metrics")

    assert found.status is HTTPStatus.UNAUTHORIZED
    assert server.asked == []


@pytest.mark.parametrize("answer", [UNKNOWN, {}, {"authenticated": True, "user": {}}])
def test_a_token_that_the_api_server_does_not_know_is_unauthorized(
    answer: Mapping[str, Any], server: ScriptedServer, reviews: TokenReviewer
) -> None:
    server.script += [status(answer)]

    found = reviews.judge_request("Bearer expired", "/metrics")

    assert found.status is HTTPStatus.UNAUTHORIZED
    assert "does not know this token, or it has expired" in found.message


def test_a_verdict_is_kept_for_a_while_and_a_refusal_not_as_long(
    server: ScriptedServer, reviews: TokenReviewer, now: list[float]
) -> None:
    server.script += [status(KNOWN), status({"allowed": True})]
    for _ in range(3):
        assert reviews.judge_request("Bearer good", "/metrics").status is HTTPStatus.OK
    assert len(server.asked) == 2

    server.script += [status(UNKNOWN), status(UNKNOWN)]
    for _ in range(3):
        assert reviews.judge_request("Bearer bad", "/metrics").status is HTTPStatus.UNAUTHORIZED
    assert len(server.asked) == 3
    now[0] += 11
    assert reviews.judge_request("Bearer bad", "/metrics").status is HTTPStatus.UNAUTHORIZED
    assert reviews.judge_request("Bearer good", "/metrics").status is HTTPStatus.OK
    assert len(server.asked) == 4

    now[0] += 60
    server.script += [status(KNOWN), status({"allowed": False})]
    assert reviews.judge_request("Bearer good", "/metrics").status is HTTPStatus.FORBIDDEN


@pytest.mark.parametrize("answer", [Said(403), Said(500), Said(200, "no JSON"), Said(cut=True)])
def test_an_api_server_that_does_not_say_is_no_reason_to_let_anybody_in(
    answer: Said, server: ScriptedServer, reviews: TokenReviewer
) -> None:
    server.script += [answer]

    found = reviews.judge_request("Bearer t0ken", "/metrics")

    assert found.status is HTTPStatus.SERVICE_UNAVAILABLE
    server.script += [status(KNOWN), status({"allowed": True})]
    assert reviews.judge_request("Bearer t0ken", "/metrics").status is HTTPStatus.OK


def test_a_flood_of_made_up_tokens_is_stopped_before_the_api_server(
    server: ScriptedServer, reviews: TokenReviewer, now: list[float]
) -> None:
    server.always = lambda _: status(UNKNOWN)
    found = [reviews.judge_request(f"Bearer {i}", "/metrics").status for i in range(100)]

    assert found.count(HTTPStatus.UNAUTHORIZED) == len(server.asked) == 20
    assert found.count(HTTPStatus.TOO_MANY_REQUESTS) == 80
    now[0] += 1
    found = [reviews.judge_request(f"Bearer later-{i}", "/metrics").status for i in range(100)]
    assert found.count(HTTPStatus.UNAUTHORIZED) == 5
