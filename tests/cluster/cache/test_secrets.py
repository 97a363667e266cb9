"""Secrets that templates name: what is read, what is said, and what nobody asks for."""

from __future__ import annotations

import base64
import json
import threading
from pathlib import Path

import pytest

from cluster.cache.secrets import Secrets, read_secret, secrets_wanted
from cluster.kube.errors import ApiError
from tests.cluster.fakes.scripted import Asked, Said, ScriptedServer
from tests.cluster.fakes.stage_pods import LONG, snapshot

STAGE = {"name": "first", "manifests": "one", "reads": [{"secret": "token"}, {"service": "a"}]}


def secret(**entries: bytes) -> Said:
    data = {key: base64.b64encode(value).decode() for key, value in entries.items()}
    return Said(body=json.dumps({"kind": "Secret", "apiVersion": "v1", "data": data}))


def refusal(code: int) -> Said:
    status = {"kind": "Status", "apiVersion": "v1", "message": "refused", "code": code}
    return Said(code, json.dumps(status))


def test_only_named_secrets_are_wanted() -> None:
    assert secrets_wanted(snapshot(stages=[STAGE])) == {"token"}
    assert secrets_wanted(snapshot()) == frozenset()


def test_text_is_kept_and_what_is_no_text_is_left_out(tmp_path: Path) -> None:
    with ScriptedServer() as server:
        server.always = lambda _: secret(token=b"s3cret", key=b"\xff\xfe")
        found = read_secret(server.api(tmp_path), "nodeside", "token")
    assert found.data == {"token": "s3cret"}
    assert "s3cret" not in repr(found)


def test_a_refusal_has_the_commands_of_the_administrator(tmp_path: Path) -> None:
    with ScriptedServer() as server:
        server.always = lambda _: refusal(403)
        found = read_secret(server.api(tmp_path), "nodeside", "token")
    assert found.data is None
    assert found.error == (
        "the controller may not read Secret token; to let it: kubectl -n nodeside create role "
        "nodeside-controller-reads-token --verb=get --resource=secrets --resource-name=token && "
        "kubectl -n nodeside create rolebinding nodeside-controller-reads-token "
        "--role=nodeside-controller-reads-token --serviceaccount=nodeside:nodeside-controller"
    )


def test_one_that_is_not_there_is_said_and_an_outage_is_no_answer(tmp_path: Path) -> None:
    with ScriptedServer() as server:
        server.always = lambda _: refusal(404)
        found = read_secret(server.api(tmp_path), "nodeside", "token")
        assert found.error == "there is no Secret token in nodeside"
        server.always = lambda _: refusal(500)
        with pytest.raises(ApiError):
            read_secret(server.api(tmp_path, deadline=0.2), "nodeside", "token")


def test_a_change_wakes_and_an_outage_changes_nothing(tmp_path: Path) -> None:
    woken = threading.Semaphore(0)
    answers = [secret(a=b"1"), secret(a=b"1"), refusal(500), secret(a=b"2")]
    reads = threading.Semaphore(0)

    def answer(asked: Asked) -> Said:
        reads.release()
        return answers.pop(0) if len(answers) > 1 else answers[0]

    with ScriptedServer() as server:
        server.always = answer
        reader = Secrets(server.api(tmp_path), "nodeside", woken.release, pause=0.01)
        reader.read_secrets(["token"])
        try:
            assert woken.acquire(timeout=LONG)
            assert woken.acquire(timeout=LONG)
            assert reader.get_secrets()["token"].data == {"a": "2"}
            for _ in range(4):
                assert reads.acquire(timeout=LONG)
            assert not woken.acquire(timeout=0)
            reader.read_secrets([])
            assert reader.get_secrets() == {}
        finally:
            reader.stop()
